// What was measured: a chart for each kind of series, over an hour or five years.

import { ask, count, day, empty, h, hour, length, mark, may, measured, moment, now, part, plural, stream, trouble } from './base.js';

const HOUR = 3600;
const RANGES = [['1 h', HOUR, '1h'], ['6 h', 6 * HOUR, '6h'], ['24 h', 24 * HOUR, '24h'], ['7 d', 168 * HOUR, '7d'], ['30 d', 720 * HOUR, '30d'], ['1 y', 8766 * HOUR, '366d'], ['5 y', 43_830 * HOUR, '1827d']];
const SHORTEST_S = 60;
const MARKS_TOLD = 12;
// The most that the agent lists at once.
const LISTED_MAX = 1000;

// Metrics that are told together, and the part of the machine that they belong to.
const FAMILIES = [
  ['Load', /^host_load\d+$/], ['Memory', /^host_memory_(total|available)_bytes$/], ['Swap', /^host_swap_/], ['Compressed memory', /^host_zram_/],
  ['File systems: space', /^host_filesystem_(size|free|available)_bytes$/], ['File systems: inodes', /^host_filesystem_inodes/], ['Open files', /^host_open_files/],
  ['Processes', /^host_(processes|tasks)/], ['Disk traffic', /^host_disk_(read|written)_bytes_per_second$/], ['Disk operations', /^host_disk_(reads|writes)_per_second$/], ['Disk waiting', /^host_disk_(read|write)_seconds$/],
];
const PARTS = [
  ['Processor', /^host_(cpu|load|pressure|throttled|under|temperature|fan)/], ['Memory', /^host_(memory|swap|zram|oom)/], ['Disk', /^host_(disk|filesystem)/],
  ['Network', /^host_network/], ['System', /^host_/], ['Agent', /^agent_/], ['Cluster', /^cluster_/], ['Others', /./],
];

// What is looked at; it stays while the page is open. `from` is null while the end is now.
const range = { last: 24 * HOUR, from: null, to: null };
let filter = '';

export const host = {
  role: 'anonymous',
  topics: ['ticks'],
  commands: () => {
    const [, , word] = RANGES.find(([, last]) => last === range.last && !range.from) ?? [];
    const iso = (at) => new Date(at * 1000).toISOString().replace(/\.\d+/, '');
    return [`pipeops-agent metrics query ${word ? `--last ${word}` : `--from ${iso(bounds().from)} --to ${iso(bounds().to)}`}`];
  },
  start(view) {
    view.charts = new Map();
    view.bounds = bounds;
    view.zoom = (from, to) => look(view, { from, to });
    // The agent searches where one answer does not hold all series; otherwise the page does, which is faster.
    view.list = () => {
      const query = new URLSearchParams({ limit: LISTED_MAX });
      if (view.isCut && filter) query.set('contains', filter);
      view.use('series', `/api/v1/series?${query}`, 30);
    };
    view.list();
    view.on.tick = (tick) => {
      for (const chart of view.charts.values()) figures(chart, tick);
    };
    view.on.reset = () => redrawCharts(view);
    view.timer = setInterval(() => {
      if (range.from || document.hidden || stream.state === 'stale') return;
      // As often as there can be something new to see.
      const every_s = Math.max(10, range.last / 500);
      for (const chart of view.charts.values()) if (chart.isSeen && performance.now() - chart.readAt > every_s * 1000) readChart(view, chart);
    }, 2000);
    view.signal.addEventListener('abort', () => {
      clearInterval(view.timer);
      for (const chart of view.charts.values()) endChart(chart);
    });
  },
  draw(view) {
    return part(view.resources.get('series'), 'the list of series', ({ series, total, continue: next }) => {
      view.isCut ||= Boolean(next);
      if (!series?.length && !filter) return empty('No measurements yet: the agent has just started.');
      const parts = partsOf(series.filter(({ key }) => key.toLowerCase().includes(filter.toLowerCase())));
      const charts = parts.flatMap(([, list]) => list);
      keep(view, charts);
      return [
        tools(view, parts.map(([name]) => name)),
        marks(view),
        charts.length === 0 && empty('No series matches.'),
        next && h('p', { class: 'faint' }, `${count(series.length)} of ${count(total)} series are listed, current ones first. Use the search to find others.`),
        parts.map(([name, list]) => h('section', { 'data-key': name, id: `part-${name}` }, h('h2', {}, name), h('div', { class: 'charts' }, list.map(({ id }) => chartOf(view, view.charts.get(id)))))),
        !may('viewer') && h('p', { class: 'foot' }, 'Cluster series require a login.'),
      ];
    });
  },
  drawn(view) {
    if (!view.charts) return;
    observe(view);
    // What the cursor is at stays in the tables that were drawn anew.
    for (const chart of view.charts.values()) if (chart.plot?.cursor.idx != null) point(chart, chart.plot.cursor.idx);
  },
};

function bounds() {
  return range.from ? { from: range.from, to: range.to } : { from: Math.floor(now() - range.last), to: Math.ceil(now()) };
}

function look(view, { last, from, to }) {
  if (last) {
    Object.assign(range, { last, from: null, to: null });
  } else {
    const middle = (from + to) / 2;
    const half = Math.max(SHORTEST_S, Math.min(to - from, RANGES.at(-1)[1])) / 2;
    Object.assign(range, { last: Math.round(half * 2), from: Math.floor(middle - half), to: Math.ceil(middle + half) });
  }
  redrawCharts(view);
  view.redraw();
}

// ---- which charts there are ------------------------------------------------------------------------------------------------

const words = (metric) => {
  const plain = metric.replace(/^(host|agent|cluster)_/, '').replace(/_(ratio|bytes|celsius|seconds|rpm|bits_per_second|bytes_per_second|per_second)$/, '').replaceAll('_', ' ');
  return `${plain[0].toUpperCase()}${plain.slice(1)}`.replace(/\b(cpu|oom|pid|pss)\b/gi, (word) => word.toUpperCase());
};

export function partsOf(series) {
  const charts = new Map();
  for (const one of series) {
    const [family] = FAMILIES.find(([, pattern]) => pattern.test(one.metric)) ?? [];
    const id = family ?? one.metric;
    if (!charts.has(id)) charts.set(id, { id, title: family ?? words(one.metric), metric: one.metric, series: [] });
    charts.get(id).series.push(one);
  }
  // By number, so that load5 comes before load15.
  const order = ({ key }) => key.replace(/\d+/g, (digits) => digits.padStart(9, '0'));
  for (const chart of charts.values()) chart.series.sort((a, b) => (order(a) < order(b) ? -1 : 1));
  const parts = PARTS.map(([name]) => [name, []]);
  for (const chart of charts.values()) parts[PARTS.findIndex(([, pattern]) => pattern.test(chart.metric))][1].push(chart);
  return parts.filter(([, list]) => list.length);
}

// Charts that are wanted stay as they are, others end.
function keep(view, wanted) {
  const ids = new Map(wanted.map((chart) => [chart.id, chart]));
  for (const [id, chart] of view.charts) {
    if (ids.has(id)) continue;
    endChart(chart);
    view.charts.delete(id);
  }
  for (const [id, chart] of ids) {
    const known = view.charts.get(id);
    const keys = chart.series.map(({ key }) => key).join('\n');
    if (!known) view.charts.set(id, { ...chart, keys, isSeen: false, readAt: 0, values: null, error: null });
    else if (known.keys !== keys) Object.assign(known, chart, { keys, readAt: 0, values: null });
  }
}

// ---- what is above the charts ----------------------------------------------------------------------------------------------

function tools(view, parts) {
  const { from, to } = bounds();
  const width = to - from;
  const move = (word, more, next) => h('button', { type: 'button', 'aria-label': more, title: more, onclick: () => look(view, next()) }, word);
  const isNow = !range.from;
  return h('div', { class: 'tools sticky' },
    h('div', { class: 'choice', role: 'group', 'aria-label': 'Range' }, RANGES.map(([word, last]) => h('button', { type: 'button', 'aria-pressed': String(isNow && range.last === last), onclick: () => look(view, { last }) }, word))),
    h('div', { class: 'choice', role: 'group', 'aria-label': 'Move and zoom' },
      move('←', 'Earlier', () => ({ from: from - width / 2, to: to - width / 2 })),
      move('→', 'Later', () => (to + width / 2 >= now() ? { last: range.last } : { from: from + width / 2, to: to + width / 2 })),
      move('+', 'Zoom in', () => ({ from: from + width / 4, to: to - width / 4 })),
      move('−', 'Zoom out', () => ({ from: from - width / 2, to: Math.min(now(), to + width / 2) }))),
    h('span', { class: 'faint' }, isNow ? `the last ${RANGES.find(([, last]) => last === range.last)?.[0] ?? length(range.last)}` : [moment(from), ' – ', moment(to), ' ', h('button', { type: 'button', onclick: () => look(view, { last: 24 * HOUR }) }, 'Back to now')]),
    h('label', { class: 'grow' }, 'Series ', h('input', { type: 'search', value: filter, placeholder: 'all', oninput() { sought(view, this.value); } })),
    h('label', {}, 'Go to ', h('select', { onchange() { document.getElementById(`part-${this.value}`)?.scrollIntoView(); } }, parts.map((name) => h('option', {}, name)))));
}

let typing = 0;
function sought(view, text) {
  filter = text;
  view.redraw();
  if (!view.isCut) return;
  clearTimeout(typing);
  typing = setTimeout(() => view.list(), 300);
}

const KIND = { boot: 'note', throttled: 'warning', deploy: 'ok', gap: 'unknown' };

function marks(view) {
  const list = view.marks ?? [];
  if (!list.length) return null;
  return h('details', { class: 'fold', 'data-key': 'marks' }, h('summary', {}, `${plural(list.length, 'mark')} in the charts: boots, throttling, deployments`),
    h('ol', { class: 'checks' }, list.slice(-MARKS_TOLD).reverse().map((it) => h('li', {}, mark(KIND[it.kind] ?? 'unknown', it.kind), moment(it.time), h('span', {}, it.text)))),
    list.length > MARKS_TOLD && h('p', { class: 'faint' }, `and ${count(list.length - MARKS_TOLD)} before`));
}

// ---- a chart --------------------------------------------------------------------------------------------------------------

// One chart: read when it is seen, drawn with uPlot, told as a table of figures beside it.

// The agent answers 16 series at once; more lines cannot be told apart either.
const LINES_MAX = 16;
const POINTS_MAX = 1000;
const HEIGHT = 150;
const COLOURS = 8;

// ---- uPlot, when the first chart is seen -----------------------------------------------------------------------------------

let loading = null;
function library() {
  return (loading ??= new Promise((found, failed) => {
    const script = h('script', { src: '/assets/uplot.js' });
    script.onload = () => found(globalThis.uPlot);
    script.onerror = () => {
      loading = null;
      script.remove();
      failed(Object.assign(new Error('cannot load the chart library'), { fix: 'try again when the agent answers' }));
    };
    document.head.append(script);
  }));
}

// ---- reading ---------------------------------------------------------------------------------------------------------------

// Two at a time: the agent reads from an SD card.
const queue = [];
let reading = 0;

function next() {
  while (reading < 2 && queue.length) {
    reading += 1;
    queue.shift()().finally(() => {
      reading -= 1;
      next();
    });
  }
}

function readChart(view, chart) {
  if (chart.isQueued) return;
  chart.isQueued = true;
  queue.push(async () => {
    chart.isQueued = false;
    if (view.signal.aborted || !chart.isSeen) return;
    chart.readAt = performance.now();
    const { from, to } = view.bounds();
    const query = new URLSearchParams({ from, to, points: Math.max(50, Math.min(POINTS_MAX, Math.round(chart.width ?? 400))) });
    for (const { key } of chart.series.slice(0, LINES_MAX)) query.append('key', key);
    const { keys } = chart;
    try {
      const values = await ask(`/api/v1/series/values?${query}`, { signal: view.signal });
      if (keys !== chart.keys) return;
      // In the order of the table, whatever the order of the answer; what is missing there is a gap.
      const found = new Map(values.series.map((line) => [line.key, line]));
      const gap = values.times.map(() => null);
      values.series = chart.series.slice(0, LINES_MAX).map(({ key }) => found.get(key) ?? { key, mean: gap, min: gap, max: gap });
      Object.assign(chart, { values, error: null, latest: null, bounds: { from, to } });
      view.marks = (values.marks ?? []).slice(-500);
      await plot(view, chart);
    } catch (error) {
      if (view.signal.aborted) return;
      chart.error = error;
    }
    view.redraw();
  });
  next();
}

function redrawCharts(view) {
  for (const chart of view.charts.values()) {
    chart.readAt = 0;
    if (chart.isSeen) readChart(view, chart);
  }
}

let watcher = null;
const owners = new WeakMap();

// Reads charts that come into sight.
function observe(view) {
  watcher ??= new IntersectionObserver((entries) => {
    for (const { target, isIntersecting, boundingClientRect } of entries) {
      const { view, chart } = owners.get(target) ?? {};
      if (!chart || view.signal.aborted) continue;
      chart.isSeen = isIntersecting;
      chart.width = boundingClientRect.width;
      if (isIntersecting && !chart.readAt) readChart(view, chart);
    }
  }, { rootMargin: '150px' });
  for (const element of document.querySelectorAll('.plot')) {
    const chart = view.charts.get(element.dataset.chart);
    if (!chart || (chart.element === element && chart.isWatched)) continue;
    Object.assign(chart, { element, isWatched: true });
    owners.set(element, { view, chart });
    watcher.observe(element);
    sizes.observe(element);
  }
}

const sizes = new ResizeObserver((entries) => {
  for (const { target, contentRect } of entries) {
    const { chart } = owners.get(target) ?? {};
    if (chart?.plot && contentRect.width > 0) chart.plot.setSize({ width: Math.floor(contentRect.width), height: HEIGHT });
  }
});

function endChart(chart) {
  chart.plot?.destroy();
  chart.plot = null;
  if (chart.element) {
    watcher?.unobserve(chart.element);
    sizes.unobserve(chart.element);
    owners.delete(chart.element);
  }
}

// A changed colour scheme, a changed drawing.
const dark = matchMedia('(prefers-color-scheme: dark)');
dark.addEventListener('change', () => {
  for (const element of document.querySelectorAll('.plot')) {
    const { view, chart } = owners.get(element) ?? {};
    if (chart?.values) plot(view, chart);
  }
});

// ---- drawing ---------------------------------------------------------------------------------------------------------------

function ticks(_, splits, axis, space, step) {
  const two = (number) => String(number).padStart(2, '0');
  return splits.map((at) => {
    const date = new Date(at * 1000);
    const isMidnight = date.getHours() + date.getMinutes() + date.getSeconds() === 0;
    if (step >= 27 * 86400) return `${date.getFullYear()}-${two(date.getMonth() + 1)}`;
    if (step >= 86400 || isMidnight) return `${two(date.getMonth() + 1)}-${two(date.getDate())}`;
    return step >= 60 ? `${two(date.getHours())}:${two(date.getMinutes())}` : hour(date);
  });
}

async function plot(view, chart) {
  const uPlot = await library();
  const { element, values } = chart;
  // What is being selected stays as it is.
  if (view.signal.aborted || !element?.isConnected || !element.clientWidth || chart.plot?.select.width) return;
  const style = getComputedStyle(element);
  const colour = (name) => style.getPropertyValue(`--${name}`).trim();
  const signature = `${dark.matches} ${chart.keys}`;
  const isOne = values.series.length === 1;
  const columns = values.series.flatMap((line) => (isOne ? [line.mean, line.min, line.max] : [line.mean]));
  const data = [values.times, ...columns];
  if (chart.plot && chart.signature === signature && chart.plot.series.length === data.length) {
    chart.plot.setData(data);
    return;
  }
  chart.plot?.destroy();
  chart.signature = signature;
  const axis = { stroke: colour('faint'), grid: { stroke: colour('line'), width: 1 }, ticks: { show: false }, font: '11px system-ui, sans-serif' };
  const lines = isOne
    ? [{ stroke: colour('c0'), width: 1.5 }, { stroke: null, points: { show: false } }, { stroke: null, points: { show: false } }]
    : values.series.map((_, at) => ({ stroke: colour(`c${at % COLOURS}`), width: 1.5, dash: at < COLOURS ? undefined : [4, 3] }));
  const isFlag = /_(throttled|under_voltage|ready|pressure|synchronised|read_only)$/.test(chart.metric);
  chart.plot = new uPlot({
    width: element.clientWidth,
    height: HEIGHT,
    legend: { show: false },
    padding: [8, 8, 0, 0],
    cursor: { y: false, sync: { key: 'host' }, drag: { x: true, y: false, setScale: false }, points: { size: 6 } },
    scales: {
      x: { range: () => [chart.bounds.from, chart.bounds.to] },
      y: { range: (_, low, high) => scale(uPlot, chart, isFlag, low, high) },
    },
    axes: [{ ...axis, size: 26, values: ticks }, { ...axis, size: 62, values: (_, splits) => splits.map((at) => measured(chart.metric, at)) }],
    series: [{}, ...lines],
    bands: isOne ? [{ series: [3, 2], fill: colour('band') }] : [],
    hooks: {
      setSelect: [(it) => {
        if (it.select.width < 4) return;
        const [from, to] = [it.posToVal(it.select.left, 'x'), it.posToVal(it.select.left + it.select.width, 'x')];
        it.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
        view.zoom(from, to);
      }],
      setCursor: [(it) => point(chart, it.cursor.idx)],
      drawAxes: [(it) => drawMarks(it, chart.values.marks ?? [], colour)],
    },
  }, data, element);
}

// From zero, but for what has no zero that means something; never without height.
export function scale(uPlot, chart, isFlag, low, high) {
  if (low == null) return [0, 1];
  if (isFlag) return [0, Math.max(1, high)];
  if (chart.metric.endsWith('_celsius')) return uPlot.rangeNum(low, high === low ? high + 1 : high, 0.1, true);
  // An axis of zeros: of bytes up to 1 MB, since a tick of 1 B would only look like a value.
  return [Math.min(0, low), high > 0 ? high * 1.08 : low < 0 ? 0 : /_bytes(_per_second)?$/.test(chart.metric) ? 1e6 : 1];
}

function drawMarks(it, marks, colour) {
  const { ctx, bbox } = it;
  const kinds = { boot: 'c0', throttled: 'warning', deploy: 'ok', gap: 'faint' };
  ctx.save();
  ctx.lineWidth = devicePixelRatio;
  ctx.setLineDash([3 * devicePixelRatio, 3 * devicePixelRatio]);
  for (const { time, kind } of marks) {
    const x = Math.round(it.valToPos(time, 'x', true));
    if (x < bbox.left || x > bbox.left + bbox.width) continue;
    ctx.strokeStyle = colour(kinds[kind] ?? 'faint');
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
  }
  ctx.restore();
}

// ---- figures ---------------------------------------------------------------------------------------------------------------

// What the cursor is at, in the column that otherwise has the newest value.
function point(chart, at) {
  const table = chart.element?.parentElement?.querySelector('table');
  if (!table || !chart.values) return;
  const time = at == null ? null : chart.values.times[at];
  const date = time == null ? null : new Date(time * 1000);
  table.querySelector('th.at').textContent = date ? hour(date) : 'Last';
  table.querySelector('th.at').title = date ? day(date) : '';
  table.querySelectorAll('td.at').forEach((cell, line) => {
    const series = chart.values.series[line];
    if (series) cell.textContent = measured(chart.metric, time == null ? last(chart, series) : series.mean[at]);
  });
}

const last = (chart, series) => chart.latest?.[series.key] ?? series.mean.findLast((value) => value != null);

// The newest values, as they come.
function figures(chart, { values }) {
  if (!chart.isSeen || !chart.values || chart.bounds.to < now() - 3600) return;
  chart.latest = { ...chart.latest, ...values };
  if (chart.plot?.cursor.idx == null) point(chart, null);
}

function name(chart, { key, metric, labels }) {
  // Labels are pairs, or an object.
  const text = (Array.isArray(labels) ? labels.map(([, value]) => value) : Object.values(labels ?? {})).join(' · ');
  if (new Set(chart.series.map((it) => it.metric)).size < 2) return text || 'value';
  const own = metric.replace(/^(host|agent|cluster)_/, '').replace(/_(bytes|seconds|per_second|bytes_per_second)$/, '').replaceAll('_', ' ');
  return text ? `${own} · ${text}` : own;
}

function chartOf(view, chart) {
  const { values, error, series } = chart;
  const shown = series.slice(0, LINES_MAX);
  const known = new Map((values?.series ?? []).map((line) => [line.key, line]));
  const is = (line, find) => {
    const numbers = find === 'mean' ? line.mean : line[find];
    const real = numbers.filter((value) => value != null);
    if (!real.length) return null;
    if (find === 'min') return real.reduce((one, other) => Math.min(one, other));
    if (find === 'max') return real.reduce((one, other) => Math.max(one, other));
    return real.reduce((one, other) => one + other, 0) / real.length;
  };
  const cell = (one, find) => {
    const line = known.get(one.key);
    return line ? measured(chart.metric, find === 'last' ? last(chart, line) : is(line, find)) : '–';
  };
  const isEmpty = values && !values.series.some((line) => line.mean.some((value) => value != null));
  return h('article', { class: 'chart', 'data-key': chart.id },
    h('h3', {}, chart.title, ' ', h('code', { class: 'faint' }, chart.metric)),
    h('div', { class: 'plot', 'data-own': '', 'data-chart': chart.id, role: 'img', 'aria-label': `Chart of ${chart.title}; its values are in the following table` }),
    (isEmpty || (!values && !error)) && h('p', { class: 'over' }, values ? 'No measurements in this range.' : 'Reading …'),
    error && trouble(error, () => readChart(view, chart)),
    h('table', { class: 'figures' },
      h('caption', { class: 'unseen' }, `Values of ${chart.title}`),
      h('thead', {}, h('tr', {}, h('th', { scope: 'col' }, 'Series'), h('th', { scope: 'col', class: 'number at' }, 'Last'), ['Min', 'Mean', 'Max'].map((word) => h('th', { scope: 'col', class: 'number' }, word)))),
      h('tbody', {}, shown.map((one, at) => h('tr', {}, h('th', { scope: 'row' }, h('span', { class: `swatch c${at % COLOURS}${at < COLOURS ? '' : ' dashed'}`, 'aria-hidden': 'true' }), name(chart, one)),
        ['last', 'min', 'mean', 'max'].map((find) => h('td', { class: find === 'last' ? 'number at' : 'number' }, cell(one, find))))))),
    series.length > shown.length && h('p', { class: 'faint' }, `${shown.length} of ${series.length} series are shown: narrow the search above.`));
}

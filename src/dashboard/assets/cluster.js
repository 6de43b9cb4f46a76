// The cluster: nodes, namespaces, workloads and pods, a page at a time, and the log of a container.

import { age, bytes, count, draw, empty, facts, h, length, mark, pager, part, plural, Refusal, section, sentence, table, trouble } from './base.js';

const wanted = { namespace: '', contains: '' };

export const cluster = {
  role: 'viewer',
  commands: (view) => (isLog(view) ? [`pipeops-agent logs -f --pod ${view.words[2]}/${view.words[3]}`] : ['pipeops-agent status', 'kubectl get pods -A']),
  start(view) {
    if (isLog(view)) {
      startLog(view);
      return;
    }
    view.lists = {};
    view.use('cluster', '/api/v1/cluster', 10);
    view.use('k3s', '/api/v1/k3s', 5);
    list(view, 'workloads');
    list(view, 'pods');
  },
  end: endLog,
  draw(view) {
    if (isLog(view)) return drawLog(view);
    const cluster = view.resources.get('cluster');
    return [k3s(view.resources.get('k3s')), part(cluster, 'the cluster', (told) => [
      told.state !== 'ready' && h('p', { class: 'verdict' }, mark(told.state === 'none' ? 'unknown' : 'critical', ''), sentence(`${STATE[told.state] ?? told.state}${told.why ? `: ${told.why}` : ''}`)),
      told.state === 'unreachable' && h('p', { class: 'foot' }, 'Last known state: ', age(told.at), '.'),
      section('Nodes', nodes(told.nodes ?? [])),
      section('Namespaces', namespaces(view, told.namespaces ?? [])),
      told.state !== 'none' && [
        section('Workloads', listed(view, 'workloads', workloads)),
        section('Pods', search(view, told.namespaces ?? []), listed(view, 'pods', pods)),
      ],
    ])];
  },
};

const isLog = (view) => view.words[1] === 'logs' && view.words.length >= 4;
const STATE = { none: 'no cluster is configured; set KUBECONFIG or agent.kubeconfig', connecting: 'connecting to the API server', unreachable: 'the API server does not answer' };

// ---- k3s of this machine, where it is managed, in the words of k3s status ----

function k3s({ data }) {
  const [head, ...rows] = data?.rows ?? [];
  return head && section('k3s on this machine', h('p', { class: 'verdict' }, mark(head.state, ''), h('b', {}, sentence(head.value))),
    facts(...rows.map((it) => [it.title, it.value, it.details.map((text) => detail(text))])));
}

const detail = (...words) => h('span', { class: 'detail' }, words);

// ---- lists that come in pages of 200 ----

function list(view, name) {
  const pages = { before: [], at: null };
  view.lists[name] = pages;
  pages.read = () => {
    const query = new URLSearchParams();
    if (wanted.namespace) query.set('namespace', wanted.namespace);
    if (wanted.contains && name === 'pods') query.set('contains', wanted.contains);
    if (pages.at) query.set('continue', pages.at);
    const found = view.use(name, `/api/v1/cluster/${name}${query.size ? `?${query}` : ''}`, 10);
    pages.next = null;
    pages.forward = () => go([...pages.before, pages.at], found.data?.continue);
    pages.back = () => go(pages.before.slice(0, -1), pages.before.at(-1));
  };
  const go = (before, at) => {
    Object.assign(pages, { before, at });
    pages.read();
    view.redraw();
  };
  pages.first = () => go([], null);
  pages.read();
}

function listed(view, name, show) {
  const pages = view.lists[name];
  return part(view.resources.get(name), name, (told) => {
    pages.next = told.continue;
    const rows = told[name] ?? [];
    const isPaged = pages.before.length > 0 || pages.next;
    if (!rows.length && !isPaged) return empty(wanted.namespace || (name === 'pods' && wanted.contains) ? `No ${name} match.` : `There are no ${name}.`);
    return [show(rows, view), isPaged && pager(pages, `page ${pages.before.length + 1}${pages.next ? '' : ', the last'}`)];
  });
}

let typing = 0;
function search(view, all) {
  const choose = (namespace) => {
    wanted.namespace = namespace;
    for (const pages of Object.values(view.lists)) pages.first();
  };
  view.choose = choose;
  // A namespace that is gone stays chosen until somebody chooses another one.
  const names = [...new Set([...all.map(({ name }) => name), wanted.namespace].filter(Boolean))];
  return h('div', { class: 'tools' },
    h('label', {}, 'Namespace ', h('select', { id: 'namespace', 'data-value': wanted.namespace, onchange() { choose(this.value); } }, h('option', { value: '', selected: !wanted.namespace }, 'all'), names.map((name) => h('option', { value: name, selected: name === wanted.namespace }, name)))),
    h('label', {}, 'Name contains ', h('input', {
      type: 'search', value: wanted.contains, maxlength: 200, oninput() {
        clearTimeout(typing);
        typing = setTimeout(() => {
          wanted.contains = this.value.trim();
          view.lists.pods.first();
        }, 250);
      },
    })));
}

// ---- tables ----

const share = (percent) => (percent == null ? h('span', { class: 'faint' }, 'unknown') : [h('meter', { min: 0, max: 100, high: 85, value: percent, 'aria-hidden': 'true' }), ` ${Math.round(percent)} %`]);

function nodes(list) {
  if (!list.length) return empty('No nodes.');
  return table('Nodes', [
    ['Node', (it) => h('b', { class: 'break' }, it.name)],
    ['State', (it) => (it.ready == null ? [mark('unknown', ''), 'unknown'] : it.ready ? [mark('ok', ''), 'ready'] : [mark('critical', ''), 'not ready'])],
    ['Conditions', (it) => (it.conditions?.length ? it.conditions.map(({ kind, text }) => detail(h('b', {}, kind), text && `: ${text}`)) : h('span', { class: 'faint' }, 'none')), 'wide'],
    ['Roles', (it) => it.roles],
    ['Processor', (it) => share(it.cpu_percent), 'number'],
    ['Memory', (it) => [share(it.memory_percent), it.memory_bytes != null && detail(`of ${bytes(it.memory_bytes)}`)], 'number'],
    ['Pods', (it) => count(it.pods), 'number short'],
    ['Version', (it) => [it.version, detail(it.address)]],
    ['Age', (it) => length(it.age_s), 'number'],
  ], list, { key: (it) => it.name });
}

function namespaces(view, list) {
  if (!list.length) return empty('No namespaces.');
  return h('details', { class: 'fold', open: list.length <= 12, 'data-key': 'namespaces' }, h('summary', {}, plural(list.length, 'namespace')), table('Namespaces', [
    ['Namespace', (it) => h('button', {
      type: 'button', class: 'link', onclick() {
        view.choose(it.name);
        const field = document.getElementById('namespace');
        field.value = it.name;
        field.focus();
      },
    }, it.name)],
    ['Pods', (it) => count(it.pods), 'number short'],
    ['Ready', (it) => count(it.running), 'number short'],
    ['Not ready', (it) => some(it.not_ready, 'warning'), 'number short'],
    ['Pending', (it) => some(it.pending, 'warning'), 'number short'],
    ['Failed', (it) => some(it.failed, 'critical'), 'number short'],
    ['Restarts', (it) => count(it.restarts), 'number short'],
  ], list, { key: (it) => it.name }));
}

const some = (number, state) => (number ? h('b', {}, mark(state, ''), count(number)) : count(number ?? 0));

function workloads(list) {
  return table('Workloads', [
    ['Workload', (it) => [h('b', { class: 'break' }, it.name), detail(it.namespace)]],
    ['Kind', (it) => it.kind],
    ['Ready', (it) => [mark(it.ready >= it.wanted ? 'ok' : it.ready ? 'warning' : 'critical', it.ready >= it.wanted ? 'all ready' : 'not all ready'), `${count(it.ready)} of ${count(it.wanted)}`], 'number short'],
    ['Age', (it) => length(it.age_s), 'number'],
  ], list, { key: (it) => `${it.namespace}/${it.kind}/${it.name}` });
}

const FINE = ['Running', 'Succeeded'];

function pods(list) {
  return table('Pods', [
    ['Pod', (it) => [h('b', { class: 'break' }, it.name), detail(it.namespace)]],
    ['Phase', (it) => {
      const [ready, all] = String(it.ready ?? '').split('/');
      const state = it.phase === 'Failed' ? 'critical' : !FINE.includes(it.phase) || (it.phase === 'Running' && ready !== all) ? 'warning' : 'ok';
      return [mark(state, ''), it.phase];
    }],
    ['Ready', (it) => it.ready, 'number short'],
    ['Restarts', (it) => count(it.restarts), 'number short'],
    ['Last reason', (it) => it.last_reason ?? h('span', { class: 'faint' }, '–')],
    ['Node', (it) => it.node ?? '–', 'node'],
    ['Age', (it) => length(it.age_s), 'number'],
    ['Logs', (it) => (it.containers ?? []).map((container) => [h('a', { href: `#/cluster/logs/${[it.namespace, it.name, container].map(encodeURIComponent).join('/')}`, class: 'target', 'aria-label': `Log of ${container} in ${it.name}` }, container), ' '])],
  ], list, { key: (it) => `${it.namespace}/${it.name}` });
}

// ---- the log of a container ------------------------------------------------------------------------------------------------

// The log of a container: read or followed, filtered, downloaded. However much comes, a bounded number of lines is kept and shown, and
// nothing of it is obeyed: escape sequences go, other control characters become visible, what is too long is cut.

const LINES_MAX = 5000;
const SHOWN_MAX = 1000;
const LINE_LETTERS_MAX = 4096;

const choice = { tail: 200, follow: true, previous: false, filter: '', wrap: true };

function startLog(view) {
  const [, , namespace, pod, container] = view.words;
  view.log = { namespace, pod, container, lines: [], received: 0, state: 'reading', error: null, isDue: false };
  readLog(view);
}

function endLog(view) {
  view.log?.cancel?.abort();
}

function path(log, more) {
  const query = { namespace: log.namespace, pod: log.pod, tail: choice.tail, previous: Number(choice.previous), ...more };
  if (log.container) query.container = log.container;
  return `/api/v1/cluster/logs?${new URLSearchParams(query)}`;
}

async function readLog(view) {
  const { log } = view;
  log.cancel?.abort();
  const cancel = new AbortController();
  Object.assign(log, { cancel, lines: [], received: 0, state: 'reading', error: null });
  view.redraw();
  later(view);
  try {
    const answer = await fetch(path(log, { follow: Number(choice.follow) }), { cache: 'no-store', signal: AbortSignal.any([view.signal, cancel.signal]) });
    if (!answer.ok) {
      const told = await answer.json().catch(() => ({}));
      throw new Refusal(answer.status, told.error ?? `the agent answers ${answer.status}`, told.fix);
    }
    log.state = choice.follow ? 'following' : 'reading';
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = '';
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      const lines = (rest + value).split('\n');
      // A line that never ends is cut here, its rest is a line of its own.
      rest = lines.pop();
      if (rest.length > LINE_LETTERS_MAX) {
        lines.push(rest);
        rest = '';
      }
      take(view, lines);
    }
    if (rest) take(view, [rest]);
    log.state = 'ended';
  } catch (error) {
    if (cancel.signal.aborted || view.signal.aborted) return;
    log.state = 'broken';
    log.error = error instanceof Refusal ? error : Object.assign(new Error('the log stream ended unexpectedly'), { fix: 'the agent, the cluster or the Pod is gone: try again' });
  }
  later(view);
  view.redraw();
}

// Sequences that terminals obey, then control characters, as their pictures.
const SEQUENCE = /\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])|\x9b[0-?]*[ -/]*[@-~]/g;
const CONTROL = /[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]/g;

function tame(line) {
  const cut = line.length > LINE_LETTERS_MAX ? `${line.slice(0, LINE_LETTERS_MAX)} … (cut)` : line;
  return cut.replace(/\r$/, '').replace(SEQUENCE, '').replace(CONTROL, (letter) => (letter < ' ' ? String.fromCharCode(0x2400 + letter.charCodeAt(0)) : '\ufffd'));
}

function take(view, lines) {
  const { log } = view;
  log.received += lines.length;
  for (const line of lines.slice(-LINES_MAX)) log.lines.push(tame(line));
  if (log.lines.length > LINES_MAX) log.lines.splice(0, log.lines.length - LINES_MAX);
  later(view);
}

// Many lines in one frame are one change of the document.
function later(view) {
  if (view.log.isDue) return;
  view.log.isDue = true;
  requestAnimationFrame(() => {
    view.log.isDue = false;
    show(view);
  });
}

function show(view) {
  const box = document.getElementById('log');
  if (!box || view.signal.aborted) return;
  const { log } = view;
  const filter = choice.filter.toLowerCase();
  const found = filter ? log.lines.filter((line) => line.toLowerCase().includes(filter)) : log.lines;
  const shown = found.slice(-SHOWN_MAX);
  const isAtEnd = box.scrollHeight - box.scrollTop - box.clientHeight < 40;
  // One text node however many lines: nothing else costs as little.
  box.firstChild.data = shown.length ? shown.join('\n') : filter ? 'No line matches.' : log.state === 'reading' ? 'Reading …' : 'The container has not logged anything.';
  if (isAtEnd) box.scrollTop = box.scrollHeight;
  draw(document.getElementById('log-count'), says(log, found.length, shown.length));
}

function says(log, found, shown) {
  const state = { reading: 'Reading', following: 'Following', ended: 'Ended', broken: 'Interrupted' }[log.state];
  return [`${state}: ${plural(log.received, 'line')}`, choice.filter && `, ${count(found)} of the newest ${count(log.lines.length)} match`, found > shown && `; the newest ${count(shown)} are shown, the download has the newest ${count(LINES_MAX)}`, '.'];
}

function drawLog(view) {
  const { log } = view;
  const again = () => readLog(view);
  const option = (name, word) => h('label', {}, h('input', { type: 'checkbox', checked: choice[name], onchange() { choice[name] = this.checked; if (name === 'wrap') view.redraw(); else again(); } }), ` ${word}`);
  return [
    h('p', {}, h('a', { href: '#/cluster' }, '← Cluster')),
    h('h2', { class: 'break' }, `${log.namespace}/${log.pod}`, log.container && ` · ${log.container}`),
    h('div', { class: 'tools' },
      h('label', {}, 'Lines ', h('select', { onchange() { choice.tail = Number(this.value); again(); } }, [200, 1000, 5000].map((lines) => h('option', { value: lines, selected: lines === choice.tail }, count(lines))))),
      option('follow', 'follow'), option('previous', 'previous container'), option('wrap', 'wrap'),
      h('label', { class: 'grow' }, 'Filter ', h('input', { type: 'search', value: choice.filter, oninput() { choice.filter = this.value; show(view); } })),
      h('a', { class: 'button', href: path(log, { follow: 0, tail: LINES_MAX }), download: `${log.namespace}_${log.pod}_${log.container ?? ''}.log` }, 'Download')),
    log.error && trouble(log.error, again),
    h('pre', { id: 'log', class: choice.wrap ? 'log wrap' : 'log', 'data-own': '', tabindex: 0, role: 'region', 'aria-label': `Log of ${log.pod}` }, 'Reading …'),
    h('p', { id: 'log-count', class: 'foot', 'data-own': '' }),
  ];
}

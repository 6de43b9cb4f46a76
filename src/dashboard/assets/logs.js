// The log of a container, of the cluster or of an app: read or followed, filtered, downloaded. However much comes, a bounded number of
// lines is kept and shown, and nothing of it is obeyed: escape sequences go, other control characters become visible, what is too long is
// cut.

import { count, draw, empty, h, part, plural, Refusal, trouble } from './base.js';

const LINES_MAX = 5000;
const SHOWN_MAX = 1000;
const LINE_LETTERS_MAX = 4096;

const choice = { tail: 200, follow: true, previous: false, filter: '', wrap: true };

// #/cluster/logs/NAMESPACE/POD/CONTAINER; of an app #/apps/NAME/logs, where the most telling Pod is taken, and the same behind it.
const isOfApp = (view) => view.words[0] === 'apps';

export const logs = {
  role: 'viewer',
  commands: ({ words: [page, app, namespace, pod] }) => [page === 'apps' ? `pipeops-agent apps logs ${app}` : `pipeops-agent logs -f --pod ${namespace}/${pod}`],
  start(view) {
    if (isOfApp(view)) view.use('pods', `/api/v1/apps/${encodeURIComponent(view.words[1])}/pods`, 5);
    const named = view.words.slice(isOfApp(view) ? 3 : 2);
    if (named.length > 1) open(view, named);
  },
  end: (view) => view.log?.cancel?.abort(),
  drawn(view) {
    // The lines may be here before the Pods are.
    if (view.log && !document.getElementById('log-count')?.hasChildNodes()) later(view);
  },
  draw(view) {
    if (!isOfApp(view)) return [back('#/cluster', 'Cluster'), view.log && drawLog(view)];
    const [, app] = view.words;
    return [back(`#/apps/${app}`, app), part(view.resources.get('pods'), 'the Pods', ({ pods }) => {
      const first = pods?.[0];
      if (!view.log && first) open(view, [first.namespace, first.name, first.containers?.[0]]);
      return view.log ? [choose(view, pods), drawLog(view)] : empty(`${app} has no Pods.`);
    })];
  },
};

const back = (href, name) => h('p', {}, h('a', { href }, `← ${name}`));

function open(view, [namespace, pod, container]) {
  view.log = { namespace, pod, container, lines: [], received: 0, state: 'reading', error: null, isDue: false };
  readLog(view);
}

// The Pods of an app, the most telling first. One that is gone stays chosen until somebody chooses another one.
function choose({ words: [, app], log }, pods) {
  const all = pods.flatMap((pod) => (pod.containers ?? []).map((container) => [[pod.namespace, pod.name, container].map(encodeURIComponent).join('/'), `${pod.name} · ${container}${pod.ready ? '' : ', not ready'}${pod.restarts ? `, ${plural(pod.restarts, 'restart')}` : ''}`]));
  const chosen = [log.namespace, log.pod, log.container].map(encodeURIComponent).join('/');
  if (!all.some(([value]) => value === chosen)) all.unshift([chosen, `${log.pod} · ${log.container}, gone`]);
  return h('div', { class: 'tools' }, h('label', {}, 'Pod ', h('select', { onchange() { location.hash = `#/apps/${app}/logs/${this.value}`; } }, all.map(([value, word]) => h('option', { value, selected: value === chosen }, word)))));
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

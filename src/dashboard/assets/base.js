// What every page stands on: elements from data, words for numbers and times, what is asked of the agent and heard from it, and the parts
// that pages have in common.
//
// Data becomes text nodes and nothing else: no string is ever read as markup. A page is drawn anew from its data and then brought
// into the document by the smallest change, so that focus, selection, scrolling and what is being typed stay where they are.

// An element. In `properties`, on… are listeners, class and the rest are attributes; null, false and undefined are left out.
export function h(tag, properties, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (name.startsWith('on')) (element.handlers ??= {})[name.slice(2)] = value;
    else if (value === true) element.setAttribute(name, '');
    else if (value != null && value !== false) element.setAttribute(name, value);
  }
  element.append(...flat(children));
  return element;
}

const flat = (children) => children.flat(Infinity).filter((child) => child != null && child !== false && child !== '');

// Listeners live on the elements, but only the document listens: a drawn element can take over the listeners of its successor.
export function listen(root) {
  for (const type of ['click', 'input', 'change', 'submit', 'scroll', 'toggle', 'close']) {
    root.addEventListener(type, (event) => {
      for (let at = event.target; at && at !== root; at = at.parentNode) {
        const handler = at.handlers?.[type];
        if (!handler) continue;
        if (type === 'submit') event.preventDefault();
        handler.call(at, event);
        return;
      }
    }, type === 'scroll' || type === 'toggle' || type === 'close');
  }
}

// Brings the children of `parent` to what `wanted` says. An element with data-own keeps its own children.
export function draw(parent, ...wanted) {
  const next = flat(wanted).map((child) => (typeof child === 'object' ? child : document.createTextNode(child)));
  const keyed = new Map();
  for (const child of parent.childNodes) if (child.dataset?.key) keyed.set(child.dataset.key, child);
  let at = parent.firstChild;
  for (const child of next) {
    const key = child.dataset?.key;
    const found = key ? keyed.get(key) : at;
    if (found === child) {
      at = place(parent, child, at);
    } else if (found && found.nodeName === child.nodeName && (found.dataset?.key ?? '') === (key ?? '')) {
      patch(found, child);
      at = place(parent, found, at);
    } else {
      parent.insertBefore(child, at);
    }
  }
  while (at) {
    const gone = at;
    at = at.nextSibling;
    gone.remove();
  }
}

function place(parent, child, at) {
  if (child === at) return at.nextSibling;
  parent.insertBefore(child, at);
  return at;
}

function patch(old, next) {
  if (old.nodeType !== Node.ELEMENT_NODE) {
    if (old.data !== next.data) old.data = next.data;
    return;
  }
  old.handlers = next.handlers;
  for (const { name, value } of next.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  for (const { name } of [...old.attributes]) {
    // Whether something is unfolded, or filled in, is the viewer's business.
    if (!next.hasAttribute(name) && name !== 'open') old.removeAttribute(name);
  }
  if (!old.hasAttribute('data-own')) draw(old, ...next.childNodes);
}

// ---- words -----------------------------------------------------------------------------------------------------------------

// Not by Intl: what it needs is read from the disk first, while somebody waits for the page.
const thousands = (number) => String(Math.round(number)).replace(/\B(?=(\d{3})+$)/g, ',');
export const count = (number) => (number == null ? 'unknown' : thousands(number));
export const plural = (number, one, many = `${one}s`) => `${count(number)} ${number === 1 ? one : many}`;
// A sentence that stands alone. Names such as k3s and eth0 stay as they are.
export const sentence = (text) => (text ? `${/^[a-z]+([\s,;]|$)/.test(text) ? text[0].toUpperCase() : text[0]}${text.slice(1)}${/[.!?]$/.test(text) ? '' : '.'}` : '');

export function bytes(number) {
  if (number == null) return 'unknown';
  const units = ['B', 'KB', 'MB', 'GB', 'TB', 'PB'];
  let at = 0;
  let value = number;
  while (Math.abs(value) >= 999.95 && at < units.length - 1) {
    value /= 1000;
    at += 1;
  }
  return `${at ? value.toFixed(1) : Math.round(value)} ${units[at]}`;
}

// A length of time as the command line says it: 12 s, 3 min 20 s, 3 h 12 min, 4 d 2 h.
export function length(seconds) {
  if (seconds == null || !Number.isFinite(seconds)) return 'unknown';
  const two = (large, unit, small, smallUnit) => (small ? `${large} ${unit} ${small} ${smallUnit}` : `${large} ${unit}`);
  const s = Math.floor(Math.abs(seconds));
  if (s < 60) return `${s} s`;
  if (s < 3600) return two(Math.floor(s / 60), 'min', s % 60, 's');
  if (s < 86400) return two(Math.floor(s / 3600), 'h', Math.floor(s / 60) % 60, 'min');
  return two(Math.floor(s / 86400), 'd', Math.floor(s / 3600) % 24, 'h');
}

const two = (number) => String(number).padStart(2, '0');
export const seconds = (stamp) => (stamp == null ? null : Date.parse(stamp) / 1000);
export const day = (date) => `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
export const hour = (date) => `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
export const zone = () => {
  const minutes = -new Date().getTimezoneOffset();
  return `UTC${minutes < 0 ? '−' : '+'}${two(Math.floor(Math.abs(minutes) / 60))}:${two(Math.abs(minutes) % 60)}`;
};

// The time of the box: its last word, and what has passed since by a clock that does not jump. Ages are told by it alone, so that
// neither a wrong clock of the browser nor a step of the box's clock makes them wrong for longer than two seconds.
const box = { time: Date.now() / 1000, at: performance.now(), isKnown: false };
export function setBoxTime(time, isKnown = true) {
  const isStep = box.isKnown && Math.abs(time - now()) > STEP_S;
  Object.assign(box, { time, at: performance.now(), isKnown });
  // What was read before is of another time.
  if (isStep) stream.hear('reset');
}
// A beat may be late by this much before it is taken for a step of the clock.
const STEP_S = 4;
export const now = () => box.time + (performance.now() - box.at) / 1000;

// How long ago something was; what lies ahead of the box's clock is told as such, not as an age.
// What lasted when the agent was last heard is not known to go on: such a length stops with its last word.
function ago(at, form) {
  const age = (form === 'for' && isSilent() ? box.time + (stream.lastWord - box.at) / 1000 : now()) - at;
  if (age < -5) return form === 'for' ? 'since a time in the future' : 'in the future';
  if (form === 'for') return `for ${length(Math.max(0, age))}`;
  return age < 1 ? 'now' : `${length(age)} ago`;
}

// A moment as an age that goes on counting; the moment itself is in its tool tip. `form` is 'ago' or 'for'.
export function age(at, form = 'ago') {
  const moment = typeof at === 'string' ? seconds(at) : at;
  if (moment == null || Number.isNaN(moment)) return h('span', { class: 'faint' }, 'unknown');
  const date = new Date(moment * 1000);
  return h('time', { datetime: date.toISOString(), title: `${day(date)} ${hour(date)} (${zone()})`, 'data-at': moment, 'data-form': form }, ago(moment, form));
}

export function countAges(root) {
  for (const element of root.querySelectorAll('[data-at]')) {
    const text = ago(Number(element.dataset.at), element.dataset.form);
    if (element.textContent !== text) element.textContent = text;
  }
}

// A moment as date and time of this browser's zone.
export function moment(stamp) {
  const date = new Date(typeof stamp === 'number' ? stamp * 1000 : stamp);
  if (Number.isNaN(date.getTime())) return h('span', { class: 'faint' }, 'unknown');
  return h('time', { datetime: date.toISOString(), title: date.toISOString() }, `${day(date)} `, h('span', { class: 'hour' }, hour(date)));
}

// A value of a metric by the unit that its name ends with, as the command line says it.
export function measured(metric, value) {
  if (value == null) return '–';
  const round = (number) => (Math.abs(number) >= 100 ? number.toFixed(0) : Math.abs(number) >= 10 ? number.toFixed(1) : String(Number(number.toFixed(2))));
  if (metric.endsWith('_ratio')) return `${round(value * 100)} %`;
  if (metric.endsWith('_bytes_per_second')) return `${bytes(value)}/s`;
  if (metric.endsWith('_bytes')) return bytes(value);
  if (metric.endsWith('_bits_per_second')) return `${round(value / 1e6)} Mbit/s`;
  if (metric.endsWith('_celsius')) return `${round(value)} °C`;
  if (metric.endsWith('_rpm')) return `${round(value)} rpm`;
  if (metric.endsWith('_seconds')) return Math.abs(value) >= 60 ? length(value) : Math.abs(value) >= 1 || !value ? `${round(value)} s` : `${round(value * 1000)} ms`;
  if (metric.endsWith('_per_second')) return `${round(value)}/s`;
  if (Math.abs(value) >= 10000) return thousands(value);
  return round(value);
}

// ---- requests ------------------------------------------------------------------------------------------------------------

// An answer that is none: what failed, and what to do. `status` is 0 where the agent did not answer at all.
export class Refusal extends Error {
  constructor(status, message, fix) {
    super(message);
    this.status = status;
    this.fix = fix;
  }
}

const ANSWER_DEADLINE_MS = 20_000;
const LONG_DEADLINE_MS = 280_000;
// What downloads a repository, or tries each object of an app first.
const LONG = /\/(pull|deploy|scale|restart)$/;

const silent = () => new Refusal(0, 'the agent does not answer', 'on the machine, run: systemctl status pipeops-agent; this page reconnects automatically');

async function refusal(answer) {
  let told = {};
  try {
    told = await answer.json();
  } catch {
    // Not from the agent, or cut: the code has to do.
  }
  const wait = answer.headers.get('retry-after');
  return new Refusal(answer.status, told.error ?? `the agent answers ${answer.status}`, told.fix ?? (wait ? `try again in ${wait} s` : null));
}

export async function ask(path, { method = 'GET', body, signal } = {}) {
  const deadline = AbortSignal.timeout(LONG.test(path) ? LONG_DEADLINE_MS : ANSWER_DEADLINE_MS);
  let answer;
  try {
    answer = await fetch(path, {
      method,
      ...(body && { headers: { 'content-type': 'application/json' }, body: JSON.stringify(body) }),
      cache: 'no-store',
      redirect: 'error',
      signal: signal ? AbortSignal.any([signal, deadline]) : deadline,
    });
    // Until the first beat the head of an answer says what time it is.
    if (!box.isKnown && answer.headers.has('date')) setBoxTime(Date.parse(answer.headers.get('date')) / 1000);
    if (answer.ok) return answer.status === 204 ? null : await answer.json();
  } catch (error) {
    if (signal?.aborted) throw error;
    throw silent();
  }
  const refused = await refusal(answer);
  if (refused.status === 401 && path !== SESSION && session.role !== 'none') askSession();
  throw refused;
}

// ---- who is asking ---------------------------------------------------------------------------------------------------------

const SESSION = '/api/v1/session';
const RANK = { none: 0, anonymous: 1, viewer: 2, operator: 3 };

export const session = { role: 'none', has_password: false, until: null, via: null, changed() {} };
export const may = (role) => (RANK[session.role] ?? 0) >= RANK[role];

function take(told) {
  const before = session.role;
  Object.assign(session, told);
  session.changed(before !== session.role);
}

export async function askSession() {
  take(await ask(SESSION));
}

export async function logIn(secret) {
  take({ ...(await ask(SESSION, { method: 'POST', body: secret })) });
  await askSession();
}

export async function logOut(everywhere) {
  await ask(everywhere ? '/api/v1/sessions' : SESSION, { method: 'DELETE' });
  await askSession();
}

// ---- what happens ----------------------------------------------------------------------------------------------------------

// The agent says every 2 s that it is there. Without a word for 4 s it is taken for gone, which shows within 5.
const SILENCE_MS = 4000;
const WAIT_MS = [500, 1000, 2000, 4000, 8000, 15_000];
// A message of the stream is a Status at most; what is longer is not ours.
const MESSAGE_LETTERS_MAX = 1_000_000;

export const stream = {
  // 'connecting', 'live', 'stale'
  state: 'connecting',
  // Since when there is no word, by the browser's clock that does not jump.
  lastWord: performance.now(),
  lastWordAt: null,
  why: null,
  topics: '',
  hear() {},
  changed() {},
};

// The agent itself is not heard; a refused stream is another matter.
export const isSilent = () => stream.state === 'stale' && !stream.why;

let lastId = '';
let attempts = 0;
let tried = 0;
let running = null;
let timer = 0;

function turn(state, why = null) {
  if (stream.state === state && stream.why === why) return;
  stream.state = state;
  stream.why = why;
  stream.changed();
}

// Hears these topics from now on.
export function listenTo(topics) {
  if (topics === stream.topics && running) return;
  stream.topics = topics;
  attempts = 0;
  connect();
}

function connect() {
  clearTimeout(timer);
  running?.abort();
  if (!stream.topics) return;
  const mine = new AbortController();
  running = mine;
  tried = performance.now();
  read(mine.signal)
    .then(() => silent(), (error) => error)
    .then((error) => {
      if (running !== mine) return;
      running = null;
      const wait = WAIT_MS[Math.min(attempts, WAIT_MS.length - 1)];
      attempts += 1;
      turn('stale', error instanceof Refusal && error.status ? error : null);
      // A page that nobody looks at need not hurry, many pages need not come at once.
      timer = setTimeout(connect, wait * (0.75 + Math.random() / 2));
    });
}

// Try at once: the network is back, somebody looks at the page again, or wants to.
export function hurry() {
  if (running || !stream.topics) return;
  attempts = 0;
  connect();
}

async function read(signal) {
  const headers = { accept: 'text/event-stream' };
  if (lastId) headers['last-event-id'] = lastId;
  const answer = await fetch(`/api/v1/stream?topics=${stream.topics}`, { headers, cache: 'no-store', signal });
  if (!answer.ok) throw await refusal(answer);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  for (;;) {
    const { done, value } = await reader.read();
    if (done || signal.aborted) return;
    heard();
    rest += value;
    const messages = rest.split(/\r?\n\r?\n/);
    rest = messages.pop();
    if (rest.length > MESSAGE_LETTERS_MAX) throw new Refusal(502, 'the agent sent an invalid event stream');
    messages.forEach(understand);
  }
}

function heard() {
  stream.lastWord = performance.now();
  stream.lastWordAt = new Date();
  attempts = 0;
  turn('live');
}

function understand(message) {
  let name = 'message';
  let data = '';
  for (const line of message.split(/\r?\n/)) {
    const [, field, value] = /^(\w+): ?(.*)$/s.exec(line) ?? [];
    if (field === 'event') name = value;
    else if (field === 'data') data += value;
    else if (field === 'id') lastId = value;
  }
  let told = null;
  try {
    told = data && JSON.parse(data);
  } catch {
    return;
  }
  if (name === 'beat') setBoxTime(told.time);
  else stream.hear(name, told);
}

// Called every second. A connection may be half open: when it says nothing for too long, a new one tells.
export function watchSilence() {
  const at = performance.now();
  if (at - stream.lastWord > SILENCE_MS) turn('stale', stream.why);
  if (running && at - Math.max(stream.lastWord, tried) > SILENCE_MS) running.abort();
}

// ---- states ----------------------------------------------------------------------------------------------------------------

const GLYPH = { ok: '●', warning: '▲', critical: '■', unknown: '○', note: '◆' };
const WORD = { ok: 'fine', warning: 'warning', critical: 'critical', unknown: 'unknown', note: 'note' };

// A state as shape, colour and, where it is not said beside it, a word.
export const mark = (state, word = WORD[state]) =>
  h('span', { class: `mark ${state}` }, h('span', { 'aria-hidden': 'true' }, GLYPH[state] ?? GLYPH.unknown), word && h('span', { class: 'unseen' }, `${word}: `));

// How serious a word of the agent is.
export const grade = (severity) => ({ critical: 'critical', error: 'critical', warning: 'warning', warn: 'warning', note: 'note', ok: 'ok' })[severity] ?? 'unknown';

// What stands in the place of something that was not answered.
export function trouble(error, again) {
  if (error.status === 401 || error.status === 403) return locked(error.message);
  return h('div', { class: 'state critical', role: 'status' },
    h('p', {}, mark('critical', 'error'), sentence(error.message)),
    error.fix && h('p', { class: 'fix' }, h('b', {}, 'Fix: '), error.fix),
    again && h('p', {}, h('button', { type: 'button', onclick: again }, 'Try again')));
}

export const empty = (...words) => h('p', { class: 'state' }, ...words);
export const loading = (what) => h('p', { class: 'state loading', role: 'status' }, `Reading ${what} …`);

export function locked(why = 'login required') {
  return h('div', { class: 'state' },
    h('p', {}, sentence(why)),
    h('p', {}, h('button', { type: 'button', class: 'first', onclick: openLogin }, 'Log in')),
    h('p', { class: 'faint' }, 'On the machine: ', command('sudo pipeops-agent dashboard token')));
}

// A part by the state of what it shows: read, not there yet, refused, or out of date.
export function part(resource, what, show) {
  if (resource.data !== undefined) {
    return [resource.error && h('div', { class: 'state warning', role: 'status' },
      h('p', {}, mark('warning', 'out of date'), 'Out of date, read ', age(resource.at), ': ', resource.error.message, '. ', h('button', { type: 'button', onclick: resource.again }, 'Try again'))),
    show(resource.data)];
  }
  return resource.error ? trouble(resource.error, resource.again) : loading(what);
}

// ---- commands --------------------------------------------------------------------------------------------------------------

// A command that can be copied, also where the browser does not give the clipboard (plain HTTP from another machine).
export function command(text) {
  return h('span', { class: 'command' }, h('code', {}, text), h('button', { type: 'button', class: 'copy', 'aria-label': `Copy: ${text}`, onclick: copy }, 'Copy'));
}

async function copy() {
  const code = this.previousSibling;
  try {
    await navigator.clipboard.writeText(code.textContent);
    this.textContent = 'Copied';
  } catch {
    getSelection().selectAllChildren(code);
    this.textContent = 'Selected';
  }
  setTimeout(() => { this.textContent = 'Copy'; }, 1500);
}

// The head of a page: its name, and the command of the same effect.
export function title(name, ...commands) {
  return h('div', { class: 'title' }, h('h1', {}, name), h('p', { class: 'same' }, commands.map((text) => [command(text), ' '])));
}

export const section = (name, ...children) => h('section', {}, h('h2', {}, name), ...children);

// ---- tables ----------------------------------------------------------------------------------------------------------------

// A table. A column is [name, cell(row), class]; on a narrow screen each row becomes a block with the names beside the values. The roles
// are said, because some browsers forget them when a table is not laid out as one.
export function table(caption, columns, rows, { key, rowClass } = {}) {
  return h('table', { class: 'rows', role: 'table' },
    h('caption', { class: 'unseen' }, caption),
    h('thead', { role: 'rowgroup' }, h('tr', { role: 'row' }, columns.map(([name, , kind]) => h('th', { scope: 'col', role: 'columnheader', class: kind }, name)))),
    h('tbody', { role: 'rowgroup' }, rows.map((row) => h('tr', { role: 'row', class: rowClass?.(row), 'data-key': key?.(row) },
      columns.map(([name, cell, kind], at) => h(at ? 'td' : 'th', { role: at ? 'cell' : 'rowheader', scope: at ? null : 'row', class: kind, 'data-name': name }, cell(row)))))));
}

export const facts = (...pairs) => h('dl', { class: 'facts' }, pairs.filter((pair) => pair[1] != null && pair[1] !== '' && pair[1] !== false).map(([name, ...value]) => h('div', {}, h('dt', {}, name), h('dd', {}, ...value))));

// Pages of a long list: one is shown at a time, however long the list is.
export function pager(pages, what) {
  return h('p', { class: 'pager' },
    h('button', { type: 'button', disabled: !pages.before.length, onclick: () => pages.back() }, '← ', pages.words?.[0] ?? 'Before'),
    h('span', { class: 'faint' }, what),
    h('button', { type: 'button', disabled: !pages.next, onclick: () => pages.forward() }, pages.words?.[1] ?? 'Next', ' →'));
}

// ---- link or node? ---------------------------------------------------------------------------------------------------------

const SIDE = {
  none: ['ok', 'The connection to the control plane works'], node: ['critical', 'The problem is on this machine'], network: ['critical', 'The problem is in the network'],
  'control plane': ['critical', 'The problem is at the control plane'], unknown: ['unknown', 'The cause is unknown'],
};
const STEP = { ok: 'ok', failed: 'critical', skipped: 'unknown', unknown: 'unknown' };

// Seconds after which a test of the way is called old: it runs again once a minute while somebody looks.
const OLD_S = 120;

export function steps(diagnosis, again) {
  const isOld = isSilent() || now() - seconds(diagnosis.at) > OLD_S;
  const [state, side] = isOld ? ['unknown', 'Currently unknown'] : SIDE[diagnosis.side] ?? SIDE.unknown;
  return [
    h('p', { class: 'verdict' }, mark(state, ''), h('b', {}, `${side}. `), isOld ? ['Last tested ', age(diagnosis.at), ': ', diagnosis.sentence, '.'] : sentence(diagnosis.sentence)),
    h('ol', { class: isOld ? 'steps old' : 'steps' }, (diagnosis.steps ?? []).map((step) => h('li', { class: step.outcome },
      mark(STEP[step.outcome] ?? 'unknown', step.outcome), h('b', {}, step.title), h('span', { class: 'seen' }, step.seen || (step.outcome === 'skipped' && 'skipped')),
      h('span', { class: 'number faint' }, step.took_ms == null ? '' : `${count(Math.round(step.took_ms))} ms`),
      step.fix && h('span', { class: 'fix' }, h('b', {}, 'Fix: '), step.fix)))),
    h('p', { class: 'foot' }, 'Tested ', age(diagnosis.at), '. ', h('button', { type: 'button', onclick: again }, 'Try again')),
  ];
}

// A condition. `isHeadline`: the headline has its sentence already.
export function condition(wrong, isHeadline = false) {
  return h('li', { class: `finding ${grade(wrong.severity)}`, 'data-key': wrong.id },
    h('p', {}, mark(grade(wrong.severity)), !isHeadline && [sentence(wrong.sentence), ' '], h('span', { class: 'faint' }, age(wrong.since, 'for'))),
    wrong.fix && h('p', { class: 'fix' }, h('b', {}, 'Fix: '), wrong.fix));
}

// ---- dialogs ---------------------------------------------------------------------------------------------------------------

function dialog(name, build) {
  const opener = document.activeElement;
  const box = h('dialog', { 'aria-labelledby': 'dialog-name' });
  const close = () => box.close();
  box.append(h('h2', { id: 'dialog-name' }, name), ...build(close).filter(Boolean));
  // A dialog is no part of what is drawn, so it listens for itself.
  box.addEventListener('close', () => {
    box.remove();
    if (opener?.isConnected) opener.focus();
  });
  document.body.append(box);
  box.showModal();
  return box;
}

// Asks before something is changed, does it, and says what came of it. `facts` is what it does, leaves alone, and how it is undone.
export function confirm({ name, told, act, word = 'Do it', done }) {
  const outcome = h('p', { role: 'status', class: 'outcome' });
  dialog(name, (close) => {
    const cancel = h('button', { type: 'button', onclick: close }, 'Cancel');
    const go = h('button', { type: 'button', class: 'first' }, word);
    go.handlers = {
      async click() {
        go.disabled = true;
        outcome.className = 'outcome';
        outcome.textContent = 'In progress …';
        try {
          const answer = await act();
          const failed = answer?.outcome === 'failed';
          outcome.className = `outcome ${failed ? 'critical' : 'ok'}`;
          outcome.replaceChildren(mark(failed ? 'critical' : 'ok', ''), sentence(answer?.sentence ?? 'done'), ...(answer?.undo ? [' Undo: ', command(answer.undo)] : []));
          go.hidden = !failed;
          go.disabled = false;
          cancel.textContent = 'Close';
          done?.();
        } catch (error) {
          outcome.className = 'outcome critical';
          outcome.replaceChildren(mark('critical', ''), sentence(error.message), ...(error.fix ? [' ', h('b', {}, 'Fix: '), error.fix] : []));
          go.disabled = false;
        }
      },
    };
    return [told, outcome, h('p', { class: 'buttons' }, cancel, go)];
  });
}

// A button that changes something; who may not, sees why.
export function change(word, question) {
  if (!may('operator')) return h('span', { class: 'faint' }, 'Requires the role operator. ', session.role !== 'viewer' && h('button', { type: 'button', onclick: openLogin }, 'Log in'));
  return h('button', { type: 'button', onclick: () => confirm(question) }, word);
}

export const post = (path) => () => ask(path, { method: 'POST', body: {} });

// Asks for a token or the password; app.js says how.
export const login = { send: null };
export function openLogin() {
  if (document.querySelector('dialog')) return;
  const trouble = h('p', { role: 'alert', class: 'outcome critical' });
  const form = (kind, label, hint) => {
    const field = h('input', { type: 'password', id: `login-${kind}`, name: kind, required: true, autocomplete: kind === 'password' ? 'current-password' : 'off', autocapitalize: 'off', spellcheck: 'false' });
    const go = h('button', { class: 'first' }, 'Log in');
    return h('form', {
      async onsubmit() {
        go.disabled = true;
        trouble.textContent = '';
        try {
          await login.send({ [kind]: field.value.trim() });
          this.closest('dialog').close();
        } catch (error) {
          trouble.textContent = `${sentence(error.message)} ${error.fix ? sentence(error.fix) : ''}`;
          field.select();
        }
        go.disabled = false;
      },
    }, h('label', { for: `login-${kind}` }, label), h('div', { class: 'row' }, field, go), hint);
  };
  const box = dialog('Log in', (close) => [
    form('token', 'Token', h('p', { class: 'faint' }, 'Create one on the machine: ', command('sudo pipeops-agent dashboard token'))),
    session.has_password && form('password', 'or password'),
    trouble,
    h('p', { class: 'buttons' }, h('button', { type: 'button', onclick: close }, 'Cancel')),
  ]);
  box.querySelector('input').focus();
}

export const span = (from, to) => length(Math.max(0, to - from));

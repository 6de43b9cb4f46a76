// The page: which part of it is shown, what it knows, and what is on top of it: who is asking, and whether the agent is there.

import {
  ask, askSession, confirm, countAges, draw, h, hour, hurry, length, listen, listenTo, locked, logIn, login, logOut, may, now, openLogin, seconds, sentence, session, setBoxTime, stream, title, trouble, watchSilence, zone,
} from './base.js';
import { access, changes, events, link, overview, problems, settings } from './pages.js';

// Those without a page here have a file of their own, which is read when they are looked at.
const PAGES = { overview, host: null, cluster: null, apps: null, events, problems, link, access, settings, changes };
const NAMES = Object.keys(PAGES);

const element = (id) => document.getElementById(id);
const main = element('main');

// Two pages have parts with a file of their own: #/cluster/logs/…, #/apps/NAME/logs and #/apps/NAME/deploy.
const fileOf = (page, one, two) => (page === 'cluster' && one === 'logs' ? one : page === 'apps' && ['logs', 'deploy'].includes(two) ? two : page);

const nameOf = (path) => `${path[0].toUpperCase()}${path.slice(1)}`;

// ---- the page that is shown ------------------------------------------------------------------------------------------------

let view = null;
let isDue = false;
let isUsable = false;

// What a page is given: things that it asked for, by name, and ways to ask. It ends with the page.
class View {
  constructor(page, words) {
    this.page = page;
    this.words = words;
    this.ended = new AbortController();
    this.signal = this.ended.signal;
    this.on = {};
    this.resources = new Map();
  }

  // The newest status, from the stream.
  get status() {
    return known.status;
  }

  redraw() {
    if (view === this) due();
  }

  // Something of the agent under a name: read now, and again every `every_s` seconds while somebody looks.
  use(name, path, every_s = 0) {
    let it = this.resources.get(name);
    if (it?.path === path) return it;
    it?.cancel?.abort();
    it = { path, every_s, data: undefined, error: null, at: null, read: 0, isOld: false };
    it.again = () => this.read(it);
    // For what is told many times in a row: it is read at once, then at most once a second, and not before the answer is there.
    it.soon = () => {
      it.isOld = true;
      this.refresh();
    };
    this.resources.set(name, it);
    this.read(it);
    return it;
  }

  async read(it, path = it.path) {
    it.cancel?.abort();
    const cancel = new AbortController();
    it.cancel = cancel;
    it.read = performance.now();
    it.isOld = false;
    try {
      const data = await ask(path, { signal: AbortSignal.any([this.signal, cancel.signal]) });
      Object.assign(it, { data, error: null, at: now() });
    } catch (error) {
      if (this.signal.aborted || cancel.signal.aborted) return;
      it.error = error;
    }
    it.cancel = null;
    this.redraw();
  }

  // Called every second.
  refresh(isAll = false) {
    for (const it of this.resources.values()) {
      const every_s = it.isOld ? 1 : it.every_s;
      const isDue = every_s && performance.now() - it.read > every_s * 1000;
      if ((isDue || isAll) && !it.cancel) this.read(it);
    }
  }
}

const known = { status: null, readAt: 0, wasLost: false };

function due() {
  if (isDue) return;
  isDue = true;
  // Not in the background: there nothing is drawn, and what is due then is drawn once.
  requestAnimationFrame(() => {
    isDue = false;
    show();
  });
}

function show() {
  if (!view) return;
  if (view.page.role && !may(view.page.role)) {
    draw(main, title(view.page.name, ...view.page.commands(view)), locked(session.role === 'none' ? 'this page requires a login' : `${view.page.name.toLowerCase()} requires a login with the role ${view.page.role}`));
  } else {
    draw(main, title(view.page.name, ...view.page.commands(view)), view.page.draw(view));
  }
  view.page.drawn?.(view);
  // The moment from which on the page can be used; tests/browser measures it.
  if (!isUsable) performance.mark('usable');
  isUsable = true;
}

async function route() {
  if (takeToken()) return;
  const { hash } = location;
  const words = hash.replace(/^#\/?/, '').split('/').map(decode);
  const path = NAMES.includes(words[0]) ? words[0] : NAMES[0];
  const name = nameOf(path);
  element('menu').setAttribute('aria-expanded', 'false');
  const isFirst = view === null;
  let page;
  try {
    const file = fileOf(path, ...words.slice(1));
    page = PAGES[path] ?? (await import(`./${file}.js`))[file];
    // Meanwhile somebody went on.
    if (hash !== location.hash) return;
  } catch {
    if (hash !== location.hash) return;
    // The agent is away, or another version of it is there. A page like any other: the one before would be drawn over it.
    const error = Object.assign(new Error('this part of the page cannot be loaded'), { fix: 'wait until the agent answers, then try again' });
    page = { commands: () => [], draw: () => trouble(error, () => location.reload()) };
  }
  view?.ended.abort();
  view?.page.end?.(view);
  Object.assign(page, { name, path });
  view = new View(page, words);
  document.title = `${name} · ${known.status?.host?.hostname ?? 'pipeops-agent'}`;
  drawFrame();
  if (!page.role || may(page.role)) page.start?.(view);
  hearTopics();
  show();
  if (!isFirst) {
    main.focus({ preventScroll: true });
    scrollTo(0, 0);
  }
}

function decode(word) {
  try {
    return decodeURIComponent(word);
  } catch {
    return word;
  }
}

// ---- who is asking ---------------------------------------------------------------------------------------------------------

// A token in the address is taken out of it before anything else, so that it is neither kept in the history nor seen over a shoulder.
function takeToken() {
  const [, token] = /^#token=([^&]+)/.exec(location.hash) ?? [];
  if (!token) return false;
  history.replaceState(null, '', `${location.pathname}#/`);
  logIn({ token: decode(token) }).catch((error) => {
    banner.refused = error;
    drawBanner();
  });
  route();
  return true;
}

login.send = logIn;

session.changed = (isOther) => {
  if (may('viewer')) banner.refused = null;
  if (isOther) {
    if (!may('anonymous')) known.status = null;
    // What was shown to another role is asked for again, or is gone.
    const { page, words } = view ?? {};
    if (page) {
      view.ended.abort();
      page.end?.(view);
      view = new View(page, words);
      if (!page.role || may(page.role)) page.start?.(view);
    }
    if (may('anonymous')) readStatus();
  }
  hearTopics();
  drawFrame();
  due();
};

function leave() {
  confirm({
    name: 'Log out',
    told: h('p', {}, 'Ends the session of this browser. ', may('operator') && h('label', {}, h('input', { type: 'checkbox', id: 'everywhere' }), ' end all sessions of all users, too')),
    word: 'Log out',
    act: () => logOut(element('everywhere')?.checked),
    done: () => document.querySelector('dialog')?.close(),
  });
}

// ---- what the agent says ---------------------------------------------------------------------------------------------------

async function readStatus() {
  known.readAt = performance.now();
  try {
    learn(await ask('/api/v1/status'));
  } catch {
    // The banner says it.
  }
  drawFrame();
  due();
}

// A status, with the moment at which it was true.
function learn(told) {
  known.status = Object.assign(told, { at: now() });
}

function hearTopics() {
  if (!may('anonymous')) return listenTo('');
  const topics = ['status', ...(view?.page.topics ?? []).filter((topic) => topic === 'ticks' || may('viewer'))];
  if (may('viewer')) topics.push('changes');
  listenTo(topics.join(','));
}

stream.hear = (name, told) => {
  if (name === 'status') {
    if (known.status && known.status.version !== told.version) banner.isOther = true;
    learn(told);
    drawFrame();
    due();
  } else if (name === 'reset') {
    readStatus();
    view?.refresh(true);
  }
  view?.on[name]?.(told);
};

stream.changed = () => {
  if (stream.state === 'live' && known.wasLost) {
    // What was missed is read once, and who is asking is asked: a restart may have ended the session.
    askSession().catch(() => {});
    readStatus();
    view?.refresh(true);
  }
  known.wasLost = stream.state === 'stale';
  document.documentElement.dataset.live = stream.why ? 'refused' : stream.state;
  drawFrame();
  due();
};

// ---- the frame -------------------------------------------------------------------------------------------------------------

const banner = { refused: null, isOther: false };

function drawBanner() {
  const bar = (kind, ...words) => h('div', { class: `banner ${kind}` }, ...words);
  const { refused, isOther } = banner;
  const again = h('button', { type: 'button', onclick: hurry }, 'Try now');
  const since = stream.lastWordAt ? ['since ', h('b', {}, hour(stream.lastWordAt)), ' (', h('span', { id: 'silent', 'aria-hidden': 'true' }, length((performance.now() - stream.lastWord) / 1000)), '). The page shows the state of that time. '] : ['. '];
  draw(element('banner'),
    !navigator.onLine && stream.state === 'stale' && !/^(127\.|localhost|\[::1)/.test(location.host) && bar('critical', 'This browser is offline.'),
    stream.state === 'stale' && may('anonymous') && (stream.why
      ? bar('warning', h('b', {}, 'No live updates: '), stream.why.message, '. ', stream.why.fix && `${sentence(stream.why.fix)} `, again)
      : bar('critical', h('b', {}, stream.lastWordAt ? 'The agent has not answered ' : 'The agent does not answer'), ...since, 'This page reconnects automatically; on the machine, run ', h('code', {}, 'systemctl status pipeops-agent'), '. ', again)),
    refused && bar('warning', h('b', {}, 'Not logged in: '), refused.message, '. ', refused.fix && `${sentence(refused.fix)} `, h('button', { type: 'button', onclick: openLogin }, 'Log in')),
    isOther && bar('note', 'The agent was updated. ', h('button', { type: 'button', onclick: () => location.reload() }, 'Load its page')));
}

const LIVE = { connecting: ['unknown', 'connecting'], live: ['ok', 'live'], stale: ['critical', 'stale'] };

function drawFrame() {
  const { status } = known;
  const [state, word] = stream.state === 'stale' && stream.why ? ['warning', 'not live'] : LIVE[stream.state];
  draw(element('host'), status?.host?.hostname);
  draw(element('live'), may('anonymous') && [h('span', { class: `dot ${state}`, 'aria-hidden': 'true' }), word]);
  draw(element('who'), may('viewer')
    ? [h('span', { class: 'role' }, session.role), h('button', { type: 'button', onclick: leave }, 'Log out')]
    : h('button', { type: 'button', onclick: openLogin }, 'Log in'));
  const wrong = (status?.conditions ?? []).filter(({ severity, because }) => severity !== 'note' && !because).length;
  draw(element('nav'), h('ul', {}, NAMES.map((path) => h('li', {}, h('a', { href: path === NAMES[0] ? '#/' : `#/${path}`, 'aria-current': view?.page.path === path ? 'page' : null }, nameOf(path),
    path === NAMES[0] && wrong > 0 && h('span', { class: 'badge' }, wrong, h('span', { class: 'unseen' }, wrong === 1 ? ' thing is wrong' : ' things are wrong')))))));
  draw(element('foot'), h('p', {}, status ? `pipeops-agent ${status.version} · ` : '', `times of this browser, ${zone()} · `, h('a', { href: '/api/v1/openapi.json' }, 'API'), ' · ', h('a', { href: '/metrics' }, 'metrics')));
  drawBanner();
}

setInterval(() => {
  watchSilence();
  if (document.hidden) return;
  countAges(document);
  const silent = element('silent');
  if (silent) silent.textContent = length((performance.now() - stream.lastWord) / 1000);
  if (stream.state !== 'stale' || stream.why) view?.refresh();
  if (stream.why && performance.now() - known.readAt > 10_000) readStatus();
}, 1000);

// ---- start -----------------------------------------------------------------------------------------------------------------

// Beside the words that the server wrote into the page it says who asks and how it is: the page can be used before anything is asked.
function begin() {
  const { session: who, status } = JSON.parse(main.dataset.initial);
  main.removeAttribute('data-initial');
  Object.assign(session, who);
  if (status) {
    setBoxTime(seconds(status.started) + status.uptime_s, false);
    learn(status);
  }
  route();
}

listen(document);
element('menu').addEventListener('click', () => {
  const menu = element('menu');
  menu.setAttribute('aria-expanded', String(menu.getAttribute('aria-expanded') !== 'true'));
});
document.querySelector('.skip').addEventListener('click', (event) => {
  event.preventDefault();
  main.focus();
});
addEventListener('hashchange', route);
addEventListener('online', hurry);
addEventListener('offline', drawBanner);
document.addEventListener('visibilitychange', () => {
  if (document.hidden) return;
  watchSilence();
  hurry();
  due();
});
begin();

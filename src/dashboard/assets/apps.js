// The apps: what each is like and why; of one also its history, and what may be done with it.

import { age, ask, change, command, empty, facts, h, mark, may, moment, part, section, sentence, table } from './base.js';

const GRADE = { good: 'ok', bad: 'critical', waiting: 'warning', paused: 'warning' };
const graded = (verdict) => mark(GRADE[verdict] ?? 'unknown', '');

export const apps = {
  role: 'viewer',
  commands: (view) => (named(view) ? ['why', 'logs'].map((verb) => `pipeops-agent apps ${verb} ${named(view)}`) : ['pipeops-agent apps list']),
  start(view) {
    const name = named(view);
    view.use('apps', name ? `/api/v1/apps/${encodeURIComponent(name)}` : '/api/v1/apps', 5);
  },
  draw(view) {
    const found = view.resources.get('apps');
    return named(view)
      ? part(found, 'the app', (app) => [h('p', {}, h('a', { href: '#/apps' }, '← All apps')), about(app), operate(app, found.again), section('History', history(app, found.again))])
      : part(found, 'the apps', ({ apps: list }) => (list?.length ? h('ul', { class: 'findings' }, list.map((app) => about(app, true))) : none()));
  },
};

const named = (view) => view.words[1];

function none() {
  return empty('No apps yet. Deploy one as root: ', command('sudo pipeops-agent apps apply -f FILE --namespace NAME'));
}

// One app: the sentence first, then what proves it and what to do.
function about(app, isListed = false) {
  const state = GRADE[app.verdict] ?? 'unknown';
  return h(isListed ? 'li' : 'div', { class: `finding ${state}`, 'data-key': app.app },
    h('h2', {}, mark(state, app.verdict), isListed ? h('a', { href: `#/apps/${app.app}` }, app.app) : app.app, ' ', h('span', { class: 'faint' }, app.namespace)),
    h('p', {}, h('b', {}, app.verdict), ': ', sentence(app.sentence), app.since && [' ', h('span', { class: 'faint' }, age(app.since, 'for'))]),
    app.evidence && h('p', {}, h('code', { class: 'break lines' }, app.evidence)),
    app.fix && h('p', { class: 'fix' }, h('b', {}, 'Fix: '), app.fix),
    app.paused && h('p', { class: 'faint' }, 'Paused: no automatic rollbacks.'),
    app.standing_by && h('p', { class: 'faint' }, 'Standing by: ', sentence(app.standing_by)),
    facts(['Revision', app.revision], ['Last good revision', app.good || 'none yet'], ['Object', app.object], ['Cause', app.cause && h('code', {}, app.cause)]));
}

// A button that goes the way of the command line, after a question.
const act = ({ app }, done, word, path, does, body = {}) => change(word, {
  name: `${app}: ${word}?`, word, told: h('p', {}, does), done,
  act: () => ask(`/api/v1/apps/${app}/${path}`, { method: 'POST', body }),
});

const operate = (app, again) => h('p', { class: 'tools' }, may('operator') ? [
  act(app, again, 'Restart', 'restart', 'Starts its Pods again.'),
  app.source && act(app, again, 'Pull', 'pull', 'Deploys its source, if it is new.'),
  app.paused ? act(app, again, 'Resume', 'resume', 'Starts automatic rollbacks.') : act(app, again, 'Pause', 'pause', 'Stops automatic rollbacks.'),
] : change());

function history(app, again) {
  return table('Revisions, newest first', [
    ['Revision', (it) => it.number, 'number short'],
    ['When', (it) => moment(it.at), 'when'],
    ['Verdict', (it) => [graded(it.verdict), it.verdict ?? 'not judged']],
    ['Why', (it) => it.sentence && sentence(it.sentence), 'wide'],
    ['By', (it) => h('span', { class: 'faint' }, it.by)],
    ['Go back', (it) => may('operator') && it.verdict === 'good' && it.number !== app.runs && act(app, again, `Roll back to ${it.number}`, 'rollback', 'Deploys it again.', { to: it.number })],
  ], (app.revisions ?? []).toReversed(), { key: (it) => it.number });
}

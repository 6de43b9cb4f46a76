// The apps: what each is like and why, and the history of one.

import { age, command, empty, facts, h, mark, moment, part, section, sentence, table } from './base.js';

const GRADE = { good: 'ok', bad: 'critical', waiting: 'warning', paused: 'warning' };
const graded = (verdict) => mark(GRADE[verdict] ?? 'unknown', '');

export const apps = {
  role: 'viewer',
  commands: (view) => (named(view) ? [`pipeops-agent apps why ${named(view)}`] : ['pipeops-agent apps list']),
  start(view) {
    const name = named(view);
    view.use('apps', name ? `/api/v1/apps/${encodeURIComponent(name)}` : '/api/v1/apps', 5);
  },
  draw(view) {
    const found = view.resources.get('apps');
    return named(view)
      ? part(found, 'the app', (app) => [h('p', {}, h('a', { href: '#/apps' }, '← All apps')), about(app), logs(app), section('History', history(app))])
      : part(found, 'the apps', ({ apps: list }) => (list?.length ? h('ul', { class: 'findings' }, list.map((app) => about(app, true))) : none()));
  },
};

const named = (view) => view.words[1];

function none() {
  return empty('No apps are deployed by this agent. Deploy one as root on this machine: ', command('sudo pipeops-agent apps apply -f FILE --namespace NAME'));
}

// One app: the sentence first, then what proves it and what to do.
function about(app, isListed = false) {
  const state = GRADE[app.verdict] ?? 'unknown';
  return h(isListed ? 'li' : 'div', { class: `finding ${state}`, 'data-key': app.app },
    h('h2', {}, mark(state, app.verdict), isListed ? h('a', { href: `#/apps/${encodeURIComponent(app.app)}` }, app.app) : app.app, ' ', h('span', { class: 'faint' }, app.namespace)),
    h('p', {}, h('b', {}, app.verdict), ': ', sentence(app.sentence), app.since && [' ', h('span', { class: 'faint' }, age(app.since, 'for'))]),
    app.evidence && h('p', {}, h('code', { class: 'break lines' }, app.evidence)),
    app.fix && h('p', { class: 'fix' }, h('b', {}, 'Fix: '), app.fix),
    app.paused && h('p', { class: 'faint' }, 'Paused: it is not rolled back automatically. ', command(`sudo pipeops-agent apps resume ${app.app}`)),
    app.standing_by && h('p', { class: 'faint' }, 'This agent changes and judges no apps now: ', sentence(app.standing_by)),
    facts(['Revision', app.revision], ['Last good revision', app.good || 'none yet'], ['Object', app.object], ['Cause', app.cause && h('code', {}, app.cause)]));
}

const logs = (app) => h('p', {}, 'Logs: ', command(`pipeops-agent apps logs ${app.app} --follow`));

function history(app) {
  return table('Revisions, newest first', [
    ['Revision', (it) => it.number, 'number short'],
    ['When', (it) => moment(it.at), 'when'],
    ['Verdict', (it) => [graded(it.verdict), it.verdict ?? 'not judged']],
    ['Why', (it) => it.sentence && sentence(it.sentence), 'wide'],
    ['By', (it) => h('span', { class: 'faint' }, it.by)],
    ['Go back', (it) => (it.verdict === 'good' && it.number !== app.revision ? command(`sudo pipeops-agent apps rollback ${app.app} --to ${it.number}`) : '')],
  ], (app.revisions ?? []).toReversed(), { key: (it) => it.number });
}

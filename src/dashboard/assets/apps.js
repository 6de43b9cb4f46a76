// The apps: what each is like and why; of one also its history, and what may be done with it.

import { age, ask, change, command, empty, facts, h, mark, may, moment, part, plural, section, sentence, span, table } from './base.js';

const GRADE = { good: 'ok', bad: 'critical', waiting: 'warning', paused: 'warning' };
const graded = (verdict) => mark(GRADE[verdict] ?? 'unknown', '');
const OBJECTS_NAMED = 50;
const KEPT = ['PersistentVolumeClaim', 'Namespace', 'CustomResourceDefinition'];

export const apps = {
  role: 'viewer',
  commands: (view) => (named(view) ? ['why', 'logs'].map((verb) => `pipeops-agent apps ${verb} ${named(view)}`) : ['pipeops-agent apps list']),
  start(view) {
    const name = named(view);
    view.on.change = view.use('apps', name ? path(name) : '/api/v1/apps', 5).soon;
  },
  draw(view) {
    const found = view.resources.get('apps');
    // What moves is looked at more often.
    found.every_s = ['progressing', 'soaking'].includes((found.data?.rollback ?? found.data)?.verdict) ? 2 : 5;
    return named(view)
      ? part(found, 'the app', (app) => [h('p', {}, h('a', { href: '#/apps' }, '← All apps')), about(app), operate(app, found.again), section('History', history(view, app, found.again))])
      : [may('operator') && h('p', { class: 'tools' }, button('#/apps//deploy', 'Deploy an image')), part(found, 'the apps', ({ apps: list }) => (list?.length ? h('ul', { class: 'findings' }, list.map((app) => about(app, true))) : none()))];
  },
};

const named = (view) => view.words[1];
const path = (app, way = '') => `/api/v1/apps/${encodeURIComponent(app)}${way}`;
const button = (href, word) => h('a', { class: 'button', href }, word);

function none() {
  return empty('No apps yet. Deploy one as root: ', command('sudo pipeops-agent apps apply -f FILE --namespace NAME'));
}

// One app: the sentence first, then what proves it and what to do.
function about(app, isListed = false) {
  const state = GRADE[app.verdict] ?? 'unknown';
  return h(isListed ? 'li' : 'div', { class: `finding ${state}`, 'data-key': app.app },
    h('h2', {}, mark(state, app.verdict), isListed ? h('a', { href: `#/apps/${app.app}` }, app.app) : app.app, ' ', h('span', { class: 'faint' }, app.namespace)),
    h('p', { 'aria-live': isListed ? null : 'polite' }, h('b', {}, app.verdict), ': ', sentence(app.sentence), app.since && [' ', h('span', { class: 'faint' }, age(app.since, 'for'))]),
    app.evidence && h('p', {}, h('code', { class: 'break lines' }, app.evidence)),
    app.fix && h('p', { class: 'fix' }, h('b', {}, 'Fix: '), app.fix),
    app.rollback && h('p', { 'aria-live': isListed ? null : 'polite' }, `Going back to revision ${app.rollback.revision}, which is `, h('b', {}, app.rollback.verdict), ': ', sentence(app.rollback.sentence)),
    app.verdict === 'bad' && app.change?.state === 'undone' && app.runs !== app.revision && h('p', {}, `Rolled back: revision ${app.runs} runs again.`),
    app.verdict === 'bad' && app.change?.state === 'failed' && h('p', {}, sentence(app.change.why)),
    app.paused && h('p', { class: 'faint' }, 'Paused: no automatic rollback, no updates from its source, no drift repair.'),
    app.usually_s && ['waiting', 'progressing'].includes(app.verdict) && h('p', { class: 'faint' }, `Usually takes about ${span(0, app.usually_s)}.`),
    app.auto_rollback === false && h('p', { class: 'faint' }, 'Automatic rollback is off.'),
    app.standing_by && h('p', { class: 'faint' }, 'Standing by: ', sentence(app.standing_by)),
    facts(['Revision', app.revision], ['Last good revision', app.good || 'none yet'], ['Object', app.object], ['Cause', app.cause && h('code', {}, app.cause)]));
}

// A button that goes the way of the command line, after a question.
const act = ({ app }, done, word, way, does, body = () => ({})) => change(word, {
  name: `${app}: ${word}?`, word, told: h('div', {}, does), done,
  act: () => ask(path(app, `/${way}`), { method: 'POST', body: body() }),
});

const operate = (app, again) => h('p', { class: 'tools' }, button(`#/apps/${app.app}/logs`, 'Logs'), may('operator') ? [
  button(`#/apps/${app.app}/deploy`, 'Deploy an image'),
  act(app, again, 'Restart', 'restart', 'Replaces its Pods.'),
  scale(app, again),
  app.source && act(app, again, 'Pull', 'pull', 'Deploys its source, if it is new.'),
  app.paused ? act(app, again, 'Resume', 'resume', `Resumes ${app.auto_rollback ? 'automatic rollback, ' : ''}updates from the source and drift repair.`) : act(app, again, 'Pause', 'pause', 'Stops automatic rollback, updates from the source and drift repair.'),
  app.auto_rollback
    ? act(app, again, 'Turn off rollback', 'rollback', 'A version that does not work stays until you roll it back.', () => ({ auto: 'off' }))
    : act(app, again, 'Turn on rollback', 'rollback', 'A version that does not work is rolled back automatically.', () => ({ auto: 'on' })),
  remove(app),
] : change());

const objects = (app, isMeant) => (app.objects ?? []).filter(isMeant);
const nameOf = (it) => `${it.kind}/${it.name}`;

function scale(app, again) {
  const workloads = objects(app, ({ kind }) => ['Deployment', 'StatefulSet'].includes(kind)).map(nameOf);
  if (!workloads.length) return null;
  const pods = h('input', { type: 'number', id: 'pods', min: 0, max: 1000, value: 1 });
  const workload = h('select', { id: 'workload' }, workloads.map((name) => h('option', {}, name)));
  return act(app, again, 'Scale', 'scale', [
    h('p', {}, 'Its number of Pods stays when the app is deployed again.'),
    h('p', { class: 'tools' }, h('label', {}, 'Pods ', pods), workloads.length > 1 && h('label', {}, 'of ', workload)),
  ], () => {
    // Nothing would be the number of the manifest.
    if (!Number.isInteger(pods.valueAsNumber)) throw new Error('no number of Pods is given');
    return { to: pods.valueAsNumber, workload: workload.value };
  });
}

function remove(app) {
  const goes = objects(app, ({ kind }) => !KEPT.includes(kind));
  const stays = objects(app, ({ kind }) => KEPT.includes(kind)).map(nameOf);
  return change('Remove', {
    name: `Remove ${app.app}?`,
    word: `Remove ${app.app}`,
    told: h('div', {},
      h('p', {}, h('b', {}, `Deletes ${plural(goes.length, 'object')} in the namespace ${app.namespace}:`)),
      h('ul', { tabindex: 0, 'aria-label': 'Deleted objects' }, goes.slice(0, OBJECTS_NAMED).map((it) => h('li', { class: 'break' }, nameOf(it))), goes.length > OBJECTS_NAMED && h('li', {}, `and ${goes.length - OBJECTS_NAMED} more`)),
      h('p', {}, stays.length ? `Kept: ${stays.join(', ')}.` : 'It has no volume claims.'),
      h('p', {}, 'Its history is deleted, too: there is no undo.')),
    async act() {
      await ask(path(app.app), { method: 'DELETE' });
      return { sentence: `${app.app} is removed` };
    },
    done: () => { location.hash = '#/apps'; },
  });
}

// What a revision changed against the one before it: read when it is unfolded, because the agent compares whole manifests for it. Values
// are there for those who may deploy.
function changes(view, app, number) {
  const found = view.resources.get(`changes ${number}`);
  return h('details', {
    'data-key': `changes ${number}`,
    ontoggle() {
      if (!this.open) return;
      view.use(`changes ${number}`, path(app.app, `?changes=1&revision=${number}`));
      view.redraw();
    },
  }, h('summary', {}, 'Changes'), found && part(found, 'the changes', ({ revisions }) => changed(revisions.find((it) => it.number === number)?.changes)));
}

const value = (it) => (it == null ? 'nothing' : typeof it === 'string' ? it : JSON.stringify(it));
const more = (number, what) => number > 0 && h('li', {}, `and ${plural(number, `more ${what}`)}`);

function changed(told) {
  if (!told) return 'The revision before it is not kept.';
  if (!told.objects.length) return 'The manifests are the same.';
  return h('ul', { class: 'break' }, told.objects.map((it) => h('li', {}, `${it.object} ${it.change}`,
    it.fields.length > 0 && h('ul', {}, it.fields.map(({ field, ...of }) => h('li', {}, h('code', {}, field), 'from' in of && `: ${value(of.from)} → ${value(of.to)}`)), more(it.more, 'field')))), more(told.more, 'object'));
}

function history(view, app, again) {
  return table('Revisions, newest first', [
    ['Revision', (it) => it.number, 'number short'],
    ['When', (it) => moment(it.at), 'when'],
    ['Verdict', (it) => [graded(it.verdict), it.verdict ?? 'not judged', it.number === app.runs && h('span', { class: 'detail' }, 'runs now')]],
    ['Why', (it) => it.sentence && sentence(it.sentence), 'wide'],
    ['By', (it) => h('span', { class: 'faint' }, it.by)],
    ['Changes', (it) => changes(view, app, it.number), 'wide'],
    ['Go back', (it) => may('operator') && it.verdict === 'good' && it.number !== app.runs && act(app, again, `Roll back to ${it.number}`, 'rollback', 'Deploys it again.', () => ({ to: it.number }))],
  ], (app.revisions ?? []).toReversed(), { key: (it) => it.number });
}

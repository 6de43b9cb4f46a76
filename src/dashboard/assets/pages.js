// The pages but three: host.js has the charts, cluster.js the cluster, apps.js the apps; logs.js and deploy.js are parts of the last two.
//
// A page says which role it needs, what it reads (`start`), and what it looks like with what was read (`draw`). What is read, read again and
// taken over from the stream is the business of app.js.

import { age, ask, bytes, change, command, condition, count, empty, facts, grade, h, hour, isSilent, steps, length, mark, may, moment, now, pager, part, plural, post, seconds, section, sentence, span, stream, table } from './base.js';

// ---- overview -------------------------------------------------------------------------------------------------------------

// The overview: one sentence of truth, what is wrong, the parts with age and source, and which side is broken.
const DIAGNOSIS = '/api/v1/diagnosis';

export const overview = {
  role: 'anonymous',
  commands: () => ['pipeops-agent status'],
  start(view) {
    view.use('host', '/api/v1/host', 5);
    diagnose(view);
  },
  draw(view) {
    const { status } = view;
    const host = view.resources.get('host');
    const diagnosis = view.resources.get('diagnosis');
    return [
      truth(status),
      section('Health', part(host, 'the health', ({ figures }) => (figures?.length
        ? h('ul', { class: 'cards' }, figures.map((figure) => card(figure, host.at)))
        : empty('No measurements yet: the agent has just started.')))),
      section('Where is the problem?', part(diagnosis, 'every step to the control plane', (told) => steps(told, diagnosis.again))),
    ];
  },
};

// The way to the control plane is tested once a minute, and again whenever the state of link or cluster is another one.
function diagnose(view) {
  const diagnosis = view.use('diagnosis', DIAGNOSIS, 60);
  const state = (status) => `${status?.verdict?.code} ${status?.link?.state}`;
  let last = state(view.status);
  view.on.status = (told) => {
    if (state(told) === last) return;
    last = state(told);
    diagnosis.soon();
  };
}

// The sentence is read out when it changes; the ages beside it are not.
function truth(status) {
  if (!status) return h('div', { class: 'truth unknown' }, h('p', { class: 'sentence', 'aria-live': 'polite' }, 'Asking the agent …'));
  const worst = ['critical', 'warning', 'note'].find((severity) => status.conditions?.some((it) => it.severity === severity));
  // Nobody knows how it is while the agent does not answer.
  const isOld = isSilent();
  const state = isOld ? 'unknown' : worst && worst !== 'note' ? grade(worst) : 'ok';
  const isHeadline = (it) => status.summary.startsWith(it.sentence);
  const headline = status.conditions?.find(isHeadline);
  // The headline's condition has a line of its own for its fix only.
  const causes = (status.conditions ?? []).filter((it) => !it.because && (it.fix || !isHeadline(it)));
  const { verdict } = status;
  return h('div', { class: `truth ${state}` },
    h('p', { class: 'sentence', 'aria-live': 'polite' }, mark(state), isOld && `${stream.lastWordAt ? `The agent has not answered since ${hour(stream.lastWordAt)}` : 'The agent does not answer'}. Last known state: `, isOld ? status.summary : sentence(status.summary)),
    causes.length > 0 && h('ul', { class: 'findings', 'aria-label': plural(causes.length, 'condition') }, causes.map((it) => condition(it, isHeadline(it)))),
    h('p', { class: 'foot' }, headline && !headline.fix && ['It has been like this ', age(headline.since, 'for'), '. '], `${status.host?.hostname ?? 'This machine'}${status.cluster_name ? `, cluster ${status.cluster_name}` : ''}. `,
      status.started && [isOld ? 'The agent was up ' : 'Agent up ', age(status.started, 'for'), '. '],
      verdict?.age_s != null && status.at && ['Checked ', age(status.at - verdict.age_s), '.']));
}

function card(figure, readAt) {
  const at = figure.age_s == null ? null : readAt - figure.age_s;
  return h('li', { class: `card ${figure.state}`, 'data-key': figure.id },
    h('h3', {}, mark(figure.state), figure.title),
    h('p', { class: 'value' }, figure.value),
    figure.detail && h('p', { class: 'detail' }, figure.detail),
    h('p', { class: 'foot' }, at == null ? 'age unknown' : age(at), figure.source && ` · ${figure.source}`));
}

// ---- problems -------------------------------------------------------------------------------------------------------------

// What the doctor finds: what was seen, why it matters, the fix for this very machine, and a button where the agent can do it.
const PATH = '/api/v1/problems';

export const problems = {
  role: 'viewer',
  commands: () => ['pipeops-agent doctor', 'pipeops-agent doctor --fix'],
  start(view) {
    const problems = view.use('problems', PATH, 30);
    view.on.change = problems.soon;
  },
  draw(view) {
    const problems = view.resources.get('problems');
    // Only an operator may have the machine looked at anew, others see what was found at most 30 s ago.
    const again = () => view.read(problems, may('operator') ? `${PATH}?fresh=1` : PATH);
    return part(problems, 'the findings of the doctor', (told) => {
      const checks = told.checks ?? [];
      const by = (outcome) => checks.filter((check) => check.outcome === outcome);
      const [wrong, unseen, skipped, fine] = ['problem', 'unknown', 'skipped', 'ok'].map(by);
      return [
        h('p', { class: 'verdict', 'aria-live': 'polite' }, mark(wrong.length ? grade(wrong[0].severity) : 'ok', ''),
          h('b', {}, wrong.length ? `${plural(wrong.length, 'problem')}. ` : 'No problems found. '),
          `${count(fine.length)} of ${plural(checks.length, 'check')} passed${unseen.length ? `, ${count(unseen.length)} could not run` : ''}.`),
        h('p', { class: 'foot' }, 'Checked ', age(told.at), told.took_ms != null && `, in ${count(told.took_ms)} ms`, '. ', h('button', { type: 'button', onclick: again, disabled: Boolean(problems.cancel) }, 'Check again')),
        wrong.length > 0 && h('ul', { class: 'findings' }, wrong.map((check) => finding(check, checks, again))),
        environment(told.environment),
        unseen.length > 0 && fold('could not run', unseen, 'Some checks require root: run ', command('sudo pipeops-agent doctor')),
        skipped.length > 0 && fold('do not apply here, or were skipped', skipped),
        fine.length > 0 && fold('passed', fine),
      ];
    });
  },
};

function finding(check, checks, again) {
  const cause = check.because && checks.find(({ id }) => id === check.because);
  const way = check.automatic;
  return h('li', { class: `finding ${grade(check.severity)}`, 'data-key': check.id },
    h('h2', {}, mark(grade(check.severity)), check.title, ' ', h('code', { class: 'faint' }, check.id)),
    h('p', {}, sentence(check.seen)),
    check.why && h('p', { class: 'why' }, sentence(check.why)),
    cause && h('p', { class: 'faint' }, `Skipped because of: ${cause.title}`),
    check.fix && h('p', { class: 'fix' }, h('b', {}, 'Fix: '), check.fix),
    check.commands?.length > 0 && h('ul', { class: 'commands' }, check.commands.map((line) => h('li', {}, command(line)))),
    way && h('div', { class: 'switch' }, ways(way), h('p', {}, way.start
      ? ['The root helper, which applies fixes, is not running. Start it: ', command(way.start), ' or apply it on the machine: ']
      : [change('Fix this', { name: `Fix: ${check.title}?`, told: ways(way), word: 'Fix it', act: post(`${PATH}/${encodeURIComponent(check.id)}/fix`), done: again }), ' '],
    command(`sudo pipeops-agent doctor --fix ${check.id}`))));
}

const ways = (way) => facts(['Does', sentence(way.does)], ['Leaves alone', sentence(way.leaves)], ['Undo', sentence(way.undo)]);

function environment(told) {
  if (!told) return null;
  return section('This machine', facts(
    ['Board', told.board], ['Distribution', told.distribution], ['Init', told.init], ['Virtualisation', told.virtualisation], ['NAS', told.nas], ['Control groups', told.cgroup],
    ['Page size', told.page_size_bytes && `${count(told.page_size_bytes)} B`], ['Architecture', told.architecture], ['Boot loader', told.boot_loader], ['Boot file', told.boot_file && h('code', {}, told.boot_file)], ['Packages', told.package_manager],
  ), told.notes?.length > 0 && h('ul', { class: 'notes' }, told.notes.map((note) => h('li', {}, sentence(note.works), note.change && [' ', h('b', {}, 'Change: '), sentence(note.change)]))));
}

function fold(what, checks, ...hint) {
  return h('details', { class: 'fold', 'data-key': `fold ${what}` }, h('summary', {}, `${plural(checks.length, 'check')} ${checks.length === 1 ? what.replace(/^are/, 'is').replace(/^do /, 'does ') : what}`),
    hint.length > 0 && h('p', { class: 'faint' }, ...hint),
    h('ul', { class: 'checks' }, checks.map((check) => h('li', { 'data-key': check.id }, mark({ ok: 'ok', unknown: 'unknown', skipped: 'unknown' }[check.outcome], ''), h('span', {}, check.title), h('span', { class: 'faint' }, check.seen)))));
}

// ---- events ---------------------------------------------------------------------------------------------------------------

// One time line of everything that happened: the agent's own events and the cluster's.
const AT_ONCE = 100;
const wanted = { source: '', severity: '' };

export const events = {
  role: 'viewer',
  topics: ['events', 'logs'],
  commands: () => [isLog() ? 'pipeops-agent logs -f' : 'pipeops-agent events'],
  start(view) {
    view.before = [];
    readEvents(view);
    view.on.log = (line) => {
      const events = view.resources.get('events');
      if (isLog() && events.data) events.data = { lines: [...events.data.lines, line].slice(-AT_ONCE * 2) };
      view.redraw();
    };
    view.on.event = (event) => {
      const events = view.resources.get('events');
      if (isLog() || view.before.length || !events.data || !matches(event)) return;
      const list = [event, ...events.data.events.filter(({ id }) => id !== event.id)];
      events.data = { ...events.data, events: list.slice(0, AT_ONCE) };
      view.redraw();
    };
  },
  draw(view) {
    const events = view.resources.get('events');
    const choose = (name, label, words) => h('label', {}, `${label} `, h('select', {
      onchange() {
        wanted[name] = this.value;
        view.before = [];
        readEvents(view);
        view.redraw();
      },
    }, words.map(([value, word]) => h('option', { value, selected: wanted[name] === value }, word))));
    return [
      h('div', { class: 'tools' },
        choose('source', 'From', [['', 'all sources'], ['agent', 'the agent'], ['cluster', 'the cluster'], ['log', 'the agent’s own log']]),
        !isLog() && choose('severity', 'Severity', [['', 'all'], ['critical', 'critical'], ['warning', 'warning'], ['note', 'note']])),
      part(events, 'events', (told) => {
        if (isLog()) return ownLog(told.lines ?? []);
        const pages = {
          before: view.before,
          next: told.next,
          words: ['Newer', 'Older'],
          back() { view.before.pop(); readEvents(view); },
          forward() { view.before.push(told.next); readEvents(view); },
        };
        return told.events?.length
          ? [table(view.before.length ? 'Earlier events' : 'Latest events; new ones appear automatically', eventColumns(), told.events, { key: (it) => it.id, rowClass: (it) => grade(it.severity) }),
            pager(pages, told.next ? '' : 'no older events are stored')]
          : [empty(wanted.source || wanted.severity ? 'No event matches.' : 'No events yet.'), view.before.length > 0 && pager(pages, '')];
      }),
    ];
  },
};

const isLog = () => wanted.source === 'log';
const LEVEL_GRADE = { error: 'critical', warn: 'warning', info: 'note' };

function ownLog(lines) {
  if (!lines.length) return empty('The agent has logged nothing yet.');
  return table('Agent log, newest first', [
    ['When', (it) => moment(it.at), 'when'],
    ['Level', (it) => [mark(LEVEL_GRADE[it.level] ?? 'unknown', ''), it.level]],
    ['Text', (it) => h('code', {}, it.text), 'wide'],
  ], lines.toReversed());
}

// As the agent chooses: what matters at least so much.
const rank = (severity) => ['note', 'warning', 'critical'].indexOf(severity);
const matches = (event) => (!wanted.source || event.source === wanted.source) && rank(event.severity) >= rank(wanted.severity);

function readEvents(view) {
  if (isLog()) {
    view.use('events', `/api/v1/logs?tail=${AT_ONCE * 2}`);
    return;
  }
  const query = new URLSearchParams({ limit: AT_ONCE });
  for (const name of ['source', 'severity']) if (wanted[name]) query.set(name, wanted[name]);
  if (view.before.length) query.set('before', view.before.at(-1));
  view.use('events', `/api/v1/events?${query}`);
}

const eventColumns = () => [
  ['When', (it) => moment(it.at), 'when'],
  ['What', (it) => [mark(grade(it.severity), it.severity), h('b', {}, it.reason), it.count > 1 && h('span', { class: 'times' }, ` × ${count(it.count)}`)]],
  ['Where', (it) => h('span', { class: 'break' }, it.subject)],
  ['Message', (it) => it.message, 'wide'],
  ['From', (it) => h('span', { class: 'faint' }, it.source)],
];

// ---- link -----------------------------------------------------------------------------------------------------------------

// The link: its state, when it was lost and why, and what waits for whom.
export const link = {
  role: 'viewer',
  commands: () => ['pipeops-agent link', 'pipeops-agent metrics outbox'],
  start(view) {
    view.use('link', '/api/v1/link', 5);
    diagnose(view);
  },
  draw(view) {
    const link = view.resources.get('link');
    const diagnosis = view.resources.get('diagnosis');
    return [
      part(link, 'the link', (told) => [
        section('State', state(told.link, told.row)),
        section('Undelivered data', waiting(told.destinations ?? [])),
        section('Outages', outages(told.outages ?? [])),
      ]),
      section('Where is the problem?', part(diagnosis, 'every step to the control plane', (told) => steps(told, diagnosis.again))),
    ];
  },
};

function state(link, row) {
  return [
    h('p', { class: 'verdict' }, mark(row.state, ''), h('b', {}, row.value), ' ', row.since && age(row.since, 'for'), link.why && ` · ${link.why}`),
    facts(
      ['Endpoint', link.endpoint && h('code', {}, link.endpoint)],
      ['Next attempt', link.next_attempt_s != null && `in ${length(link.next_attempt_s)}`],
      ['Last heartbeat', link.last_heartbeat && age(link.last_heartbeat)],
      ['Round trip', link.rtt_ms != null && `${link.rtt_ms.toFixed(1)} ms`],
      ['Received', bytes(link.received_bytes)],
      ['Sent', bytes(link.sent_bytes)],
      ['Outages since start', count(link.outages)],
      ['Last outage', link.last_outage_why],
    ),
  ];
}

function waiting(destinations) {
  if (!destinations.length) return empty('No destination is configured.');
  return table('Undelivered records by destination', [
    ['Destination', (it) => it.name],
    ['Stream', (it) => it.stream],
    ['Waiting', (it) => count(it.records), 'number short'],
    ['Lost', (it) => (it.lost ? h('b', { class: 'critical-text' }, count(it.lost)) : count(it.lost ?? 0)), 'number short'],
    ['Oldest', (it) => (it.oldest ? age(it.oldest) : '–'), 'number'],
  ], destinations, { key: (it) => `${it.name} ${it.stream}` });
}

function outages(list) {
  if (!list.length) return empty('No outages recorded.');
  return table('Outages, newest first', [
    ['From', (it) => moment(it.from), 'when'],
    ['Until', (it) => (it.to ? moment(it.to) : h('b', {}, 'now')), 'when'],
    ['Length', (it) => span(seconds(it.from), it.to ? seconds(it.to) : now()), 'number'],
    ['Why', (it) => it.why, 'wide'],
  ], list, { key: (it) => it.from });
}

// ---- access ---------------------------------------------------------------------------------------------------------------

// How strict this machine is, what was asked of it and refused, and the switch that ends remote access at once.
const LEVEL = {
  full: ['warning', 'everything that the cluster’s own rules allow'],
  managed: ['ok', 'reads, and changes in managed namespaces'],
  'read-only': ['ok', 'reads only'],
  off: ['note', 'nothing: the cluster cannot be reached through this agent'],
};

export const access = {
  role: 'viewer',
  commands: () => ['pipeops-agent access', 'pipeops-agent access off'],
  start(view) {
    view.on.change = view.use('access', '/api/v1/access', 10).soon;
  },
  draw(view) {
    const access = view.resources.get('access');
    return part(access, 'the policy', (told) => [
      section('What the control plane may do here', level(told), off(told, access)),
      section('Requests of the last 24 hours', told.last_day ? asked(told) : empty('Cannot read the audit log', told.last_day_why && `: ${told.last_day_why}`, '.')),
      told.last_day && section('Refused', refused(told.last_day.refusals ?? [])),
      h('p', { class: 'foot' }, 'Test a request: ', command('pipeops-agent access test GET /api/v1/pods')),
    ]);
  },
};

function level(told) {
  const [state, meaning] = LEVEL[told.level] ?? ['unknown', ''];
  const { by_hand: hand } = told;
  return [
    h('p', { class: 'verdict' }, mark(state, ''), h('b', {}, told.level), `: ${meaning}.`),
    facts(
      ['In the configuration', h('b', {}, told.configured?.level), ' ', h('span', { class: 'faint' }, told.configured?.from)],
      ['Set on this machine', hand ? [h('b', {}, hand.level ?? 'unknown, so nothing passes'), ' ', hand.since && age(hand.since, 'for'), hand.by && ` by ${hand.by}`, !hand.is_in_force && '; the configuration is stricter'] : 'nothing'],
      ['Running now', `${count(told.running?.short ?? 0)} short, ${count(told.running?.long ?? 0)} long, ${count(told.running?.waiting ?? 0)} waiting`],
    ),
  ];
}

function off(told, access) {
  if (told.level === 'off') {
    return h('p', { class: 'state' }, told.configured?.level === 'off'
      ? ['The configuration turns remote access off. To allow it, set access.level as root (', h('code', {}, told.configured.from), ') and restart the agent.']
      : ['Remote access is off. Only root can allow more, up to the level of the configuration: ', command(`sudo pipeops-agent access ${told.configured?.level ?? 'managed'}`)]);
  }
  return h('div', { class: 'switch' },
    h('p', {}, 'Running calls are terminated and new ones are refused, also after a restart. ', h('b', {}, 'Only root on this machine can turn it on again.')),
    h('p', {}, change('Turn remote access off', {
      name: 'Turn remote access off?',
      told: facts(['Leaves alone', 'applications, the link, measurements'], ['Undo', command(`sudo pipeops-agent access ${told.configured?.level ?? 'managed'}`)]),
      word: 'Turn it off',
      async act() {
        const done = await ask('/api/v1/access', { method: 'POST', body: { level: 'off' } });
        return { outcome: done.trouble ? 'failed' : 'done', sentence: `remote access is ${done.level}; ${count(done.cut)} running calls were terminated${done.is_kept ? '' : '; this does not survive a restart'}${done.trouble ? `: ${done.trouble}` : ''}` };
      },
      done: access.again,
    })));
}

function asked({ last_day: last }) {
  const rows = [['Reads', last.reads], ['Changes', last.changes], ['Exec and port-forward', last.entries], ['Other', last.others], ['All', last.total]].filter(([, it]) => it);
  return table('Requests by kind', [
    ['Kind', ([name]) => name],
    ['Allowed', ([, it]) => count(it.permitted), 'number short'],
    ['Refused', ([, it]) => count(it.refused), 'number short'],
    ['Received', ([, it]) => bytes(it.received_bytes), 'number'],
    ['Sent', ([, it]) => bytes(it.sent_bytes), 'number'],
  ], rows, { rowClass: ([name]) => (name === 'All' ? 'sum' : null) });
}

function refused(list) {
  if (!list.length) return empty('No refusals.');
  return table('Refusals, newest first', [
    ['What', (it) => h('code', {}, it.what), 'wide'],
    ['Why', (it) => [it.why, it.fix && h('span', { class: 'detail' }, h('b', {}, 'Fix: '), it.fix)], 'wide'],
    ['Last', (it) => moment(it.last), 'when'],
    ['Times', (it) => count(it.count), 'number short'],
  ], list);
}

// ---- settings -------------------------------------------------------------------------------------------------------------

// The settings: every value, where it came from, what it does.
let sought = '';
let isChangedOnly = false;

export const settings = {
  role: 'viewer',
  commands: () => ['pipeops-agent config show', 'pipeops-agent config check'],
  start(view) {
    view.use('settings', '/api/v1/settings', 60);
  },
  draw(view) {
    const settings = view.resources.get('settings');
    return part(settings, 'the settings', (told) => {
      const shown = (told.settings ?? []).filter((it) => (!isChangedOnly || !it.is_default) && `${it.key} ${it.meaning}`.toLowerCase().includes(sought.toLowerCase()));
      return [
        told.warnings?.length > 0 && h('ul', { class: 'findings' }, told.warnings.map((warning) => h('li', { class: 'finding warning' }, h('p', {}, mark('warning'), sentence(warning))))),
        h('div', { class: 'tools' },
          h('label', {}, 'Search ', h('input', { type: 'search', value: sought, oninput() { sought = this.value; view.redraw(); } })),
          h('label', {}, h('input', { type: 'checkbox', checked: isChangedOnly, onchange() { isChangedOnly = this.checked; view.redraw(); } }), ' changed settings only')),
        shown.length === 0 ? empty('No setting matches.') : section(plural(shown.length, 'setting'), table('Settings', [
          ['Setting', (it) => h('code', {}, it.key), 'when'],
          ['Value', (it) => (it.is_secret ? h('span', { class: 'faint' }, it.value == null ? 'not set' : 'hidden') : it.value == null || it.value === '' ? h('span', { class: 'faint' }, 'not set') : h('code', {}, String(it.value))), 'wide'],
          ['From', (it) => h('span', { class: it.is_default ? 'faint' : null }, it.is_default ? 'default' : it.origin)],
          ['Meaning', (it) => it.meaning, 'wide'],
        ], shown, { key: (it) => it.key })),
        h('p', { class: 'foot' }, 'Root sets values in /etc/pipeops-agent/config.toml or the environment; the agent reads them when it starts.'),
      ];
    });
  },
};

// ---- changes --------------------------------------------------------------------------------------------------------------

// What was done on this machine by the agent, for whom, and how it is undone.
export const changes = {
  role: 'viewer',
  commands: () => ['pipeops-agent changes'],
  start(view) {
    view.on.change = view.use('changes', '/api/v1/changes', 30).soon;
  },
  draw(view) {
    const changes = view.resources.get('changes');
    return part(changes, 'the changes', ({ changes: list }) => (list?.length
      ? section('Changes', table('Changes, newest first', [
        ['When', (it) => moment(it.at), 'when'],
        ['What', (it) => [h('b', {}, it.what), it.why && h('span', { class: 'detail' }, it.why)], 'wide'],
        ['Who', (it) => [it.who, it.from && !it.who?.includes(it.from) && h('span', { class: 'detail' }, `from ${it.from}`)]],
        ['Outcome', (it) => [mark(OUTCOME[it.outcome] ?? grade(it.outcome), ''), it.outcome]],
        ['Undo', (it) => undo(it, changes), 'wide'],
      ], list, { key: (it) => it.id }))
      : empty('No changes yet: what the agent changes on this machine is listed here.')));
  },
};

const OUTCOME = { done: 'ok', undone: 'note', failed: 'critical', refused: 'warning', running: 'unknown' };

function undo(it, changes) {
  const way = it.undo ?? {};
  if (!way.possible) return h('span', { class: 'faint' }, way.why_not ?? 'cannot be undone');
  const run = way.command ?? `pipeops-agent undo ${it.id}`;
  return [change('Undo', {
    name: 'Undo this change?',
    told: [h('p', {}, sentence(it.what)), h('p', { class: 'faint' }, 'By hand: ', command(run))],
    word: 'Undo',
    act: post(`/api/v1/changes/${encodeURIComponent(it.id)}/undo`),
    done: changes.again,
  }), h('span', { class: 'detail' }, command(run))];
}

// The cluster: nodes, namespaces, workloads and pods, a page at a time.

import { age, bytes, count, empty, facts, h, length, mark, pager, part, plural, section, sentence, table } from './base.js';

const wanted = { namespace: '', contains: '' };

export const cluster = {
  role: 'viewer',
  commands: () => ['pipeops-agent status', 'kubectl get pods -A'],
  start(view) {
    view.lists = {};
    view.use('cluster', '/api/v1/cluster', 10);
    view.use('k3s', '/api/v1/k3s', 5);
    list(view, 'workloads');
    list(view, 'pods');
  },
  draw(view) {
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

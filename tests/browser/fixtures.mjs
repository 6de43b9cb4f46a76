// Answers that a real agent cannot be brought to within seconds: hundreds of findings, ten thousand pods, hostile names, years of values.
// Shapes are those of the local API (src/wire/api); times are relative to now.

const now = () => Math.floor(Date.now() / 1000);
const stamp = (ago_s) => new Date((now() - ago_s) * 1000).toISOString();

// What a name must never do to the page.
export const HOSTILE = '<script>window.pwned=1</script><img src=x onerror="window.pwned=1">';

const row = (id, title, state, value, since) => ({ id, title, value, since, details: [], state });
const figure = (id, title, state, value, detail, age_s, source) => ({ id, title, value, detail, age_s, source, state });

export const host = {
  healthy: {
    figures: [
      figure('link', 'Link', 'ok', 'connected', 'for 4 d 2 h, round trip 38 ms', 2, 'control plane'),
      figure('k3s', 'k3s', 'ok', 'v1.34.4+k3s1', 'API answers in 4 ms', 5, 'Kubernetes API'),
      figure('node', 'Node', 'ok', 'ready', '31 pods run', 12, 'kubelet'),
      figure('disk', 'Disk', 'ok', '41 % of 31.9 GB', '/dev/mmcblk0p2, 12 % worn', 4, '/proc/mounts'),
      figure('clock', 'Clock', 'ok', 'synchronized', 'off by 3 ms', 9, 'kernel'),
      figure('power', 'Power', 'ok', 'no under-voltage', '52.1 °C', 4, 'firmware'),
      figure('backlog', 'Backlog', 'ok', 'nothing waits', null, 1, 'telemetry.db'),
    ],
  },
  broken: {
    figures: [
      figure('link', 'Link', 'critical', 'lost 3 h 12 min ago', 'name resolution of api.pipeops.example failed', 2, 'session'),
      figure('k3s', 'k3s', 'critical', 'does not answer', 'connection refused on 127.0.0.1:6443', 5, 'Kubernetes API'),
      figure('node', 'Node', 'unknown', 'not known', 'last seen ready', 11_520, 'kubelet'),
      figure('disk', 'Disk', 'warning', '94 % of 31.9 GB', 'full in about 2 d', 4, '/proc/mounts'),
      figure('clock', 'Clock', 'warning', 'not synchronized', 'stepped by 3 h 1 min', 9, 'kernel'),
      figure('power', 'Power', 'critical', 'under-voltage now', '81.4 °C, throttled', 4, 'firmware'),
      figure('backlog', 'Backlog', 'warning', '4,210 records', 'oldest 3 h 12 min', 1, 'telemetry.db'),
    ],
  },
};

const step = (id, title, outcome, seen, took_ms, fix = null) => ({ id, title, outcome, seen, took_ms, fix });

export const diagnosis = {
  healthy: () => ({
    side: 'none', sentence: 'every step to the control plane works', at: stamp(4),
    steps: [
      step('carrier', 'Carrier', 'ok', 'eth0 has one, 1000 Mbit/s', 0), step('address', 'Address', 'ok', '192.168.1.23/24 on eth0', 0),
      step('route', 'Default route', 'ok', 'via 192.168.1.1 on eth0', 0), step('dns', 'DNS', 'ok', 'api.pipeops.example is 203.0.113.7', 12),
      step('tcp', 'TCP', 'ok', '203.0.113.7:443 takes the connection', 31), step('tls', 'TLS', 'ok', 'certificate good until 2027-02-01', 64),
      step('http', 'HTTP', 'ok', '101 Switching Protocols', 40), step('clock', 'Clock', 'ok', 'off by 0.1 s', null),
    ],
  }),
  broken: () => ({
    side: 'network', sentence: 'the machine has an address and a route, but no name server answers', at: stamp(6),
    steps: [
      step('carrier', 'Carrier', 'ok', 'eth0 has one, 1000 Mbit/s', 0), step('address', 'Address', 'ok', '192.168.1.23/24 on eth0', 0),
      step('route', 'Default route', 'ok', 'via 192.168.1.1 on eth0', 0),
      step('dns', 'DNS', 'failed', 'no answer from 192.168.1.1 in 5 s', 5003, 'name a server that answers in /etc/resolv.conf, such as: nameserver 1.1.1.1'),
      step('tcp', 'TCP', 'skipped', 'there is no address', null), step('tls', 'TLS', 'skipped', '', null), step('http', 'HTTP', 'skipped', '', null),
      step('clock', 'Clock', 'unknown', 'nobody to compare with', null),
    ],
  }),
};

export const status = (state = 'healthy') => ({
  summary: state === 'healthy' ? 'everything works' : 'the control plane has not answered for 3 h 12 min; apps run; 4,210 records wait',
  verdict: { code: state === 'healthy' ? 'ok' : 'link.lost', part: 'link', severity: state === 'healthy' ? 'ok' : 'critical', sentence: '', fix: null, since: null, age_s: 3, parts: [] },
  version: '0.1.0', agent_id: 'agent-7f3a', cluster_id: 'c-19', cluster_name: 'shop-berlin', started: stamp(360_000), uptime_s: 360_000, boot_id: null,
  link: { state: state === 'healthy' ? 'ready' : 'waiting', since: stamp(11_520), why: null, endpoint: 'wss://api.pipeops.example', outages: 3, received_bytes: 48_210_441, sent_bytes: 9_120_773 },
  cluster: { state: 'ready', nodes: 3, nodes_ready: 3, pods: 31 }, host: { hostname: 'pi-shop-berlin', os: 'Debian 12' }, access: { level: 'managed', tightened_from: null }, load: {},
  conditions: state === 'healthy' ? [] : [
    { id: 'link.lost', severity: 'critical', since: stamp(11_520), sentence: 'the control plane has not answered for 3 h 12 min: name resolution failed', fix: 'none needed on this machine if the router is down; local work goes on' },
    { id: 'power.low', severity: 'warning', since: stamp(640), sentence: 'the power supply is too weak: the processor is throttled', fix: 'use the supply that came with the board, 5.1 V and 3 A' },
    { id: 'disk.filling', severity: 'note', since: stamp(86_400), sentence: 'the disk will be full in about 2 days', fix: null },
  ],
});

const check = (id, title, severity, outcome, seen, more = {}) => ({ id, title, severity, outcome, seen, why: '', fix: null, commands: [], because: null, needs_root: false, automatic: null, ...more });
const FINE = ['kernel.modules', 'clock.source', 'disk.inodes', 'disk.read_only', 'memory.swap', 'network.mtu', 'network.forwarding', 'dns.loop', 'k3s.version', 'k3s.certificates', 'state.writable', 'agent.user'];
const environment = {
  board: 'Raspberry Pi 4 Model B Rev 1.4', distribution: 'Debian GNU/Linux 12 (bookworm)', init: 'systemd 252', virtualisation: 'bare metal', nas: null, cgroup: 'v2', page_size_bytes: 4096, architecture: 'aarch64',
  boot_loader: 'Raspberry Pi firmware', boot_file: '/boot/firmware/cmdline.txt', package_manager: 'apt', notes: [{ works: 'k3s runs on this board', change: 'put its data on an SSD: SD cards wear out within a year' }],
};
const fine = FINE.map((id) => check(id, id.replace('.', ': '), 'warning', 'ok', 'as it should be'));

export const problems = {
  healthy: () => ({ environment, took_ms: 412, at: stamp(8), checks: fine }),
  broken: () => ({
    environment, took_ms: 1204, at: stamp(8),
    checks: [
      check('cgroup.memory', 'The kernel was started without the memory controller', 'critical', 'problem', '/sys/fs/cgroup/cgroup.controllers: cpuset cpu io pids', {
        why: 'k3s cannot start without it', fix: 'append "cgroup_memory=1 cgroup_enable=memory" to the single line of /boot/firmware/cmdline.txt, then reboot',
        commands: ["sudo sed -i '1s/$/ cgroup_memory=1 cgroup_enable=memory/' /boot/firmware/cmdline.txt", 'sudo reboot'],
        automatic: { does: 'appends two words to the single line of /boot/firmware/cmdline.txt and keeps a copy beside it', leaves: 'it does not reboot, and touches no other file', undo: 'pipeops-agent undo puts the copy back' },
      }),
      check('k3s.start', 'k3s does not start', 'critical', 'problem', 'k3s.service failed 14 times in the last hour', { because: 'cgroup.memory', why: 'no application runs' }),
      check('disk.space', 'The disk is nearly full', 'warning', 'problem', '/ has 1.9 GB of 31.9 GB left', { why: 'the kubelet evicts pods below 10 %', fix: 'remove images that nobody uses', commands: ['sudo k3s crictl rmi --prune'] }),
      check('name.hostile', HOSTILE, 'note', 'problem', HOSTILE, { why: 'a name is data' }),
      check('firmware.sensors', 'The firmware says nothing about under-voltage', 'note', 'unknown', 'only root may read /dev/vcio', { needs_root: true }),
      check('k3s.etcd', 'etcd is in quorum', 'note', 'skipped', 'this k3s keeps its state in SQLite'),
      ...fine,
    ],
  }),
};

const SOURCES = ['agent', 'cluster'];
export function events(before, limit = 100) {
  const from = before ? Number(before) : 0;
  const list = Array.from({ length: Math.min(limit, 350 - from) }, (_, at) => {
    const n = from + at;
    const severity = n % 17 === 3 ? 'critical' : n % 5 === 2 ? 'warning' : 'note';
    return {
      id: `e${n}`, at: stamp(n * 431 + 20), source: SOURCES[n % 2], severity, subject: n === 4 ? HOSTILE : n % 2 ? `shop/web-5d8c7f9b6d-${n}` : 'link', count: n % 7 === 0 ? 12 : 1,
      reason: n % 2 ? ['BackOff', 'Pulled', 'Killing', 'FailedScheduling'][n % 4] : ['link ready', 'link lost', 'agent started'][n % 3],
      message: n === 4 ? HOSTILE : n % 2 ? 'Back-off restarting failed container web in pod web-5d8c7f9b6d_shop(4b1c)' : 'the control plane answered after 3 min 20 s',
    };
  });
  return { events: list, next: from + list.length < 350 ? String(from + list.length) : null };
}

export const link = {
  healthy: () => ({
    link: { state: 'ready', since: stamp(353_000), why: null, endpoint: 'wss://gateway-3.pipeops.example/agent', next_attempt_s: null, last_heartbeat: stamp(12), rtt_ms: 38.2, outages: 3, last_outage_why: 'connection reset by peer', received_bytes: 48_210_441, sent_bytes: 9_120_773 },
    row: row('link', 'Link', 'ok', 'connected', stamp(353_000)),
    outages: [
      { from: stamp(354_000), to: stamp(353_000), why: 'connection reset by peer' }, { from: stamp(700_000), to: stamp(699_900), why: 'no answer to a ping within 20 s' },
      { from: stamp(900_000), to: stamp(813_000), why: 'name resolution of gateway-3.pipeops.example failed' },
    ],
    destinations: [
      { name: 'control plane', stream: 'minutes', records: 0, oldest: null, lost: 0 }, { name: 'control plane', stream: 'events', records: 0, oldest: null, lost: 0 },
      { name: 'https://metrics.example/api/v1/write', stream: 'minutes', records: 12, oldest: stamp(60), lost: 0 },
    ],
  }),
  broken: () => ({
    link: { state: 'waiting', since: stamp(11_520), why: 'name resolution of api.pipeops.example failed', endpoint: 'wss://api.pipeops.example', next_attempt_s: 58, last_heartbeat: stamp(11_530), rtt_ms: null, outages: 4, last_outage_why: 'no answer to a ping within 20 s', received_bytes: 48_210_441, sent_bytes: 9_120_773 },
    row: row('link', 'Link', 'warning', 'waiting', stamp(11_520)),
    outages: [{ from: stamp(11_520), to: null, why: 'no answer to a ping within 20 s' }],
    destinations: [{ name: 'control plane', stream: 'minutes', records: 4210, oldest: stamp(11_520), lost: 17 }],
  }),
};

const asked = (permitted, refused) => ({ count: permitted + refused, permitted, refused, received_bytes: permitted * 312, sent_bytes: permitted * 20_411 });
export const access = (level = 'managed') => ({
  level, configured: { level: 'managed', from: '/etc/pipeops-agent/config.toml:14' }, by_hand: level === 'off' ? { level: 'off', is_in_force: true, since: stamp(340), by: 'operator at 127.0.0.1' } : null,
  last_day: {
    total: asked(1841, 9), reads: asked(1802, 2), changes: asked(31, 7), entries: asked(8, 0), others: asked(0, 0),
    refusals: [
      { what: 'DELETE /api/v1/namespaces/kube-system/pods/coredns-7b98449c4-x2lqp', why: 'the namespace kube-system is not managed', fix: 'label it: kubectl label namespace kube-system pipeops.io/managed=true', last: stamp(4_000), count: 6 },
      { what: `GET /api/v1/namespaces/${HOSTILE}/secrets`, why: 'Secrets are read in managed namespaces only', fix: null, last: stamp(40_000), count: 3 },
    ],
  },
  last_day_why: null, running: { short: 2, waiting: 0, long: 1 },
});

const setting = (key, value, origin, meaning, more = {}) => ({ key, value, origin, meaning, is_secret: false, is_default: origin === 'default', ...more });
export const settings = () => ({
  settings: [
    setting('pipeops.api_url', 'https://api.pipeops.example', '/etc/pipeops-agent/config.toml:3', 'Address of the control plane.'),
    setting('pipeops.token', null, '/etc/pipeops-agent/config.toml:4', 'Token of the registration.', { is_secret: true, value: 'hidden' }),
    setting('access.level', 'managed', 'default', 'What the control plane may do here.'), setting('telemetry.interval', '5s', 'PIPEOPS_TELEMETRY_INTERVAL', 'How often the machine is measured.'),
    setting('telemetry.disk_max', '512MB', 'default', 'What telemetry.db may take of the disk.'), setting('dashboard.listen', '127.0.0.1:7480', 'default', 'Address of the dashboard.'),
    setting('pipeops.no_proxy', null, 'default', 'Names that are reached without the proxy.'), setting('log.level', 'info', '--set', 'What is logged.'),
  ],
  warnings: ['k3s.version is not read by this version'],
});

const done = (id, ago, what, outcome, undo, why = null) => ({ id, at: stamp(ago), who: 'operator', from: '127.0.0.1', what, outcome, why, undo });
export const changes = () => ({
  changes: [
    done('c-31', 340, 'access set to off', 'done', { possible: false, command: null, why_not: 'only root makes it less strict: sudo pipeops-agent access managed' }),
    done('c-30', 9_400, 'added "cgroup_memory=1 cgroup_enable=memory" to /boot/firmware/cmdline.txt', 'done', { possible: true, command: 'sudo pipeops-agent undo c-30', why_not: null }),
    done('c-29', 90_000, 'cleaned unused images', 'failed', { possible: false, command: null, why_not: 'nothing was changed' }, 'crictl did not answer within 60 s'),
    done('c-28', 190_000, 'set the MTU of eth0 to 1450', 'undone', { possible: false, command: null, why_not: 'it was undone' }),
  ],
});

const k3sRow = (title, value, state = 'unknown', details = []) => ({ id: title.toLowerCase().replaceAll(' ', '_'), title, value, since: null, details, state });
// Hundreds of volumes, faults with hostile words, a change under way.
export const k3s = (state) => {
  const isFine = state === 'healthy';
  const backups = Array.from({ length: isFine ? 3 : 7 }, (_, n) => `4.2 MB, ${n ? 'v1.34.4+k3s1' : 'encrypted'}: k3s-pi-shop-berlin-20261123T02000${n}Z.tar.gz${n ? '' : '.age'}`);
  const volumes = Array.from({ length: 7 }, (_, n) => `210.0 MB: /var/lib/rancher/k3s/storage/pvc-5a2c9d1e-7a54-4a6e-9c0e-${n}_shop_${n === 3 ? HOSTILE : 'data-database-0'}`);
  return {
    copies: null,
    rows: [
      isFine ? k3sRow('k3s', 'k3s runs, and its node is Ready', 'ok') : k3sRow('k3s', 'k3s is installed, but its node is not Ready', 'critical'),
      !isFine && k3sRow('Why', `its API does not answer (${HOSTILE})`),
      !isFine && k3sRow('Under way', 'restart k3s: the API of this machine does not answer; waiting for 45 s: its API does not answer yet, for 1 min 2 s'),
      k3sRow('Managed', 'yes, installed'), k3sRow('Version', 'v1.34.4+k3s1'), k3sRow('Service', 'active'), k3sRow('Node', 'pi-shop-berlin-1'), k3sRow('Data', '/mnt/ssd/a-directory-with-a-long-name/and-more-of-it/rancher/k3s'), k3sRow('Datastore', '12.4 MB'),
      k3sRow('Certificates', 'the first expires 2027-11-23 10:00:00Z (/mnt/ssd/a-directory-with-a-long-name/and-more-of-it/rancher/k3s/server/tls/client-admin.crt)'), k3sRow('Watched', 'yes, looked at 2026-11-23 10:00:00Z'),
      k3sRow('Copies', 'https://s3.example/backups/berlin', isFine ? 'unknown' : 'warning', ['3 in the bucket (12.6 MB), newest 2 h old: k3s-pi-shop-berlin-20261123T020000Z.tar.gz.age', ...(isFine ? [] : ['the bucket refuses the key'])]),
      !isFine && k3sRow('Fault', `k3s keeps crashing, and says: ${HOSTILE}`, 'unknown', ['k3s.port-taken', "Fix: find the other program, and stop it or move it: sudo ss -ltnp | grep -E ':(6443|6444|10250|10257|10259) '"]),
      k3sRow('Backups', String(backups.length), 'unknown', backups),
      k3sRow('In no backup', isFine ? '7' : '300', 'unknown', isFine ? volumes : [...volumes, 'and 293 more: sudo pipeops-agent k3s status']),
      k3sRow('Change', '2026-11-23 10:00:00Z done: restart k3s: the API of this machine does not answer', 'unknown', ['Undo: it cannot be undone']),
      k3sRow('Change', '2026-11-22 10:00:00Z done: watch over k3s, and repair what is known to break', 'unknown', ['Undo: sudo pipeops-agent undo k3s-watch-2']),
    ].filter(Boolean),
    seen: {},
  };
};

const NAMESPACES = ['kube-system', 'shop', 'monitoring', 'a-namespace-with-a-name-that-is-as-long-as-kubernetes-permits-6'];
export const cluster = (state = 'ready', nodes = 3) => ({
  state, why: state === 'ready' ? null : 'connection refused on 127.0.0.1:6443', at: stamp(3),
  nodes: state !== 'ready' ? [] : Array.from({ length: nodes }, (_, n) => ({
    name: `pi-shop-berlin-${n + 1}`, ready: n === 2 ? false : true, roles: n ? 'worker' : 'control-plane', version: 'v1.34.4+k3s1', address: `192.168.1.${23 + n}`, conditions: n === 2 ? [{ kind: 'DiskPressure', text: 'kubelet has disk pressure' }, { kind: 'Ready', text: 'container runtime is down' }] : [],
    cpu_cores: 4, cpu_percent: n === 2 ? null : 31 + n * 22, memory_bytes: 3_981_312_000, memory_percent: n === 2 ? null : 61 + n * 30, pods: n === 2 ? null : 14, age_s: 8_640_000,
  })),
  namespaces: state !== 'ready' ? [] : NAMESPACES.map((name, n) => ({ name, pods: 8 + n, running: 7 + n, pending: n === 1 ? 1 : 0, failed: n === 2 ? 1 : 0, restarts: n * 3 })),
});

export function pods(query, all = 31) {
  const from = Number(query.get('continue') ?? 0);
  const contains = query.get('contains') ?? '';
  const list = [];
  let n = from;
  for (; n < all && list.length < 200; n += 1) {
    const name = n === 2 ? HOSTILE : `web-${n % 3 ? '5d8c7f9b6d' : 'cache'}-${n.toString(36).padStart(5, 'x')}`;
    const namespace = NAMESPACES[n % NAMESPACES.length];
    if (!name.includes(contains) || (query.get('namespace') && query.get('namespace') !== namespace)) continue;
    const phase = ['Running', 'Running', 'Running', 'Pending', 'Running', 'Failed', 'Succeeded'][n % 7];
    list.push({ namespace, name, phase, ready: phase === 'Running' ? '1/1' : '0/1', restarts: n % 11, last_reason: n % 11 > 8 ? 'OOMKilled' : null, node: `pi-shop-berlin-${(n % 3) + 1}`, age_s: n * 4000 + 60, containers: n % 5 ? ['web'] : ['web', 'sidecar'] });
  }
  return { pods: list, continue: n < all ? String(n) : null };
}

export const workloads = () => ({
  workloads: ['web', 'cache', 'database', 'coredns', 'traefik'].map((name, n) => ({ namespace: NAMESPACES[n % 3], name, kind: ['Deployment', 'StatefulSet', 'DaemonSet'][n % 3], wanted: 2, ready: n === 1 ? 0 : n === 2 ? 1 : 2, age_s: 400_000 * (n + 1) })), continue: null,
});

// Escapes, invalid UTF-8, control characters, markup, a line of a megabyte.
export const log = () => Buffer.concat([
  Buffer.from('2026-06-16T05:50:28Z \x1b[31mred\x1b[0m and \x1b]0;title\x07plain\n'), Buffer.from([0x69, 0x6e, 0xff, 0xfe, 0x76, 0x61, 0x6c, 0x69, 0x64, 0x0a]),
  Buffer.from(`bell \x07 null \x00 ${HOSTILE}\n`), Buffer.from(`${'x'.repeat(1_000_000)}\n`),
  Buffer.from(Array.from({ length: 20_000 }, (_, n) => `GET /cart/${n} 200 ${(n * 7) % 90} ms\n`).join('')),
]);

const METRICS = [
  ['host_cpu_ratio', ['user', 'system', 'iowait'], 'mode'], ['host_load1'], ['host_load5'], ['host_load15'], ['host_temperature_celsius', ['cpu'], 'sensor'], ['host_throttled'], ['host_memory_total_bytes'], ['host_memory_available_bytes'],
  ['host_disk_read_bytes_per_second', ['mmcblk0'], 'device'], ['host_disk_written_bytes_per_second', ['mmcblk0'], 'device'], ['host_filesystem_size_bytes', ['/', '/boot/firmware'], 'mount'], ['host_filesystem_available_bytes', ['/', '/boot/firmware'], 'mount'],
  ['host_network_bytes_per_second', ['in', 'out'], 'direction'], ['host_uptime_seconds'], ['host_clock_step_seconds'], ['agent_cpu_ratio'], ['agent_memory_pss_bytes'],
];
export const series = () => ({
  series: [
    ...METRICS.flatMap(([metric, values = [null], label]) => values.map((value) => ({ key: value ? `${metric}{${label}="${value}"}` : metric, metric, labels: value ? { [label]: value } : {}, unit: '', subject: 'host', live: true }))),
    ...Array.from({ length: 40 }, (_, n) => ({ key: `cluster_pod_memory_working_set_bytes{pod="web-${n}"}`, metric: 'cluster_pod_memory_working_set_bytes', labels: { namespace: 'shop', pod: `web-${n}` }, unit: '', subject: 'cluster', live: true })),
  ],
  total: 100,
  continue: null,
});

const SIZE = [[/_ratio/, 0.3], [/_celsius/, 55], [/throttled/, 0], [/size|total/, 3.9e9], [/available/, 1.6e9], [/_bytes/, 4e6], [/uptime/, 4e5], [/./, 1.1]];
export function values(query) {
  const [from, to, points] = ['from', 'to', 'points'].map((name) => Number(query.get(name)));
  const step_s = Math.max(5, Math.ceil((to - from) / points));
  const times = [];
  for (let at = Math.ceil(from / step_s) * step_s; at <= to; at += step_s) times.push(at);
  const width = to - from;
  // A gap of a tenth of the range, like a night without power.
  const isGap = (at) => at > from + width * 0.55 && at < from + width * 0.63;
  const all = query.getAll('key').map((key, line) => {
    const size = SIZE.find(([pattern]) => pattern.test(key))[1];
    const still = /size|total|throttled/.test(key);
    const mean = times.map((at) => (isGap(at) ? null : still ? size : size * (1 + 0.4 * Math.sin(at / (width / 14) + line * 2) + 0.15 * Math.sin(at / (width / 90)))));
    return { key, unit: '', mean, min: mean.map((value) => value && value * 0.9), max: mean.map((value) => value && value * 1.15) };
  });
  return { from, to, step_s, times, series: all, marks: [{ time: Math.round(from + width * 0.63), kind: 'boot', text: 'booted after 2 h without power' }, { time: Math.round(from + width * 0.8), kind: 'deploy', text: 'shop/web' }, { time: Math.round(from + width * 0.3), kind: 'throttled', text: 'throttled at 81.4 °C' }] };
}

const APPS = [
  { app: 'web', namespace: 'shop', revision: 3, verdict: 'bad', cause: 'image.not-found', object: 'Pod shop/web-7d4b9', sentence: 'the image shop/web:v2 does not exist in its registry', evidence: HOSTILE, fix: 'correct the image or its tag, or push it', since: stamp(95), good: 2, runs: 3, paused: true },
  { app: 'api', namespace: 'shop', revision: 1, verdict: 'soaking', cause: null, object: null, sentence: 'everything is ready, for 12 s of 60', evidence: null, fix: null, since: stamp(12), good: 0, runs: 1, paused: false },
  { app: 'a-name-that-is-as-long-as-the-name-of-an-app-may-be-and-longer', namespace: 'default', revision: 12, verdict: 'good', cause: null, object: null, sentence: 'everything is ready', evidence: null, fix: null, since: stamp(86_400), good: 12, runs: 12, paused: false },
];
const OBJECTS = [{ kind: 'Deployment', name: 'web' }, { kind: 'StatefulSet', name: 'queue' }, { kind: 'PersistentVolumeClaim', name: 'web-data' }, ...Array.from({ length: 80 }, (_, n) => ({ kind: 'ConfigMap', name: n ? `settings-${n}` : HOSTILE }))].map((it, n) => ({ ...it, uid: String(n) }));
const REVISIONS = [[1, 'bad'], [2, 'good'], [3, 'bad']].map(([number, verdict]) => ({ number, at: stamp(4000 - number * 1000), by: 'root', verdict, cause: null, sentence: verdict === 'bad' ? HOSTILE : 'everything is ready' }));

// The whole local API out of fixtures: `state` is healthy, broken, empty or huge. Null where there is no answer.
export function answer(state, url, role = 'operator') {
  const query = url.searchParams;
  const is = state === 'huge' ? 'healthy' : state;
  const empty = state === 'empty';
  switch (url.pathname) {
    case '/api/v1/session': return { role, has_password: true, until: null, via: 'loopback' };
    case '/api/v1/status': return status(empty ? 'healthy' : is);
    case '/api/v1/host': return empty ? { environment, figures: [] } : { environment, ...host[is] };
    case '/api/v1/diagnosis': return diagnosis[empty ? 'healthy' : is]();
    case '/api/v1/problems': return empty ? { environment: null, took_ms: 3, at: stamp(2), checks: [] } : problems[is]();
    case '/api/v1/events': return empty ? { events: [], next: null } : events(query.get('before'), Number(query.get('limit') ?? 100));
    case '/api/v1/logs': return { lines: empty ? [] : Array.from({ length: 80 }, (_, n) => ({ at: stamp(800 - n * 10), level: ['info', 'warn', 'error'][n % 3], text: n === 4 ? HOSTILE : 'link ready endpoint=wss://gateway-3.pipeops.example rtt_ms=38' })) };
    case '/api/v1/link': return empty ? { ...link.healthy(), outages: [], destinations: [] } : link[is]();
    case '/api/v1/access': return empty ? { ...access(), last_day: null, last_day_why: 'state.db is being copied' } : access(is === 'broken' ? 'off' : 'managed');
    case '/api/v1/access/decision': return { verdict: 'refused', why: 'Secrets are read in managed namespaces only', fix: 'kubectl label namespace shop pipeops.io/managed=true', level: 'managed' };
    case '/api/v1/settings': return empty ? { settings: [], warnings: [] } : settings();
    case '/api/v1/changes': return empty ? { changes: [] } : changes();
    case '/api/v1/k3s': return empty ? { copies: null, seen: null, rows: [] } : k3s(state);
    case '/api/v1/cluster': return empty ? { state: 'none', why: null, at: stamp(1), nodes: [], namespaces: [] } : is === 'broken' ? cluster('unreachable') : cluster('ready', state === 'huge' ? 60 : 3);
    case '/api/v1/cluster/pods': return empty ? { pods: [], continue: null } : pods(query, state === 'huge' ? 10_000 : 31);
    case '/api/v1/cluster/workloads': return empty ? { workloads: [], continue: null } : workloads();
    case '/api/v1/apps': return { apps: empty ? [] : APPS };
    case '/api/v1/apps/web': return { ...APPS[0], objects: OBJECTS, revisions: REVISIONS };
    case '/api/v1/apps/web/pods': return { app: 'web', pods: empty ? [] : [{ namespace: 'shop', name: 'web-7d4b9', ready: false, restarts: 3, containers: ['web', 'sidecar'] }, { namespace: 'shop', name: HOSTILE, ready: true, restarts: 0, containers: ['web'] }] };
    case '/api/v1/series': return empty ? { series: [], total: 0, continue: null } : series();
    case '/api/v1/series/values': return values(query);
    default: return null;
  }
}

// A real agent with its control plane and, where one can be had, a real cluster; all of it can be taken away and given back.

import { execFile, spawn } from 'node:child_process';
import fs from 'node:fs';
import http from 'node:http';
import net from 'node:net';
import os from 'node:os';
import path from 'node:path';
import { setTimeout as pause } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';

export const ROOT = fileURLToPath(new URL('../..', import.meta.url));
const PROGRAMS = path.join(ROOT, 'target/debug');
const CLUSTER = path.join(ROOT, 'tests/cluster/cluster');
// A watch of the cluster waits up to 75 s between two attempts.
const DEADLINE_MS = 120_000;

// Looks at a level until it gives something.
export async function until(what, level, deadline_ms = DEADLINE_MS) {
  const end = Date.now() + deadline_ms;
  for (;;) {
    const found = await level();
    if (found) return found;
    if (Date.now() > end) throw new Error(`not within ${deadline_ms / 1000} s: ${what}`);
    await pause(50);
  }
}

async function freePort(address = '127.0.0.1') {
  const server = net.createServer().listen(0, address);
  await new Promise((listening) => server.once('listening', listening));
  const { port } = server.address();
  server.close();
  return port;
}

// A program that can be ended, killed and started again.
class Program {
  constructor(name, words, environment, log) {
    Object.assign(this, { name, words, environment, log, child: null });
  }

  start() {
    const log = fs.openSync(this.log, 'a');
    this.child = spawn(path.join(PROGRAMS, this.name), this.words, { env: this.environment, stdio: ['ignore', log, log] });
    fs.closeSync(log);
  }

  async end(signal = 'SIGTERM') {
    const { child } = this;
    if (!child || child.exitCode !== null || child.signalCode !== null) return;
    const ended = new Promise((done) => child.once('exit', done));
    child.kill(signal);
    await ended;
  }
}

export const NAMESPACE = 'of-the-page';
export const IMAGE = 'pipeops-test.invalid/testpod:1';
const map = (name, text) => `apiVersion: v1\nkind: ConfigMap\nmetadata: {name: ${name}, namespace: ${NAMESPACE}}\ndata: {text: ${text}}\n---\n`;
const WORKLOAD = `apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 1
      containers: [{name: web, image: "${IMAGE}", imagePullPolicy: Never}]
`;

export class World {
  constructor() {
    this.folder = fs.mkdtempSync(path.join(os.tmpdir(), 'pipeops-page-'));
    this.socket = path.join(this.folder, 'agent.sock');
    this.clusterFolder = path.join(this.folder, 'cluster');
  }

  in(name) {
    return path.join(this.folder, name);
  }

  async start() {
    await this.startCluster();
    const at = `127.0.0.1:${await freePort()}`;
    this.plane = new Program('plane', ['--listen', at, '--state', this.in('plane')], { PATH: process.env.PATH }, this.in('plane.log'));
    this.plane.start();
    await until('the control plane serves', () => fs.existsSync(this.in('plane/api_url')) && fs.readFileSync(this.in('plane/api_url'), 'utf8').trim());
    const listen = `127.0.0.1:${await freePort()}`;
    this.base = `http://${listen}`;
    fs.writeFileSync(this.in('config.toml'), '');
    this.agent = new Program('pipeops-agent', ['run'], {
      PATH: process.env.PATH,
      PIPEOPS_CONFIG: this.in('config.toml'),
      PIPEOPS_API_URL: fs.readFileSync(this.in('plane/api_url'), 'utf8').trim(),
      PIPEOPS_TOKEN_FILE: this.in('plane/token'),
      PIPEOPS_TLS_CA_FILE: this.in('plane/ca.pem'),
      PIPEOPS_CLUSTER_NAME: 'browser',
      PIPEOPS_STATE_DIR: this.in('agent'),
      PIPEOPS_DASHBOARD_SOCKET: this.socket,
      PIPEOPS_DASHBOARD_LISTEN: listen,
      PIPEOPS_APPS_FOLDER: this.in('apps'),
      KUBECONFIG: this.kubeconfig ?? '',
    }, this.in('agent.log'));
    fs.mkdirSync(this.in('apps'), { mode: 0o755 });
    this.agent.start();
    await this.status('the link is ready', (status) => status.link.state === 'ready');
    if (this.kubeconfig) await this.status('the cluster is ready', (status) => status.cluster.state === 'ready');
    await this.deploy();
    await until('something was measured', () => this.ask('GET', '/api/v1/series').then(({ series }) => series.length > 10, () => false), 180_000);
  }

  // Where no cluster can be had, the tests go on without one and say so.
  async startCluster() {
    try {
      const { stdout } = await promisify(execFile)(CLUSTER, ['up', this.clusterFolder, '--owner', String(process.pid)], { timeout: 900_000 });
      this.kubeconfig = /kubeconfig=(\S+)/.exec(stdout)?.[1];
      await this.cluster('fixtures');
      await this.grant();
    } catch (error) {
      if (error.code !== 75) throw new Error(`the test cluster: ${error.stdout ?? ''}${error.stderr ?? error.message}`);
      console.log(`skipped: the page before a cluster: ${String(error.stdout).replace(/^skipped: /, '').trim()}`);
    }
  }

  // What the agent needs in the cluster, as a user gives it.
  async grant() {
    const { stdout } = await promisify(execFile)(path.join(PROGRAMS, 'pipeops-agent'), ['rbac']);
    const manifest = this.in('rbac.yaml');
    fs.writeFileSync(manifest, stdout);
    await promisify(execFile)(CLUSTER, ['kubectl', this.clusterFolder, 'apply', '-f', manifest], { timeout: 120_000 });
  }

  async kubectl(...words) {
    const { stdout } = await promisify(execFile)(CLUSTER, ['kubectl', this.clusterFolder, ...words], { timeout: 120_000 });
    return stdout;
  }

  // The first version of an app that is judged while other tests run, and another one in the folder of apps.
  async deploy() {
    if (!this.kubeconfig || process.getuid() !== 0) return;
    await this.kubectl('create', 'namespace', NAMESPACE);
    await this.kubectl('-n', NAMESPACE, 'create', 'rolebinding', 'pipeops-apps', '--clusterrole=pipeops-apps-deploy', '--serviceaccount=pipeops-system:pipeops-apps');
    await this.apply('web', 'one');
    fs.writeFileSync(path.join(this.in('apps'), 'shop.yaml'), map('shop', 'from the folder'), { mode: 0o644 });
  }

  apply(app, text) {
    return this.ask('POST', '/api/v1/apps', JSON.stringify({ app, namespace: NAMESPACE, manifests: map(app, text) + WORKLOAD }));
  }

  text(app) {
    return this.kubectl('-n', NAMESPACE, 'get', `configmap/${app}`, '-o', 'jsonpath={.data.text}');
  }

  image(app) {
    return this.kubectl('-n', NAMESPACE, 'get', `deployment/${app}`, '-o', 'jsonpath={.spec.template.spec.containers[0].image}');
  }

  async secret(name, key) {
    return Buffer.from(await this.kubectl('-n', NAMESPACE, 'get', `secret/${name}`, '-o', `jsonpath={.data.${key}}`), 'base64').toString();
  }

  app(name, what, level) {
    return until(`${name}: ${what}`, async () => {
      const app = await this.ask('GET', `/api/v1/apps/${name}`).catch(() => null);
      return app && level(app);
    }, 180_000);
  }

  cluster(verb) {
    return promisify(execFile)(CLUSTER, [verb, this.clusterFolder], { timeout: 300_000 });
  }

  // What the agent says on its socket, as its operator.
  ask(method, asked, body, socketPath = this.socket) {
    return new Promise((found, failed) => {
      const request = http.request({ socketPath, method, path: asked, headers: { host: 'localhost', ...(body && { 'content-type': 'application/json', 'content-length': Buffer.byteLength(body) }) } }, (answer) => {
        let text = '';
        answer.setEncoding('utf8').on('data', (part) => { text += part; }).on('end', () => (answer.statusCode < 300 ? found(JSON.parse(text)) : failed(new Error(`${asked}: ${answer.statusCode} ${text}`)))).on('error', failed);
      });
      request.on('error', failed).end(body);
    });
  }

  status(what, level) {
    return until(what, async () => {
      const status = await this.ask('GET', '/api/v1/status').catch(() => null);
      return status && level(status);
    });
  }

  async token(role = 'operator') {
    const { token } = await this.ask('POST', '/api/v1/tokens', JSON.stringify({ role }));
    return token;
  }

  // An agent that nobody but viewers knows, at an address that other machines reach: there the page is encrypted. Null where this machine
  // has no such address.
  async exposed() {
    const { address } = Object.values(os.networkInterfaces()).flat().find(({ family, internal }) => family === 'IPv4' && !internal) ?? {};
    if (!address) return null;
    const socket = this.in('exposed.sock');
    const listen = `${address}:${await freePort(address)}`;
    const agent = new Program('pipeops-agent', ['run'], {
      ...this.agent.environment, PIPEOPS_STATE_DIR: this.in('exposed'), PIPEOPS_DASHBOARD_SOCKET: socket, PIPEOPS_DASHBOARD_LISTEN: listen, KUBECONFIG: '',
    }, this.in('exposed.log'));
    agent.start();
    const ask = (method, asked, body) => this.ask(method, asked, body, socket);
    await until('the exposed agent answers', () => ask('GET', '/api/v1/status').then(({ dashboard }) => dashboard.fingerprint, () => false));
    const { token } = await ask('POST', '/api/v1/tokens', JSON.stringify({ role: 'operator' }));
    return { base: `https://${listen}`, token, end: () => agent.end() };
  }

  async end() {
    await this.agent?.end();
    await this.plane?.end();
    if (this.kubeconfig) await this.cluster('down').catch(() => {});
    fs.rmSync(this.folder, { recursive: true, force: true });
  }
}

// The page as people use it: in a real browser, before a real agent, with the link, the cluster and the agent taken away and given back.
// What a real agent cannot be brought to within seconds comes from fixtures.

import assert from 'node:assert/strict';
import fs from 'node:fs';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { LOOKS, PAGES, SCREENSHOTS, drawn, judge, launch, logIn, open, picture, pretend, show } from './browser.mjs';
import { readsOnce, staysSmall, survivesSteps } from './week.mjs';
import { IMAGE, NAMESPACE, ROOT, World, until } from './world.mjs';

// The files of the page; and the page itself with the state of the machine, which is longer while the machine is under load.
const WEIGHT_BYTES_MAX = 47_500;
const STATE_BYTES_MAX = 3_000;
// Parts of pages that are read when they are opened, and all of it with them.
const PARTS = ['apps//deploy', 'apps/web/logs'];
const WITH_PARTS_BYTES_MAX = 52_200;
// All files that may be read before the page can be used. How many milliseconds that takes depends on the machine: `make bench` has the goal.
const BEFORE_USABLE = ['/assets/app.css', '/assets/app.js', '/assets/favicon.svg'];
// The pages that are read when they are looked at for the first time.
const WITH_A_FILE = ['host', 'cluster', 'apps'];
// A value that must be in the cluster only.
const SEED = 's3ed-of-the-page';
const LONG = { timeout: 900_000 };

const world = new World();
const figures = {};
let browser;

before(async () => {
  fs.rmSync(SCREENSHOTS, { recursive: true, force: true });
  browser = await launch();
  await world.start();
}, LONG);

after(async () => {
  await browser?.close();
  await world.end();
  for (const [what, value] of Object.entries(figures)) console.log(`figure: ${what}: ${value}`);
  fs.mkdirSync(SCREENSHOTS, { recursive: true });
  fs.writeFileSync(path.join(SCREENSHOTS, 'figures.json'), `${JSON.stringify(figures, null, 2)}\n`);
}, LONG);

// Says it in the words that tests/all looks for, too: node's own report of a skipped test is no failure anywhere.
function skip(t, why) {
  console.log(`skipped: the page in a browser: ${t.name}: ${why}`);
  t.skip(why);
}

// Every page in every look.
async function walk(folder, { pages = PAGES, prepare, hasCharts = true, ...more } = {}) {
  const wrong = [];
  for (const look of LOOKS) {
    const window = await open(browser, world.base, { ...look, ...more });
    await (prepare ? prepare(window) : logIn(window, await world.token()));
    for (const name of pages) {
      await show(window, name);
      if (name === 'host' && hasCharts) await drawn(window);
      await judge(window, `${folder}: ${name || 'overview'}`);
      await picture(window, folder, name);
    }
    wrong.push(...window.wrong);
    await window.close();
  }
  assert.deepEqual(wrong, []);
}

test('every page says how it is while link and cluster are up', LONG, () => walk('up'));

test('who has not logged in sees overview and host, and is told how to see more', LONG, async () => {
  await walk('anonymous', { prepare: (window) => window.page.goto(world.base) });
  const window = await open(browser, world.base);
  await show(window, 'changes');
  assert.match(await window.page.textContent('main'), /requires a login|login required/);
  await window.close();
});

test('the link is lost, and every page says so', LONG, async () => {
  await world.plane.end();
  await world.status('the agent notices', ({ link }) => link.state !== 'ready');
  await walk('link-down');
  world.plane.start();
  await world.status('the link is back', ({ link }) => link.state === 'ready');
});

test('the cluster is lost, and every page says so', LONG, async (t) => {
  if (!world.kubeconfig) return skip(t, 'there is no cluster');
  await world.cluster('stop-apiserver');
  await world.status('the agent notices', ({ verdict }) => verdict.code === 'cluster.unreachable');
  const seen = await open(browser, world.base, { isRefused: true });
  await logIn(seen, await world.token());
  await show(seen, '');
  await seen.page.waitForFunction(() => /has not answered for/.test(document.querySelector('.truth .sentence').textContent) && /The problem is on this machine/.test(document.querySelector('.steps')?.previousSibling.textContent));
  await seen.close();
  // What only the cluster could answer is refused, with the reason.
  await walk('cluster-down', { isRefused: true });
  await world.cluster('start-apiserver');
  await world.status('the cluster is back', ({ cluster }) => cluster.state === 'ready');
});

test('an agent that is gone is seen within seconds, and a page recovers alone', LONG, async () => {
  const windows = [];
  for (const look of LOOKS) windows.push(await open(browser, world.base, { ...look, isRefused: true }));
  for (const window of windows) {
    await logIn(window, await world.token());
    await show(window, '');
    await window.page.waitForFunction(() => document.documentElement.dataset.live === 'live');
  }
  const killed = Date.now();
  await world.agent.end('SIGKILL');
  for (const window of windows) await window.page.waitForFunction(() => /not answer/.test(document.getElementById('banner').textContent), null, { timeout: 15_000, polling: 50 });
  figures['stale after the agent was killed, all windows, ms'] = Date.now() - killed;
  // What lasted while the agent was heard does not go on: not its run, and not a way that was found to work.
  for (const { page } of windows) {
    const ran = () => page.textContent('.truth .foot');
    const silent = () => page.textContent('#silent');
    assert.match(await page.textContent('.truth .sentence'), /The agent has not answered since .* Last known state: /);
    const [before, at] = [await ran(), await silent()];
    assert.match(before, /The agent was up for/);
    await page.waitForFunction((text) => document.getElementById('silent').textContent !== text, at);
    const [run] = /for [^.]*/.exec(await ran());
    assert.ok(before.includes(run), `${before} / ${run}`);
    await page.waitForFunction(() => document.querySelector('.steps.old') && /Currently unknown/.test(document.querySelector('.steps').previousSibling.textContent));
  }
  for (const window of windows) {
    for (const name of PAGES) {
      await window.page.evaluate((hash) => { location.hash = hash; }, `#/${name}`);
      // A page with a file of its own that was not read before cannot be had now, and says so; the others are there.
      const isMissing = WITH_A_FILE.includes(name);
      await window.page.waitForFunction(([wanted, missing]) => {
        const isCurrent = document.querySelector('nav [aria-current]')?.getAttribute('href') === `#/${wanted}`;
        return isCurrent && document.querySelector('main').textContent.toLowerCase().includes('this part of the page cannot be loaded') === missing;
      }, [name, isMissing], { timeout: 15_000 });
      await judge(window, `agent killed: ${name || 'overview'}`);
      await picture(window, 'agent-killed', name);
    }
    await window.page.evaluate(() => { location.hash = '#/'; });
  }
  world.agent.start();
  for (const window of windows) await window.page.waitForFunction(() => document.documentElement.dataset.live === 'live' && !document.querySelector('.banner'), null, { timeout: 60_000 });
  const wrong = windows.flatMap(({ wrong: found }) => found);
  for (const window of windows) await window.close();
  await world.status('the link is back', ({ link }) => link.state === 'ready');
  assert.deepEqual(wrong, []);
});

test('an agent that says nothing any more is stale within seconds, though its connections stand', LONG, async () => {
  const window = await open(browser, world.base, { isRefused: true });
  await logIn(window, await world.token());
  await window.page.waitForFunction(() => document.documentElement.dataset.live === 'live');
  const stopped = Date.now();
  world.agent.child.kill('SIGSTOP');
  try {
    await window.page.waitForFunction(() => document.documentElement.dataset.live === 'stale', null, { timeout: 20_000, polling: 50 });
    figures['stale after the agent was stopped, ms'] = Date.now() - stopped;
  } finally {
    world.agent.child.kill('SIGCONT');
  }
  await window.page.waitForFunction(() => document.documentElement.dataset.live === 'live', null, { timeout: 60_000 });
  await window.close();
});

test('the whole page weighs what it may, and can be used at once', LONG, async () => {
  const window = await open(browser, world.base);
  const sizes = new Map();
  const requests = new Map();
  window.page.on('response', (response) => {
    const { pathname } = new URL(response.url());
    if (pathname === '/' || pathname.startsWith('/assets/')) requests.set(pathname, response.request());
  });
  const measure = async () => {
    for (const [name, request] of requests) sizes.set(name, await request.sizes());
  };
  await logIn(window, await world.token());
  for (const name of PAGES) {
    await show(window, name);
    if (name === 'host') await drawn(window);
  }
  await measure();
  const sum = (find) => [...sizes.values()].reduce((all, size) => all + find(size), 0);
  const bodies = sum(({ responseBodySize }) => responseBodySize);
  figures['bytes over the wire, everything, without heads'] = bodies;
  figures['bytes over the wire, everything, with heads'] = sum(({ responseBodySize, responseHeadersSize }) => responseBodySize + responseHeadersSize);
  figures['files of the page'] = [...sizes].map(([name, size]) => `${name} ${size.responseBodySize}`).join(', ');
  assert.ok(sizes.size >= 6, `only ${[...sizes.keys()]}`);
  const state = sizes.get('/').responseBodySize;
  assert.ok(state <= STATE_BYTES_MAX, `${state} bytes`);
  assert.ok(bodies - state <= WEIGHT_BYTES_MAX, `${bodies} bytes: ${figures['files of the page']}`);
  assert.deepEqual([...sizes.keys()].filter((name) => /deploy|logs/.test(name)), [], 'a part of a page is read when it is opened');
  for (const name of PARTS) await show(window, name);
  await measure();
  const whole = sum(({ responseBodySize }) => responseBodySize);
  figures['bytes over the wire, with the form and the logs of an app'] = whole;
  assert.ok(whole > bodies && whole - state <= WITH_PARTS_BYTES_MAX, `${whole} bytes`);
  await window.close();

  const usable = ({ page }) => page.waitForFunction(() => performance.getEntriesByName('usable')[0]?.startTime).then((mark) => mark.jsonValue());
  const times = [];
  for (let round = 0; round < 7; round += 1) {
    const fresh = await open(browser, world.base);
    await fresh.page.goto(world.base);
    const at = await usable(fresh);
    times.push(Math.round(at));
    const read = await fresh.page.evaluate((until) => performance.getEntriesByType('resource').filter(({ startTime }) => startTime < until).map(({ name }) => new URL(name).pathname), at);
    const files = read.filter((name) => !name.startsWith('/api/'));
    assert.deepEqual(files.filter((name) => !BEFORE_USABLE.includes(name)), [], 'no other file is read before the page can be used');
    assert.equal(new Set(files).size, files.length, 'no file is read twice');
    assert.ok(files.includes('/assets/app.js'), files.join(', '));
    await fresh.close();
  }
  // What is asked for meanwhile holds up nothing: an agent that never answers it has a page that can be used.
  const silent = await open(browser, world.base);
  await silent.context.route('**/api/**', () => {});
  await silent.page.goto(world.base);
  await usable(silent);
  await silent.close();
  times.sort((one, other) => one - other);
  figures['usable after, ms, of seven cold loads'] = times.join(' ');
});

test('the first chart of a day and of a year', LONG, async () => {
  const window = await open(browser, world.base);
  await logIn(window, await world.token());
  const { page } = window;
  await show(window, '');
  const timed = async (act) => {
    const from = await page.evaluate(() => performance.now());
    await act();
    return Math.round((await page.evaluate(() => performance.now())) - from);
  };
  figures['first chart of 24 h, ms'] = await timed(async () => {
    await show(window, 'host');
    await drawn(window);
  });
  figures['chart of a year, ms'] = await timed(async () => {
    const answered = page.waitForResponse((response) => response.url().includes('/series/values'));
    await page.click('button:text-is("1 y")');
    await answered;
  });
  const rows = await page.locator('.figures tbody tr').count();
  assert.ok(rows > 5, `${rows} series have figures beside their chart`);
  assert.deepEqual(window.wrong, []);
  await window.close();
});

test('a chart is zoomed by drag and by keyboard', LONG, async () => {
  const window = await open(browser, world.base);
  await pretend(window, 'healthy');
  await show(window, 'host');
  await drawn(window);
  const { page } = window;
  const chart = page.locator('.u-over').first();
  // Waits until it stays where it is: the marks of the time line come above it with the first values.
  await chart.hover({ position: { x: 50, y: 40 } });
  const { x, y } = await chart.boundingBox();
  await page.mouse.down();
  await page.mouse.move(x + 180, y + 50, { steps: 4 });
  await page.mouse.up();
  await page.waitForFunction(() => document.querySelector('.same').textContent.includes('--from'));
  const zoomed = await page.textContent('.same');
  await page.mouse.move(x + 90, y + 40);
  await page.waitForFunction(() => /\d\d:\d\d:\d\d/.test(document.querySelector('.figures th.at').textContent));
  // The cursor of the others is in step.
  await page.waitForFunction(() => /\d\d:\d\d:\d\d/.test(document.querySelectorAll('.figures th.at')[1].textContent));
  await picture(window, 'states', 'host zoomed', { isWhole: false });
  await page.focus('button[aria-label="Zoom in"]');
  await page.keyboard.press('Enter');
  await page.waitForFunction((before) => document.querySelector('.same').textContent !== before, zoomed);
  await page.click('text=Back to now');
  await page.waitForFunction(() => document.querySelector('.same').textContent.includes('--last 24h'));
  assert.deepEqual(window.wrong, []);
  await window.close();
});

test('a token goes from the address into a session, and is not kept', LONG, async () => {
  const window = await open(browser, world.base, { isRefused: true });
  const { page } = window;
  const token = await world.token('viewer');
  await page.goto(`${world.base}/#token=${token}`);
  await page.waitForFunction(() => document.getElementById('who').textContent.includes('viewer'));
  assert.ok(!page.url().includes(token), page.url());
  assert.ok(!(await page.evaluate(() => JSON.stringify([{ ...localStorage }, { ...sessionStorage }, document.cookie]))).includes(token));
  await show(window, 'access');
  assert.match(await page.textContent('main'), /Requires the role operator/);
  await page.goBack();
  assert.ok(!page.url().includes(token), page.url());
  await page.goto(`${world.base}/#/`);
  await page.click('text=Log out');
  await page.click('dialog button.first');
  await page.waitForFunction(() => document.getElementById('who').textContent === 'Log in');

  await page.click('#who button');
  await page.fill('input[name=token]', 'not-a-token');
  await page.keyboard.press('Enter');
  await page.waitForFunction(() => document.querySelector('dialog .outcome').textContent.length > 10);
  await judge(window, 'log in');
  await picture(window, 'states', 'login refused', { isWhole: false });
  await page.fill('input[name=token]', await world.token());
  await page.keyboard.press('Enter');
  await page.waitForFunction(() => document.getElementById('who').textContent.includes('operator'));
  await page.waitForFunction(() => !document.querySelector('dialog'));
  assert.deepEqual(window.wrong, []);
  await window.close();
});

test('remote access is turned off by one button, and the page says who turns it on again', LONG, async () => {
  const window = await open(browser, world.base, { width: 320 });
  const { page } = window;
  await logIn(window, await world.token());
  await show(window, 'access');
  await page.click('button:text-is("Turn remote access off")');
  await judge(window, 'turn off');
  await picture(window, 'states', 'access question', { isWhole: false });
  await page.click('dialog button.first');
  await page.waitForFunction(() => /remote access is off/i.test(document.querySelector('dialog')?.textContent ?? ''));
  await page.click('dialog button:text-is("Close")');
  await world.status('access is off', ({ access }) => access.level === 'off');
  await page.waitForFunction(() => /Only root can allow more/.test(document.querySelector('main').textContent));
  await picture(window, 'states', 'access off');
  assert.deepEqual(window.wrong, []);
  await window.close();
  await world.ask('POST', '/api/v1/access', JSON.stringify({ level: 'managed' }));
});

test('an app is operated from a phone, after a question, and a viewer is told how it could be', LONG, async (t) => {
  if (!world.kubeconfig || process.getuid() !== 0) return skip(t, 'there is no cluster, or this is not root');
  await world.app('web', 'the first revision is good', ({ revision, verdict }) => revision === 1 && verdict === 'good');
  await until('the second revision is taken', () => world.apply('web', 'two').catch(() => null));
  // The browser reports refused requests by itself.
  const window = await open(browser, world.base, { width: 320, isRefused: true });
  const { page } = window;
  const says = (pattern, where = 'dialog') => page.waitForFunction(([wanted, at]) => new RegExp(wanted).test(document.querySelector(at)?.textContent ?? ''), [pattern, where], { timeout: 30_000 })
    .catch(async (error) => { throw new Error(`${error.message}: no ${pattern} in: ${await page.textContent(where)}`); });
  const does = async (button, answer) => {
    await page.click(`button:text-is("${button}")`);
    await page.click('dialog button.first');
    await says('[.]|Fix', 'dialog .outcome');
    assert.match(await page.textContent('dialog .outcome'), new RegExp(answer));
    await page.click('dialog button:text-is("Close")');
  };
  await logIn(window, await world.token('operator'));
  await show(window, 'apps/web');
  // What a revision changed is read once, and when somebody wants to see it.
  const compared = [];
  page.on('request', (request) => /changes=1/.test(request.url()) && compared.push(new URL(request.url()).search));
  await page.click('[data-key="changes 2"] summary');
  await says('ConfigMap \\S+/web changeddata.text: one → two', 'details[data-key="changes 2"]');
  await page.click('[data-key="changes 1"] summary');
  await says('revision before it is not kept', 'details[data-key="changes 1"]');
  // From its top: further down the bar lies over what is tested for its size.
  await picture(window, 'states', 'changes of a revision');
  await judge(window, 'changes of a revision');
  assert.deepEqual(compared, ['?changes=1&revision=2', '?changes=1&revision=1']);
  await page.click('button:text-is("Roll back to 1")');
  await says('web: Roll back to 1');
  await judge(window, 'roll back');
  await picture(window, 'states', 'app question', { isWhole: false });
  await page.click('dialog button:text-is("Cancel")');
  assert.equal(await world.text('web'), 'two', 'nothing happens before the answer');
  await does('Roll back to 1', 'Revision 1 is being deployed');
  await world.app('web', 'revision 1 runs', ({ runs }) => runs === 1);
  await until('the first text is back', async () => await world.text('web') === 'one');
  await does('Restart', 'Revision 3 is being deployed');
  await world.app('web', 'it was restarted', ({ runs }) => runs === 3);
  await page.goto(`${world.base}/#/apps/shop`);
  await show(window, 'apps/shop');
  await does('Pull', 'Nothing is new: revision 1 stays');
  await world.app('shop', 'it is good', ({ verdict }) => verdict === 'good');
  await does('Pause', 'left alone until it is resumed');
  await says('Paused: no automatic', 'main');
  await judge(window, 'app');
  await picture(window, 'states', 'app');
  await does('Resume', 'no longer left alone');
  await page.waitForFunction(() => !/Paused:/.test(document.querySelector('main').textContent));
  await does('Turn off rollback', 'Automatic rollback is off');
  await says('Automatic rollback is off', 'main');
  await does('Turn on rollback', 'Automatic rollback is on');
  await page.waitForFunction(() => !/rollback is off/.test(document.querySelector('main').textContent));
  const { changes } = await world.ask('GET', '/api/v1/changes');
  assert.match(JSON.stringify(changes), /session \w+ \(operator\), from 127\.0\.0\.1/);
  await window.context.clearCookies();
  await page.goto(`${world.base}/#token=${await world.token('viewer')}`);
  await page.waitForFunction(() => document.getElementById('who').textContent.includes('viewer'));
  await show(window, 'apps/shop');
  await says('Requires the role operator', 'main');
  assert.equal(await page.locator('main button:text-is("Pause")').count(), 0);
  // Which field changed, and not its values.
  await show(window, 'apps/web');
  await page.click('[data-key="changes 2"] summary');
  await says('web changeddata.text$', 'details[data-key="changes 2"]');
  assert.deepEqual(window.wrong, []);
  await window.close();
  return undefined;
});

test('an image is deployed from a phone: it fails with the right sentence, is rolled back, and the log is read', LONG, async (t) => {
  if (!world.kubeconfig || process.getuid() !== 0) return skip(t, 'there is no cluster, or this is not root');
  await world.kubectl('apply', '-f', path.join(ROOT, 'tests/it/corpus/registry.yaml'));
  await world.kubectl('-n', 'fixtures', 'wait', '--for=condition=Ready', 'pod/registry', '--timeout=60s');
  const window = await open(browser, world.base, { width: 320, isRefused: true });
  const { page } = window;
  const says = (pattern, where = 'main', timeout = 30_000) => page.waitForFunction(([wanted, at]) => new RegExp(wanted).test(document.querySelector(at)?.textContent ?? ''), [pattern, where], { timeout })
    .catch(async (error) => { throw new Error(`${error.message}: no ${pattern} in: ${await page.textContent(where)}`); });
  const bodies = [];
  page.on('request', (request) => bodies.push(`${request.url()} ${JSON.stringify(request.headers())}`));
  await logIn(window, await world.token('operator'));
  await show(window, 'apps');
  await page.click('text=Deploy an image');
  await page.getByLabel('Name', { exact: true }).fill('phone');
  await page.fill('#deploy-namespace', 'kube-system');
  await page.fill('#deploy-image', IMAGE);
  await page.fill('#deploy-port', '8080');
  await page.fill('#env', 'LEVEL=info');
  await page.getByLabel('Name of secret 1').fill('API_KEY');
  await page.getByLabel('Value of secret 1').fill(SEED);
  await page.keyboard.press('Enter');
  await says('belongs to the cluster or to the agent.*Fix: ', 'form [role=alert]');
  // From its top: further down the bar lies over what is tested for its size.
  await picture(window, 'states', 'deploy refused');
  await judge(window, 'deploy refused');
  await page.fill('#deploy-namespace', NAMESPACE);
  await page.click('button:text-is("Deploy")');
  await page.waitForFunction(() => location.hash === '#/apps/phone');
  await says('(progressing|soaking|waiting): ');
  await says('good: ', 'main', 180_000);
  assert.equal(await world.secret('phone-env', 'API_KEY'), SEED);
  assert.ok(!(await page.content()).includes(SEED) && !bodies.some((request) => request.includes(SEED)), 'the secret is in the body of one request only');

  await page.click('text=Deploy an image');
  await page.waitForSelector('form');
  await page.fill('#deploy-image', '127.0.0.1:5000/shop/nothing:2');
  await page.click('button:text-is("Deploy")');
  await says('bad: The image 127.0.0.1:5000/shop/nothing:2 does not exist in its registry', 'main', 180_000);
  await says('Rolled back: revision 1 runs again', 'main', 180_000);
  await judge(window, 'rolled back');
  await picture(window, 'states', 'app rolled back');
  await until('the good version runs again', async () => await world.image('phone') === IMAGE);

  await page.click('main a:text-is("Logs")');
  await says('http :8080', '#log', 60_000);
  await judge(window, 'log of an app');
  await picture(window, 'states', 'log of an app');
  await page.click('text=previous container');
  await says('did not run before.*Fix: ');
  await page.click('text=previous container');

  await show(window, 'apps/phone');
  await page.click('button:text-is("Scale")');
  await page.fill('#pods', '2');
  await page.click('dialog button.first');
  await says('Revision 3 is being deployed', 'dialog');
  await page.click('dialog button:text-is("Close")');
  await world.app('phone', 'it has two Pods', ({ revision, verdict }) => revision === 3 && ['soaking', 'good'].includes(verdict));
  await page.click('button:text-is("Remove")');
  await says('Deployment/phone', 'dialog');
  await says('Secret/phone-env', 'dialog');
  await judge(window, 'remove');
  await picture(window, 'states', 'remove question', { isWhole: false });
  await page.click('dialog button.first');
  await says('Phone is removed', 'dialog', 60_000);
  await page.click('dialog button:text-is("Close")');
  assert.equal(await world.kubectl('-n', NAMESPACE, 'get', 'deployments,secrets,services', '-o', 'name', '--field-selector=metadata.name!=web'), '');
  const { changes } = await world.ask('GET', '/api/v1/changes');
  assert.match(JSON.stringify(changes), /phone/);
  assert.ok(!JSON.stringify(changes).includes(SEED) && !fs.readFileSync(world.in('agent.log'), 'utf8').includes(SEED));

  await window.context.clearCookies();
  await page.goto(`${world.base}/#token=${await world.token('viewer')}`);
  await page.waitForFunction(() => document.getElementById('who').textContent.includes('viewer'));
  await show(window, 'apps//deploy');
  await says('requires a login with the role operator');
  const codes = await page.evaluate(() => Promise.all([['POST', '/web/deploy', '{"image":"i"}'], ['POST', '/web/scale', '{"to":0}'], ['DELETE', '/web']]
    .map(([method, way, body]) => fetch(`/api/v1/apps${way}`, { method, body, ...(body && { headers: { 'content-type': 'application/json' } }) }).then(({ status }) => status))));
  assert.deepEqual(codes, [403, 403, 403]);
  assert.deepEqual(window.wrong, []);
  await window.close();
  return undefined;
});

test('all of it can be done with the keyboard', LONG, async () => {
  for (const width of [320, 1440]) {
    const window = await open(browser, world.base, { width });
    const { page } = window;
    await pretend(window, 'broken');
    await show(window, '');
    await page.keyboard.press('Tab');
    assert.equal(await page.evaluate(() => document.activeElement.className), 'skip');
    assert.ok((await page.locator('.skip').boundingBox()).y >= 0, 'the skip link is seen when it is reached');
    await page.keyboard.press('Enter');
    assert.equal(await page.evaluate(() => document.activeElement.id), 'main');
    if (width === 320) {
      await page.focus('#menu');
      await page.keyboard.press('Enter');
      assert.equal(await page.getAttribute('#menu', 'aria-expanded'), 'true');
      await judge(window, 'menu');
      await picture(window, 'states', 'menu', { isWhole: false });
    }
    await page.focus('nav a[href="#/problems"]');
    await page.keyboard.press('Enter');
    await page.waitForFunction(() => document.querySelector('.finding h2'));
    const unseen = [];
    const reached = new Set();
    for (let step = 0; step < 60; step += 1) {
      await page.keyboard.press('Tab');
      const at = await page.evaluate(() => {
        const { activeElement: element } = document;
        if (element === document.body) return null;
        const style = getComputedStyle(element);
        return { text: element.textContent.slice(0, 40), isSeen: style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 1 };
      });
      if (!at) break;
      reached.add(at.text);
      if (!at.isSeen) unseen.push(at.text);
    }
    assert.ok(reached.has('Fix this'), [...reached].join(', '));
    assert.deepEqual(unseen, [], 'the focus is always seen');
    await page.focus('button:text-is("Fix this")');
    await page.keyboard.press('Enter');
    await page.waitForSelector('dialog[open]');
    await judge(window, 'fix');
    await picture(window, 'states', 'fix question', { isWhole: false });
    await page.keyboard.press('Escape');
    await page.waitForFunction(() => !document.querySelector('dialog'));
    assert.equal(await page.evaluate(() => document.activeElement.textContent), 'Fix this');
    assert.deepEqual(window.wrong, []);
    await window.close();
  }
});

test('without JavaScript the page still says everything that matters', LONG, async () => {
  for (const look of LOOKS) {
    const window = await open(browser, world.base, { ...look, javaScriptEnabled: false });
    await window.page.goto(world.base);
    const { summary } = await world.ask('GET', '/api/v1/status');
    const text = (await window.page.textContent('main')).toLowerCase();
    assert.ok(text.includes(summary.toLowerCase().slice(0, 20)), text);
    await window.page.screenshot({ path: path.join(SCREENSHOTS, `no-javascript-${look.width}-${look.scheme}.png`), fullPage: true });
    assert.deepEqual(window.wrong, []);
    await window.close();
  }
});

for (const state of ['broken', 'empty', 'huge']) {
  test(`every page before a machine that is ${state}`, LONG, () => walk(`fixture-${state}`, { pages: [...PAGES, 'apps/web', ...PARTS, 'apps/web/deploy', 'cluster/logs/shop/web-1/web'], hasCharts: state !== 'empty', prepare: (window) => pretend(window, state) }));
}

test('k3s is shown in the words of the command line, with what runs and the way back, and not where nobody manages it', LONG, async () => {
  const window = await open(browser, world.base, { width: 320 });
  await pretend(window, 'broken');
  await show(window, 'cluster');
  const section = window.page.locator('section', { has: window.page.locator('h2', { hasText: 'k3s on this machine' }) });
  const text = await section.textContent();
  for (const part of ['k3s is installed, but its node is not Ready', 'Under way', 'waiting for 45 s', 'k3s.port-taken', 'encrypted: k3s-pi', 'and 293 more', 'sudo pipeops-agent undo k3s-watch-2', 'it cannot be undone', 'the bucket refuses the key']) assert.ok(text.includes(part), `${part}: ${text.slice(0, 3000)}`);
  await judge(window, 'k3s');
  await window.close();
  const other = await open(browser, world.base);
  await pretend(other, 'empty');
  await show(other, 'cluster');
  assert.equal(await other.page.locator('h2', { hasText: 'k3s on this machine' }).count(), 0);
  assert.deepEqual([...window.wrong, ...other.wrong], []);
  await other.close();
});

test('a part that is refused, that never answers or needs a login says so, and the others go on', LONG, async () => {
  const isPart = ({ pathname }) => !/\/(session|status)$/.test(pathname);
  const refuse = (url) => isPart(url) && { status: 503, json: { error: 'telemetry.db is being written anew', fix: 'wait a minute, then try again' } };
  await walk('refused', { widths: [320, 1440], isRefused: true, hasCharts: false, prepare: (window) => pretend(window, 'healthy', { override: refuse }) });
  await walk('nobody', { widths: [320, 1440], hasCharts: false, prepare: (window) => pretend(window, 'healthy', { role: 'none' }) });
  const window = await open(browser, world.base);
  await pretend(window, 'healthy', { override: (url) => isPart(url) && 'never' });
  await window.page.goto(world.base);
  await window.page.waitForFunction(() => document.querySelectorAll('.loading').length === 2);
  await judge(window, 'loading');
  await picture(window, 'states', 'loading');
  assert.deepEqual(window.wrong, []);
  await window.close();
});

test('ten thousand pods and a log of megabytes stay bounded, and nothing in them is obeyed', LONG, async () => {
  const window = await open(browser, world.base);
  const { page } = window;
  await pretend(window, 'huge');
  await show(window, 'cluster');
  const pods = page.locator('section:last-of-type');
  for (let turn = 2; turn <= 6; turn += 1) {
    await pods.locator('button:has-text("Next")').click();
    await page.waitForFunction((words) => document.querySelector('section:last-of-type .pager')?.textContent.includes(words), `page ${turn}`);
  }
  assert.ok((await pods.locator('tbody tr').count()) <= 200);
  await show(window, 'cluster/logs/shop/web-1/web');
  await page.waitForFunction(() => /Ended/.test(document.getElementById('log-count')?.textContent));
  const kept = await page.evaluate(() => ({ lines: document.getElementById('log').textContent.split('\n').length, letters: document.getElementById('log').textContent.length, nodes: document.querySelectorAll('*').length }));
  assert.ok(kept.lines <= 1000 && kept.letters < 5_000_000 && kept.nodes < 1000, JSON.stringify(kept));
  await page.fill('input[type=search]', 'cart/19999');
  await page.waitForFunction(() => document.getElementById('log').textContent.trim().split('\n').length === 1);
  assert.equal(await page.evaluate(() => globalThis.pwned), undefined);
  assert.deepEqual(window.wrong, []);
  await window.close();
});

test('a log is text: escapes go, control characters are seen, markup stays what it is', LONG, async () => {
  const window = await open(browser, world.base);
  const { page } = window;
  const body = Buffer.concat([Buffer.from('\x1b[31mred\x1b[0m \x1b]0;title\x07plain\n'), Buffer.from([0x61, 0xff, 0x62, 0x0a]), Buffer.from('bell\x07 <b>bold</b>\n'), Buffer.from(`${'x'.repeat(1_000_000)}\n`)]);
  await pretend(window, 'healthy', { override: ({ pathname }) => pathname.endsWith('/cluster/logs') && { contentType: 'text/plain', body } });
  await show(window, 'cluster/logs/shop/web-1/web');
  await page.waitForFunction(() => /Ended/.test(document.getElementById('log-count')?.textContent));
  const [first, second, third, fourth] = (await page.textContent('#log')).split('\n');
  assert.equal(first, 'red plain');
  assert.equal(second, 'a\ufffdb');
  assert.equal(third, 'bell\u2407 <b>bold</b>');
  assert.ok(fourth.length < 5000);
  await window.close();
});

test('ages are told by the clock of the machine, whatever the clock of the browser says', LONG, async () => {
  const window = await open(browser, world.base);
  await window.context.addInitScript(() => {
    const { now } = Date;
    Date.now = () => now() + 3 * 3_600_000;
  });
  await logIn(window, await world.token());
  await show(window, '');
  await window.page.waitForFunction(() => document.documentElement.dataset.live === 'live');
  const ages = await until('cards have ages', async () => {
    const found = await window.page.locator('.card time').allTextContents();
    return found.length > 0 && found;
  });
  assert.ok(ages.every((age) => !/ h | d |ahead/.test(age)), ages.join(', '));
  await window.close();
});

test('a page that stays open holds no more after thousands of messages and switches', LONG, () => staysSmall(browser, world.base, figures));

test('a clock that steps, here or on the machine, is no nonsense on the page', LONG, () => survivesSteps(browser, world.base));

test('a flood of changes is read once a second', LONG, () => readsOnce(browser, world.base));

test('from another machine it is the same page, encrypted, for who has logged in', LONG, async (t) => {
  const exposed = await world.exposed();
  if (!exposed) return skip(t, 'this machine has no address but its own');
  try {
    const window = await open(browser, exposed.base, { ignoreHTTPSErrors: true });
    const { page } = window;
    await show(window, '');
    assert.match(await page.textContent('main'), /requires a login|login required/);
    await logIn(window, exposed.token);
    await page.waitForSelector('.card');
    await page.waitForFunction(() => document.querySelector('.truth')?.textContent.includes('Agent up'));
    await page.waitForFunction(() => document.documentElement.dataset.live === 'live');
    const [cookie] = await window.context.cookies();
    assert.deepEqual([cookie.name, cookie.secure, cookie.httpOnly, cookie.sameSite], ['__Host-pipeops-session', true, true, 'Strict']);
    await page.reload();
    await page.waitForFunction(() => document.getElementById('who').textContent.includes('operator'));
    await judge(window, 'encrypted');
    assert.deepEqual(window.wrong, []);
    await window.close();
  } finally {
    await exposed.end();
  }
});

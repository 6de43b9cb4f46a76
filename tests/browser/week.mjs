// A page that stays open for long: what a week brings, in seconds. The local API comes out of fixtures, so that there can be much of it.

import assert from 'node:assert/strict';
import { PAGES, open, pretend, show } from './browser.mjs';
import { until } from './world.mjs';

const ROUNDS = process.env.PIPEOPS_PAGES === 'all' ? 40 : 5;
// Messages of each kind while one page is looked at.
const MESSAGES = 100;

// What the page holds once nothing is left that nobody needs.
async function held(window) {
  const session = await window.context.newCDPSession(window.page);
  await session.send('Performance.enable');
  for (let turn = 0; turn < 3; turn += 1) await session.send('HeapProfiler.collectGarbage');
  const { metrics } = await session.send('Performance.getMetrics');
  await session.detach();
  const of = (name) => metrics.find((it) => it.name === name).value;
  return { heap: of('JSHeapUsedSize'), nodes: of('Nodes'), listeners: of('JSEventListeners') };
}

// Everything that the stream says, many times over, and the frame in which it is drawn.
const flood = (page, round) => page.evaluate(async ({ messages, number }) => {
  const at = new Date().toISOString();
  const series = await fetch('/api/v1/series').then((answer) => answer.json());
  for (let turn = 0; turn < messages; turn += 1) {
    const id = number * messages + turn;
    globalThis.tell('event', { id: `${id}`, at, source: 'agent', severity: 'warning', reason: `Reason${id}`, subject: 'pod shop/web-1', message: `message ${id}`, count: 1 });
    globalThis.tell('log', { at, level: 'info', text: `line ${id}` });
    globalThis.tell('tick', { time: Date.now() / 1000, values: Object.fromEntries(series.series.map(({ key }) => [key, Math.random()])) });
    globalThis.tell('change', { id, at, what: 'something', outcome: 'done' });
    if (turn % 20 === 19) await new Promise((drawn) => { requestAnimationFrame(() => setTimeout(drawn)); });
  }
}, { messages: MESSAGES, number: round });

export async function staysSmall(browser, base, figures) {
  const window = await open(browser, base);
  await pretend(window, 'healthy');
  const found = [];
  for (let round = 0; round < ROUNDS; round += 1) {
    for (const [at, name] of PAGES.entries()) {
      await show(window, name);
      await flood(window.page, round * PAGES.length + at);
    }
    await show(window, '');
    found.push(await held(window));
  }
  // The first round loads what is loaded once.
  const [, early] = found;
  const late = found.at(-1);
  const said = `${JSON.stringify(early)} after 2 rounds, ${JSON.stringify(late)} after ${ROUNDS} of ${PAGES.length * MESSAGES * 4} messages`;
  figures['a page that stays open'] = said;
  assert.ok(late.nodes < early.nodes * 1.2 + 300, said);
  assert.ok(late.listeners < early.listeners * 1.2 + 50, said);
  assert.ok(late.heap < early.heap * 1.2 + 1_000_000, said);
  assert.deepEqual(window.wrong, []);
  await window.close();
}

// Ages that are none, and numbers that are none.
const NONSENSE = /(^|\s)[-−]\d+ (s|min|h|d)\b|NaN|Invalid|undefined|null/;

export async function survivesSteps(browser, base) {
  const window = await open(browser, base);
  const { page } = window;
  await pretend(window, 'healthy');
  for (const [who, step_s] of [['browser', 7 * 3600], ['browser', -9 * 3600], ['machine', 7 * 3600], ['machine', -9 * 3600], ['machine', 0]]) {
    for (const name of ['', 'host', 'events', 'link', 'changes']) {
      await show(window, name);
      assert.doesNotMatch(await page.textContent('main'), NONSENSE, `${name} ${who} ${step_s}`);
    }
    await show(window, '');
    const stepped = await page.evaluate(({ who, step_s }) => {
      if (who === 'machine') globalThis.box.step_s = step_s;
      else {
        const real = (globalThis.realDate ??= Date);
        globalThis.Date = class extends real {
          constructor(...words) {
            if (words.length) super(...words);
            else super(real.now() + step_s * 1000);
          }

          static now() {
            return real.now() + step_s * 1000;
          }
        };
      }
      return performance.now();
    }, { who, step_s });
    // What is read by the new clock is of now again.
    const young = () => page.evaluate(() => [...document.querySelectorAll('.card time')].every((age) => /^(now|\d+ s ago)$/.test(age.textContent)));
    const wait = () => page.evaluate((from) => performance.now() - from, stepped);
    await until(`ages are right again after a step of the ${who} by ${step_s} s`, async () => (await wait()) > 1500 && (await young()), 20_000);
    assert.equal(await page.evaluate(() => document.documentElement.dataset.live), 'live', `${who} ${step_s}`);
    assert.doesNotMatch(await page.textContent('main'), NONSENSE, `${who} ${step_s}`);
  }
  assert.deepEqual(window.wrong, []);
  await window.close();
}

export async function readsOnce(browser, base) {
  const window = await open(browser, base);
  const { page } = window;
  await pretend(window, 'healthy');
  let [reads, running, most] = [0, 0, 0];
  const isRead = (request) => new URL(request.url()).pathname === '/api/v1/changes';
  page.on('request', (request) => {
    if (!isRead(request)) return;
    reads += 1;
    running += 1;
    most = Math.max(most, running);
  });
  const over = (request) => { if (isRead(request)) running -= 1; };
  page.on('requestfinished', over);
  page.on('requestfailed', over);
  await show(window, 'changes');
  const took_s = await page.evaluate(async () => {
    const from = performance.now();
    for (let turn = 0; turn < 300; turn += 1) {
      globalThis.tell('change', { id: turn });
      await new Promise((later) => { setTimeout(later, 10); });
    }
    return (performance.now() - from) / 1000;
  });
  const told = reads;
  assert.ok(told >= 2 && told <= took_s + 3, `${told} reads in ${took_s} s`);
  assert.equal(most, 1, 'one at a time');
  // The last of them is not lost.
  await until('what was told last is read', () => reads > told, 10_000);
  assert.deepEqual(window.wrong, []);
  await window.close();
}

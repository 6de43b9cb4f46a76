// A browser that remembers what must not have happened: requests to elsewhere, errors on the console, markup out of data.

import fs from 'node:fs';
import path from 'node:path';
import { createRequire } from 'node:module';
import { chromium } from 'playwright-core';
import { answer, log } from './fixtures.mjs';
import { ROOT } from './world.mjs';

const AXE = fs.readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');
const RULES = ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice'];
export const SCREENSHOTS = path.join(ROOT, 'target/screenshots');
export const PAGES = ['', 'host', 'cluster', 'apps', 'events', 'problems', 'link', 'access', 'settings', 'changes'];
// Every width, light and dark, takes minutes: that is `make pages`.
export const LOOKS = process.env.PIPEOPS_PAGES === 'all'
  ? [320, 768, 1440].flatMap((width) => ['light', 'dark'].map((scheme) => ({ width, scheme })))
  : [{ width: 320, scheme: 'light' }, { width: 1440, scheme: 'dark' }];

export const launch = () => chromium.launch({
  executablePath: process.env.PIPEOPS_TEST_CHROMIUM,
  args: ['--headless', '--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking', '--disable-component-update', '--disable-sync'],
});

// A window of its own; `wrong` is what must stay empty. Where the agent is away or refuses on purpose, the browser reports the failed
// requests by itself: `isRefused` lets those pass, and nothing else.
export async function open(browser, base, { width = 1440, scheme = 'light', isRefused = false, ...more } = {}) {
  const context = await browser.newContext({ viewport: { width, height: width < 500 ? 700 : 900 }, colorScheme: scheme, reducedMotion: 'reduce', ...more });
  const page = await context.newPage();
  const wrong = [];
  const told = { isRefused };
  page.on('request', (request) => {
    if (new URL(request.url()).origin !== new URL(base).origin) wrong.push(`a foreign request: ${request.url()}`);
  });
  page.on('console', (message) => {
    const isRefusal = /^Failed to load resource/.test(message.text());
    if (['error', 'warning'].includes(message.type()) && !(isRefusal && told.isRefused)) wrong.push(`console: ${message.text()}`);
  });
  page.on('pageerror', (error) => wrong.push(`error: ${error.stack}`));
  page.on('dialog', (dialog) => wrong.push(`a dialog: ${dialog.message()}`));
  // An answer that is under way when the window closes has nobody left who waits for it.
  const close = async () => {
    await context.unrouteAll({ behavior: 'ignoreErrors' });
    await context.close();
  };
  return { context, page, wrong, told, base, width, scheme, close };
}

export async function logIn(window, token) {
  await window.page.goto(`${window.base}/#token=${token}`);
  await window.page.waitForFunction(() => document.getElementById('who')?.textContent.includes('operator'));
}

// Shows a page of the page, and waits until it has what it wants to show.
export async function show(window, name) {
  const { page, base } = window;
  const at = `${base}/#/${name}`;
  if (page.url().startsWith(`${base}/`)) await page.evaluate((hash) => { location.hash = hash; }, `#/${name}`);
  else await page.goto(at);
  await page.waitForFunction((wanted) => {
    const [, current] = /#\/?([^/]*)/.exec(document.querySelector('nav [aria-current]')?.getAttribute('href') ?? '#/-') ?? [];
    return current === wanted && document.querySelector('h1') && !document.querySelector('.loading');
  }, name.split('/')[0], { timeout: 30_000 });
}

// Charts are drawn when they are seen.
export async function drawn(window) {
  await window.page.waitForFunction(() => [...document.querySelectorAll('.plot')].some((plot) => plot.querySelector('canvas')), null, { timeout: 30_000 });
}

// What is wrong with what is shown: accessibility, overflow, data that became markup.
export async function judge(window, what) {
  const { page, wrong, width, scheme } = window;
  await page.evaluate(AXE);
  const found = await page.evaluate(async (runOnly) => {
    const { violations } = await globalThis.axe.run(document, { runOnly });
    return violations.map(({ id, nodes }) => `${id}: ${nodes.slice(0, 3).map(({ html, failureSummary }) => `${html.slice(0, 200)} ${failureSummary ?? ''}`).join(' | ')}`);
  }, RULES);
  const where = `${what} at ${width} px, ${scheme}`;
  wrong.push(...found.map((violation) => `axe: ${where}: ${violation}`));
  const { over, isMarkup } = await page.evaluate(() => ({ over: document.documentElement.scrollWidth - innerWidth, isMarkup: Boolean(globalThis.pwned) }));
  if (over > 0) wrong.push(`${where}: ${over} px wider than the window`);
  if (isMarkup) wrong.push(`${where}: data became markup`);
}

export async function picture(window, folder, name, { isWhole = true } = {}) {
  const file = path.join(SCREENSHOTS, folder, `${name || 'overview'}-${window.width}-${window.scheme}.png`.replaceAll('/', '_'));
  fs.mkdirSync(path.dirname(file), { recursive: true });
  await window.page.evaluate(() => scrollTo(0, 0));
  await window.page.screenshot({ path: file, fullPage: isWhole });
}

// The local API out of fixtures, the page itself from the agent. `override(url)` may answer first: null, undefined or what to fulfil. In the
// page `tell(name, what)` is a message of the stream, and `box.step_s` what the clock of the machine was put forward by.
export async function pretend(window, state, { role = 'operator', override } = {}) {
  await window.context.addInitScript(() => {
    const real = globalThis.fetch;
    const encoder = new TextEncoder();
    const { now } = Date;
    const box = { step_s: 0 };
    globalThis.box = box;
    globalThis.fetch = (path, options) => {
      if (!String(path).startsWith('/api/v1/stream')) return real(path, options);
      let timer;
      const body = new ReadableStream({
        start(control) {
          const tell = (name, what) => control.enqueue(encoder.encode(`event: ${name}\ndata: ${JSON.stringify(what)}\n\n`));
          const beat = () => tell('beat', { time: now() / 1000 + box.step_s });
          globalThis.tell = tell;
          beat();
          timer = setInterval(beat, 1000);
          options?.signal?.addEventListener('abort', () => {
            clearInterval(timer);
            control.error(new DOMException('', 'AbortError'));
          });
        },
        cancel: () => clearInterval(timer),
      });
      return Promise.resolve(new Response(body, { headers: { 'content-type': 'text/event-stream' } }));
    };
  });
  const told = (path) => answer(state, new URL(path, window.base), role);
  const begin = JSON.stringify({ session: told('/api/v1/session'), status: role === 'none' ? null : told('/api/v1/status') });
  await window.context.route((url) => url.pathname === '/', async (route) => {
    // A connection that is kept may be closed the moment it is used again; a browser tries again by itself.
    const page = await route.fetch({ maxRetries: 3 });
    const body = (await page.text()).replace(/data-initial="[^"]*"/, () => `data-initial="${begin.replaceAll('&', '&amp;').replaceAll('"', '&quot;')}"`);
    await route.fulfill({ response: page, body });
  });
  await window.context.route('**/api/**', async (route) => {
    const url = new URL(route.request().url());
    const special = override?.(url, route.request());
    if (special === 'never') return undefined;
    if (special) return route.fulfill(special);
    if (url.pathname === '/api/v1/cluster/logs') return route.fulfill({ contentType: 'text/plain; charset=utf-8', body: log() });
    const told = answer(state, url, role);
    return told ? route.fulfill({ json: told }) : route.fulfill({ status: 404, json: { error: 'there is no such thing', fix: null } });
  });
}

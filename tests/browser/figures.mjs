// What the page costs and how soon it is there, as JSON: `run figures http://127.0.0.1:7480`. Anonymous, with a cold cache each time.

import { PAGES, drawn, launch, open, show } from './browser.mjs';

const [base] = process.argv.slice(2);
const ROUNDS = 7;
const browser = await launch();

// A page that nothing of is kept, at one of its parts; what was answered to it before it is closed.
async function cold(hash, look) {
  const window = await open(browser, base, { isRefused: true });
  const answers = [];
  window.page.on('response', (response) => answers.push(response));
  await window.page.goto(`${base}/#/${hash}`);
  const found = await look(window, answers);
  await window.close();
  return found;
}

const now = (page) => page.evaluate(() => performance.now());

async function rounds(hash, look) {
  const times = [];
  for (let round = 0; round < ROUNDS; round += 1) times.push(await cold(hash, look));
  return times;
}

const weight = await cold('', async (window, answers) => {
  for (const name of PAGES) await show(window, name);
  const sizes = new Map();
  for (const response of answers) {
    const { pathname } = new URL(response.url());
    if (pathname === '/' || pathname.startsWith('/assets/')) sizes.set(pathname, (await response.request().sizes()).responseBodySize);
  }
  return { files: sizes.size, bytes: [...sizes.values()].reduce((sum, size) => sum + size, 0) };
});

const usable_ms = await rounds('', async ({ page }) => {
  const mark = await page.waitForFunction(() => performance.getEntriesByName('usable')[0]?.startTime);
  return mark.jsonValue();
});

const chart_day_ms = await rounds('host', async (window) => {
  await drawn(window);
  return now(window.page);
});

const chart_year_ms = await rounds('host', async (window) => {
  await drawn(window);
  const { page } = window;
  const from = await now(page);
  const answered = page.waitForResponse((response) => response.url().includes('/series/values'));
  await page.click('button:text-is("1 y")');
  await (await answered).finished();
  // It is on the screen with the frame after the next.
  await page.evaluate(() => new Promise((seen) => { requestAnimationFrame(() => requestAnimationFrame(seen)); }));
  return (await now(page)) - from;
});

await browser.close();
console.log(JSON.stringify({ ...weight, usable_ms, chart_day_ms, chart_year_ms }));

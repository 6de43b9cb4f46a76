// What pages draw from their data, without a browser: `node --test tests/browser/draw.test.mjs`.

import assert from 'node:assert/strict';
import { test } from 'node:test';

// As much of a document as drawing needs.
class Element {
  constructor(tag) {
    Object.assign(this, { tag, children: [], attributes: {} });
  }

  setAttribute(name, value) {
    this.attributes[name] = value;
  }

  append(...children) {
    this.children.push(...children);
  }

  get textContent() {
    return this.children.map((child) => child.textContent ?? String(child)).join('');
  }
}
globalThis.document = { createElement: (tag) => new Element(tag) };
globalThis.ResizeObserver = class {};
globalThis.matchMedia = () => ({ addEventListener() {} });

const { cluster } = await import('../../src/dashboard/assets/cluster.js');
const { partsOf, scale } = await import('../../src/dashboard/assets/host.js');

test('the legend of a chart is in the order of the numbers in its series', () => {
  const series = ['host_load15', 'host_load1', 'host_load5'].map((key) => ({ key, metric: key, labels: {} }));
  const [, [chart]] = partsOf(series)[0];
  assert.deepEqual(chart.series.map(({ key }) => key), ['host_load1', 'host_load5', 'host_load15']);
});

test('an axis of zeros has a unit that is not read as a value', () => {
  const of = (metric, low, high) => scale({}, { metric }, false, low, high);
  assert.deepEqual(of('host_swap_total_bytes', 0, 0), [0, 1e6]);
  assert.deepEqual(of('host_disk_read_bytes_per_second', 0, 0), [0, 1e6]);
  assert.deepEqual(of('host_load1', 0, 0), [0, 1]);
  assert.equal(of('host_swap_total_bytes', 0, 100)[0], 0);
});

test('the page of a cluster that does not answer says how old its numbers are', () => {
  const drawn = (state) => {
    const told = { state, why: null, at: '2026-06-16T05:50:28Z', nodes: [], namespaces: [] };
    const lists = { workloads: { before: [] }, pods: { before: [] } };
    const resources = new Map([['cluster', { data: told }], ['workloads', { data: {} }], ['pods', { data: {} }], ['k3s', {}]]);
    return cluster.draw({ resources, lists }).flat(Infinity).filter(Boolean).map((it) => it.textContent ?? it).join(' ');
  };
  assert.match(drawn('unreachable'), /the API server does not answer.*Last known state: .* ago\./i);
  assert.doesNotMatch(drawn('ready'), /Last known state/);
});

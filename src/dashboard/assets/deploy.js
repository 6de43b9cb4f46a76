// An image as an app, or as the next version of one: a form with the words of 'apps deploy'.
//
// What is secret is typed into fields that show nothing, and is in the body of one request and nowhere else.

import { ask, h, sentence } from './base.js';

export const deploy = {
  role: 'operator',
  commands: ({ words: [, app] }) => [`sudo pipeops-agent apps deploy ${app || 'NAME --namespace NAMESPACE'} --image IMAGE`],
  start(view) {
    view.secrets = 1;
    view.wrong = null;
    view.isSending = false;
  },
  draw(view) {
    const [, app] = view.words;
    const { wrong, isSending } = view;
    return [
      h('p', {}, h('a', { href: `#/apps/${app}` }, app ? `← ${app}` : '← All apps')),
      h('p', {}, app ? `The next version of ${app}. What is empty stays as it is.` : 'An app of one container. Root lets apps into a namespace once.'),
      // What was typed for one app does not stay for another.
      h('form', { 'data-key': `deploy ${app}`, onsubmit() { send(view, this); } },
        !app && [
          field('name', 'Name', { required: true, maxlength: 40, pattern: '[a-z0-9]([a-z0-9\\-]*[a-z0-9])?', title: 'lowercase letters, digits and dashes', placeholder: 'web' }),
          field('namespace', 'Namespace', { required: true, placeholder: 'shop' })],
        field('image', 'Image', { required: !app, placeholder: 'registry.example/shop/web:42' }),
        field('port', 'Port that it listens on', { type: 'number', min: 1, max: 65535, placeholder: app ? '' : 'none: it is not reached' }),
        field('host', 'Host name under which it is served', { placeholder: app ? '' : 'none: inside the cluster only' }),
        h('label', { for: 'env' }, 'Environment variables, one a line'),
        h('textarea', { id: 'env', name: 'env', rows: 3, spellcheck: 'false', autocapitalize: 'off', placeholder: 'LEVEL=info' }),
        h('fieldset', {}, h('legend', {}, 'Secret environment variables'), h('p', { class: 'faint' }, 'They are kept in a Secret of the namespace, and are not shown again.'),
          Array.from({ length: view.secrets }, (_, at) => h('div', { class: 'row' },
            text({ name: 'key', 'aria-label': `Name of secret ${at + 1}`, placeholder: 'API_KEY' }),
            text({ name: 'value', 'aria-label': `Value of secret ${at + 1}`, type: 'password', placeholder: 'value' }))),
          h('p', {}, h('button', { type: 'button', onclick() { view.secrets += 1; view.redraw(); } }, 'Another secret'))),
        h('p', { role: 'alert', class: 'outcome critical' }, wrong && [sentence(wrong.message), wrong.fix && [' ', h('b', {}, 'Fix: '), wrong.fix]]),
        h('p', {}, h('button', { class: 'first', disabled: isSending }, isSending ? 'Trying it …' : 'Deploy'))),
    ];
  },
};

const text = (more) => h('input', { type: 'text', autocomplete: 'off', autocapitalize: 'off', spellcheck: 'false', ...more });
const field = (name, label, more) => [h('label', { for: `deploy-${name}` }, label), text({ id: `deploy-${name}`, name, ...more })];

async function send(view, form) {
  // A second press of Enter does not send it again.
  if (view.isSending) return;
  Object.assign(view, { wrong: null, isSending: true });
  view.redraw();
  try {
    const app = view.words[1] || form.elements.name.value;
    await ask(`/api/v1/apps/${encodeURIComponent(app)}/deploy`, { method: 'POST', body: wish(form) });
    form.reset();
    location.hash = `#/apps/${app}`;
  } catch (error) {
    view.wrong = error;
  }
  view.isSending = false;
  view.redraw();
}

function wish(form) {
  const value = (name) => form.elements[name]?.value.trim() || null;
  const port = value('port');
  const all = (name) => [...form.querySelectorAll(`[name=${name}]`)].map((it) => it.value);
  const values = all('value');
  const secrets = all('key').map((key, at) => [key.trim(), values[at]]).filter((pair) => pair.some(Boolean));
  // What was typed is not repeated: it may be a secret in the wrong place.
  if (secrets.some(([key, secret]) => !key || !secret)) throw wrong('a secret has a name or a value only', 'give both, or empty both');
  const lines = form.elements.env.value.split('\n').map((line) => line.trim()).filter(Boolean);
  const bad = lines.findIndex((line) => line.indexOf('=') < 1);
  if (bad >= 0) throw wrong(`environment variable ${bad + 1} has no name and value`, 'write NAME=value, one a line');
  return {
    namespace: value('namespace') ?? '',
    image: value('image'),
    port: port && Number(port),
    host: value('host'),
    env: Object.fromEntries(lines.map((line) => [line.slice(0, line.indexOf('=')), line.slice(line.indexOf('=') + 1)])),
    secret_env: Object.fromEntries(secrets),
  };
}

const wrong = (message, fix) => Object.assign(new Error(message), { fix });

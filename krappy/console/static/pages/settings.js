// A topic's settings; adding partitions, deleting events, deleting the topic.
import { ask, post, topicPath } from "../api.js";
import { html, useState } from "../lib.js";
import { ConfirmByName, Dialog, Field, Grid, Trouble, say } from "../parts.js";
import { go } from "../routes.js";

const HINTS = {
  "cleanup.policy": "delete, compact, or compact,delete",
  "retention.ms": "milliseconds; -1: for ever",
  "retention.bytes": "bytes of a partition; -1: no limit",
  "view.enable": "true or false: whether the topic has a table",
  "latest.ahead.enable": "true or false: whether TOPIC@latest is made before a client asks for it",
  "compression.type": "producer: as the producer sent it",
};

export function Settings({ topic, again }) {
  const [open, setOpen] = useState(null);
  const [filter, setFilter] = useState("");
  // Settings that were set when the page was opened come first. The order stays: a row that moves would lose the focus.
  const [names] = useState(() =>
    Object.keys(topic.settings).sort((one, other) => (other in topic.config) - (one in topic.config) || one.localeCompare(other)),
  );
  const rows = names.filter((name) => name.includes(filter.trim().toLowerCase())).map((name) => [name, topic.settings[name]]);
  const done = (text) => {
    say(text);
    setOpen(null);
    again();
  };
  const close = () => setOpen(null);
  return html`<div class="bar">
      <${Field} label="Filter settings" type="search" value=${filter} onInput=${(event) => setFilter(event.target.value)} />
      <span class="grow"></span>
      <button type="button" onClick=${() => setOpen("grow")}>Add partitions</button>
      <button type="button" class="danger" onClick=${() => setOpen("forget")}>Delete events</button>
      <button type="button" class="danger" onClick=${() => setOpen("delete")}>Delete topic</button>
    </div>
    <${Grid} label="Settings" head=${["Setting", "Value", ["", "number"]]}>
      ${rows.map(([name, value]) => html`<tr key=${name}>
        <td class="setting">${name}</td>
        <td class="setting"><code>${value || '""'}</code> ${name in topic.config && html`<span class="tag">set here</span>`}</td>
        <td class="number"><button type="button" class="small" aria-label=${`Change ${name}`} onClick=${() => setOpen(name)}>Change</button></td>
      </tr>`)}
    <//>
    ${open && open in topic.settings && html`<${Change} key=${open} topic=${topic} name=${open} close=${close} done=${done} />`}
    ${open === "grow" && html`<${Grow} topic=${topic} close=${close} done=${done} />`}
    ${open === "forget" && html`<${ConfirmByName} title="Delete events" name=${topic.name} what="topic" verb="Delete all events" close=${close}
        act=${async (confirm) => {
          const all = Array.from({ length: topic.summary.partitions }, (_, at) => [at, -1]);
          await post(topicPath(topic.name) + "/delete-records", { confirm, before: Object.fromEntries(all) });
          done("Its events are deleted");
        }}><p>All events that are in the log now are deleted, in every partition. Offsets do not start again at 0. This can't be undone.</p><//>`}
    ${open === "delete" && html`<${ConfirmByName} title="Delete this topic" name=${topic.name} what="topic" verb="Delete topic" close=${close}
        act=${async (confirm) => {
          await ask("DELETE", topicPath(topic.name), { query: { confirm } });
          say(`Deleted ${topic.name}`);
          go(["topics"]);
        }}><p>The topic is deleted, with its events and its table. This can't be undone.</p><//>`}`;
}

function Change({ topic, name, close, done }) {
  const [value, setValue] = useState(topic.settings[name]);
  const [error, setError] = useState(null);
  const set = async (given) => {
    try {
      await ask("PATCH", topicPath(topic.name), { body: { config: { [name]: given } } });
      done(given === null ? `${name} is its default again` : `${name} is ${given}`);
    } catch (failure) {
      setError(failure);
    }
  };
  const submit = (event) => {
    event.preventDefault();
    set(value);
  };
  return html`<${Dialog} title="Change a setting" close=${close}>
    <form onSubmit=${submit}>
      <${Field} label=${name} value=${value} hint=${HINTS[name]} autofocus onInput=${(event) => setValue(event.target.value)} />
      <${Trouble} error=${error} />
      <div class="buttons">
        ${name in topic.config && html`<button type="button" onClick=${() => set(null)}>Back to the default</button>`}
        <button type="button" onClick=${close}>Cancel</button><button type="submit" class="main">Change</button>
      </div>
    </form>
  <//>`;
}

function Grow({ topic, close, done }) {
  const now = topic.summary.partitions;
  const [number, setNumber] = useState(String(now + 1));
  const [error, setError] = useState(null);
  const submit = async (event) => {
    event.preventDefault();
    try {
      await ask("PATCH", topicPath(topic.name), { body: { partitions: Number(number) } });
      done(`${topic.name} has ${number} partitions`);
    } catch (failure) {
      setError(failure);
    }
  };
  return html`<${Dialog} title="Add partitions" close=${close}>
    <form onSubmit=${submit}>
      <p>New events are spread over all partitions: later events of a key may be in another partition than its earlier ones.</p>
      <${Field} label=${`Partitions (${now} now)`} type="number" min=${now + 1} required value=${number} autofocus onInput=${(event) => setNumber(event.target.value)} />
      <${Trouble} error=${error} />
      <div class="buttons"><button type="button" onClick=${close}>Cancel</button><button type="submit" class="main">Add</button></div>
    </form>
  <//>`;
}

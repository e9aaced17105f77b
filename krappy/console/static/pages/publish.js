// Publishes a test event, and shows how it arrives beside the form.
import { listen, post, topicPath } from "../api.js";
import { fromBase64, fromHex, toBase64 } from "../bytes.js";
import { EventDialog, EventRows, eventHead } from "../event.js";
import { count } from "../format.js";
import { html, useEffect, useRef, useState } from "../lib.js";
import { Check, Empty, Field, Grid, Trouble, say } from "../parts.js";
import { link } from "../routes.js";

const TEXT = ["text", "text (UTF-8)"];
const JSON_FORM = ["json", "JSON: checked before it is sent"];
const BINARY = [["base64", "bytes, as base64"], ["hex", "bytes, as hex"]];
const KEY_FORMS = [TEXT, ...BINARY];
const VALUE_FORMS = [TEXT, JSON_FORM, ...BINARY];
const HEADER_FORMS = [["text", "text"], ["base64", "base64"], ["hex", "hex"], ["none", "no value"]];
const MOST = 50;
let ids = 0; // of headers, so that removing one leaves the others as they are

/** A typed key or value, as the API takes it. Throws Error that says what is wrong. */
function given(what, form, text) {
  try {
    if (form === "json") JSON.parse(text);
    if (form === "base64") return { base64: toBase64(fromBase64(text)) };
    if (form === "hex") return { base64: toBase64(fromHex(text)) };
    return { text }; // JSON goes as it was typed
  } catch (error) {
    throw new Error(form === "json" ? `${what} is not JSON: ${error.message}` : `${what}: ${error.message}`);
  }
}

/** The body of the API's request for the fields. Throws Error that says what is wrong. */
function bodyOf({ key, keyForm, hasKey, value, valueForm, tombstone, headers, partition, expect, expected, time }) {
  const body = { tombstone };
  if (hasKey) body.key = given("The key", keyForm, key);
  if (!tombstone) body.value = given("The value", valueForm, value);
  body.headers = headers.map((each, at) => {
    if (!each.name) throw new Error(`Header ${at + 1} has no name.`);
    return [each.name, each.form === "none" ? null : given(`The value of header ${at + 1}`, each.form, each.value)];
  });
  if (partition !== "") body.partition = Number(partition);
  if (hasKey && expect !== "any") body.expect = expect === "absent" ? "absent" : Number(expected);
  if (time !== "") body.timestamp = new Date(time).getTime();
  return body;
}

const BLANK = { key: "", keyForm: "text", hasKey: true, value: "", valueForm: "text", tombstone: false, headers: [], partition: "", expect: "any", expected: "", time: "" };
const options = (forms) => forms.map(([name, title]) => html`<option key=${name} value=${name}>${title}</option>`);

/** After a condition that did not hold: a button that changes it to one that holds for the key now. */
function Mismatch({ error, use }) {
  if (error?.code !== "OFFSET_MISMATCH") return null;
  const { current } = error.details;
  const isAbsent = current === null || current === undefined;
  return html`<p class="mismatch"><button type="button" onClick=${() => use(isAbsent ? { expect: "absent" } : { expect: "offset", expected: String(current) })}>
    ${isAbsent ? "Expect it to be absent" : `Expect offset ${count(current)}`}
  </button></p>`;
}

export function Publish({ topic }) {
  const [form, setForm] = useState(BLANK);
  const [error, setError] = useState(null);
  const [busy, setBusy] = useState(false);
  const [last, setLast] = useState(null);
  const [mine, setMine] = useState(() => new Set());
  const button = useRef(null);
  const adding = useRef(null);
  const set = (change) => setForm((old) => ({ ...old, ...change }));
  const text = (field) => ({ value: form[field], onInput: (event) => set({ [field]: event.target.value }) });
  const submit = async (event) => {
    event.preventDefault();
    if (busy) return;
    setBusy(true);
    setError(null);
    try {
      const stored = await post(`${topicPath(topic.name)}/events`, bodyOf(form));
      setMine((old) => new Set(old).add(`${stored.partition}-${stored.offset}`));
      setLast(stored);
      say(`Published at offset ${count(stored.offset)} of partition ${stored.partition}`);
    } catch (failure) {
      setError(failure);
    }
    setBusy(false);
  };
  const header = (at, change) => set({ headers: form.headers.map((each, index) => (index === at ? { ...each, ...change } : each)) });
  return html`<div class="two">
    <form class="card publish" onSubmit=${submit}>
      <h2>New event</h2>
      <${Check} label="With a key" checked=${form.hasKey} onChange=${(event) => set({ hasKey: event.target.checked, tombstone: form.tombstone && event.target.checked })} />
      <div class="pair">
        <${Field} label="Key" disabled=${!form.hasKey} placeholder=${form.hasKey ? "empty: a key of zero bytes" : ""} ...${text("key")} />
        <${Field} label="Key is" as="select" disabled=${!form.hasKey} value=${form.keyForm} onChange=${(event) => set({ keyForm: event.target.value })}>${options(KEY_FORMS)}<//>
      </div>
      <${Check} label="Tombstone: delete this key from the table" checked=${form.tombstone} disabled=${!form.hasKey} onChange=${(event) => set({ tombstone: event.target.checked })} />
      <${Field} label="Value" as="textarea" rows="8" spellcheck=${false} disabled=${form.tombstone} ...${text("value")} />
      <${Field} label="Value is" as="select" disabled=${form.tombstone} value=${form.valueForm} onChange=${(event) => set({ valueForm: event.target.value })}>${options(VALUE_FORMS)}<//>
      <fieldset>
        <legend>Headers</legend>
        ${form.headers.map((each, at) => html`<div class="pair header" key=${each.id}>
          <${Field} label=${`Name of header ${at + 1}`} value=${each.name} onInput=${(event) => header(at, { name: event.target.value })} />
          <${Field} label=${`Value of header ${at + 1}`} disabled=${each.form === "none"} value=${each.value} onInput=${(event) => header(at, { value: event.target.value })} />
          <${Field} label=${`Header ${at + 1} is`} as="select" value=${each.form} onChange=${(event) => header(at, { form: event.target.value })}>${options(HEADER_FORMS)}<//>
          <button type="button" class="small" aria-label=${`Remove header ${at + 1}`} onClick=${() => (set({ headers: form.headers.filter((_, index) => index !== at) }), adding.current.focus())}>Remove</button>
        </div>`)}
        <button ref=${adding} type="button" class="small" onClick=${() => set({ headers: [...form.headers, { id: (ids += 1), name: "", value: "", form: "text" }] })}>Add a header</button>
      </fieldset>
      <div class="pair">
        <${Field} label="Partition" type="number" min="0" max=${topic.summary.partitions - 1} placeholder=${form.hasKey ? "by the key" : "in turn"} ...${text("partition")} />
        <${Field} label="Time" type="datetime-local" step="0.001" hint="Empty: now" ...${text("time")} />
      </div>
      <div class="pair">
        <${Field} label="Publish if the key is" as="select" disabled=${!form.hasKey} value=${form.expect} onChange=${(event) => set({ expect: event.target.value })}>
          <option value="any">present or absent</option><option value="absent">absent</option><option value="offset">at an offset</option>
        <//>
        <${Field} label="Expected offset" type="number" min="0" required=${form.hasKey && form.expect === "offset"} disabled=${!form.hasKey || form.expect !== "offset"} ...${text("expected")} />
      </div>
      <${Trouble} error=${error} />
      <${Mismatch} error=${error} use=${(change) => (set(change), setError(null), button.current.focus())} />
      <div class="buttons">
        <button type="button" onClick=${() => (setForm(BLANK), setError(null))}>Clear</button>
        <button ref=${button} type="submit" class="main" aria-disabled=${busy}>Publish</button>
      </div>
    </form>
    <${Arrivals} topic=${topic.name} last=${last} mine=${mine} />
  </div>`;
}

function Arrivals({ topic, last, mine }) {
  const [rows, setRows] = useState([]);
  const [state, setState] = useState("Connecting…");
  const [error, setError] = useState(null);
  const [open, setOpen] = useState(null);
  useEffect(() => {
    const put = (found) => setRows((old) => [...[...found].reverse(), ...old].slice(0, MOST));
    return listen(`${topicPath(topic)}/tail`, { rate: 20, value_bytes: 1024 }, {
      start: () => setState("Live"),
      events: ({ events }) => put(events.map((event) => ({ ...event, live: true }))),
      skipped: (told) => put([{ skipped: told.events, id: `s${told.partition}-${told.start}`, text: `Skipped ${count(told.events)} events: more came than can be shown.` }]),
      broken: () => setState("Interrupted: trying again"),
      problem: (failure) => (setError(failure), setState("Ended")),
    });
  }, [topic]);
  return html`<section class="arrivals" aria-label="Arrivals">
    <div class="bar"><h2>Arriving</h2><span class=${"state " + (state === "Live" ? "live" : "")} role="status">${state}</span>
      <span class="grow"></span>${last && html`<a href=${link(["topics", topic, "events", last.partition, last.offset])}>Last published: ${last.partition} · ${count(last.offset)}</a>`}</div>
    <${Trouble} error=${error} />
    ${rows.length
      ? html`<${Grid} label="Events as they arrive" kind="events" head=${eventHead()}><${EventRows} topic=${topic} events=${rows} open=${setOpen} mine=${mine} /><//>`
      : html`<${Empty} title="Waiting for events."><p>What is published to ${topic}, from here or elsewhere, appears here.</p><//>`}
    ${open && html`<${EventDialog} topic=${topic} partition=${open.partition} offset=${open.offset} close=${() => setOpen(null)} />`}
  </section>`;
}

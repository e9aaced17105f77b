// Publishing a test event, and seeing it arrive beside the form.
import { listen, post, topicPath } from "../api.js";
import { isJson } from "../json.js";
import { EVENT_HEAD, EventDialog, EventRows } from "../event.js";
import { count } from "../format.js";
import { html, useEffect, useState } from "../lib.js";
import { Check, Empty, Field, Grid, Trouble, say } from "../parts.js";

const FORMS = [["text", "text (UTF-8)"], ["json", "JSON: checked before it is sent"], ["base64", "bytes, as base64"]];
const MOST = 50;

/** What the fields mean as the API's body. Throws Error with what is wrong. */
function bodyOf({ key, keyForm, hasKey, value, valueForm, tombstone, headers, partition, expect }) {
  const body = { tombstone };
  if (hasKey) body.key = { [keyForm]: key };
  if (!tombstone) {
    if (valueForm === "json" && !isJson(value)) throw new Error("The value is not JSON.");
    body.value = { [valueForm === "base64" ? "base64" : "text"]: value }; // JSON goes as it was typed
  }
  body.headers = headers.filter((each) => each.name).map(({ name, value: data }) => [name, data]);
  if (partition !== "") body.partition = Number(partition);
  if (expect !== "") body.expect = expect === "absent" ? "absent" : Number(expect);
  if (expect !== "" && expect !== "absent" && !/^\d+$/.test(expect)) throw new Error("The expected offset is a number, or “absent”.");
  return body;
}

const BLANK = { key: "", keyForm: "text", hasKey: true, value: "", valueForm: "text", tombstone: false, headers: [], partition: "", expect: "" };

export function Publish({ topic }) {
  const [form, setForm] = useState(BLANK);
  const [error, setError] = useState(null);
  const [busy, setBusy] = useState(false);
  const [last, setLast] = useState(null);
  const set = (change) => setForm((old) => ({ ...old, ...change }));
  const text = (field) => ({ value: form[field], onInput: (event) => set({ [field]: event.target.value }) });
  const submit = async (event) => {
    event.preventDefault();
    setBusy(true);
    setError(null);
    try {
      const stored = await post(`${topicPath(topic.name)}/events`, bodyOf(form));
      setLast(stored);
      say(`Published at offset ${count(stored.offset)} of partition ${stored.partition}`);
    } catch (failure) {
      setError(failure);
    }
    setBusy(false);
  };
  const header = (at, change) => set({ headers: form.headers.map((each, index) => (index === at ? { ...each, ...change } : each)) });
  const forms = FORMS.map(([name, title]) => html`<option key=${name} value=${name}>${title}</option>`);
  return html`<div class="two">
    <form class="card publish" onSubmit=${submit}>
      <h2>New event</h2>
      <${Check} label="With a key" checked=${form.hasKey} onChange=${(event) => set({ hasKey: event.target.checked, tombstone: form.tombstone && event.target.checked })} />
      <div class="pair">
        <${Field} label="Key" disabled=${!form.hasKey} ...${text("key")} />
        <${Field} label="Key is" as="select" disabled=${!form.hasKey} value=${form.keyForm} onChange=${(event) => set({ keyForm: event.target.value })}>${forms.filter((_, at) => at !== 1)}<//>
      </div>
      <${Check} label="Tombstone: delete this key from the table" checked=${form.tombstone} disabled=${!form.hasKey} onChange=${(event) => set({ tombstone: event.target.checked })} />
      <${Field} label="Value" as="textarea" rows="8" spellcheck=${false} disabled=${form.tombstone} ...${text("value")} />
      <${Field} label="Value is" as="select" disabled=${form.tombstone} value=${form.valueForm} onChange=${(event) => set({ valueForm: event.target.value })}>${forms}<//>
      <fieldset>
        <legend>Headers</legend>
        ${form.headers.map((each, at) => html`<div class="pair" key=${at}>
          <${Field} label=${`Name of header ${at + 1}`} value=${each.name} onInput=${(event) => header(at, { name: event.target.value })} />
          <${Field} label=${`Value of header ${at + 1}`} value=${each.value} onInput=${(event) => header(at, { value: event.target.value })} />
        </div>`)}
        <button type="button" class="small" onClick=${() => set({ headers: [...form.headers, { name: "", value: "" }] })}>Add a header</button>
        ${form.headers.length > 0 && html` <button type="button" class="small" onClick=${() => set({ headers: form.headers.slice(0, -1) })}>Remove the last</button>`}
      </fieldset>
      <div class="pair">
        <${Field} label="Partition" type="number" min="0" max=${topic.summary.partitions - 1} placeholder="by the key" hint="Empty: by the key, or in turn" ...${text("partition")} />
        <${Field} label="Expected offset" placeholder="any" disabled=${!form.hasKey} hint="Publish only if the key's latest event is there; or: absent" ...${text("expect")} />
      </div>
      <${Trouble} error=${error} />
      <div class="buttons">
        <button type="button" onClick=${() => (setForm(BLANK), setError(null))}>Clear</button>
        <button type="submit" class="main" disabled=${busy}>Publish</button>
      </div>
    </form>
    <${Arrivals} topic=${topic.name} last=${last} />
  </div>`;
}

function Arrivals({ topic, last }) {
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
      <span class="grow"></span>${last && html`<span class="faint">last published: ${last.partition} · ${count(last.offset)}</span>`}</div>
    <${Trouble} error=${error} />
    ${rows.length
      ? html`<${Grid} label="Events as they arrive" kind="events" head=${EVENT_HEAD}><${EventRows} topic=${topic} events=${rows} open=${setOpen} /><//>`
      : html`<${Empty} title="Waiting for events."><p>What is published to ${topic}, from here or elsewhere, appears here.</p><//>`}
    ${open && html`<${EventDialog} topic=${topic} partition=${open.partition} offset=${open.offset} close=${() => setOpen(null)} />`}
  </section>`;
}

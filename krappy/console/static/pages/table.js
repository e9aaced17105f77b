// A topic as a table: a key at once, the keys with a prefix, all of them page by page.
import { topicPath, useAnswer, useSettled } from "../api.js";
import { cliKey, preview, quoted } from "../bytes.js";
import { EventDialog, keyed, useAddress } from "../event.js";
import { count, time } from "../format.js";
import { html, useEffect, useState } from "../lib.js";
import { Bytes, Check, Command, Empty, Field, Grid, Trouble, Waiting } from "../parts.js";
import { go, link } from "../routes.js";

const PAGE = 50;

export const historyLink = (topic, entry) => link(["topics", topic, "history"], { ...keyed(entry.key), partition: entry.partition });

function Answer({ topic, entry, open }) {
  const at = useAddress();
  const where = `partition ${entry.partition}, offset ${count(entry.offset ?? 0)}, ${time(entry.timestamp)}`;
  const said = { value: "has a value", deleted: "was deleted", absent: "is not in the table" }[entry.status];
  return html`<section class=${"card answer " + entry.status} aria-label="Lookup" role="status">
    <p><${Bytes} shown=${entry.key} /> <strong>${said}</strong>${entry.status !== "absent" && html` <span class="faint">${where}</span>`}</p>
    ${entry.status === "value" && html`<pre class="one-line"><${Bytes} shown=${entry.value} /></pre>`}
    <p class="links">
      ${entry.status !== "absent" && html`<button type="button" class="small" onClick=${() => open(entry)}>${entry.status === "value" ? "Whole value" : "The event that deleted it"}</button>
        <a href=${historyLink(topic, entry)}>Raw events behind this value</a>`}
    </p>
    ${entry.key.size < 2000 && html`<${Command} label="Look it up" text=${`krappy get ${quoted(topic)} ${cliKey(entry.key)}${at}`} />`}
  </section>`;
}

export function Table({ topic, query }) {
  const name = topic.name;
  const [typed, setTyped] = useState(query.key ?? "");
  const [encoding, setEncoding] = useState(query.encoding ?? "");
  const [deleted, setDeleted] = useState(true);
  const [open, setOpen] = useState(null);
  const [trail, setTrail] = useState([""]);
  const settled = useSettled(typed, 150);
  useEffect(() => {
    setTyped(query.key ?? "");
    setEncoding(query.encoding ?? "");
  }, [query.key, query.encoding]);
  useEffect(() => setTrail([""]), [settled, encoding, deleted]);
  const path = topic.summary.view ? topicPath(name) : null;
  const key_encoding = encoding || undefined;
  const lookup = useAnswer(path && settled ? `${path}/table/entry` : null, { key: settled, key_encoding });
  const scan = useAnswer(path && `${path}/table`, { prefix: settled, key_encoding, tombstones: deleted, cursor: trail.at(-1), limit: PAGE, value_bytes: 1024 });
  const rows = scan.data?.entries ?? [];
  if (!path) {
    return html`<${Empty} title="This topic is no table."><p>Its setting view.enable is false: its events are in the log alone.</p>
      <a href=${link(["topics", name, "settings"])}>Settings</a><//>`;
  }
  const submit = (event) => {
    event.preventDefault();
    go(["topics", name, "table"], { key: typed, encoding }, { replace: true });
    lookup.again();
    scan.again();
  };
  const type = (event) => {
    setTyped(event.target.value);
    setEncoding("");
  };
  return html`<form class="bar" role="search" onSubmit=${submit}>
      <${Field} label=${encoding ? "Key or prefix (base64)" : "Key or prefix"} type="search" class="wide-field" value=${typed} onInput=${type} />
      <button type="submit" class="main">Look up</button>
      <${Check} label="Deleted keys too" checked=${deleted} onChange=${(event) => setDeleted(event.target.checked)} />
      <span class="grow"></span>
      <button type="button" class="small" onClick=${scan.again}>Refresh</button>
    </form>
    <${Trouble} error=${settled ? lookup.error : null} />
    ${settled && lookup.data && lookup.fresh && html`<${Answer} topic=${name} entry=${lookup.data} open=${setOpen} />`}
    ${settled && html`<h2 class="results">Keys that begin with it</h2>`}
    <${Trouble} error=${scan.error} again=${scan.again} />
    ${!scan.data && !scan.error && html`<${Waiting} />`}
    ${scan.data && !rows.length && html`<${Empty} title=${settled ? "No key begins with this." : "The table is empty."}>
      ${!settled && html`<p>Events with a key stand here, each key with its latest value.</p>`}<//>`}
    ${rows.length > 0 && html`<${Grid} label=${`Table of ${name}`} kind="events" head=${[["Key", "keycell"], ["Value", "valuecell"], ["Place", "place"], ["Time", "wide time"], ["Raw events", "number"]]}>
        ${rows.map((entry) => html`<tr key=${`${entry.partition} ${entry.key.as} ${entry.key.data}`} class=${entry.status}>
          <td class="keycell"><${Bytes} shown=${entry.key} /></td>
          <td class="valuecell">${entry.status === "deleted" ? html`<span class="tag bad">deleted</span>` : html`<${Bytes} shown=${entry.value} />`}</td>
          <td class="place"><a href=${link(["topics", name, "events", entry.partition, entry.offset])} aria-label=${`Whole value of ${preview(entry.key, 80)}`}
              onClick=${(click) => !click.ctrlKey && !click.metaKey && (click.preventDefault(), setOpen(entry))}>${entry.partition}<span class="faint"> · </span>${entry.offset}</a></td>
          <td class="wide time">${time(entry.timestamp).slice(5)}</td>
          <td class="number">${!entry.key.truncated && html`<a href=${historyLink(name, entry)} aria-label=${`Raw events behind ${preview(entry.key, 80)}`}>show</a>`}</td>
        </tr>`)}
      <//>
      <nav class="pager" aria-label="Pages of the table">
        <button type="button" disabled=${trail.length < 2} onClick=${() => setTrail(trail.slice(0, -1))}>← Previous</button>
        <span role="status">${`Page ${trail.length}${scan.data.cursor ? "" : ", the last"}`}</span>
        <button type="button" disabled=${!scan.data.cursor} onClick=${() => setTrail([...trail, scan.data.cursor])}>Next →</button>
      </nav>`}
    ${open && html`<${EventDialog} topic=${name} partition=${open.partition} offset=${open.offset} close=${() => setOpen(null)} />`}`;
}

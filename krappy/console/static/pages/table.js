// A topic as a table, live: one key, the keys with a prefix, or all keys, page by page.
import { topicPath, useAnswer, useSettled } from "../api.js";
import { preview } from "../bytes.js";
import { Picker, WIDE, columnsOf, columnsText, useFields } from "../columns.js";
import { getKey } from "../command.js";
import { EventDialog, ValueCells, keyed, useAddress, valueHeads } from "../event.js";
import { count, dayTime, plural, time } from "../format.js";
import { KeyFields, named, typedBytes, typedOf } from "../keys.js";
import { html, useEffect, useMemo, useState } from "../lib.js";
import { MERGED, OfPartition, ends } from "../partition.js";
import { Bytes, Check, Command, Empty, Grid, Trouble, Waiting } from "../parts.js";
import { go, link } from "../routes.js";
import { isOf, useTable } from "../tablelive.js";

const historyLink = (topic, entry) => link(["topics", topic, "history"], { ...keyed(entry.key), partition: entry.partition });

function Answer({ topic, entry, open }) {
  const at = useAddress();
  if (at === null) return null;
  const where = `partition ${entry.partition}, offset ${count(entry.offset ?? 0)}, ${time(entry.timestamp)}`;
  const said = { value: "has a value", deleted: "was deleted", absent: "is not in the table" }[entry.state];
  return html`<section class=${"card answer " + entry.state} aria-label="Lookup" role="status">
    <p class="said"><${Bytes} shown=${entry.key} /> <strong>${said}</strong>${entry.state !== "absent" && html` <span class="faint">${where}</span>`}</p>
    ${entry.state === "value" && html`<pre class="one-line"><${Bytes} shown=${entry.value} /></pre>`}
    ${entry.state !== "absent" && html`<p class="links">
      <button type="button" class="small" onClick=${() => open(entry)}>${entry.state === "value" ? "Whole value" : "The event that deleted it"}</button>
      <a href=${historyLink(topic, entry)}>Raw events behind this value</a>
    </p>`}
    ${entry.key.size < 2000 && html`<${Command} label="Look it up" text=${getKey(topic, entry.key, at)} />`}
  </section>`;
}

function statusText({ status, lag }, paused, behind) {
  if (paused) return behind > 0 ? `Paused: about ${plural(behind, "event")} since` : "Paused";
  if (status === "live") return lag > 0 ? `Live, ${plural(lag, "event")} behind` : "Live";
  return { loading: "Reading…", read: "Connecting…", broken: "Interrupted: trying again", ended: "Ended", failed: "Failed" }[status];
}

function Row({ topic, entry, open, columns }) {
  const show = (click) => {
    if (click.ctrlKey || click.metaKey || click.shiftKey) return;
    click.preventDefault();
    open(entry);
  };
  const mark = entry.marked ? (entry.marked % 2 ? "changed odd" : "changed even") : ""; // so that the animation restarts
  return html`<tr class=${`${entry.state} ${mark}`}>
    <td class="keycell"><${Bytes} shown=${entry.key} />${entry.marked > 0 && html`<span class="unseen"> changed</span>`}</td>
    <${ValueCells} shown=${entry.value} columns=${columns} whole=${entry.state === "deleted" ? html`<span class="tag bad">deleted</span>` : html`<${Bytes} shown=${entry.value} />`} />
    <td class="place"><a href=${link(["topics", topic, "events", entry.partition, entry.offset])} aria-label=${`Whole value of ${preview(entry.key, 80)}`} onClick=${show}>${entry.partition}<span class="faint"> · </span>${entry.offset}</a></td>
    <td class="wide time">${dayTime(entry.timestamp)}</td>
    <td class="number wide">${!entry.key.truncated && html`<a href=${historyLink(topic, entry)} aria-label=${`Raw events behind ${preview(entry.key, 80)}`}>show</a>`}</td>
  </tr>`;
}

export function Table({ topic, query }) {
  const name = topic.name;
  const [typed, setTyped] = useState(() => typedOf(query));
  const [deleted, setDeleted] = useState(true);
  const [partition, setPartition] = useState(topic.summary.partitions > MERGED ? "0" : undefined);
  const [open, setOpen] = useState(null);
  const [trail, setTrail] = useState([undefined]);
  const [paused, setPaused] = useState(null); // where the log ended when it was paused
  const settled = useSettled(typed, 150);
  useEffect(() => setTyped(typedOf(query)), [query.key, query.encoding]);
  const [wanted, mistake] = useMemo(() => {
    try {
      return [typedBytes(settled), null];
    } catch (error) {
      return [null, error];
    }
  }, [settled]);
  useEffect(() => setTrail([undefined]), [wanted, deleted, partition]);
  const columns = useMemo(() => columnsOf(query.columns), [query.columns]);
  const path = topic.summary.view && !mistake ? topicPath(name) : null;
  const key = wanted && named(wanted);
  const lookup = useAnswer(path && key && `${path}/table/entry`, { key: key?.key, key_encoding: key?.encoding, partition });
  const look = (entry) => isOf(entry, wanted) && lookup.again();
  const table = useTable(path && `${path}/table`, { prefix: wanted, tombstones: deleted, partition, cursor: trail.at(-1), size: columns.length ? WIDE : 1024 }, paused !== null, look);
  const { rows, status } = table;
  const fields = useFields(rows);
  if (!topic.summary.view) {
    return html`<${Empty} title="This topic has no table."><p>Its setting view.enable is false: its events are only in the log.</p>
      <a href=${link(["topics", name, "settings"])}>Settings</a><//>`;
  }
  const submit = (event) => {
    event.preventDefault();
    try {
      go(["topics", name, "table"], { ...named(typedBytes(typed)), columns: query.columns }, { replace: true });
    } catch {
      return; // the error is shown below
    }
    lookup.again();
    table.again();
  };
  const pause = () => {
    if (paused !== null) table.again(); // marks the rows that changed meanwhile
    setPaused(paused === null ? ends(topic) : null);
  };
  const has = rows.length > 0;
  return html`<form class="bar" role="search" onSubmit=${submit}>
      <${KeyFields} label="Key or prefix" typed=${typed} change=${setTyped} class="wide-field" />
      <${OfPartition} topic=${topic} partition=${partition} choose=${setPartition} />
      <button type="submit" class="main">Look up</button>
      <${Check} label="Deleted keys too" checked=${deleted} onChange=${(event) => setDeleted(event.target.checked)} />
    </form>
    <${Trouble} error=${mistake ?? (key ? lookup.error : null)} />
    ${key && lookup.data && lookup.fresh && html`<${Answer} topic=${name} entry=${lookup.data} open=${setOpen} />`}
    ${wanted?.length > 0 && html`<h2 class="results">Keys that begin with it</h2>`}
    <div class="bar status-bar">
      <span class=${"state " + (paused === null ? status : "paused")} role="status">${statusText(table, paused !== null, paused === null ? 0 : ends(topic) - paused)}</span>
      <span class="faint">${table.changes > 0 && plural(table.changes, "change")}</span>
      ${table.more.size > 0 && html`<button type="button" class="small" onClick=${table.again}>Show ${table.more.size > 1000 ? "more than 1,000" : count(table.more.size)} new</button>`}
      <span class="grow"></span>
      <${Picker} fields=${fields} chosen=${columns} choose=${(chosen) => go(["topics", name, "table"], { ...query, columns: columnsText(chosen) }, { replace: true })} />
      <button type="button" class="small" onClick=${table.again}>Refresh</button>
      <button type="button" class="small" aria-pressed=${paused !== null} onClick=${pause}>${paused === null ? "Pause" : "Go on"}</button>
    </div>
    <${Trouble} error=${table.error} again=${table.again} />
    ${status === "loading" && html`<${Waiting} />`}
    ${status !== "loading" && !has && !table.error && html`<${Empty} title=${wanted?.length ? "No key begins with this." : "The table is empty."}>
      ${!wanted?.length && html`<p>It shows each key with its latest value. Events without a key are only in the log.</p>`}<//>`}
    ${has && html`<${Grid} label=${`Table of ${name}`} kind="events" head=${[["Key", "keycell"], ...valueHeads(columns), ["Partition · offset", "place"], ["Time", "wide time"], ["Raw events", "number wide"]]}>
        ${rows.map((entry) => html`<${Row} key=${entry.id} topic=${name} entry=${entry} open=${setOpen} columns=${columns} />`)}
      <//>`}
    ${(trail.length > 1 || table.cursor) && html`<nav class="pager" aria-label="Pages of the table">
        <button type="button" disabled=${trail.length < 2} onClick=${() => setTrail(trail.slice(0, -1))}>← Previous</button>
        <span role="status">${`Page ${trail.length}${table.cursor ? "" : ", the last"}`}</span>
        <button type="button" disabled=${!table.cursor || !table.fresh} onClick=${() => setTrail([...trail, table.cursor])}>Next →</button>
      </nav>`}
    ${open && html`<${EventDialog} topic=${name} partition=${open.partition} offset=${open.offset} close=${() => setOpen(null)} />`}`;
}

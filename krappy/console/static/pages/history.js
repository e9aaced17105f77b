// The raw events of one key, from which its value in the table comes.
import { get, topicPath } from "../api.js";
import { preview } from "../bytes.js";
import { EventDialog, EventRows, eventHead } from "../event.js";
import { plural } from "../format.js";
import { namedShown } from "../keys.js";
import { html, useEffect, useState } from "../lib.js";
import { Bytes, Empty, Grid, Trouble, Waiting } from "../parts.js";
import { link } from "../routes.js";

export function History({ topic, query }) {
  const { key, encoding, partition } = query;
  const [state, setState] = useState({ rows: null, next: 0, error: null });
  const [open, setOpen] = useState(null);
  const question = JSON.stringify([key, encoding, partition]);
  const read = async (offset, before) => {
    try {
      const page = await get(`${topicPath(topic.name)}/table/history`, { key, key_encoding: encoding, partition, offset, limit: 100, value_bytes: 1024 });
      const rows = page.entries.map((entry) => ({ ...entry, tombstone: entry.state === "deleted" }));
      setState({ rows: [...before, ...rows], next: page.next, error: null });
    } catch (error) {
      setState((old) => ({ ...old, error }));
    }
  };
  useEffect(() => {
    if (key !== undefined) read(0, []);
  }, [topic.name, question]);
  const { rows, next, error } = state;
  const shown = namedShown(query);
  if (!shown) return html`<${Empty} title="No key is named."><a href=${link(["topics", topic.name, "table"])}>To the table</a><//>`;
  return html`<div class="bar"><h2>Raw events of <${Bytes} shown=${shown} /></h2>
      <span class="grow"></span>
      <a href=${link(["topics", topic.name, "table"], { key, encoding })}>Back to its value</a>
    </div>
    <p class="faint" role="status">${rows ? `${plural(rows.length, "event")}${next === null ? "" : " so far"}, the oldest first` : " "}</p>
    <${Trouble} error=${error} />
    ${!rows && !error && html`<${Waiting} />`}
    ${rows?.length === 0 && next === null && html`<${Empty} title="The log has no event of this key (any more)." />`}
    ${rows?.length > 0 && html`<${Grid} label=${`Events of the key ${preview(shown, 80)}`} kind="events" head=${eventHead()}>
      <${EventRows} topic=${topic.name} events=${rows} open=${setOpen} />
    <//>`}
    ${next !== null && rows && html`<p class="more-rows"><button type="button" onClick=${() => read(next, rows)}>Search further</button></p>`}
    ${open && html`<${EventDialog} topic=${topic.name} partition=${open.partition} offset=${open.offset} close=${() => setOpen(null)} />`}`;
}

// One event with every field, on a page of its own or beside a list.
import { get, topicPath, useAnswer } from "./api.js";
import { bytesOf, shownOf } from "./bytes.js";
import { FieldCells, columnHeads } from "./columns.js";
import { consumeOne, getKey } from "./command.js";
import { count, dayTime, time } from "./format.js";
import { named } from "./keys.js";
import { html, useEffect, useMemo, useState } from "./lib.js";
import { Bytes, Command, Dialog, Facts, Heading, Trouble, Waiting } from "./parts.js";
import { link } from "./routes.js";
import { Value } from "./value.js";

const DEFAULT = "127.0.0.1:7092";
let cluster = null;

/** HOST:PORT of the broker, or "" if it is the command line's default. Null until the broker has said it: no command is
    shown before, since it might be copied. */
export function useAddress() {
  const [found, setFound] = useState(null);
  useEffect(() => {
    cluster ??= get("/cluster").catch(() => ((cluster = null), {}));
    cluster.then((told) => {
      const native = told.listening?.native ?? DEFAULT;
      setFound(native === DEFAULT ? "" : native);
    });
  }, []);
  return found;
}

const eventPath = (topic, partition, offset) => `${topicPath(topic)}/partitions/${partition}/events/${offset}`;

export function Event({ topic, partition, offset }) {
  const { data, error, again, fresh } = useAnswer(eventPath(topic, partition, offset), { values: "base64" });
  const at = useAddress();
  if (error && fresh) return html`<${Trouble} error=${error} again=${again} />`;
  if (!data || !fresh || at === null) return html`<${Waiting} />`;
  return html`<div class="event">
    <${Facts} facts=${[
      ["Partition", data.partition],
      ["Offset", count(data.offset)],
      ["Time", time(data.timestamp)],
      ["Kind", data.tombstone ? html`<span class="tag bad">tombstone</span>` : "event"],
    ]} />
    <h3>Key</h3>
    ${data.key === null
      ? html`<p class="faint">none: the event is only in the log, not in the table</p>`
      : html`<p class="key"><${Bytes} shown=${data.key} /></p>
          <p class="links">
            <a href=${link(["topics", topic, "table"], keyed(data.key))}>Latest value of this key</a>
            <a href=${link(["topics", topic, "history"], { ...keyed(data.key), partition })}>All events of this key</a>
          </p>`}
    <h3>Headers</h3>
    ${data.headers.length
      ? html`<dl class="headers">${data.headers.map(({ name, value }, index) => html`<div key=${index}><dt><bdi>${name}</bdi></dt><dd><${Bytes} shown=${value && shownOf(bytesOf(value))} /></dd></div>`)}</dl>`
      : html`<p class="faint">none</p>`}
    <h3>Value</h3>
    ${data.value === null
      ? html`<p class="faint">none: the event deletes its key from the table</p>`
      : html`<${Whole} key=${eventPath(topic, partition, offset)} shown=${data.value} />`}
    <h3>On the command line</h3>
    <${Command} label="Read this event" text=${consumeOne(topic, partition, offset, at)} />
    ${data.key && data.key.size < 2000 &&
    html`<${Command} label="Read its key" text=${getKey(topic, data.key, at, { history: true, partition })} />`}
  </div>`;
}

/** The query of the table's pages for a key. */
export const keyed = (shown) => named(bytesOf(shown));

function Whole({ shown }) {
  const data = useMemo(() => bytesOf(shown), [shown]);
  return html`<${Value} data=${data} size=${shown.size} />`;
}

export function EventDialog({ topic, partition, offset, close }) {
  return html`<${Dialog} title=${`${topic} · ${partition} · ${count(offset)}`} close=${close} side>
    <${Event} topic=${topic} partition=${partition} offset=${offset} />
    <p class="links"><a href=${link(["topics", topic, "events", partition, offset])}>Open as a page</a></p>
  <//>`;
}

export function EventPage({ topic, partition, offset }) {
  const at = Number(offset);
  return html`<${Heading} title=${`${topic} · ${partition} · ${offset}`}>
      <p class="links">
        <a href=${link(["topics", topic, "stream"])}>Stream of ${topic}</a>
        ${at > 0 && html`<a href=${link(["topics", topic, "events", partition, at - 1])}>← Offset ${count(at - 1)}</a>`}
        <a href=${link(["topics", topic, "events", partition, at + 1])}>Offset ${count(at + 1)} →</a>
      </p>
    <//>
    <${Event} topic=${topic} partition=${partition} offset=${offset} />`;
}

/** Rows of events. Events that arrived live are marked for a moment, those in `mine` as long as they are shown. */
export function EventRows({ topic, events, open, mine, columns = [] }) {
  return events.map((event) => {
    if (event.skipped) {
      return html`<tr key=${event.id} class="skipped"><td colspan=${4 + Math.max(1, columns.length)}>${event.text}</td></tr>`;
    }
    const id = `${event.partition}-${event.offset}`;
    const show = (click) => {
      if (click.ctrlKey || click.metaKey || click.shiftKey) return;
      click.preventDefault();
      open(event);
    };
    return html`<tr key=${id} class=${(event.live ? "new" : "") + (mine?.has(id) ? " mine" : "")} data-offset=${event.offset}>
      <td class="time wide">${dayTime(event.timestamp)}</td>
      <td class="place"><a href=${link(["topics", topic, "events", event.partition, event.offset])} onClick=${show}
          aria-label=${`Event ${event.offset} of partition ${event.partition}`}>${event.partition}<span class="faint"> · </span>${event.offset}</a></td>
      <td class="keycell"><${Bytes} shown=${event.key} />${mine?.has(id) && html`<span class="tag">yours</span>`}</td>
      <${ValueCells} shown=${event.value} columns=${columns} whole=${event.tombstone ? html`<span class="tag bad">tombstone</span>` : html`<${Bytes} shown=${event.value} />`} />
      <td class="wide number faint">${event.headers.length || ""}</td>
    </tr>`;
  });
}

/** The cell of a value, or one for each column. */
export const ValueCells = ({ shown, columns, whole }) =>
  columns.length ? html`<${FieldCells} shown=${shown} columns=${columns} otherwise=${whole} />` : html`<td class="valuecell">${whole}</td>`;

export const valueHeads = (columns) => (columns.length ? columnHeads(columns) : [["Value", "valuecell"]]);
export const eventHead = (columns = []) => [["Time", "wide time"], ["Partition · offset", "place"], ["Key", "keycell"], ...valueHeads(columns), ["Headers", "wide number"]];

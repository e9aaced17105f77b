// A topic as a stream: its events live; or a part of the log, from an offset, a time or its beginning.
import { topicPath, get, listen, useSettled } from "../api.js";
import { bytesOf, isSame, lenientText } from "../bytes.js";
import { Picker, WIDE, columnsOf, columnsText, useFields } from "../columns.js";
import { EventDialog, EventRows, eventHead } from "../event.js";
import { count, plural } from "../format.js";
import { KeyFields, named, namedShown, typedBytes, typedOf } from "../keys.js";
import { html, useEffect, useLayoutEffect, useMemo, useRef, useState } from "../lib.js";
import { MERGED, OfPartition, ends } from "../partition.js";
import { Empty, Field, Grid, Trouble, Waiting } from "../parts.js";
import { go } from "../routes.js";

const PAGE = 100;
const SEARCHED = 1000; // events of a page, if there is a filter
const MOST = 500; // rows; a live view with more drops the oldest
const REASONS = {
  rate: "more came than can be shown",
  behind: "more came than could be searched",
  gone: "retention deleted them before they were shown",
};
const NOTHING = { rows: [], before: null, after: null, atEnd: false, status: "loading", error: null, skipped: 0, searched: 0 };

const isLive = (wanted) => !wanted.start || wanted.start === "live";
const isFiltered = (wanted) => wanted.key !== undefined || Boolean(wanted.text);

/** Whether an event of a page passes the filter. (Events of a tail are filtered by the broker.) */
function passes(event, { text }, key) {
  if (key && !(event.key && isSame(event.key, key))) return false;
  if (!text) return true;
  return [event.key, event.value, ...event.headers.map((each) => each.value)].some(
    (shown) => shown && (shown.as === "text" ? shown.data : lenientText(bytesOf(shown))).includes(text),
  );
}

function skippedRow(told) {
  const text = `Skipped ${plural(told.events, "event")} of partition ${told.partition}, offsets ${count(told.start)} to ${count(told.end - 1)}: ${REASONS[told.reason] ?? told.reason}.`;
  return { skipped: told.events, id: `s${told.partition}-${told.start}`, text };
}

/** `size`: bytes of each value that are read. */
function useStream(topic, wanted, paused, size) {
  const [state, setState] = useState(NOTHING);
  const cursor = useRef(null);
  const live = isLive(wanted);
  const filtered = isFiltered(wanted);
  const key = namedShown(wanted);
  const path = topicPath(topic);
  const common = { partition: wanted.partition };
  const limits = filtered ? { limit: SEARCHED, value_bytes: WIDE } : { limit: PAGE, value_bytes: size };
  const question = JSON.stringify([wanted, size]);
  const following = live || filtered; // with a filter, reading on is a search

  const ordered = (events) => (live ? [...events].reverse() : events);
  const add = (rows, page) => [...rows, ...ordered(page.events.filter((event) => passes(event, wanted, key)))];

  // Layout effects: they end what was listened to before anything else happens, so nothing is shown after a click on
  // Pause.
  useLayoutEffect(() => {
    const stop = new AbortController();
    cursor.current = null;
    setState((old) => ({ ...NOTHING, rows: old.rows, status: "loading" }));
    const start = live ? { start: "latest" } : { start: wanted.start, at: wanted.at };
    get(`${path}/events`, { ...common, ...limits, ...start }, stop.signal).then(
      (page) => {
        cursor.current = page.after;
        const { before, after, at_end: atEnd } = page;
        setState({ ...NOTHING, rows: add([], page), before, after, atEnd, searched: page.events.length, status: "read" });
      },
      (error) => stop.signal.aborted || setState({ ...NOTHING, error, status: "failed" }),
    );
    return () => stop.abort();
  }, [path, question]);

  const ready = state.status !== "loading" && state.status !== "failed";
  useLayoutEffect(() => {
    if (!ready || !following || paused) return undefined;
    const put = (rows) =>
      setState((old) => {
        const known = live ? [...[...rows].reverse(), ...old.rows] : [...old.rows, ...rows];
        const skipped = old.skipped + rows.reduce((sum, each) => sum + (each.skipped ?? 0), 0);
        const cut = known.length > MOST;
        // Dropped rows lie between the last row and the page before: a button must not lead over that gap.
        const before = cut && live ? null : old.before;
        return { ...old, rows: cut ? known.slice(0, MOST) : known, before, skipped, status: cut && !live ? "full" : "live" };
      });
    const keep = (id) => {
      if (id) cursor.current = id;
    };
    const query = { ...common, key: wanted.key, key_encoding: wanted.encoding, text: wanted.text, after: cursor.current, value_bytes: size };
    return listen(`${path}/tail`, query, {
      start: (_, id) => {
        keep(id);
        setState((old) => ({ ...old, status: "live" }));
      },
      events: ({ events }, id) => {
        keep(id);
        put(events.map((event) => ({ ...event, live: true })));
      },
      skipped: (told, id) => {
        keep(id);
        put([skippedRow(told)]);
      },
      broken: () => setState((old) => ({ ...old, status: "broken" })),
      problem: (error) => setState((old) => ({ ...old, error, status: "ended" })),
    });
  }, [path, question, ready, paused]);

  const turn = async (which) => {
    let at = state[which];
    let found = [];
    let page = null;
    let searched = 0;
    try {
      for (let tries = 0; at && tries < 10 && !found.length; tries += 1) {
        page = await get(`${path}/events`, { ...common, ...limits, [which]: at });
        found = page.events.filter((event) => passes(event, wanted, key));
        searched += page.events.length;
        at = page[which];
        if (which === "after" && page.at_end) break;
      }
    } catch (error) {
      setState((old) => ({ ...old, error }));
      return;
    }
    if (!page) return;
    setState((old) => ({
      ...old,
      rows: which === "after" || live ? [...old.rows, ...ordered(found)] : [...found, ...old.rows],
      [which]: at,
      searched: old.searched + searched,
      atEnd: which === "after" ? page.at_end : old.atEnd,
    }));
  };
  return { ...state, live, filtered, following, earlier: () => turn("before"), later: () => turn("after") };
}

function Jump({ wanted, move }) {
  const [start, setStart] = useState(wanted.start || "live");
  const [at, setAt] = useState("");
  const submit = (event) => {
    event.preventDefault();
    const ms = start === "timestamp" ? new Date(at).getTime() : at;
    move({ start: start === "live" ? undefined : start, at: start === "offset" || start === "timestamp" ? String(ms) : undefined });
  };
  useEffect(() => setStart(wanted.start || "live"), [wanted.start]);
  const choose = (event) => {
    setStart(event.target.value);
    setAt("");
    if (event.target.value === "live" || event.target.value === "earliest") {
      move({ start: event.target.value === "live" ? undefined : "earliest", at: undefined });
    }
  };
  return html`<form class="jump" onSubmit=${submit}>
    <${Field} label="Show" as="select" value=${start} onChange=${choose}>
      <option value="live">live: the newest first</option>
      <option value="earliest">from the beginning</option>
      <option value="offset">from an offset</option>
      <option value="timestamp">from a time</option>
    <//>
    ${start === "offset" && html`<${Field} label="Offset" type="number" min="0" required value=${at} onInput=${(event) => setAt(event.target.value)} />`}
    ${start === "timestamp" && html`<${Field} label="Time" type="datetime-local" step="1" required value=${at} onInput=${(event) => setAt(event.target.value)} />`}
    ${(start === "offset" || start === "timestamp") && html`<button type="submit" class="main">Jump</button>`}
  </form>`;
}

function statusText({ status, live, filtered, atEnd }, paused, behind) {
  if (paused) return behind > 0 ? `Paused: about ${count(behind)} more since` : "Paused";
  if (status === "live") return live ? "Live" : "Searching new events as they come";
  if (status === "full") return `The first ${MOST} matches: start at a later offset to see more`;
  return { loading: "Reading…", read: live || filtered ? "Connecting…" : atEnd ? "Up to the end" : "A part of the log", broken: "Interrupted: trying again", ended: "Ended", failed: "Failed" }[status];
}

export function Stream({ topic, query }) {
  const name = topic.name;
  const { start, at, key, encoding, text } = query;
  const partition = query.partition ?? (topic.summary.partitions > MERGED ? "0" : undefined);
  const wanted = { start, at, key, encoding, text, partition };
  const columns = useMemo(() => columnsOf(query.columns), [query.columns]);
  const move = (change) => go(["topics", name, "stream"], { ...wanted, columns: query.columns, ...change }, { replace: true });
  const [typed, setTyped] = useState({ key: typedOf(query), text: text ?? "" });
  const settled = useSettled(typed, 300);
  const [mistake, setMistake] = useState(null);
  useEffect(() => {
    try {
      const found = { key: undefined, encoding: undefined, ...named(typedBytes(settled.key)), text: settled.text || undefined };
      setMistake(null);
      if (found.key !== key || found.encoding !== encoding || found.text !== text) move(found);
    } catch (error) {
      setMistake(error);
    }
  }, [settled]);
  const [paused, setPaused] = useState(null); // where the log ended when it was paused
  const [open, setOpen] = useState(null);
  const stream = useStream(name, wanted, paused !== null, columns.length ? WIDE : 1024);
  const { rows, status, error } = stream;
  const fields = useFields(rows);
  const behind = paused === null ? 0 : ends(topic) - paused;
  return html`<div class="bar tools-bar">
      <${Jump} wanted=${wanted} move=${move} />
      <${KeyFields} label="Key" placeholder="exactly this" typed=${typed.key} change=${(given) => setTyped((old) => ({ ...old, key: given }))} />
      <${Field} label="Text" type="search" placeholder="in key, value or header" value=${typed.text} onInput=${(event) => setTyped((old) => ({ ...old, text: event.target.value }))} />
      <${OfPartition} topic=${topic} partition=${partition} choose=${(chosen) => move({ partition: chosen })} />
    </div>
    <div class="bar status-bar">
      <span class=${"state " + (paused === null ? status : "paused")} role="status">${statusText(stream, paused !== null, behind)}</span>
      <span class="faint">${stream.skipped > 0 && `${plural(stream.skipped, "event")} skipped`}</span>
      <span class="grow"></span>
      <${Picker} fields=${fields} chosen=${columns} choose=${(chosen) => move({ columns: columnsText(chosen) })} />
      ${stream.following && html`<button type="button" class="small" aria-pressed=${paused !== null} onClick=${() => setPaused(paused === null ? ends(topic) : null)}>${paused === null ? "Pause" : "Go on"}</button>`}
      ${!stream.live && html`<button type="button" class="small" onClick=${() => move({ start: undefined, at: undefined })}>Back to live</button>`}
    </div>
    <${Trouble} error=${mistake ?? error} />
    ${!stream.live && stream.before && html`<p class="more-rows"><button type="button" onClick=${stream.earlier}>Earlier events</button></p>`}
    ${rows.length > 0 && html`<${Grid} label=${`Events of ${name}`} kind="events" head=${eventHead(columns)}>
      <${EventRows} topic=${name} events=${rows} open=${setOpen} columns=${columns} />
    <//>`}
    ${!rows.length && status === "loading" && html`<${Waiting} />`}
    ${!rows.length && status !== "loading" && !error && (stream.filtered
      ? html`<${Empty} title="Nothing matches yet."><p>${plural(stream.searched, "event")} searched; new ones are searched as they come.</p><//>`
      : html`<${Empty} title="No events here yet."><p>They are shown as they come. <a href=${`#/topics/${encodeURIComponent(name)}/publish`}>Publish one</a></p><//>`)}
    ${stream.live && stream.before && html`<p class="more-rows"><button type="button" onClick=${stream.earlier}>Older events</button></p>`}
    ${!stream.live && !stream.following && rows.length > 0 && html`<p class="more-rows">${stream.atEnd
      ? html`<span class="faint">This is the end of the log.</span> <button type="button" onClick=${stream.later}>Look again</button>`
      : html`<button type="button" onClick=${stream.later}>Later events</button>`}</p>`}
    ${open && html`<${EventDialog} topic=${name} partition=${open.partition} offset=${open.offset} close=${() => setOpen(null)} />`}`;
}

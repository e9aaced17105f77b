// A page of the table that follows the changes of its keys. Rows stay where they are: a key that changes is marked in
// its row, a deleted key stays as a tombstone, and new keys within the page are only counted until the reader asks for
// them. Only after the last row of the last page, new rows appear by themselves.
import { get, listen } from "./api.js";
import { afterPrefix, bytesOf, compareBytes, toBase64 } from "./bytes.js";
import { useEffect, useLayoutEffect, useRef, useState } from "./lib.js";

export const PAGE = 50;
const TOGETHER = 150; // ms; changes within this time are drawn together
const COUNTED = 1000; // more new keys are not counted
const NOTHING = { rows: [], cursor: null, page: null, error: null, status: "loading", of: null, changes: 0, lag: 0, more: new Set() };

// A key has one row, whatever partition its newest entry is in: the next one may be in another partition.
const idOf = (entry) => `${entry.key.as} ${entry.key.data}`;

/** The range of keys of a page, as query of the API: from its first row to its last, or on the last page to the end. */
function rangeOf({ rows, cursor }, prefix, isFirst) {
  const keyOf = (row) => bytesOf(row.key);
  const given = prefix === null ? new Uint8Array() : prefix;
  const start = isFirst || !rows.length ? given : keyOf(rows[0]);
  const last = rows.at(-1);
  let end = afterPrefix(given);
  if (cursor && last) end = last.key.truncated ? afterPrefix(keyOf(last)) : Uint8Array.of(...keyOf(last), 0);
  return { start: toBase64(start), end: end === null ? undefined : toBase64(end), key_encoding: "base64" };
}

function applied(old, found) {
  const index = new Map(old.rows.map((row, at) => [row.id, at]));
  const rows = [...old.rows];
  const more = new Set(old.more);
  let { changes } = old;
  for (const entry of found.values()) {
    const at = index.get(entry.id);
    if (at !== undefined) {
      rows[at] = { ...entry, marked: rows[at].marked + 1 };
      changes += 1;
    } else if (entry.state === "value") {
      const isLast = !rows.length || compareBytes(bytesOf(rows.at(-1).key), bytesOf(entry.key)) < 0;
      if (isLast && !old.cursor && rows.length < PAGE) {
        index.set(entry.id, rows.length);
        rows.push({ ...entry, marked: 1 });
        changes += 1;
      } else if (more.size <= COUNTED) more.add(entry.id);
    } else more.delete(entry.id);
  }
  return { ...old, rows, more, changes };
}

/** The rows of the same page, read again: those that have changed are marked. */
function reread(old, rows) {
  const before = new Map(old.rows.map((row) => [row.id, row]));
  return rows.map((row) => {
    const was = before.get(row.id);
    const isSame = was && was.partition === row.partition && was.offset === row.offset;
    return { ...row, marked: isSame ? was.marked : (was?.marked ?? 0) + 1 };
  });
}

/** `prefix`: bytes, or null. `size`: bytes of each value that are read. `path` null: nothing is read. `changed` is called with each entry that changes. */
export function useTable(path, { prefix, tombstones, partition, cursor, size }, paused, changed) {
  const [state, setState] = useState(NOTHING);
  const [round, setRound] = useState(0);
  const told = useRef(changed);
  told.current = changed;
  const encoded = prefix === null ? undefined : toBase64(prefix);
  const question = path && JSON.stringify([path, encoded, tombstones, partition, cursor, size]);

  useEffect(() => {
    if (!path) return undefined;
    const stop = new AbortController();
    const query = { prefix: encoded, key_encoding: "base64", tombstones, partition, cursor, limit: PAGE, value_bytes: size };
    get(path, query, stop.signal).then(
      (page) =>
        setState((old) => {
          const rows = page.entries.map((entry) => ({ ...entry, id: idOf(entry), marked: 0 }));
          const again = old.of === question && !old.error;
          return { ...NOTHING, rows: again ? reread(old, rows) : rows, cursor: page.cursor, page, status: "read", of: question };
        }),
      (error) => stop.signal.aborted || setState((old) => ({ ...old, error, status: "failed", of: question })),
    );
    return () => stop.abort();
  }, [question, round]);

  // A watch goes on from the cursor of its page, so another page, or the same one read again, needs a new watch.
  // A layout effect: it ends the watch before anything else happens, so nothing is shown after a click on Pause.
  const { page } = state;
  useLayoutEffect(() => {
    if (page === null || paused) return undefined;
    const found = new Map();
    const lags = new Map();
    let timer = 0;
    const draw = () => {
      timer = 0;
      const now = new Map(found);
      found.clear();
      const lag = [...lags.values()].reduce((sum, each) => sum + each, 0);
      setState((old) => (old.page === page ? { ...applied(old, now), lag } : old));
      for (const entry of now.values()) told.current(entry);
    };
    const query = { ...rangeOf(state, prefix, !cursor), partition, after: page.watch, value_bytes: size };
    const stop = listen(`${path.slice(0, -"/table".length)}/watch`, query, {
      start: () => setState((old) => (old.page === page ? { ...old, status: "live" } : old)),
      changes: ({ partition: index, lag, entries }) => {
        lags.set(index, lag);
        for (const entry of entries) found.set(idOf(entry), { ...entry, id: idOf(entry) });
        timer ||= setTimeout(draw, TOGETHER);
      },
      broken: () => setState((old) => ({ ...old, status: "broken" })),
      problem: (error) => setState((old) => ({ ...old, error, status: "ended" })),
    });
    return () => {
      clearTimeout(timer);
      stop();
    };
  }, [page, paused]);

  return { ...state, fresh: state.of === question, again: () => setRound((number) => number + 1) };
}

/** Whether a key that a person typed (bytes or null) is this entry's. */
export const isOf = (entry, data) => data !== null && compareBytes(bytesOf(entry.key), data) === 0;

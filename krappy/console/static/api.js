// The HTTP API: requests, and live views (server-sent events). Errors are problem details (RFC 9457).
import { useCallback, useEffect, useRef, useState } from "./lib.js";

export const LOGGED_OUT = "krappy-logged-out";

export class Problem extends Error {
  constructor({ status = 0, title = "Error", detail, code = "", details = {} }) {
    super(detail || title);
    Object.assign(this, { status, title, code, details });
  }
}

/** The URL of a request. Undefined and null parameters are left out, empty ones are not: an empty key is a key. */
export function address(path, query = {}) {
  const url = new URL("api/v1" + path, document.baseURI);
  for (const [name, value] of Object.entries(query)) {
    for (const each of Array.isArray(value) ? value : [value]) {
      if (each !== undefined && each !== null) url.searchParams.append(name, each);
    }
  }
  return url;
}

export const topicPath = (topic) => "/topics/" + encodeURIComponent(topic);
export const groupPath = (group) => "/groups/" + encodeURIComponent(group);

/** Sends a request; returns the answer's JSON. Throws Problem, with status 0 if the broker did not answer. */
export async function ask(method, path, { query, body, signal } = {}) {
  const headers = { Accept: "application/json" };
  if (method !== "GET") headers["Krappy-Request"] = "1";
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let answer;
  try {
    answer = await fetch(address(path, query), {
      method,
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      signal,
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem({ title: "No connection", detail: "The broker does not answer." });
  }
  if (answer.ok) return answer.json();
  const problem = await answer.json().catch(() => ({ status: answer.status, title: answer.statusText }));
  if (answer.status === 401 && path !== "/login") dispatchEvent(new Event(LOGGED_OUT));
  throw new Problem(problem);
}

export const get = (path, query, signal) => ask("GET", path, { query, signal });
export const post = (path, body) => ask("POST", path, { body });

/**
 * The answer to a GET request, which is sent again when its parameters change, and every `every` ms while the page is
 * visible. The last answer stays until the next one comes, so that nothing jumps. `path` null: no request.
 */
export function useAnswer(path, query = {}, { every = 0 } = {}) {
  const [state, setState] = useState({ data: null, error: null, of: null });
  const [round, setRound] = useState(0);
  const question = path === null ? null : address(path, query).href;
  useEffect(() => {
    if (question === null) return undefined;
    const stop = new AbortController();
    let timer = 0;
    let first = true; // the first request is sent even if the page was opened in the background
    const run = async () => {
      if (first || !document.hidden) {
        first = false;
        try {
          const data = await get(path, query, stop.signal);
          setState({ data, error: null, of: question });
        } catch (error) {
          if (stop.signal.aborted) return;
          setState((old) => ({ ...old, error, of: question }));
        }
      }
      if (every && !stop.signal.aborted) timer = setTimeout(run, every);
    };
    run();
    return () => {
      stop.abort();
      clearTimeout(timer);
    };
  }, [question, round]);
  const again = useCallback(() => setRound((number) => number + 1), []);
  return { data: state.data, error: state.error, again, fresh: state.of === question };
}

/** Opens a live view. `on`: by kind of event, a function of its data and cursor. Returns a function that ends it. */
export function listen(path, query, on) {
  const source = new EventSource(address(path, query));
  const end = () => source.close();
  for (const kind of ["start", "events", "skipped", "snapshot", "end_of_snapshot", "changes"]) {
    if (on[kind]) source.addEventListener(kind, (event) => on[kind](JSON.parse(event.data), event.lastEventId));
  }
  source.addEventListener("problem", (event) => {
    end();
    on.problem(new Problem(JSON.parse(event.data)));
  });
  source.addEventListener("error", async () => {
    if (source.readyState !== EventSource.CLOSED) {
      on.broken?.(); // the browser connects again by itself, and resumes where it was
      return;
    }
    // Refused: EventSource does not say why, so send the same request with fetch, and read only the head.
    const stop = new AbortController();
    try {
      const answer = await fetch(address(path, query), { signal: stop.signal });
      if (answer.status === 401) dispatchEvent(new Event(LOGGED_OUT));
      const problem = answer.ok ? { title: "Interrupted", detail: "The live view was interrupted." } : await answer.json();
      on.problem(new Problem(problem));
    } catch {
      on.problem(new Problem({ title: "No connection", detail: "The broker does not answer." }));
    } finally {
      stop.abort();
    }
  });
  return end;
}

/** A value that follows another after a pause, so that not every keystroke sends a request. */
export function useSettled(value, pause = 200) {
  const [settled, setSettled] = useState(value);
  const first = useRef(true);
  useEffect(() => {
    if (first.current) {
      first.current = false;
      return undefined;
    }
    const timer = setTimeout(() => setSettled(value), pause);
    return () => clearTimeout(timer);
  }, [value, pause]);
  return settled;
}

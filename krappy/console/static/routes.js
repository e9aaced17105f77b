// The current page is in the address after the "#": "#/topics/flights/stream?key=a". The server serves a single page.
import { useEffect, useState } from "./lib.js";

/** The address of a page. Undefined and null parameters are left out, empty ones are not: an empty key is a key. */
export function link(parts, query = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== null);
  const text = new URLSearchParams(given).toString();
  return "#/" + parts.map((part) => encodeURIComponent(part)).join("/") + (text && "?" + text);
}

export function go(parts, query, { replace = false } = {}) {
  const target = link(parts, query);
  if (replace) {
    history.replaceState(null, "", target);
    dispatchEvent(new HashChangeEvent("hashchange"));
  } else {
    location.hash = target;
  }
}

function decode(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part; // a "%" that somebody typed
  }
}

function read() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  return {
    parts: path.split("/").filter(Boolean).map(decode),
    query: Object.fromEntries(new URLSearchParams(query)),
  };
}

export function useRoute() {
  const [route, setRoute] = useState(read);
  useEffect(() => {
    const changed = () => setRoute(read());
    addEventListener("hashchange", changed);
    return () => removeEventListener("hashchange", changed);
  }, []);
  return route;
}

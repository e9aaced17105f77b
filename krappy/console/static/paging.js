// Lists that the broker filters and returns a page at a time.
import { useAnswer, useSettled } from "./api.js";
import { count } from "./format.js";
import { html, useEffect, useState } from "./lib.js";

const PAGE = 50;

/** The filter of a list, and its current page. `path` answers with `field` (the rows), `total` and `after`. */
export function usePages(path, field, every) {
  const [filter, setFilter] = useState("");
  const settled = useSettled(filter);
  const [trail, setTrail] = useState([""]);
  useEffect(() => setTrail([""]), [settled]);
  const answer = useAnswer(path, { filter: settled, after: trail.at(-1), limit: PAGE }, { every });
  const rows = answer.data?.[field] ?? [];
  const first = (trail.length - 1) * PAGE;
  return {
    ...answer,
    filter,
    setFilter,
    rows,
    settled,
    first,
    next: answer.data?.after ? () => setTrail((old) => [...old, answer.data.after]) : null,
    previous: trail.length > 1 ? () => setTrail((old) => old.slice(0, -1)) : null,
  };
}

export function Pager({ pages, what }) {
  const { data, rows, first } = pages;
  if (!pages.previous && !pages.next) return null;
  return html`<nav class="pager" aria-label=${`Pages of ${what}`}>
    <button type="button" disabled=${!pages.previous} onClick=${pages.previous}>← Previous</button>
    <span role="status">${rows.length ? `${count(first + 1)} to ${count(first + rows.length)} of ${count(data.total)}` : ""}</span>
    <button type="button" disabled=${!pages.next} onClick=${pages.next}>Next →</button>
  </nav>`;
}

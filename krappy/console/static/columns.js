// The fields of JSON values as columns. A column is a path: ["user", "id"] is the field id of the object user.
import { visible } from "./bytes.js";
import { html, useMemo } from "./lib.js";
import { Check } from "./parts.js";

const DEEP = 3; // names in a path, at most
const MOST = 200; // fields offered
const SHOWN = 300; // characters of a cell
export const WIDE = 16384; // bytes of a value that are asked for, so that its fields can be read

/** A number as it was written: JSON.parse rounds what has more than 15 digits. */
class Digits {
  constructor(text) {
    this.text = text;
  }
}

const exact = (_, value, context) => (typeof value === "number" && context?.source !== undefined ? new Digits(context.source) : value);
const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value) && !(value instanceof Digits);

/** The object that a value holds as JSON; null: it holds none, or was cut. */
function objectOf(shown) {
  if (!shown || shown.as !== "text" || shown.truncated || !/^\s*{/.test(shown.data)) return null;
  try {
    return JSON.parse(shown.data, exact);
  } catch {
    return null;
  }
}

function walk(value, path, add) {
  for (const [name, inner] of Object.entries(value)) {
    const here = [...path, name];
    if (isObject(inner) && here.length < DEEP && Object.keys(inner).length) walk(inner, here, add);
    else add(here);
  }
}

/** The fields that the values of these rows have, as paths, in the order in which they come. */
export function useFields(rows) {
  return useMemo(() => {
    const found = new Map();
    for (const row of rows) {
      const value = objectOf(row.value);
      if (value) walk(value, [], (path) => found.size < MOST && found.set(JSON.stringify(path), path));
    }
    return [...found.values()];
  }, [rows]);
}

/** The columns that the address names: paths, as JSON. What is no path is left out. */
export function columnsOf(text) {
  try {
    const given = JSON.parse(text ?? "[]");
    return given.filter((path) => Array.isArray(path) && path.length && path.every((name) => typeof name === "string"));
  } catch {
    return [];
  }
}

export const columnsText = (columns) => (columns.length ? JSON.stringify(columns) : undefined);

/** The name of a column, for people. */
export const titleOf = (path) => visible(path.join("."));

const isSame = (one, other) => JSON.stringify(one) === JSON.stringify(other);

/** Checkboxes for the fields. `chosen` stay in the order in which they were chosen. */
export function Picker({ fields, chosen, choose }) {
  const known = [...fields, ...chosen.filter((path) => !fields.some((each) => isSame(each, path)))];
  if (!known.length) return null;
  const turn = (path) => (event) => choose(event.target.checked ? [...chosen, path] : chosen.filter((each) => !isSame(each, path)));
  return html`<details class="picker">
    <summary>Columns${chosen.length > 0 && ` (${chosen.length})`}</summary>
    <div class="card" role="group" aria-label="Fields to show as columns">
      ${known.map((path) => html`<${Check} key=${JSON.stringify(path)} label=${titleOf(path)} checked=${chosen.some((each) => isSame(each, path))} onChange=${turn(path)} />`)}
      <div class="buttons">
        <button type="button" class="small" onClick=${() => choose(fields)}>All</button>
        <button type="button" class="small" onClick=${() => choose([])}>None</button>
      </div>
    </div>
  </details>`;
}

/** The heads of the columns, for a Grid. */
export const columnHeads = (columns) => columns.map((path) => [titleOf(path), "jsonfield"]);

function textOf(value) {
  if (value === undefined) return null;
  if (value instanceof Digits) return value.text;
  if (typeof value === "string") return value;
  return JSON.stringify(value, (_, inner) => (inner instanceof Digits ? Number(inner.text) : inner));
}

/** A cell for each column; `otherwise`: what stands in their place if the value is no JSON object. */
export function FieldCells({ shown, columns, otherwise }) {
  const value = useMemo(() => objectOf(shown), [shown]);
  if (!value) return html`<td class="valuecell" colspan=${columns.length}>${otherwise}</td>`;
  return columns.map((path) => {
    const found = path.reduce((inner, name) => (isObject(inner) && Object.hasOwn(inner, name) ? inner[name] : undefined), value);
    const text = textOf(found);
    const style = found instanceof Digits ? "jsonfield digits" : "jsonfield";
    return html`<td key=${JSON.stringify(path)} class=${style} title=${text === null ? "" : visible(text.slice(0, 1000))}>${text === null ? html`<span class="faint">–</span>` : html`<bdi class="bytes">${visible(text.slice(0, SHOWN))}</bdi>`}</td>`;
  });
}

// Keys as people type them. A key of zero bytes is a key; null means that no key was given.
import { fromBase64, fromHex, shownOf, encode, textOf, toBase64 } from "./bytes.js";
import { html } from "./lib.js";
import { Field } from "./parts.js";

const FORMS = [["text", "text"], ["base64", "base64"], ["hex", "hex"], ["empty", "empty: zero bytes"]];

/** The bytes that were typed; null if nothing was. Throws Error if the text is not of that form. */
export function typedBytes({ form, text }) {
  if (form === "empty") return new Uint8Array();
  if (text === "") return null;
  if (form === "base64") return fromBase64(text);
  return form === "hex" ? fromHex(text) : encode(text);
}

/** The query that names a key in an address: `key`, and `encoding` if it is not text; {} for null. */
export function named(data) {
  if (data === null) return {};
  const text = textOf(data);
  return text === null ? { key: toBase64(data), encoding: "base64" } : { key: text };
}

/** The key that an address names, as bytes, or null. Throws Error if it is not base64. */
export function namedBytes({ key, encoding }) {
  if (key === undefined) return null;
  return encoding === "base64" ? fromBase64(key) : encode(key);
}

/** The same, as the API shows a key; null also if it is not base64. */
export function namedShown(query) {
  try {
    const data = namedBytes(query);
    return data && shownOf(data);
  } catch {
    return null;
  }
}

/** The contents of the fields for the key that an address names. */
export function typedOf({ key, encoding }) {
  if (key === undefined) return { form: "text", text: "" };
  return key === "" ? { form: "empty", text: "" } : { form: encoding ?? "text", text: key };
}

/** Two fields: the key, and what was typed. `change` is given {form, text}. */
export function KeyFields({ label, typed, change, ...rest }) {
  return html`<${Field} label=${label} type="search" ...${rest} value=${typed.text} disabled=${typed.form === "empty"}
      onInput=${(event) => change({ ...typed, text: event.target.value })} />
    <${Field} label=${`${label} is`} as="select" class="form-field" value=${typed.form}
      onChange=${(event) => change({ form: event.target.value, text: event.target.value === "empty" ? "" : typed.text })}>
      ${FORMS.map(([name, title]) => html`<option key=${name} value=${name}>${title}</option>`)}
    <//>`;
}

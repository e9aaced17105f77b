// Shows a whole value: as JSON, text, MessagePack or hex, by default the first of these that fits.
import { hexdump, lenientText, textOf, toBase64, visible } from "./bytes.js";
import { bytes } from "./format.js";
import { isJson, pieces } from "./json.js";
import { html, useMemo, useState } from "./lib.js";
import { print } from "./msgpack.js";
import { Choice, Copy } from "./parts.js";

const SHOWN = 32 * 1024; // characters that are shown at first
const BLOCK = 16 * 1024; // characters that the browser lays out together
const HEX_LINE = 76; // characters of a hexdump for 16 bytes
const FORMS = [["json", "JSON"], ["text", "Text"], ["msgpack", "MessagePack"], ["hex", "Hex"]];

function printed(data) {
  try {
    return print(data);
  } catch (error) {
    return error instanceof RangeError || error instanceof TypeError ? null : error.message;
  }
}

function guess(data, text) {
  if (text !== null) return /^\s*[[{"]/.test(text) && isJson(text) ? "json" : "text";
  return data.length && printed(data) !== null ? "msgpack" : "hex";
}

/** A value in a form, as {parts or text, isCut, note}, at most about `room` characters. */
function rendered(form, data, text, room) {
  if (form === "json") {
    if (text === null || !isJson(text)) return { note: "This is not JSON." };
    return pieces(text, room);
  }
  if (form === "text") {
    const note = text === null ? "This is not UTF-8: invalid bytes are shown as \ufffd." : "";
    const whole = text ?? lenientText(data);
    return { text: visible(whole.slice(0, room)), isCut: whole.length > room, note };
  }
  if (form === "msgpack") {
    const found = printed(data);
    if (found === null) return { note: "This is not MessagePack." };
    return { text: visible(found.slice(0, room)), isCut: found.length > room };
  }
  const bytes = Math.floor(room / HEX_LINE) * 16;
  return { text: hexdump(data.subarray(0, bytes)), isCut: data.length > bytes };
}

/** Splits a text into blocks, at line ends if possible. The browser lays a block out only when it comes into view. */
function blocks(text) {
  const found = [];
  for (let at = 0; at < text.length; ) {
    const line = text.indexOf("\n", at + BLOCK);
    const end = line < 0 || line > at + 2 * BLOCK ? at + BLOCK : line + 1;
    found.push(text.slice(at, end));
    at = end;
  }
  return found.map((each, at) => html`<span key=${at} class="block">${each}</span>`);
}

function body({ parts, text }) {
  const length = parts ? parts.reduce((sum, [, each]) => sum + each.length, 0) : text.length;
  if (length > 2 * SHOWN) return blocks(parts ? visible(parts.map(([, each]) => each).join("")) : text);
  // A long text has no colours (above): a megabyte of coloured pieces would stall the page.
  return parts ? parts.map(([kind, each]) => (kind ? html`<span class=${"j-" + kind}>${visible(each)}</span>` : each)) : text;
}

function download(data) {
  const url = URL.createObjectURL(new Blob([data]));
  const anchor = Object.assign(document.createElement("a"), { href: url, download: "value" });
  anchor.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

/** `size`: bytes of the whole value, of which `data` may be only the beginning. */
export function Value({ data, size = data.length, label = "Value" }) {
  const text = useMemo(() => textOf(data, size > data.length), [data, size]);
  const [form, setForm] = useState(() => guess(data, text));
  const [room, setRoom] = useState(SHOWN);
  const found = useMemo(() => rendered(form, data, text, room), [form, data, text, room]);
  const shown = useMemo(() => (found.parts || found.text ? body(found) : null), [found]);
  const choose = (name) => (setForm(name), setRoom(SHOWN));
  return html`<section class="whole" aria-label=${label}>
    <div class="bar">
      <${Choice} label=${label + " as"} options=${FORMS} value=${form} choose=${choose} />
      <span class="faint">${bytes(size)}</span>
      <span class="grow"></span>
      <${Copy} text=${text ?? toBase64(data)} label=${text === null ? "Copy as base64" : "Copy"} />
      <button type="button" class="small" onClick=${() => download(data)}>Save</button>
    </div>
    ${size > data.length && html`<p class="note">These are the first ${bytes(data.length)} of ${bytes(size)}; the command below reads the whole value.</p>`}
    ${found.note && html`<p class="note">${found.note}</p>`}
    ${shown && html`<pre tabindex="0" aria-label=${label + " as " + form}><bdi>${shown}</bdi></pre>`}
    ${data.length === 0 && html`<p class="note">It is empty: zero bytes.</p>`}
    ${found.isCut &&
    html`<p class="note">
      Cut: this is the beginning. <button type="button" class="small" onClick=${() => setRoom(Infinity)}>Show all ${bytes(data.length)}</button>
    </p>`}
  </section>`;
}

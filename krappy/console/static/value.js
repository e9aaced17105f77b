// A whole value: as JSON, text, MessagePack or hex, the first of these that it is.
import { hexdump, lenientText, textOf, toBase64, visible } from "./bytes.js";
import { bytes as size } from "./format.js";
import { isJson, pieces } from "./json.js";
import { html, useMemo, useState } from "./lib.js";
import { print } from "./msgpack.js";
import { Choice, Copy } from "./parts.js";

const SHOWN = 32 * 1024; // of the text, until all is asked for
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

function rendered(form, data, text) {
  if (form === "json") {
    if (text === null || !isJson(text)) return { note: "This is not JSON." };
    return { parts: pieces(text) };
  }
  if (form === "text") {
    const note = text === null ? "This is not UTF-8: what could not be read is shown as \ufffd." : "";
    return { text: visible(text ?? lenientText(data)), note };
  }
  if (form === "msgpack") {
    const found = printed(data);
    return found === null ? { note: "This is not MessagePack." } : { text: visible(found) };
  }
  return { text: hexdump(data) };
}

function cut(parts, room) {
  const found = [];
  let left = room;
  for (const [kind, text] of parts) {
    if (left <= 0) break;
    found.push([kind, text.slice(0, left)]);
    left -= text.length;
  }
  return found;
}

export function Value({ data, label = "Value" }) {
  const text = useMemo(() => textOf(data), [data]);
  const [form, setForm] = useState(() => guess(data, text));
  const [all, setAll] = useState(false);
  const { parts, text: plain, note } = useMemo(() => rendered(form, data, text), [form, data, text]);
  const length = parts ? parts.reduce((sum, [, each]) => sum + each.length, 0) : (plain?.length ?? 0);
  const isCut = !all && length > SHOWN;
  // Beyond what colours help with, it is one piece of text: a megabyte of coloured pieces would stall the page.
  const body =
    parts && length <= SHOWN
      ? parts.map(([kind, each]) => (kind ? html`<span class=${"j-" + kind}>${visible(each)}</span>` : each))
      : visible((isCut && parts ? cut(parts, SHOWN) : (parts ?? [])).map(([, each]) => each).join("")) ||
        (isCut ? plain?.slice(0, SHOWN) : plain);
  return html`<section class="whole" aria-label=${label}>
    <div class="bar">
      <${Choice} label=${label + " as"} options=${FORMS} value=${form} choose=${setForm} />
      <span class="faint">${size(data.length)}</span>
      <span class="grow"></span>
      <${Copy} text=${text ?? toBase64(data)} label=${text === null ? "Copy as base64" : "Copy"} />
    </div>
    ${note && html`<p class="note">${note}</p>`}
    ${body && html`<pre tabindex="0" aria-label=${label + " as " + form}><bdi>${body}</bdi></pre>`}
    ${data.length === 0 && html`<p class="note">It is empty: zero bytes.</p>`}
    ${isCut &&
    html`<p class="note">
      Cut after ${size(SHOWN)} of ${size(length)}. <button type="button" class="small" onClick=${() => setAll(true)}>Show all</button>
    </p>`}
  </section>`;
}

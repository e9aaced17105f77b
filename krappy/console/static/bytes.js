// Keys and values are bytes from anywhere. Here they become text that can't deceive: control characters, also those
// that change the direction of writing, are made visible.
const STRICT = { fatal: true, ignoreBOM: true };
const utf8 = new TextDecoder("utf-8", STRICT);
const lenient = new TextDecoder("utf-8", { ignoreBOM: true });
const encoder = new TextEncoder();
// C0 and C1 controls but for tab and newline, soft hyphen, zero widths, bidirectional controls, line separators, BOM.
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;

export const visible = (text) =>
  text.replace(HIDDEN, (char) => {
    const code = char.charCodeAt(0);
    if (code < 0x20) return String.fromCharCode(0x2400 + code);
    return "\u27e8U+" + code.toString(16).toUpperCase().padStart(4, "0") + "\u27e9";
  });

/** Whether all characters are visible, and on one line. */
export const isPlain = (text) => text.search(HIDDEN) < 0 && !/[\t\n]/.test(text);

/** Bytes of base64 of either alphabet, padded or not. Throws Error. */
export function fromBase64(text) {
  let binary;
  try {
    binary = atob(text.trim().replaceAll("-", "+").replaceAll("_", "/"));
  } catch {
    throw new Error("This is not base64.");
  }
  const found = new Uint8Array(binary.length);
  for (let at = 0; at < binary.length; at += 1) found[at] = binary.charCodeAt(at);
  return found;
}

/** Bytes of hex: "00 ff", "00ff" or "0x00ff". Throws Error. */
export function fromHex(text) {
  const digits = text.replace(/^\s*0x/i, "").replace(/[\s:]/g, "");
  if (digits.length % 2 || /[^0-9a-f]/i.test(digits)) throw new Error("This is not hex: two digits, 0 to 9 and a to f, for each byte.");
  return Uint8Array.from(digits.match(/../g) ?? [], (pair) => parseInt(pair, 16));
}

export function toBase64(data) {
  let binary = "";
  for (let at = 0; at < data.length; at += 0x8000) binary += String.fromCharCode(...data.subarray(at, at + 0x8000));
  return btoa(binary);
}

/** The bytes of a key or value as the API shows it. */
export const bytesOf = (shown) => (shown.as === "base64" ? fromBase64(shown.data) : encoder.encode(shown.data));

export const encode = (text) => encoder.encode(text);

/** The text of bytes; null if they are not UTF-8. `isPart`: they may end inside a character. */
export function textOf(data, isPart = false) {
  try {
    return isPart ? new TextDecoder("utf-8", STRICT).decode(data, { stream: true }) : utf8.decode(data);
  } catch {
    return null;
  }
}

/** Bytes as the API shows them: as text, else as base64. */
export function shownOf(data) {
  const text = textOf(data);
  return { as: text === null ? "base64" : "text", data: text ?? toBase64(data), size: data.length };
}

export const isSame = (one, other) => one.as === other.as && one.data === other.data;

/** Compares keys in the API's order: byte by byte. */
export function compareBytes(one, other) {
  const shorter = Math.min(one.length, other.length);
  for (let at = 0; at < shorter; at += 1) if (one[at] !== other[at]) return one[at] - other[at];
  return one.length - other.length;
}

/** The first key after all keys with this prefix; null: there is none. */
export function afterPrefix(data) {
  let end = data.length;
  while (end && data[end - 1] === 0xff) end -= 1;
  if (!end) return null;
  const next = data.slice(0, end);
  next[end - 1] += 1;
  return next;
}

export const lenientText = (data) => lenient.decode(data);

/** One line of a key or value, for a cell. */
export function preview(shown, length = 300) {
  if (shown === null) return "";
  if (shown.as !== "base64") return visible(shown.data.slice(0, length).replace(/\s+/g, " "));
  const data = fromBase64(shown.data.slice(0, 400));
  return [...data.subarray(0, 100)].map(hex).join(" ");
}

const hex = (byte) => byte.toString(16).padStart(2, "0");

/** Text in the format of `hexdump -C`: offset, bytes, ASCII. */
export function hexdump(data) {
  const lines = [];
  for (let at = 0; at < data.length; at += 16) {
    const row = data.subarray(at, at + 16);
    const codes = [...row].map(hex);
    const left = codes.slice(0, 8).join(" ").padEnd(23);
    const right = codes.slice(8).join(" ").padEnd(23);
    const ascii = [...row].map((byte) => (byte >= 0x20 && byte < 0x7f ? String.fromCharCode(byte) : ".")).join("");
    lines.push(`${at.toString(16).padStart(8, "0")}  ${left}  ${right}  ${ascii}`);
  }
  return lines.join("\n");
}

// Keys and values are bytes from anywhere. Here they become text that can't deceive: control characters and those that
// turn the direction of writing are made visible.
const utf8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
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

export function fromBase64(text) {
  const binary = atob(text);
  const found = new Uint8Array(binary.length);
  for (let at = 0; at < binary.length; at += 1) found[at] = binary.charCodeAt(at);
  return found;
}

export function toBase64(data) {
  let binary = "";
  for (let at = 0; at < data.length; at += 0x8000) binary += String.fromCharCode(...data.subarray(at, at + 0x8000));
  return btoa(binary);
}

/** The bytes of a key or value as the API shows it. */
export const bytesOf = (shown) => (shown.as === "base64" ? fromBase64(shown.data) : encoder.encode(shown.data));

export const encode = (text) => encoder.encode(text);

/** The text that these bytes are, or null when they are no UTF-8. */
export function textOf(data) {
  try {
    return utf8.decode(data);
  } catch {
    return null;
  }
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

/** As hexdump -C prints: offset, bytes, and those that are ASCII. */
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

/** What a query names a key by: as text, or as base64 when it is no text. */
export function keyQuery(shown) {
  return shown.as === "base64" ? { key: shown.data, key_encoding: "base64" } : { key: shown.data };
}

/** For a shell: in single quotes unless it is plain. */
export const quoted = (text) => (/^[\w@%+=:,./-]+$/.test(text) ? text : "'" + text.replaceAll("'", "'\\''") + "'");
export const cliKey = (shown) => quoted(shown.as === "base64" ? "base64:" + shown.data : shown.data);

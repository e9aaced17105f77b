// Prints MessagePack as text: as JSON where possible, and bytes and extensions as bin(…) and ext(…). It does not decode
// to JavaScript values, so that 64-bit integers and map keys of any type are printed as they are.
import { textOf } from "./bytes.js";

const DEEP = 60;
const hex = (data) => [...data].map((byte) => byte.toString(16).padStart(2, "0")).join("");

/** The text of one MessagePack value. Throws RangeError or TypeError if the bytes are anything else. */
export function print(data) {
  const view = new DataView(data.buffer, data.byteOffset, data.byteLength);
  let at = 0;

  const step = (length) => {
    if (at + length > data.length) throw new RangeError("it ends early");
    at += length;
    return at - length;
  };
  const unsigned = (size) => {
    const start = step(size);
    if (size === 1) return view.getUint8(start);
    return size === 2 ? view.getUint16(start) : view.getUint32(start);
  };
  const part = (length) => {
    const start = step(length);
    return data.subarray(start, start + length);
  };
  const string = (length) => {
    const bytes = part(length);
    const text = textOf(bytes);
    return text === null ? `str(${hex(bytes)})` : JSON.stringify(text);
  };
  const extension = (length) => {
    const kind = view.getInt8(step(1));
    return `ext(${kind}, ${hex(part(length))})`;
  };
  const many = (length, depth, open, close, one) => {
    if (length > data.length - at) throw new RangeError("it ends early");
    if (depth > DEEP) throw new RangeError("it is too deep");
    if (length === 0) return open + close;
    const inner = "\n" + "  ".repeat(depth + 1);
    const found = [];
    for (let index = 0; index < length; index += 1) found.push(inner + one());
    return open + found.join(",") + "\n" + "  ".repeat(depth) + close;
  };
  const array = (length, depth) => many(length, depth, "[", "]", () => value(depth + 1));
  const map = (length, depth) => many(length, depth, "{", "}", () => value(depth + 1) + ": " + value(depth + 1));

  function value(depth) {
    const head = unsigned(1);
    if (head < 0x80) return String(head);
    if (head < 0x90) return map(head & 0x0f, depth);
    if (head < 0xa0) return array(head & 0x0f, depth);
    if (head < 0xc0) return string(head & 0x1f);
    if (head >= 0xe0) return String(head - 0x100);
    switch (head) {
      case 0xc0: return "null";
      case 0xc2: return "false";
      case 0xc3: return "true";
      case 0xc4: case 0xc5: case 0xc6: return `bin(${hex(part(unsigned(1 << (head - 0xc4))))})`;
      case 0xc7: case 0xc8: case 0xc9: return extension(unsigned(1 << (head - 0xc7)));
      case 0xca: return String(view.getFloat32(step(4)));
      case 0xcb: return String(view.getFloat64(step(8)));
      case 0xcc: case 0xcd: case 0xce: return String(unsigned(1 << (head - 0xcc)));
      case 0xcf: return String(view.getBigUint64(step(8)));
      case 0xd0: return String(view.getInt8(step(1)));
      case 0xd1: return String(view.getInt16(step(2)));
      case 0xd2: return String(view.getInt32(step(4)));
      case 0xd3: return String(view.getBigInt64(step(8)));
      case 0xd4: case 0xd5: case 0xd6: case 0xd7: case 0xd8: return extension(1 << (head - 0xd4));
      case 0xd9: case 0xda: case 0xdb: return string(unsigned(1 << (head - 0xd9)));
      case 0xdc: case 0xdd: return array(unsigned(head === 0xdc ? 2 : 4), depth);
      case 0xde: case 0xdf: return map(unsigned(head === 0xde ? 2 : 4), depth);
      default: throw new TypeError("0xc1 is never used");
    }
  }

  const text = value(0);
  if (at !== data.length) throw new RangeError("more bytes follow");
  return text;
}

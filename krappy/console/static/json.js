// Indents JSON as it was written: numbers keep all their digits and keys their order, which JSON.parse does not keep.
const TOKEN = /"[^"\\]*(?:\\.[^"\\]*)*"|[{}[\],:]|[^\s{}[\],:"]+/g;
const DEEP = 60; // deeper levels are not indented further

export function isJson(text) {
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}

/**
 * Indented JSON, as {parts: [[class, text], …], isCut}; the text must be JSON. It stops after about `room` characters,
 * so that only the beginning of a large text is read.
 */
export function pieces(text, room = Infinity) {
  const tokens = text.matchAll(TOKEN);
  const parts = [];
  let depth = 0;
  let length = 0;
  const add = (kind, piece) => {
    parts.push([kind, piece.slice(0, Math.max(0, room - length))]);
    length += piece.length;
  };
  const line = () => add("", "\n" + "  ".repeat(Math.min(depth, DEEP)));
  let before = "";
  let token = tokens.next().value?.[0];
  while (token !== undefined) {
    if (length > room) return { parts, isCut: true };
    const next = tokens.next().value?.[0];
    if (token === "{" || token === "[") {
      add("mark", token);
      depth += 1;
      if (next !== "}" && next !== "]") line();
    } else if (token === "}" || token === "]") {
      depth -= 1;
      if (before !== "{" && before !== "[") line();
      add("mark", token);
    } else if (token === ",") {
      add("mark", ",");
      line();
    } else if (token === ":") {
      add("mark", ": ");
    } else if (token[0] === '"') {
      add(next === ":" ? "name" : "string", token);
    } else {
      add("number", token);
    }
    before = token;
    token = next;
  }
  return { parts, isCut: length > room };
}

// JSON as it was written: numbers keep all their digits and keys their order, which JSON.parse would not keep.
const TOKEN = /"[^"\\]*(?:\\.[^"\\]*)*"|[{}[\],:]|[^\s{}[\],:"]+/g;
const DEEP = 60; // levels beyond which lines are not moved further in

export function isJson(text) {
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}

/** Indented, as pieces [class, text]; the text must be JSON. */
export function pieces(text) {
  const tokens = text.match(TOKEN) ?? [];
  const found = [];
  let depth = 0;
  const line = () => found.push(["", "\n" + "  ".repeat(Math.min(depth, DEEP))]);
  tokens.forEach((token, at) => {
    const next = tokens[at + 1];
    if (token === "{" || token === "[") {
      found.push(["mark", token]);
      depth += 1;
      if (next !== "}" && next !== "]") line();
    } else if (token === "}" || token === "]") {
      depth -= 1;
      const before = tokens[at - 1];
      if (before !== "{" && before !== "[") line();
      found.push(["mark", token]);
    } else if (token === ",") {
      found.push(["mark", ","]);
      line();
    } else if (token === ":") {
      found.push(["mark", ": "]);
    } else if (token[0] === '"') {
      found.push([next === ":" ? "name" : "string", token]);
    } else {
      found.push(["number", token]);
    }
  });
  return found;
}

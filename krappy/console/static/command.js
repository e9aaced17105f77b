// Commands of the `krappy` program that read what a page shows. They are copied into a shell, so they must hold nothing
// invisible: a key with invisible characters is given as base64.
import { bytesOf, isPlain, toBase64 } from "./bytes.js";

/** A word for a shell: in single quotes unless it is plain. */
export const quoted = (text) => (/^[\w@%+=:,./-]+$/.test(text) ? text : "'" + text.replaceAll("'", "'\\''") + "'");

function keyArgument(shown) {
  const asText = shown.as === "text" && isPlain(shown.data) && !shown.data.startsWith("base64:");
  return asText ? shown.data : "base64:" + toBase64(bytesOf(shown));
}

/** The words come after the options; if one looks like an option, "--" comes before them. */
function command(verb, words, options) {
  const dashes = words.some((each) => each.startsWith("-")) ? ["--"] : [];
  return ["krappy", verb, ...options, ...dashes, ...words.map(quoted)].join(" ");
}

const broker = (address) => (address ? ["--address", quoted(address)] : []);

/** `address`: HOST:PORT of the broker, or "" if that is the program's default. */
export const consumeOne = (topic, partition, offset, address) =>
  command("consume", [topic], ["--partition", partition, "--from", offset, "--max", 1, "--json", ...broker(address)]);

export const getKey = (topic, shown, address, { history = false, partition } = {}) => {
  const options = [...(history ? ["--history"] : []), ...(partition === undefined ? [] : ["--partition", partition])];
  return command("get", [topic, keyArgument(shown)], [...options, ...broker(address)]);
};

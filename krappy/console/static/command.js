// What is shown here, as commands of the `krappy` program. They are copied into a shell, so what they show is all that
// they hold: a key with characters that can't be seen is given as base64.
import { bytesOf, isPlain, toBase64 } from "./bytes.js";

/** For a shell: in single quotes unless it is plain. */
export const quoted = (text) => (/^[\w@%+=:,./-]+$/.test(text) ? text : "'" + text.replaceAll("'", "'\\''") + "'");

function keyArgument(shown) {
  const asText = shown.as === "text" && isPlain(shown.data) && !shown.data.startsWith("base64:");
  return asText ? shown.data : "base64:" + toBase64(bytesOf(shown));
}

/** Words behind the options; when one looks like an option itself, "--" stands before them. */
function command(verb, words, options) {
  const dashes = words.some((each) => each.startsWith("-")) ? ["--"] : [];
  return ["krappy", verb, ...options, ...dashes, ...words.map(quoted)].join(" ");
}

const broker = (address) => (address ? ["--address", quoted(address)] : []);

/** `address`: where the broker is, or "" when the program finds it by itself. */
export const consumeOne = (topic, partition, offset, address) =>
  command("consume", [topic], ["--partition", partition, "--from", offset, "--max", 1, "--json", ...broker(address)]);

export const getKey = (topic, shown, address, { history = false, partition } = {}) => {
  const options = [...(history ? ["--history"] : []), ...(partition === undefined ? [] : ["--partition", partition])];
  return command("get", [topic, keyArgument(shown)], [...options, ...broker(address)]);
};

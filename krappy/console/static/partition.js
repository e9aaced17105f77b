// Which partition of a topic is looked at.
import { html } from "./lib.js";
import { Field } from "./parts.js";

export const MERGED = 128; // partitions that the API reads together; of a topic with more, one is looked at
const LISTED = 100; // beyond these a number is typed

/** `partition`: as text, or undefined for all. */
export function OfPartition({ topic, partition, choose }) {
  const many = topic.summary.partitions;
  if (many < 2) return null;
  const changed = (event) => choose(event.target.value === "" ? undefined : event.target.value);
  if (many > LISTED) {
    return html`<${Field} label="Partition" type="number" min="0" max=${many - 1} value=${partition ?? ""} placeholder=${many > MERGED ? "" : "all"} onChange=${changed} />`;
  }
  return html`<${Field} label="Partition" as="select" value=${partition ?? ""} onChange=${changed}>
    <option value="">all</option>
    ${Array.from({ length: many }, (_, at) => html`<option key=${at} value=${String(at)}>${at}</option>`)}
  <//>`;
}

/** How far the log of a topic reaches, summed over its partitions. */
export const ends = (topic) => topic.partitions.reduce((sum, each) => sum + each.high_watermark, 0);

// The choice of a topic's partition.
import { html } from "./lib.js";
import { Field } from "./parts.js";

export const MERGED = 128; // partitions that the API reads together; of a topic with more, one is shown at a time
const LISTED = 100; // with more partitions, one types the number

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

/** The high watermarks of a topic's partitions, added up. */
export const ends = (topic) => topic.partitions.reduce((sum, each) => sum + each.high_watermark, 0);

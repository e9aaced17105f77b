// The partitions of a topic.
import { topicPath, useAnswer } from "../api.js";
import { bytes, count } from "../format.js";
import { html, useState } from "../lib.js";
import { Grid, Trouble } from "../parts.js";

export function Partitions({ topic }) {
  const [after, setAfter] = useState([-1]);
  const { data, error, again } = useAnswer(topicPath(topic.name), { after: after.at(-1), limit: 100 }, { every: 3000 });
  const { partitions: rows, partitions_after: next } = data ?? topic;
  return html`<${Trouble} error=${error} again=${again} />
    <${Grid} label="Partitions" head=${["Partition", ["First offset", "number"], ["Next offset", "number"], ["Open transactions", "number wide"], ["Size", "number wide"], ["Segments", "number wide"], ["Table", "wide"]]}>
      ${rows.map((each) => html`<tr key=${each.partition}>
        <td>${each.partition}</td>
        <td class="number">${count(each.start)}</td>
        <td class="number">${count(each.high_watermark)}</td>
        <td class="number wide">${each.stable < each.high_watermark ? `from ${count(each.stable)}` : "none"}</td>
        <td class="number wide">${bytes(each.size)}</td>
        <td class="number wide">${count(each.segments)}</td>
        <td class="wide">${each.error ? html`<span class="tag bad">out of service</span> ${each.error}` : each.view_error ? html`<span class="tag bad">failed</span> ${each.view_error}` : each.applied < each.stable ? `${count(each.stable - each.applied)} behind` : "up to date"}</td>
      </tr>`)}
    <//>
    ${(next !== null || after.length > 1) && html`<nav class="pager" aria-label="Pages of partitions">
      <button type="button" disabled=${after.length < 2} onClick=${() => setAfter(after.slice(0, -1))}>← Previous</button>
      <button type="button" disabled=${next === null} onClick=${() => setAfter([...after, next])}>Next →</button>
    </nav>`}`;
}

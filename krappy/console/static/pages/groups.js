// Groups: those of the native protocol and those of Kafka's clients.
import { count, plural } from "../format.js";
import { html } from "../lib.js";
import { Pager, usePages } from "../paging.js";
import { Empty, Field, Grid, Heading, Trouble, Waiting } from "../parts.js";
import { link } from "../routes.js";

export const KINDS = {
  shared: "native, shared",
  positions: "native, positions",
  classic: "Kafka, classic",
  consumer: "Kafka, consumer",
};

export function Groups() {
  const pages = usePages("/groups", "groups", 3000);
  const { data, error, again, rows } = pages;
  return html`<${Heading} title="Groups" />
    <div class="bar">
      <${Field} label="Filter by name" type="search" value=${pages.filter} onInput=${(event) => pages.setFilter(event.target.value)} />
      <span class="faint" role="status">${data ? plural(data.total, "group") : ""}</span>
    </div>
    <${Trouble} error=${error} again=${again} />
    ${!data && !error && html`<${Waiting} />`}
    ${data && !rows.length && (pages.settled
      ? html`<${Empty} title=${`No group has “${pages.settled}” in its name.`} />`
      : html`<${Empty} title="No groups yet."><p>A group appears with its first member, for example</p><p><code>krappy consume TOPIC --group NAME</code></p><//>`)}
    ${rows.length > 0 && html`<${Grid} label="Groups" head=${["Name", ["Kind", "wide"], ["Order", "wide"], ["Topics", ""], ["Lag", "number"]]}>
        ${rows.map((group) => html`<tr key=${group.group}>
          <td class="name"><a href=${link(["groups", group.group])}><bdi>${group.group || "(empty name)"}</bdi></a></td>
          <td class="wide">${KINDS[group.kind] ?? group.kind}</td>
          <td class="wide">${group.order}</td>
          <td class="name">${group.topics.slice(0, 5).join(", ")}${group.topics.length > 5 ? ` and ${group.topics.length - 5} more` : ""}</td>
          <td class="number">${count(group.lag)}</td>
        </tr>`)}
      <//>
      <${Pager} pages=${pages} what="groups" />`}`;
}

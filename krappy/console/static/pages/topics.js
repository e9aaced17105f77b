// Topics: a page at a time, filtered by the broker, since there may be ten thousand.
import { post } from "../api.js";
import { bytes, count, plural } from "../format.js";
import { html, useState } from "../lib.js";
import { Pager, usePages } from "../paging.js";
import { Dialog, Empty, Field, Grid, Heading, Trouble, Waiting, say } from "../parts.js";
import { go, link } from "../routes.js";

export function Topics() {
  const pages = usePages("/topics", "topics", 5000);
  const [making, setMaking] = useState(false);
  const { data, error, again, rows } = pages;
  return html`<${Heading} title="Topics"><span class="grow"></span><button type="button" class="main" onClick=${() => setMaking(true)}>Create topic</button><//>
    <div class="bar">
      <${Field} label="Filter by name" type="search" value=${pages.filter} onInput=${(event) => pages.setFilter(event.target.value)} />
      <span class="faint" role="status">${data ? plural(data.total, "topic") : ""}</span>
    </div>
    <${Trouble} error=${error} again=${again} />
    ${!data && !error && html`<${Waiting} />`}
    ${data && !rows.length && (pages.settled
      ? html`<${Empty} title=${`No topic has “${pages.settled}” in its name.`}><button type="button" onClick=${() => pages.setFilter("")}>Show all</button><//>`
      : html`<${Empty} title="No topics yet."><p>A topic is a stream of events, and a table of the latest value of each key.</p>
          <button type="button" class="main" onClick=${() => setMaking(true)}>Create the first</button><//>`)}
    ${rows.length > 0 && html`<${Grid} label="Topics" head=${["Name", ["Partitions", "number wide"], ["Events", "number"], ["Size", "number wide"], ["Cleanup", "wide"], ["Table", "wide"]]}>
        ${rows.map((topic) => html`<tr key=${topic.name}>
          <td class="name"><a href=${link(["topics", topic.name, "stream"])}>${topic.name}</a></td>
          <td class="number wide">${topic.partitions}</td>
          <td class="number">${count(topic.events)}</td>
          <td class="number wide">${bytes(topic.size)}</td>
          <td class="wide">${topic.cleanup_policy}</td>
          <td class="wide">${!topic.view ? html`<span class="faint">off</span>` : topic.view_lag ? `${count(topic.view_lag)} behind` : "up to date"}</td>
        </tr>`)}
      <//>
      <${Pager} pages=${pages} what="topics" />`}
    ${making && html`<${NewTopic} close=${() => setMaking(false)} />`}`;
}

function NewTopic({ close }) {
  const [name, setName] = useState("");
  const [partitions, setPartitions] = useState("1");
  const [policy, setPolicy] = useState("");
  const [retention, setRetention] = useState("");
  const [error, setError] = useState(null);
  const submit = async (event) => {
    event.preventDefault();
    const config = {};
    if (policy) config["cleanup.policy"] = policy;
    if (retention) config["retention.ms"] = String(Math.round(Number(retention) * 3_600_000));
    try {
      await post("/topics", { name, partitions: Number(partitions), config });
      say(`Created ${name}`);
      close();
      go(["topics", name, "stream"]);
    } catch (failure) {
      setError(failure);
    }
  };
  return html`<${Dialog} title="Create a topic" close=${close}>
    <form onSubmit=${submit}>
      <${Field} label="Name" value=${name} required autofocus onInput=${(event) => setName(event.target.value)} hint="Letters, digits, dots, dashes and underscores" />
      <${Field} label="Partitions" type="number" min="1" max="100000" required value=${partitions} onInput=${(event) => setPartitions(event.target.value)} hint="Events are in order within a partition. You can add partitions later, not remove them." />
      <${Field} label="Cleanup" as="select" value=${policy} onChange=${(event) => setPolicy(event.target.value)}>
        <option value="">delete: delete events by age and size</option>
        <option value="compact">compact: keep the latest event of each key</option>
        <option value="compact,delete">compact and delete</option>
      <//>
      <${Field} label="Keep events for (hours)" type="number" min="1" value=${retention} onInput=${(event) => setRetention(event.target.value)} hint="Empty: the broker's default, which is for ever unless it is set. You can change this later." />
      <${Trouble} error=${error} />
      <div class="buttons"><button type="button" onClick=${close}>Cancel</button><button type="submit" class="main">Create</button></div>
    </form>
  <//>`;
}

// The connections, what each has registered, and how much it has sent.
import { useAnswer, useSettled } from "../api.js";
import { bytes, count, duration, plural } from "../format.js";
import { html, useRef, useState } from "../lib.js";
import { Empty, Field, Grid, Heading, Trouble, Waiting } from "../parts.js";

const PAGE = 100;

/** Bytes a second since the answer before, by connection. */
function useRates(data) {
  const last = useRef({ at: 0, data: null, sums: new Map(), rates: new Map() });
  if (data && last.current.data !== data) {
    const at = performance.now();
    const { at: then, sums: old } = last.current;
    const sums = new Map(data.connections.map((each) => [each.client, each.received_bytes + each.sent_bytes]));
    const rates = new Map();
    for (const [client, sum] of sums) {
      if (old.has(client) && at > then) rates.set(client, Math.max(0, ((sum - old.get(client)) * 1000) / (at - then)));
    }
    last.current = { at, data, sums, rates };
  }
  return last.current.rates;
}

const said = (each) => [each.kind, each.topics.join(", "), each.group && `group ${each.group}`, each.name && `as ${each.name}`].filter(Boolean).join(" · ");

export function Connections() {
  const [filter, setFilter] = useState("");
  const [protocol, setProtocol] = useState("");
  const [order, setOrder] = useState("received");
  const [skip, setSkip] = useState(0);
  const settled = useSettled(filter);
  const { data, error, again } = useAnswer("/connections", { filter: settled, protocol: protocol || undefined, order, skip, limit: PAGE }, { every: 2000 });
  const rates = useRates(data);
  const rows = data?.connections ?? [];
  const pick = (set) => (event) => (set(event.target.value), setSkip(0));
  return html`<${Heading} title="Connections" />
    <div class="bar">
      <${Field} label="Filter" type="search" placeholder="address, client, topic or group" value=${filter} onInput=${pick(setFilter)} />
      <${Field} label="Protocol" as="select" value=${protocol} onChange=${pick(setProtocol)}>
        <option value="">all</option><option value="native">native</option><option value="kafka">Kafka</option><option value="http">HTTP</option>
      <//>
      <${Field} label="Sort by" as="select" value=${order} onChange=${pick(setOrder)}>
        <option value="received">bytes received</option><option value="sent">bytes sent</option><option value="seconds">time connected</option>
      <//>
      <span class="faint" role="status">${data ? plural(data.total, "connection") : ""}</span>
    </div>
    <${Trouble} error=${error} again=${again} />
    ${!data && !error && html`<${Waiting} />`}
    ${data && !rows.length && html`<${Empty} title="No such connection." />`}
    ${rows.length > 0 && html`<${Grid} label="Connections" head=${["Client", ["Protocol", "wide"], ["Open for", "number wide"], ["Received", "number"], ["Sent", "number wide"], ["Rate", "number wide"], ["Requests", "number wide"], ["Waiting", "number wide"], "Registered"]}>
      ${rows.map((each) => html`<tr key=${each.client + each.protocol}>
        <td><code>${each.client}</code>${each.client_id && html`<br /><bdi class="faint">${each.client_id}</bdi>`}</td>
        <td class="wide">${each.protocol}</td>
        <td class="number wide">${duration(Math.round(each.seconds))}</td>
        <td class="number">${bytes(each.received_bytes)}</td>
        <td class="number wide">${bytes(each.sent_bytes)}</td>
        <td class="number wide">${rates.has(each.client) ? bytes(rates.get(each.client)) + "/s" : "–"}</td>
        <td class="number wide">${count(each.requests)}</td>
        <td class="number wide">${bytes(each.waiting_bytes)}</td>
        <td>${each.registrations.length === 0
          ? html`<span class="faint">nothing</span>`
          : each.registrations.length === 1
            ? html`<bdi>${said(each.registrations[0])}</bdi>`
            : html`<details><summary>${count(each.registered)}</summary><ul>${each.registrations.map((one, at) => html`<li key=${at}><bdi>${said(one)}</bdi></li>`)}</ul></details>`}</td>
      </tr>`)}
    <//>`}
    ${data && data.total > PAGE && html`<nav class="pager" aria-label="Pages of connections">
      <button type="button" disabled=${!skip} onClick=${() => setSkip(Math.max(0, skip - PAGE))}>← Previous</button>
      <button type="button" disabled=${skip + PAGE >= data.total} onClick=${() => setSkip(skip + PAGE)}>Next →</button>
    </nav>`}`;
}

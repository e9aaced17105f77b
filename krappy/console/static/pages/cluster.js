// The cluster: its brokers, who leads and follows which partition and how far, and what changes.
import { listen, useAnswer, useSettled } from "../api.js";
import { count, dayTime, duration, plural } from "../format.js";
import { html, useEffect, useState } from "../lib.js";
import { Check, Empty, Field, Grid, Heading, Trouble, Waiting } from "../parts.js";

const KEPT = 1000; // changes that are remembered, as many as the broker does
const SHOWN = 200; // how many of them the list has

/** The last changes, the newest first. Each connection begins with all that the broker remembers. */
function useChanges() {
  const [state, setState] = useState({ changes: [], live: false, error: null });
  const [round, setRound] = useState(0);
  useEffect(() => {
    const end = listen("/cluster/changes", { after: 0 }, {
      changes: ({ changes }) => setState((old) => {
        const goesOn = old.live && old.changes.length > 0 && changes[0].number > old.changes[0].number;
        const all = [...changes].reverse().concat(goesOn ? old.changes : []);
        return { changes: all.slice(0, KEPT), live: true, error: null };
      }),
      broken: () => setState((old) => ({ ...old, live: false })),
      problem: (error) => setState((old) => ({ ...old, live: false, error })),
    });
    return end;
  }, [round]);
  return { ...state, again: () => setRound((number) => number + 1) };
}

const address = (broker) => Object.entries(broker.endpoints).map(([name, at]) => `${name} ${at}`).join(", ");

function Brokers({ state }) {
  return html`<${Grid} label="Brokers" head=${["Broker", "Role", ["Leads", "number"], ["Replicas", "number"], ["Epoch", "number wide"], ["Since", "wide"], ["Rack", "wide"], ["Address", "wide"]]}>
    ${state.brokers.map((each) => html`<tr key=${each.id}>
      <td>${each.id}${each.id === state.told_by && html` <span class="faint">(this one)</span>`}</td>
      <td>${each.id === state.controller ? "controller" : ""}${each.draining ? " stopping" : ""}</td>
      <td class="number">${count(each.leads)}</td>
      <td class="number">${count(each.replicas)}</td>
      <td class="number wide">${count(each.epoch)}</td>
      <td class="wide">${each.since_ms === null ? "" : dayTime(each.since_ms)}</td>
      <td class="wide"><bdi>${each.rack ?? ""}</bdi></td>
      <td class="wide"><code>${address(each)}</code></td>
    </tr>`)}
  <//>`;
}

/** What a replica is, in words that a screen reader speaks and a test finds. */
function Replica({ replica, partition }) {
  if (!replica) return html`<td class="faint">–</td>`;
  const healing = replica.healing ? `, ${replica.healing}` : "";
  if (replica.broker === partition.leader) return html`<td class=${healing && "out"}><strong>leader</strong>${healing}</td>`;
  const lag = !replica.alive ? "away" : replica.lag === null ? "lag unknown" : replica.lag === 0 ? "" : `lags ${count(replica.lag)}`;
  const behind = replica.lag > 0 && replica.behind_ms !== null ? ` (${duration(Math.round(replica.behind_ms / 1000))})` : "";
  const what = replica.in_sync ? "in sync" : replica.eligible ? "out, may lead" : "out of sync";
  const whole = replica.in_sync && replica.alive && !healing;
  return html`<td class=${whole ? "" : "out"}>${[what, lag + behind].filter(Boolean).join(", ") + healing}</td>`;
}

const trouble = (each) => [each.offline && "offline", each.under_replicated && "under-replicated", each.under_min_isr && "under min ISR"].filter(Boolean).join(", ");

function Partitions({ state }) {
  const ids = new Set(state.brokers.map((each) => each.id));
  for (const topic of state.topics) for (const each of topic.partitions) for (const one of each.replicas) ids.add(one.broker);
  const columns = [...ids].sort((a, b) => a - b);
  const head = ["Partition", ["Epoch", "number"], ...columns.map((id) => `Broker ${id}`), "Trouble"];
  return html`<${Grid} label="Partitions" head=${head}>
    ${state.topics.flatMap((topic) => topic.partitions.map((each) => html`<tr key=${topic.name + "-" + each.partition}>
      <td><bdi>${topic.name}-${each.partition}</bdi></td>
      <td class="number">${count(each.leader_epoch)}</td>
      ${columns.map((id) => html`<${Replica} key=${id} replica=${each.replicas.find((one) => one.broker === id)} partition=${each} />`)}
      <td>${trouble(each)}</td>
    </tr>`))}
  <//>`;
}

export function Cluster() {
  const [filter, setFilter] = useState("");
  const [troubled, setTroubled] = useState(false);
  const settled = useSettled(filter);
  const { data, error, again } = useAnswer("/cluster/state", { filter: settled, troubled }, { every: 2000 });
  const changes = useChanges();
  const [withIsrs, setWithIsrs] = useState(false);
  const shown = changes.changes.filter((each) => withIsrs || each.kind !== "isr").slice(0, SHOWN);
  return html`<${Heading} title="Cluster" />
    <${Trouble} error=${error} again=${again} />
    ${!data && !error && html`<${Waiting} />`}
    ${data && html`
      <p class="faint">${data.alone ? "This broker is alone: it has no ZooKeeper." : `As broker ${data.told_by} sees it.`}
        ${" "}${data.controller === null && "No broker is the controller: leaders stay as they are."}</p>
      <${Brokers} state=${data} />
      <h2>Partitions</h2>
      <div class="bar">
        <${Field} label="Filter" type="search" placeholder="topic" value=${filter} onInput=${(event) => setFilter(event.target.value)} />
        <${Check} label="Only those in trouble" checked=${troubled} onChange=${(event) => setTroubled(event.target.checked)} />
        <span class="faint" role="status">${plural(data.partitions, "partition")}: ${count(data.offline)} offline, ${count(data.under_replicated)} under-replicated, ${count(data.under_min_isr)} under min ISR</span>
      </div>
      ${data.topics.length ? html`<${Partitions} state=${data} />` : html`<${Empty} title="No such partition." />`}
      ${data.after !== null && html`<p class="faint">There are more: filter by topic, or see krappy cluster.</p>`}`}
    <h2>Changes</h2>
    <div class="bar"><${Check} label="With changes of ISRs" checked=${withIsrs} onChange=${(event) => setWithIsrs(event.target.checked)} /></div>
    <${Trouble} error=${changes.error} again=${changes.again} />
    ${shown.length === 0 && html`<${Empty} title="Nothing has changed since this broker started." />`}
    ${shown.length > 0 && html`<${Grid} label="Changes" head=${["Time", "What"]}>
      ${shown.map((each) => html`<tr key=${each.number}><td>${dayTime(each.at_ms)}</td><td><bdi>${each.text}</bdi></td></tr>`)}
    <//>`}`;
}

// One group: its members, its positions, its lag over time; moving it, after a preview.
import { ask, groupPath, post, useAnswer } from "../api.js";
import { Chart, SPANS, Spark, joined } from "../chart.js";
import { count, plural, short, shortTime } from "../format.js";
import { html, useEffect, useMemo, useState } from "../lib.js";
import { Choice, ConfirmByName, Dialog, Empty, Facts, Field, Grid, Heading, Nothing, Trouble, Waiting, say } from "../parts.js";
import { go, link } from "../routes.js";
import { KINDS } from "./groups.js";

const EVERY = 2000;
const KEPT = 200;
const SHOWN = 200; // partitions listed at a time
const LINES = 6; // partitions in the chart

const idOf = (each) => `${each.topic}-${each.partition}`;

/** The partitions in the chart: those that lag most, in a fixed order, so that lines keep their colours. */
function drawn(partitions) {
  const most = [...partitions].sort((one, other) => other.lag - one.lag).slice(0, LINES);
  return partitions.filter((each) => most.includes(each)).map((each) => [idOf(each), idOf(each)]);
}

/** The group's lag since the page was opened, as a whole and by partition. */
function useLags(group) {
  const [seen, setSeen] = useState([]);
  useEffect(() => {
    if (!group) return;
    const parts = Object.fromEntries(group.partitions.map((each) => [idOf(each), each.lag]));
    setSeen((old) => [...old, { at: Date.now(), lag: group.lag, ...parts }].slice(-KEPT));
  }, [group]);
  return seen;
}

/** The lag that the broker has kept, as points. */
const past = (kept) => (kept?.groups[0]?.lags ?? []).map((lag, at) => ({ at: kept.at[at], lag }));

export function Group({ name }) {
  const { data, error, again } = useAnswer(groupPath(name), {}, { every: EVERY });
  const [open, setOpen] = useState(null);
  const [from, setFrom] = useState(0);
  const lags = useLags(data);
  const { data: kept } = useAnswer("/history/groups", { group: name }, { every: 60_000 });
  const [span, setSpan] = useState(900_000);
  const hour = useMemo(() => joined(past(kept), lags), [kept, lags]);
  const close = () => setOpen(null);
  const rows = data?.partitions.slice(from, from + SHOWN) ?? [];
  if (error?.code === "GROUP_ID_NOT_FOUND") return html`<${Nothing} title=${name} what="group" all=${["groups"]} />`;
  return html`<${Heading} title=${name}>
      <span class="grow"></span>
      <button type="button" disabled=${!data} onClick=${() => setOpen("reset")}>Reset…</button>
      <button type="button" class="danger" disabled=${!data} onClick=${() => setOpen("delete")}>Delete group</button>
    <//>
    <${Trouble} error=${error} again=${again} />
    ${!data && !error && html`<${Waiting} />`}
    ${data && html`
      <${Facts} facts=${[["Kind", KINDS[data.kind] ?? data.kind], ["Order", data.order || "–"], ["Members", count(data.members.length)], ["Lag", count(data.lag)]]} />
      <div class="bar status-bar"><span class="grow"></span><${Choice} label="Time that the chart shows" options=${SPANS} value=${span} choose=${setSpan} /></div>
      <div class="charts">
        <${Chart} title="Lag" lines=${[["lag", "events behind"]]} points=${hour} span=${span} format=${short} least=${1} />
        ${data.partitions.length > 1 && html`<${Chart} title=${data.partitions.length > LINES ? `Lag of the ${LINES} partitions furthest behind` : "Lag by partition"}
          lines=${drawn(data.partitions)} points=${lags} format=${short} least=${1} />`}
      </div>
      <h2>Members</h2>
      ${data.members.length
        ? html`<${Grid} label="Members" head=${["Name", ["Client", "wide"], ["Leased", "number"], "Leases"]}>
            ${data.members.slice(0, SHOWN).map((each) => html`<tr key=${each.name}><td class="name"><bdi>${each.name}</bdi></td><td class="wide"><bdi>${each.client}</bdi></td><td class="number">${count(each.leased)}</td>
              <td><${Leases} leases=${each.leases} /></td></tr>`)}
          <//>`
        : html`<${Empty} title="No members now."><p>Its positions are kept: new members go on from them.</p><//>`}
      <h2>Positions</h2>
      ${rows.length
        ? html`<${Grid} label="Positions" head=${["Topic", ["Partition", "number"], ["Position", "number"], ["End", "number wide"], ["Lag", "number"], ["Lag over time", "wide"], ["Leased", "number wide"], ["Redelivering", "number wide"], ["Dead letters", "number wide"]]}>
            ${rows.map((each) => {
              const id = idOf(each);
              return html`<tr key=${id}>
                <td class="name"><a href=${link(["topics", each.topic, "stream"])}>${each.topic}</a></td>
                <td class="number">${each.partition}</td>
                <td class="number">${count(each.position)}</td>
                <td class="number wide">${count(each.end)}</td>
                <td class="number">${count(each.lag)}</td>
                <td class="wide"><${Spark} values=${lags.map((point) => point[id] ?? 0)} label=${`Lag of ${id}, now ${each.lag}`} /></td>
                <td class="number wide">${count(each.leased)}</td>
                <td class="number wide">${count(each.redelivering)}</td>
                <td class="number wide">${count(each.dead)}</td>
              </tr>`;
            })}
          <//>`
        : html`<${Empty} title="No positions yet." />`}
      ${data.partitions.length > SHOWN && html`<nav class="pager" aria-label="Pages of positions">
        <button type="button" disabled=${!from} onClick=${() => setFrom(from - SHOWN)}>← Previous</button>
        <button type="button" disabled=${from + SHOWN >= data.partitions.length} onClick=${() => setFrom(from + SHOWN)}>Next →</button>
      </nav>`}`}
    ${open === "reset" && html`<${Reset} group=${data} close=${close} done=${() => (close(), again())} />`}
    ${open === "delete" && html`<${ConfirmByName} title="Delete this group" name=${name} what="group" verb="Delete group" close=${close}
        act=${async (confirm) => {
          await ask("DELETE", groupPath(name), { query: { confirm } });
          say(`Deleted the group ${name}`);
          go(["groups"]);
        }}><p>Its positions are deleted. A later group of this name begins anew.</p><//>`}`;
}

const span = ({ first, last }) => (first === last ? `offset ${count(first)}` : `offsets ${count(first)} to ${count(last)}`);

function Leases({ leases }) {
  if (!leases.length) return html`<span class="faint">none</span>`;
  return html`<details><summary>${plural(leases.length, "run")}</summary><ul>
    ${leases.map((each) => html`<li key=${idOf(each) + each.first}><bdi>${each.topic}</bdi> · ${each.partition}, ${span(each)}, <span class="faint">until ${shortTime(each.due)}</span></li>`)}
  </ul></details>`;
}

function Reset({ group, close, done }) {
  const [to, setTo] = useState("earliest");
  const [at, setAt] = useState("");
  const [topic, setTopic] = useState("");
  const [partition, setPartition] = useState("");
  const [preview, setPreview] = useState(null);
  const [error, setError] = useState(null);
  const topics = [...new Set(group.partitions.map((each) => each.topic))];
  const body = (dry_run) => {
    const given = { to, dry_run };
    if (to === "offset") given.at = Number(at);
    if (to === "timestamp") given.at = new Date(at).getTime();
    if (topic) given.topic = topic;
    if (topic && partition !== "") given.partitions = [Number(partition)];
    return given;
  };
  const run = async (dry) => {
    setError(null);
    try {
      const moved = await post(`${groupPath(group.group)}/reset`, body(dry));
      if (dry) {
        setPreview(moved.positions);
        return;
      }
      say(`Moved ${moved.positions.length} positions of ${group.group}`);
      done();
    } catch (failure) {
      setError(failure);
    }
  };
  // A preview counts only for the values that it was made with.
  const change = (set) => (event) => (set(event.target.value), setPreview(null));
  const submit = (event) => {
    event.preventDefault();
    run(preview === null);
  };
  const moving = preview?.filter((each) => each.old !== each.new) ?? [];
  return html`<${Dialog} title=${`Reset ${group.group}`} close=${close}>
    <form onSubmit=${submit}>
      ${group.members.length > 0 && html`<p class="note">The group has members: they must leave before it can be moved. The preview works now.</p>`}
      <${Field} label="Go on from" as="select" value=${to} onChange=${change(setTo)}>
        <option value="earliest">the beginning of the log</option><option value="latest">the end of the log</option>
        <option value="offset">an offset</option><option value="timestamp">a time</option>
      <//>
      ${to === "offset" && html`<${Field} label="Offset" type="number" min="0" required value=${at} onInput=${change(setAt)} />`}
      ${to === "timestamp" && html`<${Field} label="Time" type="datetime-local" step="1" required value=${at} onInput=${change(setAt)} />`}
      <${Field} label="In" as="select" value=${topic} onChange=${change(setTopic)}>
        <option value="">all of its topics</option>${topics.map((each) => html`<option key=${each} value=${each}>${each}</option>`)}
      <//>
      ${topic && html`<${Field} label="Partition" type="number" min="0" placeholder="all" value=${partition} onInput=${change(setPartition)} />`}
      ${preview && html`<h3>What changes</h3>
        ${moving.length
          ? html`<${Grid} label="What changes" head=${["Topic", ["Partition", "number"], ["From", "number"], ["To", "number"], ["Events", "number"]]}>
              ${moving.slice(0, SHOWN).map((each) => html`<tr key=${each.topic + each.partition}>
                <td class="name">${each.topic}</td><td class="number">${each.partition}</td><td class="number">${count(each.old)}</td><td class="number">${count(each.new)}</td>
                <td class="number">${each.new < each.old ? `${count(each.old - each.new)} again` : `${count(each.new - each.old)} skipped`}</td>
              </tr>`)}
            <//>`
          : html`<p>Nothing: all positions are there already.</p>`}`}
      <${Trouble} error=${error} />
      <div class="buttons">
        <button type="button" onClick=${close}>Cancel</button>
        ${preview === null
          ? html`<button key="look" type="submit" class="main">Preview</button>`
          : html`<button key="move" type="submit" class="danger" disabled=${!moving.length}>Move ${count(moving.length)} positions</button>`}
      </div>
    </form>
  <//>`;
}

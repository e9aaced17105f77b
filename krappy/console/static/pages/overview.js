// The broker's numbers, live. The charts begin with the hour that the broker has kept; newer points are kept while the
// console is open, also on other pages.
import { useAnswer } from "../api.js";
import { Chart, SPANS, joined } from "../chart.js";
import { bytes, count, duration, plural, short } from "../format.js";
import { html, useEffect, useMemo, useState } from "../lib.js";
import { Choice, Empty, Grid, Heading, Trouble, Waiting } from "../parts.js";

const EVERY = 2000;
const KEPT = 200;
let before = null;
let points = [];
let span = 900_000; // ms, as chosen last

const sum = (numbers) => Object.values(numbers).reduce((all, each) => all + each, 0);

/** The quantile (`part`: 0.5, 0.99) of the observations between two histograms, linear within a bucket; null: none. */
export function quantile(now, old, part) {
  const counts = now.counts.map((each, at) => each - (old?.counts[at] ?? 0));
  const wanted = part * sum(counts);
  if (!wanted) return null;
  let seen = 0;
  for (let at = 0; at < counts.length; at += 1) {
    if (counts[at] && seen + counts[at] >= wanted) {
      const low = at ? now.bounds[at - 1] : 0;
      const high = now.bounds[at] ?? low;
      return low + ((high - low) * (wanted - seen)) / counts[at];
    }
    seen += counts[at];
  }
  return null;
}

function added(histograms) {
  if (!histograms.length) return null;
  const [{ bounds }] = histograms;
  return { bounds, counts: bounds.concat(0).map((_, at) => histograms.reduce((all, each) => all + each.counts[at], 0)) };
}

const WRITES = new Set(["Batch", "Message", "Produce"]);
const writes = (totals) => added(totals.requests.filter((each) => WRITES.has(each.request)).map((each) => each.latency));

function point(now, old) {
  const seconds = (now.now_ms - old.now_ms) / 1000;
  const rate = (field) => (field(now) - field(old)) / seconds;
  const wrote = writes(now);
  return {
    at: now.now_ms,
    events: rate((each) => each.appended_events),
    received: rate((each) => sum(each.received_bytes)),
    sent: rate((each) => sum(each.sent_bytes)),
    write50: wrote && quantile(wrote, writes(old), 0.5),
    write99: wrote && quantile(wrote, writes(old), 0.99),
    sync99: quantile(now.log_sync, old.log_sync, 0.99),
    groupLag: now.group_lag,
    viewLag: now.view_lag_events,
    resident: now.resident_bytes,
    budget: now.budget_used_bytes,
  };
}

function take(now) {
  if (before && (before.started_ms !== now.started_ms || now.now_ms < before.now_ms)) {
    before = null;
    points = [];
  }
  if (before && now.now_ms - before.now_ms >= EVERY / 4) points = [...points, point(now, before)].slice(-KEPT);
  if (!before || now.now_ms - before.now_ms >= EVERY / 4) before = now;
}

const Fact = ({ name, value, more, part }) => html`<div class="fact">
  <dt>${name}</dt>
  <dd>${value}</dd>
  <dd class="more">${more}${part !== undefined && html`<progress class=${part > 0.9 ? "full" : ""} max="1" value=${part} aria-label=${name} />`}</dd>
</div>`;

function Requests({ requests }) {
  const rows = requests
    .filter((each) => each.latency.count)
    .map((each) => ({ ...each, p50: quantile(each.latency, null, 0.5), p99: quantile(each.latency, null, 0.99) }))
    .sort((one, other) => other.latency.count - one.latency.count);
  if (!rows.length) return html`<${Empty} title="No requests yet." />`;
  return html`<${Grid} label="Requests" head=${["Request", ["Protocol", "wide"], ["Answered", "number"], ["p50", "number wide"], ["p99", "number"]]}>
    ${rows.slice(0, 30).map((each) => html`<tr key=${each.protocol + each.request}>
      <td>${each.request}</td>
      <td class="wide">${each.protocol}</td>
      <td class="number">${count(each.latency.count)}</td>
      <td class="number wide">${duration(each.p50)}</td>
      <td class="number">${duration(each.p99)}</td>
    </tr>`)}
  <//>`;
}

const perSecond = (format) => (value) => format(value) + "/s";

/** A point of the broker's history, with the names that `point` gives. */
const past = ({ group_lag: groupLag, view_lag: viewLag, ...rest }) => ({ groupLag, viewLag, ...rest });

export function Overview() {
  const { data: now, error, again } = useAnswer("/overview", {}, { every: EVERY });
  const { data: cluster } = useAnswer("/cluster", {}, { every: 30_000 });
  const { data: kept } = useAnswer("/history", {}, { every: 60_000 });
  const [seen, setSeen] = useState(points);
  const [wide, setWide] = useState(span);
  useEffect(() => {
    if (!now) return;
    take(now);
    setSeen(points);
  }, [now]);
  const drawn = useMemo(() => joined((kept?.points ?? []).map(past), seen), [kept, seen]);
  const last = drawn.at(-1);
  const choose = (chosen) => setWide((span = chosen));
  const used = cluster ? cluster.disk_bytes - cluster.disk_free_bytes : 0;
  return html`<${Heading} title="Overview">
      <p class="faint summary">${now ? `up for ${duration((now.now_ms - now.started_ms) / 1000)}` : " "}</p>
    <//>
    <${Trouble} error=${error} again=${again} />
    ${!now && !error && html`<${Waiting} rows=${10} />`}
    ${now && html`
      <dl class="glance">
        <${Fact} name="Events in" value=${last ? short(last.events) + "/s" : "–"} more=${`${short(now.appended_events)} since the start`} />
        <${Fact} name="Topics" value=${count(now.topics)} more=${plural(now.partitions, "partition")} />
        <${Fact} name="Connections" value=${count(sum(now.connections))} more=${Object.entries(now.connections).map(([name, number]) => `${number} ${name}`).join(", ")} />
        <${Fact} name="Group lag" value=${short(now.group_lag)} more=${plural(now.groups, "group")} />
        <${Fact} name="Log" value=${bytes(now.log_bytes)} more=${`${plural(now.segments, "segment")}`} />
        <${Fact} name="Disk" value=${cluster ? bytes(cluster.disk_free_bytes) : "–"} more=${cluster ? `free of ${bytes(cluster.disk_bytes)}` : ""} part=${cluster ? used / cluster.disk_bytes : undefined} />
        <${Fact} name="Memory" value=${bytes(now.resident_bytes)} more=${`stalls: ${count(now.stalls)}`} />
        <${Fact} name="Request memory" value=${bytes(now.budget_used_bytes)} more=${`of ${bytes(now.budget_bytes)}`} part=${now.budget_used_bytes / now.budget_bytes} />
      </dl>
      <div class="bar status-bar"><span class="grow"></span><${Choice} label="Time that the charts show" options=${SPANS} value=${wide} choose=${choose} /></div>
      <div class="charts">
        <${Chart} title="Events" lines=${[["events", "appended"]]} points=${drawn} span=${wide} format=${perSecond(short)} least=${1} />
        <${Chart} title="Traffic" lines=${[["received", "in"], ["sent", "out"]]} points=${drawn} span=${wide} format=${perSecond(bytes)} least=${1} />
        <${Chart} title="Latency" lines=${[["write99", "write p99"], ["write50", "write p50"], ["sync99", "disk sync p99"]]} points=${drawn} span=${wide} format=${duration} least=${0.0001} />
        <${Chart} title="Lag" lines=${[["groupLag", "groups"], ["viewLag", "tables"]]} points=${drawn} span=${wide} format=${short} least=${1} />
        <${Chart} title="Memory" lines=${[["resident", "process"], ["budget", "requests"]]} points=${drawn} span=${wide} format=${bytes} least=${1} />
        <section class="card"><h2>Listening</h2>
          ${cluster && html`<dl class="facts">${Object.entries(cluster.listening).map(([name, at]) => html`<div key=${name}><dt>${name}</dt><dd><code>${at}</code></dd></div>`)}
            <div><dt>durability</dt><dd>${cluster.settings.durability}</dd></div>
            <div><dt>cluster</dt><dd><code>${cluster.cluster_id}</code></dd></div></dl>`}
        </section>
      </div>
      <h2>Requests since the start</h2>
      <${Requests} requests=${now.requests} />`}`;
}

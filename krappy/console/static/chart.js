// A line chart over time. The newest point is at the right; each line's name and latest value are above the chart.
import { html, useState } from "./lib.js";

const WIDTH = 600;
const HEIGHT = 120;
const GAP = 25_000; // ms; a line is interrupted where points are further apart. (The broker keeps one every 10 s.)
const LEAST = 60_000; // ms that are drawn at least
export const SPANS = [[300_000, "5 min"], [900_000, "15 min"], [3_600_000, "1 h"]];

/** The next round number at or above `value`: 1, 2 or 5 times a power of ten. */
function roundUp(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((each) => each * power).find((each) => each >= value);
}

function path(points, field, from, span, top) {
  let text = "";
  let last = null;
  for (const point of points) {
    const value = point[field];
    if (value === null || value === undefined) {
      last = null;
      continue;
    }
    const x = ((point.at - from) / span) * WIDTH;
    const y = HEIGHT - (Math.min(value, top) / top) * HEIGHT;
    const isOn = last !== null && point.at - last < GAP;
    text += `${isOn ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}${isOn ? "" : "h0"}`; // h0: a single point is a dot
    last = point.at;
  }
  return text;
}

/** `lines`: [field, name]; `points`: objects with `at` (ms) and the fields, the oldest first; `span`: ms that are shown at most. */
export function Chart({ title, lines, points, format, span = 300_000, least = 0 }) {
  const [hover, setHover] = useState(null);
  const last = points.at(-1);
  const until = last?.at ?? 0;
  const from = Math.max(until - span, Math.min(points[0]?.at ?? 0, until - LEAST)); // no wider than what there is
  const wide = until - from;
  const seen = points.filter((point) => point.at >= from);
  const highest = Math.max(least, ...seen.flatMap((point) => lines.map(([field]) => point[field] ?? 0)));
  const top = roundUp(highest);
  const shown = hover === null ? last : seen.reduce((best, each) => (Math.abs(each.at - hover) < Math.abs(best.at - hover) ? each : best), seen[0]);
  const value = (point, field) => (point?.[field] === null || point?.[field] === undefined ? "–" : format(point[field]));
  const step = (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (event.key === "Escape") setHover(null);
    if (!by || !shown) return;
    event.preventDefault();
    const at = seen.indexOf(shown) + by;
    setHover(at >= seen.length - 1 ? null : seen[Math.max(0, at)].at);
  };
  const move = (event) => {
    const box = event.currentTarget.getBoundingClientRect();
    if (seen.length) setHover(from + ((event.clientX - box.left) / box.width) * wide);
  };
  const label = `${title}: ${lines.map(([field, name]) => `${name} ${value(shown, field)}`).join(", ")}`;
  return html`<section class="card chart">
    <h2>${title}</h2>
    <ul class="legend">
      ${lines.map(([field, name], at) => html`<li key=${field} class=${"line" + at}><span class="swatch"></span>${name} <strong>${value(shown, field)}</strong></li>`)}
    </ul>
    <div class="plot">
      <svg viewBox=${`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none" role="img" aria-label=${label} tabindex="0" onKeyDown=${step} onBlur=${() => setHover(null)} onPointerMove=${move} onPointerLeave=${() => setHover(null)}>
        <path class="rule" d=${`M0 0H${WIDTH}M0 ${HEIGHT / 2}H${WIDTH}M0 ${HEIGHT}H${WIDTH}`} />
        ${lines.map(([field], at) => html`<path key=${field} class=${"line line" + at} d=${path(seen, field, from, wide, top)} />`)}
        ${hover !== null && shown && html`<path class="cursor" d=${`M${(((shown.at - from) / wide) * WIDTH).toFixed(1)} 0V${HEIGHT}`} />`}
      </svg>
      <span class="highest">${format(top)}</span>
      <span class="from">${hover === null || !shown ? ago(wide) : ago(until - shown.at)}</span>
      <span class="until">now</span>
    </div>
  </section>`;
}

/** What the broker has kept, and then the points that this page has seen since. */
export function joined(kept, seen) {
  const first = seen[0]?.at ?? Infinity;
  return [...kept.filter((point) => point.at < first), ...seen];
}

const ago = (ms) => (ms < 120_000 ? `${Math.round(ms / 1000)} s ago` : `${Math.round(ms / 60_000)} min ago`);

/** A small line without axes, for a cell. */
export function Spark({ values, label }) {
  const top = Math.max(1, ...values);
  const step = 80 / Math.max(1, values.length - 1);
  const line = values.map((value, at) => `${at ? "L" : "M"}${(at * step).toFixed(1)} ${(19 - (value / top) * 18).toFixed(1)}`).join("");
  return html`<svg class="spark" viewBox="0 0 80 20" role="img" aria-label=${label}><path class="line line0" d=${line} /></svg>`;
}

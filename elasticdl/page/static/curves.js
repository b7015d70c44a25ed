// Curves of a plot: which lines, in which colour, on which axis. uPlot draws them; where it is missing, the sketches stay.
import { h } from "./dom.js";
import { byName, clock, count, number } from "./words.js";

const STEPS_S = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 28800, 43200, 86400, 172800, 432000];

const WHOLE = [1, 2, 5].flatMap((one) => [...Array(15).keys()].map((zeros) => one * 10 ** zeros)).sort((one, other) => one - other);
const MOST_NAMED = 6;
const MOST_POINTS = 24;
const DASHES = [[], [7, 3], [2, 3], [10, 3, 2, 3], [4, 4], [1, 2]];

// A token of the style sheet as a colour that a canvas takes.
function colour(token) {
  const probe = h("i", { hidden: true });
  probe.style.color = `var(${token})`;
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

export function colours() {
  const lines = [0, 1, 2, 3, 4, 5].map((index) => colour(`--c${index}`));
  return { lines, faint: colour("--faint"), muted: colour("--muted"), grid: colour("--line") };
}

// {lines, data}: data[0] is the axis, shared by all lines. Few workers have a line each; many become faint ones, and their median.
export function linesOf(found, axis, plot) {
  const groups = plot.names.map((name) => found.filter((one) => one.name === name)).filter((group) => group.length);
  // As they are read: kind by kind, and by name, in whichever order they came.
  found = [...found].sort((one, other) => plot.names.indexOf(one.name) - plot.names.indexOf(other.name) || byName(one.label, other.label));
  const totals = found.filter((one) => !one.label || plot.label !== undefined), workers = found.filter((one) => !totals.includes(one));
  const few = found.length <= MOST_NAMED;
  const scale = plot.key === "latency" ? 1e3 : 1;
  const all = [...totals, ...workers];
  const joined = window.uPlot.join(all.map((one) => monotonic(one[axis], one.values, scale)));
  const column = new Map(all.map((one, index) => [one, joined[index + 1]]));
  const lines = [], data = [joined[0]];
  // Values of evaluations come now and then.
  const sparse = plot.label !== undefined;
  const add = (label, kind, values) => (lines.push({ label, kind, sparse }), data.push(values));
  for (const one of few ? all : totals) add(labelOf(one, groups.length), "named", column.get(one));
  if (few) return { lines, data };
  for (const group of totals.length ? [] : groups) {
    const columns = group.map((one) => column.get(one));
    add(`${verb(group[0].name)}median of ${count(group.length)}`, "median", joined[0].map((_, index) => median(columns.map((values) => values[index]))));
  }
  if (groups.length === 1) for (const one of workers) add(one.label, "faint", column.get(one));
  return { lines, data };
}

const verb = (name) => ({ pull_s: "pull, ", push_s: "push, " })[name] ?? "";

function labelOf(series, groups) {
  if (groups > 1) return `${series.name.replace(/_s$/, "")} ${series.label}`.trim();
  return series.label || { records_per_s: "total" }[series.name] || series.name.replaceAll("_", " ");
}

// uPlot wants an axis that grows; records of a job that repeats some may stand still.
function monotonic(xs, ys, scale) {
  const kept = [[], []];
  xs.forEach((x, index) => {
    const last = kept[0].length - 1;
    if (x === null || (last >= 0 && x < kept[0][last])) return;
    const where = last >= 0 && x === kept[0][last] ? last : last + 1;
    kept[0][where] = x;
    kept[1][where] = ys[index] === null ? null : ys[index] * scale;
  });
  return kept;
}

function median(values) {
  const known = values.filter((value) => value !== null && value !== undefined).sort((one, other) => one - other);
  return known.length ? known[known.length >> 1] : null;
}

export function options(lines, axis, place, palette, whole) {
  let next = 0;
  const series = lines.map((line) => {
    if (line.kind === "faint") return { label: line.label, stroke: palette.faint, width: 1, spanGaps: true, points: { show: false } };
    const index = next++ % MOST_NAMED;
    return { label: line.label, stroke: palette.lines[index], dash: DASHES[index], width: 1.6, spanGaps: true, points: { show: few(line.sparse ? MOST_POINTS : 1), size: 5, fill: palette.lines[index] }, value: (_, value) => number(value) };
  });
  const say = axis === "records" ? (_, values) => values.map(short) : (_, values) => values.map(clock);
  const look = { stroke: palette.muted, grid: { stroke: palette.grid, width: 1 }, ticks: { show: false }, font: "11px system-ui" };
  return {
    width: Math.max(200, place.clientWidth),
    height: 165,
    // Half of the last label of the axis may stand beside the curve.
    padding: [8, 24, 0, 0],
    cursor: { points: { size: 6 }, drag: { x: true, y: false } },
    legend: { live: true },
    scales: { x: { time: false }, y: { range: (_, low, high) => span(low, high) } },
    axes: [{ ...look, values: say, size: 26, space: 70, gap: 4, incrs: axis === "records" ? WHOLE : STEPS_S }, { ...look, size: 46, gap: 4, ...(whole ? { incrs: WHOLE } : {}), values: (_, values) => ticks(values) }],
    series: [{ label: axis === "records" ? "Records" : "At", value: (_, value) => (value === null ? "" : axis === "records" ? count(value) : clock(value)) }, ...series],
  };
}

// Of an evaluation now and then each is seen; of a value each second only the line, or the one that makes none.
function few(most) {
  return (chart, index) => {
    let known = 0;
    for (const value of chart.data[index]) if (value !== null && value !== undefined && ++known > most) return false;
    return true;
  };
}

// From zero, unless that would press the curve flat against the top.
function span(low, high) {
  if (low === null || high === null || (low === 0 && high === 0)) return [0, 1];
  const below = low - 0.08 * (high - low || Math.abs(high)), bottom = low >= 0 ? (low < 0.6 * high ? 0 : Math.max(0, below)) : below;
  return [bottom, high + 0.06 * (high - bottom || 1)];
}

function short(value) {
  if (Math.abs(value) >= 1e15) return value.toExponential(1).replace("e+", "e");
  if (Math.abs(value) >= 1e12) return `${value / 1e12}T`;
  if (Math.abs(value) >= 1e9) return `${value / 1e9}G`;
  if (Math.abs(value) >= 1e6) return `${value / 1e6}M`;
  return Math.abs(value) >= 1e4 ? `${value / 1e3}k` : count(value);
}

// All with as many decimals as the one that needs most: 0.60, 0.65, 0.70.
function ticks(values) {
  const plain = values.map((value) => String(Number((value ?? 0).toPrecision(4))));
  if (plain.some((text) => text.includes("e"))) return values.map(number);
  const decimals = Math.max(0, ...plain.map((text) => (text.split(".")[1] ?? "").length));
  return values.map((value) => (Math.abs(value) >= 1e4 ? short(value) : decimals ? value.toFixed(decimals).replace(/^-(?=0\.?0*$)/, "") : count(value)));
}

// The curves of a plot: lines, colours and axes. uPlot draws them.
import { h, visible } from "./dom.js";
import { byName, clock, count, number } from "./format.js";

const STEPS_S = [
  1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 28800, 43200, 86400, 172800,
  432000,
];

const WHOLE = [1, 2, 5]
  .flatMap((one) => [...Array(15).keys()].map((zeros) => one * 10 ** zeros))
  .sort((one, other) => one - other);
const MOST_NAMED = 6;
const COLOURS = 6;
const MOST_POINTS = 24;
const DASHES = [[], [7, 3], [2, 3], [10, 3, 2, 3], [4, 4], [1, 2]];

// Resolves a token of the style sheet, because a canvas does not accept `var(…)`.
function colour(token) {
  const probe = h("i", { hidden: true });
  probe.style.color = `var(${token})`;
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

export function colours() {
  const lines = [...Array(COLOURS).keys()].map((index) => colour(`--c${index}`));
  return { lines, faint: colour("--faint"), muted: colour("--muted"), grid: colour("--line") };
}

// Returns {lines, data}: data[0] is the axis, shared by all lines. A few live workers get a line
// each, and those that ended faint ones; many workers get faint lines and their median. `isLive`
// says of a worker's name whether the worker lives.
export function linesOf(found, axis, plot, isLive) {
  const groups = plot.names
    .map((name) => found.filter((one) => one.name === name))
    .filter((group) => group.length);
  // In reading order, by kind and name: series arrive in any order.
  found = [...found].sort(
    (one, other) =>
      plot.names.indexOf(one.name) - plot.names.indexOf(other.name) ||
      byName(one.label, other.label),
  );
  const totals = found.filter((one) => !one.label || plot.label !== undefined),
    workers = found.filter((one) => !totals.includes(one));
  const live =
    found.length <= MOST_NAMED ? workers : workers.filter((one) => isLive(one.label));
  const few =
    found.length <= MOST_NAMED || (live.length > 0 && totals.length + live.length <= MOST_NAMED);
  const scale = plot.key === "latency" ? 1e3 : 1;
  const all = [...totals, ...workers];
  const joined = window.uPlot.join(all.map((one) => monotonic(one[axis], one.values, scale)));
  const column = new Map(all.map((one, index) => [one, joined[index + 1]]));
  const lines = [],
    data = [joined[0]];
  // Evaluations yield few values, so their points are drawn.
  const sparse = plot.label !== undefined;
  const add = (label, kind, values, style = {}) => (
    lines.push({ label: visible(label), kind, sparse, ...style }),
    data.push(values)
  );
  const named = few ? [...totals, ...live] : totals;
  for (const one of named)
    add(labelOf(one, groups.length), "named", column.get(one), styleOf(one, plot));
  for (const group of few || totals.length ? [] : groups) {
    const columns = group.map((one) => column.get(one));
    add(
      `${verb(group[0].name)}median of ${count(group.length)}`,
      "median",
      joined[0].map((_, index) => median(columns.map((values) => values[index]))),
    );
  }
  if (few || groups.length === 1)
    for (const one of workers)
      if (!named.includes(one)) add(labelOf(one, groups.length), "faint", column.get(one));
  return { lines, data };
}

// A worker has the same colour in each plot, whoever else is drawn; the first colour is that of
// lines of the whole job. Dashes tell workers of one colour, and pulls from pushes.
function styleOf(series, plot) {
  const worker = plot.label === undefined ? /\d+$/.exec(series.label) : null;
  if (!worker) return {};
  const number = Number(worker[0]),
    colour = 1 + (number % (COLOURS - 1));
  const turns = Math.floor(number / (COLOURS - 1)) + 3 * plot.names.indexOf(series.name);
  return { colour, dash: (colour + turns) % DASHES.length };
}

const verb = (name) => ({ pull_s: "pull, ", push_s: "push, " })[name] ?? "";

function labelOf(series, groups) {
  if (groups > 1) return `${series.name.replace(/_s$/, "")} ${series.label}`.trim();
  return (
    series.label || { records_per_s: "total" }[series.name] || series.name.replaceAll("_", " ")
  );
}

// uPlot needs an increasing axis, but the record count of a job that repeats records may stay equal
// or fall.
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
  const known = values
    .filter((value) => value !== null && value !== undefined)
    .sort((one, other) => one - other);
  return known.length ? known[known.length >> 1] : null;
}

export function options(lines, axis, place, palette, whole) {
  const series = lines.map((line) => {
    if (line.kind === "faint")
      return {
        label: line.label,
        stroke: palette.faint,
        width: 1,
        spanGaps: true,
        points: { show: false },
      };
    const stroke = palette.lines[line.colour ?? 0];
    return {
      label: line.label,
      stroke,
      dash: DASHES[line.dash ?? 0],
      width: 1.6,
      spanGaps: true,
      points: { show: few(line.sparse ? MOST_POINTS : 1), size: 5, fill: stroke },
      value: (_, value) => number(value),
    };
  });
  const say =
    axis === "records" ? (_, values) => values.map(short) : (_, values) => values.map(clock);
  const look = {
    stroke: palette.muted,
    grid: { stroke: palette.grid, width: 1 },
    ticks: { show: false },
    font: "11px system-ui",
  };
  return {
    width: Math.max(200, place.clientWidth),
    height: 165,
    // Room for half of the axis's last label, which extends beyond the curve.
    padding: [8, 24, 0, 0],
    cursor: { points: { size: 6 }, drag: { x: true, y: false } },
    legend: { live: true },
    scales: { x: { time: false }, y: { range: (_, low, high) => span(low, high) } },
    axes: [
      {
        ...look,
        values: say,
        size: 26,
        space: 70,
        gap: 4,
        incrs: axis === "records" ? WHOLE : STEPS_S,
      },
      {
        ...look,
        size: 46,
        gap: 4,
        ...(whole ? { incrs: WHOLE } : {}),
        values: (_, values) => ticks(values),
      },
    ],
    series: [
      {
        label: axis === "records" ? "Records" : "At",
        value: (_, value) =>
          value === null ? "" : axis === "records" ? count(value) : clock(value),
      },
      ...series,
    ],
  };
}

// Draws points for evaluations, which are rare. For values of each second it draws only the line,
// or a point where a single value makes no line.
function few(most) {
  return (chart, index) => {
    let known = 0;
    for (const value of chart.data[index])
      if (value !== null && value !== undefined && ++known > most) return false;
    return true;
  };
}

// From zero, unless that would flatten the curve.
function span(low, high) {
  if (low === null || high === null || (low === 0 && high === 0)) return [0, 1];
  const below = low - 0.08 * (high - low || Math.abs(high)),
    bottom = low >= 0 ? (low < 0.6 * high ? 0 : Math.max(0, below)) : below;
  return [bottom, high + 0.06 * (high - bottom || 1)];
}

function short(value) {
  if (Math.abs(value) >= 1e15) return value.toExponential(1).replace("e+", "e");
  if (Math.abs(value) >= 1e12) return `${value / 1e12}T`;
  if (Math.abs(value) >= 1e9) return `${value / 1e9}G`;
  if (Math.abs(value) >= 1e6) return `${value / 1e6}M`;
  return Math.abs(value) >= 1e4 ? `${value / 1e3}k` : count(value);
}

// All ticks have as many decimals as the longest: 0.60, 0.65, 0.70.
function ticks(values) {
  const plain = values.map((value) => String(Number((value ?? 0).toPrecision(4))));
  if (plain.some((text) => text.includes("e"))) return values.map(number);
  const decimals = Math.max(0, ...plain.map((text) => (text.split(".")[1] ?? "").length));
  return values.map((value) =>
    Math.abs(value) >= 1e4
      ? short(value)
      : decimals
        ? value.toFixed(decimals).replace(/^-(?=0\.?0*$)/, "")
        : count(value),
  );
}

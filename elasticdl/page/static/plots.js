// The plots, drawn by uPlot, each with a table of its values. Without uPlot only the tables appear.
import { choice, filters } from "./controls.js";
import { byId, h, patch, setText, visible } from "./dom.js";
import { chosen } from "./address.js";
import { tab } from "./tabs.js";
import { job } from "./job.js";
import { colours, linesOf, options } from "./curves.js";
import { clock, count, number } from "./format.js";

const PLOTS = [
  { key: "loss", title: "Training loss", unit: "", names: ["loss"], chosen: true },
  { key: "rate", title: "Throughput", unit: "records/s", names: ["records_per_s"] },
  { key: "workers", title: "Workers", unit: "ready", names: ["workers"], whole: true },
  { key: "updates", title: "Updates", unit: "per second", names: ["updates_per_s"] },
  { key: "staleness", title: "Staleness", unit: "updates missed", names: ["staleness"] },
  {
    key: "latency",
    title: "Server latency",
    unit: "ms, pull and push",
    names: ["pull_s", "push_s"],
  },
];
const MOST_METRICS = 6;
const MOST_ROWS = 300;
const MOST_DOTS = 12;
const drawn = new Map();
let palette = null;

export function plotsFrame() {
  return h("div", { id: "plots", class: "plots" });
}

export function axisFrame() {
  const missing = h(
    "p",
    { class: "notice moved", id: "no-plots" },
    "This installation lacks uPlot, so there are no curves. Tables and all else are complete.",
  );
  return [
    filters(
      choice("axis", "Loss and metrics against", [
        ["records", "records"],
        ["time", "time"],
      ]),
    ),
    window.uPlot ? null : missing,
  ];
}

function wanted() {
  const all = [...job.series.values()],
    present = new Set(all.map((one) => one.name));
  const metrics = all
    .filter((one) => one.name === "metric")
    .map((one) => one.label)
    .sort()
    .slice(0, MOST_METRICS);
  const evaluated = metrics.map((label) => ({
    key: `metric-${label}`,
    title: `Validation ${label}`,
    unit: "",
    names: ["metric"],
    label,
    chosen: true,
  }));
  return [
    PLOTS[0],
    ...evaluated,
    ...PLOTS.slice(1, 3),
    ...PLOTS.slice(3).filter((plot) => plot.names.some((name) => present.has(name))),
  ];
}

const seriesOf = (plot) =>
  [...job.series.values()].filter(
    (one) =>
      plot.names.includes(one.name) && (plot.label === undefined || one.label === plot.label),
  );

function figure(plot) {
  // A metric's name is arbitrary: the id of its figure uses the visible characters only.
  const id = visible(`plot-${plot.key}`),
    known = byId(id);
  if (known) return known;
  return h(
    "figure",
    { id, "data-key": plot.key },
    h("figcaption", {}, h("h3", {}, plot.title), " ", h("small")),
    h("div", { class: "canvas" }),
    h("details", { class: "values", open: !window.uPlot }, h("summary", {}, "Table")),
  );
}

export function paintPlots() {
  if (tab() !== "overview") return;
  const place = byId("plots"),
    plots = wanted(),
    figures = plots.map(figure);
  figures.forEach(
    (one, index) =>
      place.children[index] !== one && place.insertBefore(one, place.children[index] ?? null),
  );
  palette ??= colours();
  plots.forEach((plot, index) => paint(plot, figures[index]));
}

function paint(plot, place) {
  const axis = plot.chosen && chosen("axis") !== "time" ? "records" : "at_s";
  const found = seriesOf(plot),
    box = place.querySelector(".canvas"),
    details = place.querySelector("details");
  setText(
    place.querySelector("small"),
    [plot.unit, axis === "records" ? "against records" : "over time"].filter(Boolean).join(", "),
  );
  if (!details.dataset.bound) {
    details.dataset.bound = "yes";
    details.addEventListener("toggle", () => details.open && tabulate(details, seriesOf(plot)));
  }
  if (details.open) tabulate(details, found);
  const most = Math.max(0, ...found.map(valuesOf));
  if (most < 2 && !drawn.has(plot.key)) {
    const dots = found
      .filter(valuesOf)
      .slice(0, MOST_DOTS)
      .map((one) => dot(one, axis));
    patch(box, [h("p", { class: "empty" }, most ? dots : "no values")]);
  }
  box.hidden = !window.uPlot && most > 1;
  if (!window.uPlot || most < 2) return;
  const { lines, data } = linesOf(found, axis, plot, isLive);
  const shape = `${axis} ${JSON.stringify(lines)}`,
    old = drawn.get(plot.key);
  const zoom = old?.axis === axis ? zoomOf(old.chart) : null;
  if (old?.shape === shape) {
    old.chart.setData(data, !zoom);
    if (zoom) old.chart.setScale("x", zoom);
    return showLast(old.chart);
  }
  old?.chart.destroy();
  box.replaceChildren();
  const chart = new window.uPlot(options(lines, axis, box, palette, plot.whole), data, box);
  box.addEventListener("pointerleave", () => showLast(chart));
  hideFaint(chart, lines);
  if (zoom) chart.setScale("x", zoom);
  showLast(chart);
  drawn.set(plot.key, { shape, axis, chart, box });
}

// The part of the axis that the user selected, or null while all of it is shown. New values must
// not undo the selection.
function zoomOf(chart) {
  const { min, max } = chart.scales.x,
    axis = chart.data[0];
  return min > axis[0] || max < axis.at(-1) ? { min, max } : null;
}

const isLive = (worker) => ![undefined, "ended"].includes(job.rows.get(worker)?.state);

const valuesOf = (one) => one.values.filter((value) => value !== null).length;

// A single value makes no curve.
function dot(one, axis) {
  const index = one.values.findIndex((value) => value !== null);
  const where =
    axis === "records" ? `${count(one.records[index])} records` : clock(one.at_s[index]);
  return h(
    "span",
    {},
    h("i", { class: "dot", "aria-hidden": "true" }, "●"),
    ` ${one.label} one value: ${number(one.values[index])} at ${where}`.replace("  ", " "),
  );
}

// Without a pointer on the plot, the legend shows the latest values. uPlot resets the legend in a
// microtask of its own, so this runs after it.
function showLast(chart) {
  queueMicrotask(() => {
    if (chart.cursor.idx === null || chart.cursor.idx === undefined)
      chart.setLegend({ idx: chart.data[0].length - 1 });
  });
}

// With many workers the legend shows the median only.
function hideFaint(chart, lines) {
  const rows = chart.root.querySelectorAll(".u-legend .u-series");
  lines.forEach((line, index) => line.kind === "faint" && rows[index + 1]?.remove());
}

export function repaintPlots() {
  palette = null;
  for (const { chart } of drawn.values()) chart.destroy();
  drawn.clear();
  paintPlots();
}

export function fitPlots() {
  for (const { chart, box } of drawn.values()) {
    if (box.clientWidth && box.clientWidth !== chart.width)
      chart.setSize({ width: box.clientWidth, height: chart.height });
  }
}

// Newest first; a long series is shortened evenly.
function tabulate(details, found) {
  const shown = found.slice(0, 8),
    first = shown[0];
  if (!first?.at_s.length) return;
  const step = Math.max(1, Math.ceil(first.at_s.length / MOST_ROWS)),
    rows = [];
  for (let index = first.at_s.length - 1; index >= 0; index -= step) rows.push(index);
  const at = shown.map(
    (one) => new Map(one.at_s.map((time, index) => [Math.round(time), one.values[index]])),
  );
  const head = [
    "At",
    "Records",
    ...shown.map(
      (one) =>
        [one.name.endsWith("_s") && shown.length > 1 ? one.name.replace(/_s$/, "") : "", one.label]
          .join(" ")
          .trim() || "Value",
    ),
  ];
  const body = rows.map((index) => [
    clock(first.at_s[index]),
    count(first.records[index]),
    ...shown.map((one, column) =>
      number(column ? at[column].get(Math.round(first.at_s[index])) : one.values[index]),
    ),
  ]);
  const table = h(
    "table",
    {},
    h(
      "thead",
      {},
      h(
        "tr",
        {},
        head.map((word) => h("th", { scope: "col", class: "n" }, word)),
      ),
    ),
    h(
      "tbody",
      {},
      body.map((cells) =>
        h(
          "tr",
          {},
          cells.map((cell) => h("td", { class: "n" }, cell)),
        ),
      ),
    ),
  );
  const scroll = details.querySelector(".scroll"),
    top = scroll?.scrollTop ?? 0;
  const fresh = h("div", { class: "scroll", tabindex: 0 }, table);
  details.replaceChildren(details.querySelector("summary"), fresh);
  fresh.scrollTop = top;
}

// The membership timeline: one row per process from launch to end, coloured by cause.
import { choice, columns, filters } from "./controls.js";
import { byId, h, patch, patchRows, setText, svg } from "./dom.js";
import { chosen } from "./address.js";
import { job } from "./job.js";
import { emptyRow, page } from "./table.js";
import { byName, clock, count, firstLine, told, toneOf, troubled } from "./format.js";

const STEPS_S = [
  1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 28800, 86400, 172800,
  432000,
];
const MOST_MARKS = 60;
const BUCKETS = 240;
const MOST_OTHERS = 100;

const LEGEND = [
  ["live", "● ready"],
  ["wait", "◌ waiting"],
  ["good", "✓ finished"],
  ["calm", "○ ended on request"],
  ["moved", "△ refused or sent away by the platform"],
  ["lost", "✕ lost"],
  ["memory", "▲ out of memory"],
  ["error", "! error"],
];

export function timelineFrame() {
  const tick = (kind, word) => h("li", {}, h("i", { class: `tick ${kind}` }), word);
  const shown = [
    ["", "all"],
    ["live", "running"],
    ["ended", "ended"],
    ["trouble", "failed"],
  ];
  const order = [
    ["", "oldest first"],
    ["last", "newest first"],
    ["name", "by name"],
  ];
  const span = [
    ["", "whole job"],
    ["3600", "last hour"],
    ["600", "last 10 minutes"],
    ["60", "last minute"],
  ];
  return [
    h(
      "ul",
      { class: "legend tones", "aria-label": "Colours" },
      LEGEND.map(([tone, word]) => h("li", { class: `tag ${tone}` }, word)),
      tick("saved", "checkpoint"),
      tick("", "evaluation, scaling and the like"),
    ),
    filters(
      choice("shown", "Processes", shown),
      choice("order", "in order", order),
      choice("span", "over", span),
    ),
    h(
      "table",
      { class: "bars", "aria-label": "Processes over time" },
      columns(["Process", "who"], ["From its launch to its end", "when"], ["Now, or why it ended", "why"]),
      h("tbody", { id: "bars" }),
    ),
    h("div", { class: "pager", id: "bars-pager" }),
  ];
}

function reach() {
  const end = Math.max(1, job.nowS),
    wanted = Number.parseInt(chosen("span"), 10) || 0;
  return { begin: wanted && wanted < end ? end - wanted : 0, end };
}

const place = (at, { begin, end }) =>
  Math.max(0, Math.min(100, (100 * (at - begin)) / (end - begin)));
const percent = (value) => `${value.toFixed(2)}%`;

function selected(all, span) {
  const shown = chosen("shown"),
    order = chosen("order");
  let bars = all.filter((bar) => (bar.ended_s ?? span.end) >= span.begin);
  if (shown === "live") bars = bars.filter((bar) => bar.ended_s === null);
  if (shown === "ended") bars = bars.filter((bar) => bar.ended_s !== null);
  if (shown === "trouble") bars = bars.filter(troubled);
  bars = [...bars];
  if (order === "name") return bars.sort((one, other) => byName(one.process, other.process));
  bars.sort((one, other) => one.ordered_s - other.ordered_s || byName(one.process, other.process));
  return order === "last" ? bars.reverse() : bars;
}

export function paintTimeline() {
  const span = reach(),
    all = job.bars,
    bars = selected(all, span);
  const marks = job.generations.filter((one) => one.at_s >= span.begin).slice(-MOST_MARKS);
  const body = byId("bars"),
    { start, end } = page("bars", bars.length);
  const table = body.closest("table");
  patch(table.querySelector("th.when"), [
    h("span", { class: "unseen" }, "From its launch to its end"),
    axis(span, marks, job.marks),
  ]);
  paintCrowd(table, all, span);
  const rows = bars.slice(start, end).map((bar) => row(bar, span, marks));
  patchRows(
    body,
    rows.length
      ? rows
      : [emptyRow(all.length ? "no process matches" : "no process has been started yet", 3)],
  );
  paintGenerations();
}

function axis(span, marks, others) {
  const length = span.end - span.begin,
    step = STEPS_S.find((one) => length / one <= 7) ?? STEPS_S.at(-1);
  const drawing = svg("svg", { width: "100%", height: 32, class: "axis", "aria-hidden": "true" });
  let last = -100;
  for (const one of marks) {
    const x = place(one.at_s, span);
    if (x - last < 3) continue;
    drawing.append(
      svg("text", { x: percent(x), y: 10, class: "generation" }, String(one.generation)),
    );
    last = x;
  }
  for (const one of others.slice(-MOST_OTHERS).filter((mark) => mark.at_s >= span.begin)) {
    const at = percent(place(one.at_s, span));
    drawing.append(
      svg(
        "line",
        { x1: at, x2: at, y1: 28, y2: 32, class: one.kind === "checkpoint" ? "saved" : "noted" },
        svg("title", {}, `${clock(one.at_s)} ${firstLine(one.text)}`),
      ),
    );
  }
  for (let at = Math.ceil(span.begin / step) * step; at <= span.end; at += step) {
    const x = place(at, span);
    drawing.append(
      svg(
        "text",
        { x: percent(x), y: 26, class: x > 94 ? "last" : x < 1 ? "first" : null },
        clock(at),
      ),
    );
  }
  return drawing;
}

function paintCrowd(table, all, span) {
  const workers = all.filter((bar) => bar.role === "worker");
  const now = workers.filter((bar) => bar.ready_s !== null && bar.ended_s === null).length;
  let crowd = table.querySelector(".crowd");
  if (!crowd) {
    if (all.length < 2) return;
    crowd = h("tr", { class: "crowd" }, h("th", { scope: "row" }, "Workers"), h("td"), h("td"));
    table.tHead.append(crowd);
  }
  const levels = levelsOf(workers, span),
    top = Math.max(1, ...levels);
  const points = levels.map((level, index) => {
    const y = (24 - (22 * level) / top).toFixed(1);
    return `${index},${y} ${index + 1},${y}`;
  });
  const drawing = svg(
    "svg",
    {
      viewBox: `0 0 ${BUCKETS} 24`,
      preserveAspectRatio: "none",
      width: "100%",
      height: 24,
      role: "img",
      "aria-label": `workers ready over time, at most ${count(Math.max(...levels))}`,
    },
    svg("polygon", { points: `0,24 ${points.join(" ")} ${BUCKETS},24` }),
  );
  patch(crowd.cells[1], [drawing]);
  const most = count(Math.max(...levels));
  setText(
    crowd.cells[2],
    `${count(now)} ready now, ${most} at most, ${count(workers.length)} in all`,
  );
}

function levelsOf(workers, span) {
  const changes = new Array(BUCKETS + 1).fill(0);
  const bucket = (at) =>
    Math.max(
      0,
      Math.min(BUCKETS - 1, Math.trunc((BUCKETS * (at - span.begin)) / (span.end - span.begin))),
    );
  for (const bar of workers) {
    if (bar.ready_s === null || (bar.ended_s ?? span.end) < span.begin) continue;
    changes[bucket(bar.ready_s)] += 1;
    changes[bar.ended_s === null ? BUCKETS : bucket(bar.ended_s)] -= 1;
  }
  let level = 0;
  return changes.slice(0, BUCKETS).map((change) => (level += change));
}

export function row(bar, span, marks) {
  const tone = toneOf(bar);
  return h(
    "tr",
    { "data-id": `${bar.process}@${bar.ordered_s}` },
    h(
      "th",
      { scope: "row" },
      h("a", { href: `?process=${encodeURIComponent(bar.process)}#processes` }, bar.process),
    ),
    h("td", {}, drawing(bar, span, marks, tone)),
    h(
      "td",
      { title: firstLine(bar.text) },
      h("span", { class: `tag ${tone.name}` }, `${tone.mark} ${tone.word}`),
      h("span", { class: "text" }, told(bar.text, tone)),
    ),
  );
}

function drawing(bar, span, marks, tone) {
  const x = (at) => place(at, span),
    ended = bar.ended_s !== null,
    end = ended ? bar.ended_s : span.end;
  const shapes = marks.map((one) =>
    svg("line", {
      x1: percent(x(one.at_s)),
      x2: percent(x(one.at_s)),
      y1: 0,
      y2: 20,
      class: "mark",
    }),
  );
  const rect = (from, to, more) =>
    svg("rect", { x: percent(x(from)), width: percent(Math.max(0, x(to) - x(from))), ...more });
  shapes.push(rect(bar.ordered_s, bar.ready_s ?? end, { y: 8, height: 4, class: "waited" }));
  if (bar.ready_s !== null)
    shapes.push(rect(bar.ready_s, end, { y: 4, height: 12, rx: 2, class: tone.name }));
  if (ended)
    shapes.push(
      svg("line", {
        x1: percent(x(end)),
        x2: percent(x(end)),
        y1: 2,
        y2: 18,
        class: `end ${tone.name}`,
      }),
    );
  const until = ended ? clock(bar.ended_s) : "now";
  const label = `${bar.process}: ${clock(bar.ordered_s)} to ${until}, ${tone.word}`;
  return svg("svg", { width: "100%", height: 20, role: "img", "aria-label": label }, shapes);
}

function paintGenerations() {
  if (!job.generations.length) return;
  let body = byId("generations");
  if (!body) {
    body = h("tbody", { id: "generations" });
    byId("timeline").append(
      h(
        "section",
        {},
        h("h3", {}, "Ring generations"),
        h(
          "div",
          { class: "scroll", tabindex: 0 },
          h(
            "table",
            { class: "narrow" },
            columns(["Generation", "n"], ["At", "n"], ["Members"], ["Why"]),
            body,
          ),
        ),
      ),
    );
  }
  patch(
    body,
    job.generations
      .slice(-100)
      .reverse()
      .map((one) => {
        const more = one.members.length > 12 ? ` and ${count(one.members.length - 12)} more` : "";
        return h(
          "tr",
          {},
          h("td", { class: "n" }, String(one.generation)),
          h("td", { class: "n" }, clock(one.at_s)),
          h("td", {}, `${count(one.members.length)}: `, one.members.slice(0, 12).join(", ") + more),
          h("td", {}, firstLine(one.reason)),
        );
      }),
  );
}

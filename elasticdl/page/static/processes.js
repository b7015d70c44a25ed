// The table of processes, and the details of the selected one.
import { choice, filters, searchBox } from "./controls.js";
import { byId, h, patch } from "./dom.js";
import { choose, chosen } from "./address.js";
import { job, processRows } from "./job.js";
import { bindSorting, fill, firstPage, markSorting, sorted } from "./table.js";
import {
  clock,
  count,
  doneWord,
  duration,
  memory,
  number,
  told,
  toneOf,
  troubled,
} from "./format.js";

const hasEnded = (row) => row.state === "ended";
const nowS = () => job.status.at_s ?? job.nowS;

// `value` sorts; `cell` is the text, or elements. `key` is in addresses, such as `?sort=cpu`.
const COLUMNS = [
  {
    key: "name",
    head: "Process",
    value: (row) => row.name,
    cell: (row) => h("a", { href: `?process=${encodeURIComponent(row.name)}#processes` }, row.name),
  },
  {
    key: "state",
    head: "State",
    value: (row) => toneOf(row).word,
    cell: stateCell,
  },
  {
    key: "where",
    head: "Where",
    kind: "wide",
    value: (row) => row.where ?? "",
    cell: (row) => row.where ?? "",
  },
  {
    key: "shard",
    head: "Works on",
    kind: "wide",
    value: (row) => row.shard ?? "",
    cell: (row) => row.shard ?? "",
  },
  {
    key: "records",
    head: "Records",
    kind: "n",
    title:
      "Settled records of this worker in the receipt; evaluation during a training is not in it",
    value: (row) => row.records ?? 0,
    cell: (row) => (row.role === "ps" ? "" : count(row.records ?? 0)),
  },
  {
    key: "rate",
    head: "Records/s",
    kind: "n",
    value: (row) => row.records_per_s ?? 0,
    cell: (row) => (hasEnded(row) || row.role === "ps" ? "" : number(row.records_per_s ?? 0)),
  },
  {
    key: "cpu",
    head: "CPU",
    kind: "n wide",
    value: (row) => row.cpu_cores ?? 0,
    cell: (row) => (hasEnded(row) ? "" : (row.cpu_cores?.toFixed(2) ?? "–")),
  },
  {
    key: "memory",
    head: "Memory",
    kind: "n wide",
    value: (row) => row.rss_bytes ?? 0,
    cell: (row) => (hasEnded(row) ? "" : memory(row.rss_bytes)),
  },
  {
    key: "since",
    head: "Since",
    kind: "n",
    title: "How long the process has been in this state, or when it ended",
    value: (row) => -row.since_s,
    cell: (row) =>
      `${duration(Math.max(0, nowS() - row.since_s))}${hasEnded(row) ? " ago" : ""}`,
  },
];
// Without a prototype: keys come from the address.
const VALUES = { __proto__: null };
for (const { key, value } of COLUMNS) VALUES[key] = value;
const KEEPS = {
  __proto__: null,
  live: (row) => row.state !== "ended",
  waiting: (row) => row.state !== "ended" && row.state !== "ready",
  ended: (row) => row.state === "ended",
  trouble: troubled,
};

export function processesFrame() {
  const states = [
    ["", "all"],
    ["live", "running"],
    ["waiting", "not ready"],
    ["ended", "ended"],
    ["trouble", "failed"],
  ];
  const heads = COLUMNS.map(({ key, head, kind, title }) =>
    h(
      "th",
      { scope: "col", class: kind, "data-key": key, title },
      key === "records" ? doneWord(job.about.action) : head,
    ),
  );
  return [
    filters(searchBox("find", "Find"), choice("state-filter", "Show", states)),
    h("div", { id: "process", hidden: true }),
    h(
      "div",
      { class: "scroll", tabindex: 0 },
      h(
        "table",
        { id: "process-table" },
        h("thead", {}, h("tr", {}, heads)),
        h("tbody", { id: "process-rows" }),
      ),
    ),
    h("div", { class: "pager", id: "processes-pager" }),
  ];
}

export function bindProcesses(paint) {
  const head = byId("process-table").tHead;
  bindSorting(head, "sort", paint);
  for (const name of ["find", "state-filter"])
    byId(name).addEventListener("input", () => firstPage("processes"));
  // A link to a process changes only the query, so the page does not reload.
  document.addEventListener("click", (event) => {
    const link = event.target.closest?.('a[href^="?process="]');
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    choose("process", new URLSearchParams(link.search).get("process"));
    location.hash = "processes";
    paint();
    byId("process").scrollIntoView({ block: "nearest" });
  });
}

export function paintProcesses() {
  const find = chosen("find").toLowerCase(),
    keep = KEEPS[chosen("state-filter")] ?? (() => true);
  const found = processRows().filter((row) => keep(row) && (!find || searched(row).includes(find)));
  markSorting(byId("process-table").tHead, "sort");
  fill(
    "processes",
    byId("process-rows"),
    sorted(found, "sort", VALUES),
    tableRow,
    job.rows.size
      ? `none of the ${count(job.rows.size)} processes matches`
      : "no process has been started yet",
  );
  paintOne();
}

function searched(row) {
  const { name, where, message, shard } = row;
  return `${name} ${where ?? ""} ${toneOf(row).word} ${message} ${shard ?? ""}`.toLowerCase();
}

function stateCell(row) {
  const tone = toneOf(row);
  return [
    h("span", { class: `tag ${tone.name}` }, `${tone.mark} ${tone.word}`),
    h("span", { class: "text" }, told(row.message, tone)),
  ];
}

function tableRow(row) {
  return h(
    "tr",
    { "data-id": row.name, class: row.name === chosen("process") ? "chosen" : null },
    COLUMNS.map(({ key, kind, cell }) =>
      key === "name"
        ? h("th", { scope: "row" }, cell(row))
        : h("td", { class: kind }, cell(row)),
    ),
  );
}

const PLAIN = new Set([
  "name",
  "role",
  "state",
  "cause",
  "message",
  "shard",
  "where",
  "since_s",
  "started_s",
  "records",
]);

function gauge(name, value) {
  if (typeof value !== "number") return [name, String(value)];
  const words = name
    .replace(/_per_s$/, "_per_second")
    .replace(/_(ms|s|bytes)$/, "")
    .replaceAll("_", " ")
    .replace(/^rss$/, "memory")
    .replace(/^cpu$/, "CPU time")
    .replace(/^cpu /, "CPU ");
  if (name.endsWith("_bytes")) return [words, memory(value)];
  if (name.endsWith("_ms")) return [words, `${number(value)} ms`];
  if (name.endsWith("_s") && !name.includes("_per_"))
    return [words, value < 60 ? `${number(value)} s` : duration(value)];
  return [words, number(value)];
}

function paintOne() {
  const box = byId("process"),
    row = job.rows.get(chosen("process"));
  box.hidden = !row;
  if (!row) return;
  const tone = toneOf(row),
    ended = hasEnded(row);
  const facts = [
    ["where", row.where || "–"],
    ["began at", clock(row.started_s)],
    [ended ? "ended at" : `${tone.word} since`, clock(row.since_s)],
    ...(row.role === "ps"
      ? []
      : [[doneWord(job.about.action).toLowerCase(), count(row.records ?? 0)]]),
    ...(row.shard ? [["works on", row.shard]] : []),
    ...Object.entries(row)
      .filter(([key]) => !PLAIN.has(key) && !ended)
      .sort()
      .map(([key, value]) => gauge(key, value)),
  ];
  const hasLogs = byId("log") !== null;
  const replace =
    byId("dialog-replace") && row.role === "worker" && !ended && !job.outcome
      ? h("button", { type: "button", "data-replace": row.name }, "Replace…")
      : null;
  patch(box, [
    h(
      "header",
      {},
      h("h3", {}, row.name),
      h("span", { class: `tag ${tone.name}` }, `${tone.mark} ${tone.word}`),
      replace,
      hasLogs
        ? h("a", { href: `?log=${encodeURIComponent(row.name)}#logs`, "data-log": row.name }, "Log")
        : null,
      h("button", { type: "button", class: "quiet", click: () => choose("process", "") }, "Close"),
    ),
    row.message ? h("pre", {}, row.message) : null,
    h(
      "dl",
      {},
      facts.map(([label, value]) => h("div", {}, h("dt", {}, label), h("dd", {}, value))),
    ),
  ]);
}

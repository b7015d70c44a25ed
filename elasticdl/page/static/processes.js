// The table of processes, and one of them in full.
import { byId, h, patch } from "./dom.js";
import { choose, chosen } from "./address.js";
import { job, processRows } from "./job.js";
import { bindSorting, fill, firstPage, markSorting, sorted } from "./table.js";
import { clock, count, duration, memory, number, told, toneOf, troubled } from "./words.js";

const VALUES = {
  __proto__: null,
  name: (row) => row.name, state: (row) => toneOf(row).word, where: (row) => row.where ?? "", shard: (row) => row.shard ?? "",
  records: (row) => row.records ?? 0, rate: (row) => row.records_per_s ?? 0, cpu: (row) => row.cpu_cores ?? 0,
  memory: (row) => row.rss_bytes ?? 0, since: (row) => -row.since_s,
};
const KEEPS = {
  __proto__: null,
  live: (row) => row.state !== "ended", waiting: (row) => row.state !== "ended" && row.state !== "ready", ended: (row) => row.state === "ended", trouble: troubled,
};

export function bindProcesses(paint) {
  const head = byId("process-table").tHead;
  bindSorting(head, "sort", paint);
  for (const name of ["find", "state-filter"]) byId(name).addEventListener("input", () => firstPage("processes"));
  // A link to a process is one to this page with another query: no need to load it anew.
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
  const find = chosen("find").toLowerCase(), keep = KEEPS[chosen("state-filter")] ?? (() => true);
  const found = processRows().filter((row) => keep(row) && (!find || searched(row).includes(find)));
  markSorting(byId("process-table").tHead, "sort");
  fill("processes", byId("process-rows"), sorted(found, "sort", VALUES), tableRow,
    job.rows.size ? `none of the ${count(job.rows.size)} processes is like that` : "no process has been ordered yet");
  paintOne();
}

const searched = (row) => `${row.name} ${row.where ?? ""} ${toneOf(row).word} ${row.message} ${row.shard ?? ""}`.toLowerCase();
const doneWord = () => byId("process-table").tHead.querySelector("[data-key=records]").textContent.toLowerCase();
const nowS = () => job.status.at_s ?? job.nowS;

function tableRow(row) {
  const tone = toneOf(row), ended = row.state === "ended", cell = (kind, text) => h("td", { class: kind }, text);
  return h("tr", { "data-id": row.name, class: row.name === chosen("process") ? "chosen" : null },
    h("th", { scope: "row" }, h("a", { href: `?process=${encodeURIComponent(row.name)}#processes` }, row.name)),
    h("td", {}, h("span", { class: `tag ${tone.name}` }, `${tone.mark} ${tone.word}`), h("span", { class: "text" }, told(row.message, tone))),
    cell("wide", row.where ?? ""), cell("wide", row.shard ?? ""), cell("n", row.role === "ps" ? "" : count(row.records ?? 0)),
    cell("n", ended || row.role === "ps" ? "" : number(row.records_per_s ?? 0)), cell("n wide", ended ? "" : row.cpu_cores === undefined ? "–" : row.cpu_cores.toFixed(2)),
    cell("n wide", ended ? "" : memory(row.rss_bytes)), cell("n", `${duration(Math.max(0, nowS() - row.since_s))}${ended ? " ago" : ""}`));
}

const PLAIN = new Set(["name", "role", "state", "cause", "message", "shard", "where", "since_s", "started_s", "records"]);

function gauge(name, value) {
  if (typeof value !== "number") return [name, String(value)];
  const words = name.replace(/_(ms|s|bytes)$/, "").replaceAll("_", " ").replace(/^rss$/, "memory").replace(/^records per$/, "records per second")
    .replace(/^cpu$/, "CPU time").replace(/^cpu /, "CPU ");
  if (name.endsWith("_bytes")) return [words, memory(value)];
  if (name.endsWith("_ms")) return [words, `${number(value)} ms`];
  if (name.endsWith("_s") && !name.includes("_per_")) return [words, value < 60 ? `${number(value)} s` : duration(value)];
  return [words, number(value)];
}

function paintOne() {
  const box = byId("process"), row = job.rows.get(chosen("process"));
  box.hidden = !row;
  if (!row) return;
  const tone = toneOf(row), ended = row.state === "ended";
  const facts = [["where", row.where || "–"], ["began at", clock(row.started_s)], [ended ? "ended at" : `${tone.word} since`, clock(row.since_s)],
    ...(row.role === "ps" ? [] : [[doneWord(), count(row.records ?? 0)]]), ...(row.shard ? [["works on", row.shard]] : []),
    ...Object.entries(row).filter(([key]) => !PLAIN.has(key) && !ended).sort().map(([key, value]) => gauge(key, value))];
  const hasLogs = byId("log") !== null;
  const replace = byId("dialog-replace") && row.role === "worker" && !ended && !job.outcome
    ? h("button", { type: "button", "data-replace": row.name }, "Replace…") : null;
  patch(box, [
    h("header", {}, h("h3", {}, row.name), h("span", { class: `tag ${tone.name}` }, `${tone.mark} ${tone.word}`), replace,
      hasLogs ? h("a", { href: `?log=${encodeURIComponent(row.name)}#logs`, "data-log": row.name }, "Log") : null,
      h("button", { type: "button", class: "quiet", click: () => choose("process", "") }, "Close")),
    row.message ? h("pre", {}, row.message) : null,
    h("dl", {}, facts.map(([label, value]) => h("div", {}, h("dt", {}, label), h("dd", {}, value)))),
  ]);
}

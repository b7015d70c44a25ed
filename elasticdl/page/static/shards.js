// Shards by state, single shards, and the receipt.
import { choice, columns, filters } from "./controls.js";
import { byId, h, patch, patchRows, setText, svg } from "./dom.js";
import { chosen } from "./address.js";
import { tab } from "./tabs.js";
import { job } from "./job.js";
import { PAGE, emptyRow, page } from "./table.js";
import { amount, capital, count, duration, firstLine } from "./format.js";

// The order of states, in the bar and in the text.
const DRAWN = ["done", "leased", "settling", "todo", "parked"];
const RECEIPT = ["expected", "trained", "repeated", "bad", "lost", "left"];
const STATES = ["leased", "todo", "settling", "retried", "parked", "done"];
let total = 0,
  asking = false;

// Single shards come from a request to the master, so only a live page lists them.
export function shardsFrame(live) {
  const heads = ["epoch", ...RECEIPT].map((word) => [capital(word), word === "epoch" ? null : "n"]);
  const receipt = h(
    "section",
    {},
    h("h3", {}, "Receipt"),
    h(
      "div",
      { class: "scroll tall", tabindex: 0 },
      h("table", { id: "receipt" }, columns(...heads), h("tbody", { id: "receipt-rows" })),
    ),
    h("p", { class: "empty", id: "receipt-notes" }),
  );
  const single = columns(
    ["Shard"],
    ["Records", "n"],
    ["State"],
    ["Owner"],
    ["Attempt", "n"],
    ["Age", "n"],
  );
  const listing =
    live &&
    h(
      "section",
      {},
      h("h3", {}, "Single shards"),
      filters(
        choice(
          "shard-state",
          "in state",
          STATES.map((state) => [state, state]),
        ),
      ),
      h(
        "div",
        { class: "scroll tall", tabindex: 0 },
        h("table", {}, single, h("tbody", { id: "shard-rows" })),
      ),
      h("div", { class: "pager", id: "shards-pager" }),
    );
  return [
    h("div", { id: "shard-counts" }),
    h("div", { class: "halves" }, receipt, listing || null),
    h("div", { id: "problems" }),
  ];
}

export function paintShards() {
  const counts = Object.entries(job.status.shards ?? {});
  patch(
    byId("shard-counts"),
    counts.length ? counts.map(taskBar) : [h("p", { class: "empty" }, "no shards yet")],
  );
  paintReceipt(job.status.receipt ?? {});
  paintProblems();
}

function taskBar([task, counts]) {
  const states = DRAWN.filter((name) => name in counts),
    all = states.reduce((sum, name) => sum + counts[name], 0),
    pieces = [];
  let at = 0;
  for (const state of states.filter((name) => counts[name])) {
    const width = (100 * counts[state]) / all;
    pieces.push(
      svg("rect", {
        x: `${at.toFixed(3)}%`,
        width: `${width.toFixed(3)}%`,
        y: 0,
        height: 14,
        class: `shard-${state}`,
      }),
    );
    at += width;
  }
  const said = states.map((state) =>
    h(
      "li",
      {},
      h("i", { class: `swatch shard-${state}` }),
      `${state} `,
      h("b", {}, count(counts[state])),
    ),
  );
  const note = h("small", {}, `${amount(all, "shard")}; one is done when all of its records are`);
  return h(
    "div",
    { class: "task" },
    h("div", {}, h("h3", {}, task), " ", note),
    svg("svg", { width: "100%", height: 14, role: "img", "aria-label": `${task} shards` }, pieces),
    h("ul", { class: "legend" }, said),
  );
}

function receiptRow(name, row, kind) {
  const tones = { lost: "error", bad: "moved", repeated: "moved" };
  return h(
    "tr",
    { class: kind },
    h("th", { scope: "row" }, name),
    RECEIPT.map((key) =>
      h(
        "td",
        { class: row[key] && tones[key] ? `n ${tones[key]}` : "n", "data-label": capital(key) },
        count(row[key] ?? 0),
      ),
    ),
  );
}

function paintReceipt({ epochs, total: sum, not_begun: waiting }) {
  const rows = (epochs ?? []).map((row) => receiptRow(`${row.epoch + 1}`, row)).reverse();
  patch(byId("receipt-rows"), [
    sum?.expected === undefined ? null : receiptRow("all", sum, "total"),
    toCome(epochs ?? [], waiting),
    ...rows,
  ]);
  setText(byId("receipt-notes"), [...receiptNotes(job.status)].join(" · "));
}

function toCome(epochs, waiting) {
  if (!waiting?.epochs) return null;
  const first = (epochs.at(-1)?.epoch ?? -1) + 2,
    last = first + waiting.epochs - 1;
  return receiptRow(first === last ? count(first) : `${count(first)}–${count(last)}`, {
    expected: waiting.records,
    left: waiting.records,
  });
}

function updateWords({ applied, lost, repeated, at_least: atLeast }) {
  const bound = atLeast ? "at least " : "",
    undone = repeated ? `, repeated ${bound}${count(repeated)}` : "";
  return `Updates: ${count(applied)} applied, lost ${lost ? bound : ""}${count(lost)}${undone}`;
}

function* receiptNotes({ receipt, records }) {
  if (receipt?.why_left) yield `Left: ${firstLine(receipt.why_left)}`;
  if (receipt?.updates) yield updateWords(receipt.updates);
  if (receipt?.counted) yield `counted ${receipt.counted}`;
  if (records?.resumed)
    yield `${count(records.resumed)} were trained by earlier runs, before the job was resumed`;
  if (receipt?.repeated_at_least)
    yield "repeated is a lower bound: an earlier run lost its counts after its last checkpoint";
  if (records?.undone)
    yield `${count(records.undone)} were lost with the ring's weights and are counted as repeated`;
  if (receipt?.epochs_left_out)
    yield `${amount(receipt.epochs_left_out, "earlier epoch")} not shown; receipt.json lists all`;
}

function paintProblems() {
  const lists = [
    ["parked", "Shards given up"],
    ["bad_examples", "Records that could not be read"],
  ].filter(([key]) => job.status[key]?.length);
  patch(
    byId("problems"),
    lists.map(([key, title]) =>
      h(
        "section",
        {},
        h("h3", {}, title),
        h(
          "ol",
          { class: "texts" },
          job.status[key].slice(0, 20).map((text) => h("li", {}, h("pre", {}, text))),
        ),
      ),
    ),
  );
}

export async function listShards(ask) {
  if (asking || tab() !== "shards" || !byId("shard-rows")) return;
  asking = true;
  try {
    const state = chosen("shard-state") || "leased",
      { start } = page("shards", total);
    const found = await ask(
      `/api/v1/shards?state=${encodeURIComponent(state)}&offset=${start}&limit=${PAGE}`,
    );
    total = found.total;
    page("shards", total);
    const rows = found.shards.map(shardRow);
    patchRows(byId("shard-rows"), rows.length ? rows : [emptyRow(`no shard is ${state}`, 6)]);
  } finally {
    asking = false;
  }
}

function shardRow(shard) {
  const cell = (kind, text) => h("td", { class: kind }, text);
  const owner = shard.owner
    ? h("a", { href: `?process=${encodeURIComponent(shard.owner)}#processes` }, shard.owner)
    : "";
  return h(
    "tr",
    { "data-id": `${shard.task}-${shard.epoch}-${shard.id}`, title: shard.problem || null },
    h("th", { scope: "row" }, `${shard.task} ${shard.id}`),
    cell(
      "n",
      shard.offset ? `${count(shard.offset)} of ${count(shard.records)}` : count(shard.records),
    ),
    cell("", shard.problem ? `${shard.state}: ${shard.problem}` : shard.state),
    h("td", {}, owner),
    cell("n", String(shard.attempt)),
    cell("n", shard.age_s === null ? "" : duration(shard.age_s)),
  );
}

// Logs: follows the end of a log, searches the whole log, and lists the incarnations of a process.
import { button, choice, filters, searchBox } from "./controls.js";
import { byId, h, setText, visible } from "./dom.js";
import { choose, chosen } from "./address.js";
import { tab } from "./tabs.js";
import { job } from "./job.js";
import { amount, byName, count, memory } from "./format.js";

const PIECE = 64 << 10;
const MOST_SHOWN = 1 << 20;
const MOST_REST = 64 << 10;
// Terminal control: colours, titles, and carriage returns of progress bars.
const ESCAPES = /\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_])/g;
const ENDED =
  "The job has ended. Its logs are in logs/ of its directory, and `elasticdl logs` shows them.";
const lengthOf = (text) => new TextEncoder().encode(text).length;

function readable(text) {
  const plain = text.replace(ESCAPES, "").replace(/[\x08\x00]/g, "");
  return plain.includes("\r") ? plain.split("\n").map(lastWritten).join("\n") : plain;
}

function lastWritten(line) {
  return line.replace(/\r+$/, "").split("\r").at(-1);
}
// `rest` is the incomplete last line, shown in `tail`. `pieces` are shown before it, each with the
// byte offset of its start.
const view = {
  process: "",
  start: 0,
  end: 0,
  size: 0,
  busy: false,
  rest: "",
  tail: null,
  pieces: [],
};
const LIST_MS = 5000;
let logs = [],
  ask = null,
  listedMs = 0;

// A report embeds the ends of the logs.
export function logsFrame(live) {
  const text = h("pre", { id: "log-text", tabindex: 0, "aria-label": "Log" });
  if (!live)
    return [filters(choice("log", "Log of", [])), text, h("p", { class: "empty" }, whereLogsAre())];
  const follow = h(
    "label",
    {},
    h("input", { type: "checkbox", id: "follow" }),
    " ",
    h("span", {}, "follow"),
  );
  const find = h(
    "form",
    { id: "log-search" },
    searchBox("log-find", "Search"),
    " ",
    h("button", {}, "Find"),
  );
  return [
    filters(choice("log", "Log of", []), follow, find),
    h("div", { id: "incarnations" }),
    h("div", { id: "matches", hidden: true }),
    filters(button("log-earlier", "Earlier"), h("span", { id: "log-place" })),
    text,
  ];
}

function whereLogsAre() {
  const kept = job.snapshot.logs?.length ?? 0,
    whole = "in logs/ of the job's directory; `elasticdl logs` shows them.";
  return kept
    ? `The ends of ${amount(kept, "log")}, failed processes first. Whole logs are ${whole}`
    : `Logs are ${whole}`;
}

export function bindLogs(asker) {
  ask = asker;
  if (!byId("log-search")) return bindKept();
  byId("follow").checked = chosen("follow") !== "no";
  byId("follow").addEventListener("change", () =>
    choose("follow", byId("follow").checked ? "" : "no"),
  );
  byId("log").addEventListener("change", () => open(byId("log").value));
  byId("log-earlier").addEventListener("click", earlier);
  byId("log-search").addEventListener("submit", (event) => {
    event.preventDefault();
    search(0);
  });
  document.addEventListener("click", (event) => {
    const link = event.target.closest?.("a[data-log]");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    choose("log", link.dataset.log);
    location.hash = "logs";
  });
}

function bindKept() {
  const kept = job.snapshot.logs ?? [],
    select = byId("log");
  select.closest(".filters").hidden = !kept.length;
  byId("log-text").hidden = !kept.length;
  select.replaceChildren(...kept.map((one) => h("option", { value: one.process }, one.process)));
  const show = () =>
    setText(
      byId("log-text"),
      readable(kept.find((one) => one.process === select.value)?.text ?? ""),
    );
  if (kept.some((one) => one.process === chosen("log"))) select.value = chosen("log");
  select.addEventListener("change", show);
  show();
}

export async function refreshLogs() {
  if (tab() !== "logs" || !byId("log-search") || view.busy) return;
  view.busy = true;
  try {
    if (Date.now() - listedMs > LIST_MS) await list();
    if (!logs.length) return setText(byId("log-text"), "no logs yet");
    const wanted =
      chosen("log") ||
      logs.find((one) => one.process.startsWith("master"))?.process ||
      logs[0]?.process;
    if (wanted && wanted !== view.process) await open(wanted);
    else if (byId("follow").checked && chosen("follow") !== "no") await follow();
  } finally {
    view.busy = false;
  }
}

// No master answers after the job's end.
export function paintLogs() {
  if (!job.outcome || !byId("log-search")) return;
  byId("log-search").hidden = true;
  for (const id of ["log", "follow", "log-earlier"]) byId(id).disabled = true;
  setText(byId("log-place"), ENDED);
}

async function list() {
  listedMs = Date.now();
  const found = (await ask("/api/v1/logs")).logs.sort((one, other) =>
    byName(one.process, other.process),
  );
  const select = byId("log"),
    groups = [
      ["Running", found.filter((one) => one.live)],
      ["Ended", found.filter((one) => !one.live)],
    ];
  if (
    found.map((one) => one.process + one.live).join() !==
    logs.map((one) => one.process + one.live).join()
  ) {
    select.replaceChildren(
      ...groups
        .filter(([, all]) => all.length)
        .map(([label, all]) =>
          h(
            "optgroup",
            { label },
            all.map((one) => h("option", { value: one.process }, one.process)),
          ),
        ),
    );
    select.value = view.process;
  }
  logs = found;
}

async function open(process, start = -PIECE) {
  if (!process) return;
  choose("log", process);
  byId("log").value = process;
  if (process !== view.process) byId("matches").hidden = true;
  if (process !== view.process) byId("log-text").replaceChildren();
  Object.assign(view, { process, start: 0, end: 0, rest: "", tail: null, pieces: [] });
  const part = await read(start);
  if (!part || view.process !== process) return;
  paint(part);
  byId("log-text").scrollTop = start < 0 ? byId("log-text").scrollHeight : 0;
  incarnations();
}

async function read(start) {
  try {
    return await ask(
      `/api/v1/logs/${encodeURIComponent(view.process)}?start=${start}&limit=${PIECE}`,
    );
  } catch (error) {
    // The error appears beside the log, which stays visible.
    setText(byId("log-place"), job.outcome ? ENDED : error.message);
    return null;
  }
}

function paint(part) {
  Object.assign(view, { start: part.start, rest: "", tail: null, pieces: [] });
  byId("log-text").replaceChildren();
  append(part);
  place();
}

// New text may continue the last line, or an escape sequence that was cut at its end.
function append(part) {
  const box = byId("log-text"),
    text = view.rest + part.text,
    cut = text.lastIndexOf("\n") + 1,
    start = part.end - lengthOf(text);
  view.tail?.remove();
  if (cut) push(text.slice(0, cut), start, box);
  view.rest = text.slice(cut);
  view.tail = document.createTextNode(visible(readable(view.rest)));
  box.append(view.tail);
  if (view.rest.length > MOST_REST) {
    view.pieces.push({ node: view.tail, start: part.end - lengthOf(view.rest) });
    Object.assign(view, { rest: "", tail: null });
  }
  Object.assign(view, { end: part.end, size: part.size });
}

function push(text, start, box) {
  const node = document.createTextNode(visible(readable(text)));
  view.pieces.push({ node, start });
  box.append(node);
}

function place() {
  const all = view.start === 0 && view.end >= view.size;
  setText(
    byId("log-place"),
    all
      ? `all of ${memory(view.size)}`
      : `bytes ${count(view.start)} to ${count(view.end)} of ${count(view.size)}`,
  );
  byId("log-earlier").disabled = view.start === 0 || job.outcome !== null;
}

// Appends the new text. Scrolls only if the reader was at the end already.
async function follow() {
  const box = byId("log-text"),
    atEnd = box.scrollTop + box.clientHeight >= box.scrollHeight - 30;
  for (let pieces = 0; pieces < 8; pieces++) {
    const part = await read(view.end);
    if (!part) return;
    if (part.size < view.end) return open(view.process);
    if (!part.text) return place();
    append(part);
    trim();
    place();
    if (atEnd) box.scrollTop = box.scrollHeight;
    if (part.end >= part.size) return;
  }
  await open(view.process);
}

function trim() {
  let length = view.pieces.reduce((sum, piece) => sum + piece.node.length, 0);
  while (length > MOST_SHOWN && view.pieces.length > 1) {
    const { node } = view.pieces.shift();
    length -= node.length;
    node.remove();
    view.start = view.pieces[0].start;
  }
}

async function earlier() {
  const from = Math.max(0, view.start - PIECE),
    part = await read(from);
  if (!part) return;
  const box = byId("log-text"),
    height = box.scrollHeight,
    keep = view.start - part.start;
  byId("follow").checked = false;
  choose("follow", "no");
  const text = new TextDecoder().decode(new TextEncoder().encode(part.text).slice(0, keep)),
    node = document.createTextNode(visible(readable(text)));
  box.prepend(node);
  view.pieces.unshift({ node, start: part.start });
  view.start = part.start;
  box.scrollTop = box.scrollHeight - height;
  place();
}

function incarnations() {
  const stem = view.process.split(".")[0],
    same = logs.filter((one) => one.process.split(".")[0] === stem && one.process !== view.process);
  const links = same.map((one) =>
    h(
      "a",
      { href: `?log=${encodeURIComponent(one.process)}#logs`, "data-log": one.process },
      one.process,
    ),
  );
  byId("incarnations").replaceChildren(...(links.length ? ["Other incarnations:", ...links] : []));
}

async function search(start) {
  const query = byId("log-find").value.trim(),
    box = byId("matches");
  choose("log-find", query);
  box.hidden = !query;
  if (!query) return;
  if (!start) box.replaceChildren();
  let found;
  try {
    const log = `/api/v1/logs/${encodeURIComponent(view.process)}`;
    found = await ask(`${log}/search?q=${encodeURIComponent(query)}&start=${start}`);
  } catch (error) {
    return box.append(h("p", { class: "problem" }, error.message));
  }
  box.querySelector(".more")?.remove();
  box.append(
    ...found.matches.map((match) =>
      h(
        "button",
        { type: "button", click: () => jump(match.offset) },
        marked(readable(match.line), query),
      ),
    ),
  );
  if (found.more)
    box.append(
      h(
        "button",
        { type: "button", class: "more", click: () => search(found.searched_to) },
        `Searched to byte ${count(found.searched_to)}; continue…`,
      ),
    );
  if (!box.childElementCount) box.append(`No matches in ${view.process}.`);
}

function marked(line, query) {
  // Like the master's search, ignores the case of ASCII only: other case folding changes lengths.
  const lower = (text) => text.replace(/[A-Z]/g, (letter) => letter.toLowerCase()),
    at = lower(line).indexOf(lower(query));
  if (at < 0) return line;
  return h(
    "span",
    {},
    line.slice(0, at),
    h("mark", {}, line.slice(at, at + query.length)),
    line.slice(at + query.length),
  );
}

function jump(offset) {
  byId("follow").checked = false;
  choose("follow", "no");
  open(view.process, offset);
}

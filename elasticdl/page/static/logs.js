// Logs: the end of one, followed; a search through all of it, however long; incarnations of one process side by side.
import { byId, h, setText, visible } from "./dom.js";
import { choose, chosen, tab } from "./address.js";
import { job } from "./job.js";
import { byName, count, memory } from "./words.js";

const PIECE = 64 << 10;
const MOST_SHOWN = 1 << 20;
const MOST_REST = 64 << 10;
// What is meant for a terminal: colours and titles, and what a progress bar writes over itself.
const ESCAPES = /\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_])/g;
const ENDED = "The job has ended. Its logs are in logs/ of its directory, and `elasticdl logs` shows them.";
const lengthOf = (text) => new TextEncoder().encode(text).length;

// As `words.readable` has it.
function readable(text) {
  const plain = text.replace(ESCAPES, "").replace(/[\x08\x00]/g, "");
  return plain.includes("\r") ? plain.split("\n").map(lastWritten).join("\n") : plain;
}

function lastWritten(line) {
  return line.replace(/\r+$/, "").split("\r").at(-1);
}
// `rest` is the last line as long as it may go on, in `tail`; `pieces` are what is shown before it, with the byte where each begins.
const view = { process: "", start: 0, end: 0, size: 0, busy: false, rest: "", tail: null, pieces: [] };
const LIST_MS = 5000;
let logs = [], ask = null, listedMs = 0;

export function bindLogs(asker) {
  ask = asker;
  if (!byId("log-search")) return bindKept();
  byId("follow").checked = chosen("follow") !== "no";
  byId("follow").addEventListener("change", () => choose("follow", byId("follow").checked ? "" : "no"));
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

// A report has ends of logs in itself, or none.
function bindKept() {
  const kept = job.snapshot.logs ?? [], select = byId("log");
  select.closest(".filters").hidden = !kept.length;
  byId("log-text").hidden = !kept.length;
  select.replaceChildren(...kept.map((one) => h("option", { value: one.process }, one.process)));
  const show = () => setText(byId("log-text"), kept.find((one) => one.process === select.value)?.text ?? "");
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
    const wanted = chosen("log") || logs.find((one) => one.process.startsWith("master"))?.process || logs[0]?.process;
    if (wanted && wanted !== view.process) await open(wanted);
    else if (byId("follow").checked && chosen("follow") !== "no") await follow();
  } finally {
    view.busy = false;
  }
}

// After the end nobody is there to ask.
export function paintLogs() {
  if (!job.outcome || !byId("log-search")) return;
  byId("log-search").hidden = true;
  for (const id of ["log", "follow", "log-earlier"]) byId(id).disabled = true;
  setText(byId("log-place"), ENDED);
}

async function list() {
  listedMs = Date.now();
  const found = (await ask("/api/v1/logs")).logs.sort((one, other) => byName(one.process, other.process));
  const select = byId("log"), groups = [["That live", found.filter((one) => one.live)], ["That ended", found.filter((one) => !one.live)]];
  if (found.map((one) => one.process + one.live).join() !== logs.map((one) => one.process + one.live).join()) {
    select.replaceChildren(...groups.filter(([, all]) => all.length).map(([label, all]) =>
      h("optgroup", { label }, all.map((one) => h("option", { value: one.process }, one.process)))));
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
    return await ask(`/api/v1/logs/${encodeURIComponent(view.process)}?start=${start}&limit=${PIECE}`);
  } catch (error) {
    // Beside what is shown, which stays.
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

// What comes may go on with the last line, or with half of a sequence at its end.
function append(part) {
  const box = byId("log-text"), text = view.rest + part.text, cut = text.lastIndexOf("\n") + 1, start = part.end - lengthOf(text);
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
  setText(byId("log-place"), all ? `all of ${memory(view.size)}` : `bytes ${count(view.start)} to ${count(view.end)} of ${count(view.size)}`);
  byId("log-earlier").disabled = view.start === 0 || job.outcome !== null;
}

// What was added since. Whoever scrolled up to read is not pulled down again.
async function follow() {
  const box = byId("log-text"), atEnd = box.scrollTop + box.clientHeight >= box.scrollHeight - 30;
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
  const from = Math.max(0, view.start - PIECE), part = await read(from);
  if (!part) return;
  const box = byId("log-text"), height = box.scrollHeight, keep = view.start - part.start;
  byId("follow").checked = false;
  choose("follow", "no");
  const text = new TextDecoder().decode(new TextEncoder().encode(part.text).slice(0, keep)), node = document.createTextNode(visible(readable(text)));
  box.prepend(node);
  view.pieces.unshift({ node, start: part.start });
  view.start = part.start;
  box.scrollTop = box.scrollHeight - height;
  place();
}

function incarnations() {
  const stem = view.process.split(".")[0], same = logs.filter((one) => one.process.split(".")[0] === stem && one.process !== view.process);
  const links = same.map((one) => h("a", { href: `?log=${encodeURIComponent(one.process)}#logs`, "data-log": one.process }, one.process));
  byId("incarnations").replaceChildren(...(links.length ? ["Other incarnations:", ...links] : []));
}

async function search(start) {
  const query = byId("log-find").value.trim(), box = byId("matches");
  choose("log-find", query);
  box.hidden = !query;
  if (!query) return;
  if (!start) box.replaceChildren();
  let found;
  try {
    found = await ask(`/api/v1/logs/${encodeURIComponent(view.process)}/search?q=${encodeURIComponent(query)}&start=${start}`);
  } catch (error) {
    return box.append(h("p", { class: "problem" }, error.message));
  }
  box.querySelector(".more")?.remove();
  box.append(...found.matches.map((match) => h("button", { type: "button", click: () => jump(match.offset) }, marked(readable(match.line), query))));
  if (found.more) box.append(h("button", { type: "button", class: "more", click: () => search(found.searched_to) }, `Searched to byte ${count(found.searched_to)}; go on…`));
  if (!box.childElementCount) box.append(`No line of ${view.process} has it.`);
}

function marked(line, query) {
  // As the master compares: upper and lower case of ASCII are the same, and no letter changes its length.
  const lower = (text) => text.replace(/[A-Z]/g, (letter) => letter.toLowerCase()), at = lower(line).indexOf(lower(query));
  if (at < 0) return line;
  return h("span", {}, line.slice(0, at), h("mark", {}, line.slice(at, at + query.length)), line.slice(at + query.length));
}

function jump(offset) {
  byId("follow").checked = false;
  choose("follow", "no");
  open(view.process, offset);
}

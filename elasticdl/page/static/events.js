// Events, newest first: all on their tab, the most recent on the overview.
import { choice, columns, filters, searchBox } from "./controls.js";
import { byId, h, patchRows, setText } from "./dom.js";
import { chosen } from "./address.js";
import { job } from "./job.js";
import { emptyRow, fill, firstPage } from "./table.js";
import { CAUSES, clock, count } from "./format.js";

const MOST_RECENT = 12;

export function recentEventsFrame() {
  return h("section", { class: "recent" }, h("h3", {}, "Recent events"), table("recent"));
}

export function eventsFrame() {
  const levels = [
    ["", "everything"],
    ["warning", "warnings and errors"],
  ];
  return [
    filters(searchBox("event-find", "Find"), choice("level", "Show", levels)),
    h("p", { id: "dropped", class: "empty", hidden: true }),
    h("div", { class: "scroll", tabindex: 0 }, table("event-rows")),
    h("div", { class: "pager", id: "events-pager" }),
  ];
}

function table(id) {
  return h(
    "table",
    { class: "events", "aria-label": "What happened" },
    columns(["At", "n"], ["What"]),
    h("tbody", { id }),
  );
}

export function bindEvents() {
  for (const name of ["event-find", "level"])
    byId(name).addEventListener("input", () => firstPage("events"));
}

export function paintRecentEvents() {
  const rows = job.events.slice(-MOST_RECENT).reverse().map(eventRow);
  patchRows(byId("recent"), rows.length ? rows : [emptyRow("nothing has happened yet", 2)], true);
}

export function paintEvents() {
  const find = chosen("event-find").toLowerCase(),
    severe = chosen("level") === "warning";
  const found = job.events.filter(
    (one) =>
      (!severe || one.level !== "info") &&
      (!find || `${one.text} ${one.process} ${one.kind} ${one.cause}`.toLowerCase().includes(find)),
  );
  fill(
    "events",
    byId("event-rows"),
    found.reverse(),
    eventRow,
    job.events.length ? "no event matches" : "nothing has happened yet",
    true,
  );
  byId("dropped").hidden = !job.dropped;
  setText(
    byId("dropped"),
    `${count(job.dropped)} earlier ones are in events.jsonl; \`elasticdl why\` reads all`,
  );
}

function eventRow(one) {
  const [first, ...rest] = String(one.text ?? "").split("\n"),
    tone = CAUSES[one.cause];
  const more = rest.length
    ? h("details", {}, h("summary", {}, "more"), h("pre", {}, rest.join("\n")))
    : null;
  const tag = tone
    ? [
        h(
          "span",
          { class: `tag ${tone[0]}` },
          first.includes(tone[2]) ? tone[1] : `${tone[1]} ${tone[2]}`,
        ),
        " ",
      ]
    : null;
  return h(
    "tr",
    {
      "data-id": one.seq,
      class: one.level === "warning" || one.level === "error" ? one.level : null,
    },
    h("td", { class: "n" }, clock(one.at_s)),
    h("td", {}, tag, first, more),
  );
}

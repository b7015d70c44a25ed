// What the time of all workers went to, by class, with the causes of each.
import { columns } from "./controls.js";
import { byId, h, patch, setText, svg } from "./dom.js";
import { job } from "./job.js";
import { capital, count, duration } from "./format.js";

const MOST_CAUSES = 4;
// Without a prototype: a newer master may have other classes.
const TONES = { __proto__: null, compute: "good", lost: "lost", repeated: "lost" };

export const share = (seconds, whole) =>
  `${whole > 0 ? ((100 * seconds) / whole).toFixed(1) : "0.0"} %`;

export function goodputFrame() {
  return h(
    "section",
    { id: "goodput", hidden: true },
    h("h3", {}, "Workers' time"),
    h("p", { id: "goodput-words" }),
    h(
      "div",
      { class: "scroll", tabindex: 0 },
      h(
        "table",
        { class: "narrow shares" },
        columns(["Class"], ["Share", "n"], ["Time", "n"], ["Part", "share"], ["Causes, and the worker with the most"]),
        h("tbody", { id: "goodput-classes" }),
      ),
    ),
  );
}

export function paintGoodput() {
  const account = job.status.receipt?.goodput;
  byId("goodput").hidden = !account;
  if (!account) return;
  const whole = account.seconds,
    classes = new Map();
  for (const one of account.spent) {
    if (!classes.has(one.kind)) classes.set(one.kind, []);
    classes.get(one.kind).push(one);
  }
  const rows = [...classes].map(([kind, spent]) => ({ kind, spent, seconds: total(spent) }));
  rows.sort((one, other) => other.seconds - one.seconds);
  setText(
    byId("goodput-words"),
    `Goodput ${share(account.share, 1)}: of ${duration(whole)} of the workers' time, this share computed what is in the model.`,
  );
  patch(
    byId("goodput-classes"),
    rows.map((one) => row(one, whole)),
  );
}

const total = (spent) => spent.reduce((sum, one) => sum + one.seconds, 0);

function row({ kind, spent, seconds }, whole) {
  const width = `${Math.min(100, (100 * seconds) / whole).toFixed(2)}%`;
  const bar = svg(
    "svg",
    { width: "100%", height: 12, "aria-hidden": "true" },
    svg("rect", { width, height: 12, rx: 2, class: TONES[kind] ?? "calm" }),
  );
  return h(
    "tr",
    {},
    h("th", { scope: "row" }, capital(kind)),
    h("td", { class: "n" }, share(seconds, whole)),
    h("td", { class: "n" }, duration(seconds)),
    h("td", {}, bar),
    h("td", {}, causes(spent, whole)),
  );
}

function causes(spent, whole) {
  const shown = spent.slice(0, MOST_CAUSES).map((one) => {
    const most = one.process ? ` (${one.process}: ${duration(one.process_s)})` : "";
    return `${one.cause.replaceAll("_", " ")} ${share(one.seconds, whole)}${most}`;
  });
  const more = spent.length - shown.length;
  return [...shown, ...(more > 0 ? [`${count(more)} more`] : [])].join(", ");
}

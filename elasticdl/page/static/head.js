// The page head: the job's state, progress, most important notice, and key figures.
import { byId, commandOf, h, patch, setText, visible } from "./dom.js";
import { job } from "./job.js";
import { amount, clock, count, duration, firstLine, number, percent } from "./format.js";

const INTERRUPTED = 130;
const MOST_WAITS = 4;
const SHORT_S = 120;

export function headFrame() {
  return h(
    "div",
    { class: "head" },
    h("p", { class: "line" }, h("span", { id: "state" }), h("span", { id: "message" })),
    h(
      "div",
      { class: "progress" },
      h("progress", { id: "bar", max: 1, value: 0, "aria-labelledby": "share-words" }),
      h("div", { class: "share" }, h("b", { id: "share" }), " ", h("span", { id: "share-words" })),
      h("div", { class: "eta" }, h("span", { id: "eta" })),
      h("p", { id: "waits" }),
    ),
    h("div", { id: "notices", role: "status" }),
    h("dl", { id: "facts" }),
  );
}

function stateOf(status, outcome) {
  const code = outcome ? outcome.exit_code : status.exit_code;
  // The outcome of a job that is being stopped is known before its end: until then it is stopping.
  if (
    code !== null &&
    code !== undefined &&
    (outcome || status.phase === "ending" || status.phase === "ended")
  ) {
    if (code === 0) return ["good", "done"];
    return code === INTERRUPTED ? ["moved", "stopped"] : ["error", `failed, exit code ${code}`];
  }
  return [status.waiting?.length && !status.scale?.observed ? "moved" : "live", status.state];
}

function facts(status, over) {
  const records = status.records ?? {},
    found = [];
  const add = (label, value, note = "", tone = "") => found.push({ label, value, note, tone });
  if (!over) add("Records per second", number(status.records_per_s ?? 0));
  if (status.epochs)
    add(
      "Epoch",
      count(Math.min((status.epoch ?? 0) + 1, status.epochs)),
      `of ${count(status.epochs)}`,
    );
  add("Version", count(status.version ?? 0));
  if (status.steps)
    add("Steps", status.steps.sync ? "synchronous" : "asynchronous", status.steps.reason);
  addWorkers(add, status.scale ?? {}, over);
  if (status.cluster_share && !over) addClusterShare(add, status.cluster_share);
  addOthers(add, status, over);
  const goodput = status.receipt?.goodput;
  // The start and the end are a large part of a short job.
  const whose = goodput?.seconds < SHORT_S ? "a short job's" : "the workers'";
  if (goodput) add("Goodput", percent(goodput.share, 1), `of ${whose} time`);
  if (status.loss !== null && status.loss !== undefined) add("Training loss", number(status.loss));
  for (const [name, value] of Object.entries(status.metrics ?? {}).slice(0, 3))
    add(`Validation ${name}`, number(value));
  const stoppedS = job.snapshot.story?.totals?.stopped_s ?? 0;
  // The job's uptime starts after the preflight.
  add(
    over ? "Took" : status.phase === "starting" ? "Checking for" : "Uptime",
    duration(status.uptime_s ?? status.at_s ?? 0),
    stoppedS ? `stopped for ${duration(stoppedS)} of it` : "",
  );
  addTroubles(add, status, records);
  return found;
}

function addWorkers(add, scale, over) {
  const asked =
    scale.low === scale.high ? count(scale.low) : `${count(scale.low)}–${count(scale.high)}`;
  if (over) add("Workers", asked, "requested");
  else
    add(
      "Workers ready",
      count(scale.observed),
      scale.autoscaled === null || scale.autoscaled === undefined
        ? `of ${asked}`
        : `of ${count(scale.autoscaled)} chosen from ${asked}`,
      (scale.observed ?? 0) < (scale.low ?? 0) ? "moved" : "",
    );
}

// What the job's own pods tell: how large the cluster is, a master may not ask.
function addClusterShare(add, share) {
  const notes = [`weight ${count(share.weight)}`];
  if (share.guaranteed === null) notes[0] = "no priority ladder";
  else notes.unshift(`${count(share.guaranteed)} guaranteed`);
  if (share.rung !== null) notes.push(`rung ${count(share.rung)}`);
  add("Workers on nodes", count(share.placed), notes.join(", "));
}

function addOthers(add, status, over) {
  if (status.ring)
    add(
      "Ring generation",
      count(status.ring.generation),
      amount(status.ring.members?.length ?? 0, "member"),
    );
  const servers = [...job.rows.values()].filter(
    (row) => row.role === "ps" && row.state !== "ended",
  );
  const up = servers.filter((row) => row.state === "ready").length;
  if (servers.length && !over)
    add(
      "Servers ready",
      count(up),
      `of ${count(servers.length)}`,
      up < servers.length ? "moved" : "",
    );
}

function addUpdates(add, updates) {
  const bound = updates?.at_least ? "at least" : "";
  if (updates?.lost) add("Updates lost", count(updates.lost), bound || "with a server", "error");
  if (updates?.repeated) add("Updates repeated", count(updates.repeated), bound, "moved");
}

function addTroubles(add, status, records) {
  const last = status.checkpoints?.at(-1);
  if (last) {
    const when = last.at_s < 0 ? "of an earlier run" : `at ${clock(last.at_s)}`;
    add("Checkpoint", count(last.version), when);
  }
  for (const [key, label] of [
    ["repeated", "Records repeated"],
    ["bad", "Bad records"],
    ["lost", "Records lost"],
  ]) {
    if (records[key]) add(label, count(records[key]), "", key === "lost" ? "error" : "moved");
  }
  addUpdates(add, status.updates);
  const age = status.cluster_view_age_s;
  if (age !== null && age !== undefined)
    add("Cluster view", duration(age), "old", age > 30 ? "moved" : "");
}

// A command gets its own element, so that it can be copied.
function whatToDo(hint) {
  const at = hint.lastIndexOf("with: ") + 6;
  if (at < 6) return [h("p", { class: "hint" }, "What to do: ", hint)];
  return [
    h("p", { class: "hint" }, "What to do: ", hint.slice(0, at)),
    h("pre", { class: "command" }, commandOf(hint.slice(at))),
  ];
}

function notices(status, outcome) {
  if (outcome) {
    const [first, ...rest] = String(outcome.message ?? "").split("\n"),
      failed = outcome.exit_code !== 0;
    const tone = stateOf(status, outcome)[0];
    const more = rest.length
      ? h(
          "details",
          { open: tone === "error" },
          h("summary", {}, "Details"),
          h("pre", { tabindex: 0 }, rest.join("\n")),
        )
      : null;
    const hint = outcome.hint ? whatToDo(outcome.hint) : null;
    return failed || more || hint
      ? [h("div", { class: `notice ${tone}` }, h("strong", {}, first || "failed"), more, hint)]
      : [];
  }
  const stall = status.stall
    ? [
        h(
          "div",
          { class: "notice error" },
          h("strong", {}, "The job is stalled"),
          h("p", {}, status.waiting?.[0] ?? ""),
        ),
      ]
    : [];
  const waits = routine(status) ? [] : (status.waiting ?? []);
  if (!waits.length) return stall;
  const shown = [
    ...waits.slice(0, MOST_WAITS),
    ...(waits.length > MOST_WAITS ? [`and ${count(waits.length - MOST_WAITS)} more`] : []),
  ];
  return [
    ...stall,
    h(
      "div",
      { class: "notice moved" },
      h("strong", {}, "Waiting"),
      h(
        "ul",
        {},
        shown.map((reason) => h("li", {}, reason)),
      ),
    ),
  ];
}

// Waits that do not stop the job. They share one line, so that the layout does not jump as they
// come and go.
function routine(status) {
  return !job.outcome && status.waiting?.length && status.scale?.observed
    ? `Waits: ${status.waiting.join(" · ")}`
    : "";
}

export function paintHead() {
  const { status, outcome } = job,
    over = outcome !== null;
  const [tone, word] = stateOf(status, outcome);
  byId("state").className = `state ${tone}`;
  setText(byId("state"), word);
  const message = firstLine(status.message);
  setText(byId("message"), over || message === word ? "" : message);
  paintProgress(status, over);
  patch(byId("notices"), notices(status, outcome));
  patch(
    byId("facts"),
    facts(status, over).map((one) =>
      h(
        "div",
        { class: one.tone },
        h("dt", {}, one.label),
        h("dd", {}, one.value, one.note ? " " : null, one.note ? h("small", {}, one.note) : null),
      ),
    ),
  );
  const shown = over
    ? word
    : `${percent(status.records?.trained ?? 0, status.records?.expected ?? 0)} ${word}`;
  document.title = visible(`${shown} · ${job.about.name} · ElasticDL`);
}

const share = ({ records }) =>
  records?.expected ? Math.min(1, records.trained / records.expected) : 0;

function paintProgress(status, over) {
  const records = status.records ?? {},
    fraction = share(status);
  byId("bar").value = fraction;
  setText(byId("share"), percent(records.trained ?? 0, records.expected ?? 0));
  setText(
    byId("share-words"),
    records.expected
      ? `${count(records.trained)} of ${count(records.expected)} records`
      : "the data is not counted yet",
  );
  setText(byId("waits"), routine(status));
  const left = status.eta_s;
  setText(
    byId("eta"),
    over || left === null || left === undefined ? "" : `${duration(left)} left at this rate`,
  );
}

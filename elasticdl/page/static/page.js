// Builds the page from the embedded snapshot. Repaints the visible tab after changes, at most once
// per frame.
import { byId, h } from "./dom.js";
import { bindControls, bindTheme, chosen, onChoice } from "./address.js";
import { TABS, bindTabs, menu, showTab, tab } from "./tabs.js";
import { button } from "./controls.js";
import { job, load, takeEvents, takeRows, takeSamples, takeStatus } from "./job.js";
import { headFrame, paintHead } from "./head.js";
import { axisFrame, fitPlots, paintPlots, plotsFrame, repaintPlots } from "./plots.js";
import { paintTimeline, timelineFrame } from "./timeline.js";
import { goodputFrame, paintGoodput } from "./goodput.js";
import { bindProcesses, paintProcesses, processesFrame } from "./processes.js";
import { listShards, paintShards, shardsFrame } from "./shards.js";
import { bindEvents, eventsFrame, recentEventsFrame, paintEvents, paintRecentEvents } from "./events.js";
import { bindLogs, logsFrame, paintLogs, refreshLogs } from "./logs.js";
import { actionBar, bindActions, dialogs } from "./actions.js";
import { bindSignOut, signOutButton } from "./session.js";
import { ask, watch } from "./stream.js";

const LOOK_MS = 1000;
let due = false;

// Each tab has a frame, created once, and a painter that fills it.
const frames = {
  overview: () => [axisFrame(), h("div", { class: "columns" }, plotsFrame(), recentEventsFrame())],
  timeline: () => [timelineFrame(), goodputFrame()],
  processes: processesFrame,
  shards: shardsFrame,
  logs: logsFrame,
  events: eventsFrame,
};
const painters = {
  overview: () => (paintPlots(), paintRecentEvents()),
  timeline: () => (paintTimeline(), paintGoodput()),
  processes: paintProcesses,
  shards: paintShards,
  logs: paintLogs,
  events: paintEvents,
};

function build(live, acts) {
  const skip = (event) => (event.preventDefault(), byId("main").focus());
  const sections = Object.entries(TABS).map(([name, title]) =>
    h("section", { id: name, class: "tab" }, h("h2", {}, title), frames[name](live)),
  );
  // A page saved by a browser already contains these elements.
  for (const old of document.querySelectorAll("body > :not(script, noscript)")) old.remove();
  document.body.prepend(
    h("a", { href: "#main", class: "skip", click: skip }, "Skip to the content"),
    h("header", {}, top(live, acts), headFrame()),
    menu(),
    h("main", { id: "main", tabindex: -1 }, sections),
    foot(live),
    ...(acts ? dialogs() : []),
  );
}

function top(live, acts) {
  const connection = h(
    "span",
    { id: "connection", class: "connection", role: "status" },
    live ? "connecting" : "",
  );
  return h(
    "div",
    { class: "top" },
    h("p", { class: "brand" }, "ElasticDL"),
    h("h1", {}, job.about.name),
    connection,
    acts ? actionBar() : null,
    button("theme", "", "quiet"),
    live ? signOutButton() : null,
  );
}

function foot(live) {
  const { version_of_elasticdl: version, strategy, namespace } = job.about;
  const said = [
    `ElasticDL ${version}`,
    strategy,
    namespace && `namespace ${namespace}`,
    live ? "live from the master" : "a report, as one file",
  ];
  return h("footer", { class: "foot" }, said.filter(Boolean).join(" · "));
}

function paint() {
  paintHead();
  painters[tab()]();
  if (byId("actions")) byId("actions").hidden = job.outcome !== null;
}

function paintSoon() {
  if (due) return;
  due = true;
  requestAnimationFrame(() => {
    due = false;
    paint();
  });
}

const takers = {
  status: takeStatus,
  processes: takeRows,
  events: takeEvents,
  samples: takeSamples,
};

function look() {
  // No master answers after the job's end.
  if (document.hidden || job.outcome) return;
  listShards(ask).catch(() => {});
  refreshLogs().catch(() => {});
}

function follow(snapshot, acts) {
  if (acts) bindActions(ask);
  bindSignOut();
  watch(snapshot, {
    begin: (found) => (load(found), paintSoon()),
    take: (name, data) => (takers[name](data), paintSoon()),
    ended: (outcome) => ((job.outcome = outcome), paintSoon()),
  });
  setInterval(look, LOOK_MS);
  addEventListener("hashchange", look);
  look();
}

// A printout shows all tabs one after the other, dark on light.
function bindPrinting() {
  const root = document.documentElement;
  addEventListener("beforeprint", () => {
    root.dataset.theme = "light";
    for (const [name, painter] of Object.entries(painters)) if (name !== "overview") painter();
    repaintPlots();
  });
  addEventListener("afterprint", () => {
    const theme = chosen("theme");
    if (theme) root.dataset.theme = theme;
    else delete root.dataset.theme;
    repaintPlots();
  });
}

function start() {
  if (location.hash.startsWith("#token="))
    history.replaceState(null, "", location.pathname + location.search);
  const data = byId("snapshot"),
    snapshot = JSON.parse(data.textContent),
    live = "live" in data.dataset,
    acts = live && !("readOnly" in data.dataset);
  load(snapshot);
  build(live, acts);
  bindControls();
  bindTabs();
  bindTheme(repaintPlots);
  bindProcesses(paintSoon);
  bindEvents();
  bindLogs(ask);
  onChoice((name) => (paintSoon(), name === "axis" ? repaintPlots() : null));
  addEventListener("hashchange", () => {
    scrollTo(0, 0);
    showTab();
    paintSoon();
  });
  addEventListener("resize", fitPlots);
  bindPrinting();
  showTab();
  // Paints at once, so that the first frame shows the complete page.
  paint();
  if (live) follow(snapshot, acts);
}

start();

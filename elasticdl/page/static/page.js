// Puts the parts together: paints what is looked at when something has changed, at most once a frame.
import { byId } from "./dom.js";
import { bindControls, bindTabs, bindTheme, chosen, markTab, onChoice, tab } from "./address.js";
import { job, load, takeOccurrences, takeRows, takeSamples, takeStatus } from "./job.js";
import { paintHead } from "./head.js";
import { fitPlots, paintPlots, repaintPlots, sayPlotsMissing } from "./plots.js";
import { paintBars } from "./bars.js";
import { bindProcesses, paintProcesses } from "./processes.js";
import { listShards, paintShards } from "./shards.js";
import { bindEvents, paintEvents, paintLately } from "./events.js";
import { bindLogs, paintLogs, refreshLogs } from "./logs.js";
import { bindActions } from "./actions.js";
import { ask, tell, watch } from "./stream.js";

const LOOK_MS = 1000;
let due = false;

const painters = {
  overview: () => (paintPlots(), paintLately()), timeline: paintBars, processes: paintProcesses, shards: paintShards, logs: paintLogs, events: paintEvents,
};

function paint() {
  if (due || !job.about.name) return;
  due = true;
  requestAnimationFrame(() => {
    due = false;
    paintHead();
    painters[tab()]();
    if (job.outcome && byId("actions")) byId("actions").hidden = true;
  });
}

const takers = { status: takeStatus, processes: takeRows, occurrences: takeOccurrences, samples: takeSamples };

function look() {
  // Nobody answers after the end.
  if (document.hidden || job.outcome) return;
  listShards(ask).catch(() => {});
  refreshLogs().catch(() => {});
}

function live() {
  bindActions(ask);
  tell("", "connecting");
  watch({
    begin: (snapshot) => (load(snapshot), paint()),
    take: (name, data) => (takers[name](data), paint()),
    ended: (outcome) => ((job.outcome = outcome), paint()),
  });
  setInterval(look, LOOK_MS);
  addEventListener("hashchange", look);
}

// On paper stand all parts one after the other, dark on light.
function bindPrinting() {
  const root = document.documentElement;
  addEventListener("beforeprint", () => {
    if (!job.about.name) return;
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
  if (location.hash.startsWith("#token=")) history.replaceState(null, "", location.pathname + location.search);
  const data = byId("snapshot");
  if (data) load(JSON.parse(data.textContent));
  bindControls();
  bindTabs();
  bindTheme(() => repaintPlots());
  bindProcesses(paint);
  bindEvents();
  bindLogs(ask);
  sayPlotsMissing();
  onChoice((name) => (paint(), name === "axis" ? repaintPlots() : null));
  addEventListener("hashchange", () => (markTab(), paint()));
  addEventListener("resize", fitPlots);
  bindPrinting();
  markTab();
  if (data) paint();
  else live();
}

start();

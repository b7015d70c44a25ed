// The tabs of the page. The address's fragment names the visible one.
import { byId, h } from "./dom.js";

export const TABS = {
  overview: "Overview",
  timeline: "Timeline",
  processes: "Processes",
  shards: "Shards",
  logs: "Logs",
  events: "Events",
};

export function tab() {
  const name = location.hash.slice(1);
  return Object.hasOwn(TABS, name) ? name : "overview";
}

export function menu() {
  return h(
    "nav",
    { "aria-label": "Parts" },
    Object.entries(TABS).map(([name, title]) => h("a", { href: `#${name}` }, title)),
  );
}

// The arrow keys move between the tabs. Each tab is also a link, so Tab and Enter work too.
export function bindTabs() {
  const links = [...document.querySelectorAll("body > nav a")];
  const steps = { ArrowRight: 1, ArrowLeft: -1, Home: -Infinity, End: Infinity };
  document.querySelector("body > nav").addEventListener("keydown", (event) => {
    const step = steps[event.key],
      at = links.indexOf(event.target);
    if (!step || at < 0 || event.ctrlKey || event.metaKey || event.altKey || event.shiftKey) return;
    event.preventDefault();
    const next = Number.isFinite(step)
      ? links[(at + step + links.length) % links.length]
      : links.at(step > 0 ? -1 : 0);
    location.hash = next.hash;
    next.focus();
    next.scrollIntoView({ block: "nearest", inline: "nearest" });
  });
}

export function showTab() {
  document.body.dataset.tab = tab();
  for (const name of Object.keys(TABS)) byId(name).hidden = name !== tab();
  for (const link of document.querySelectorAll("body > nav a")) {
    if (link.hash === `#${tab()}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
}

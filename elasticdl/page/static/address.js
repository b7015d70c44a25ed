// The address holds the selected view, so that a link can be shared and a reload keeps the view:
// `?process=worker-3&axis=time#processes`.
import { byId, h } from "./dom.js";

export const TABS = {
  overview: "Overview",
  timeline: "Timeline",
  processes: "Processes",
  shards: "Shards",
  logs: "Logs",
  events: "Events",
};
const watchers = [];

export function chosen(name) {
  return new URLSearchParams(location.search).get(name) ?? "";
}

export function choose(name, value) {
  const all = new URLSearchParams(location.search);
  if (value) all.set(name, value);
  else all.delete(name);
  const query = all.toString();
  history.replaceState(null, "", `${location.pathname}${query ? `?${query}` : ""}${location.hash}`);
  for (const watcher of watchers) watcher(name);
}

export function onChoice(watcher) {
  watchers.push(watcher);
}

export function tab() {
  const name = location.hash.slice(1);
  return Object.hasOwn(TABS, name) ? name : "overview";
}

// Each named control keeps its value in the address.
export function bindControls() {
  for (const control of document.querySelectorAll(".filters [name]")) {
    const value = chosen(control.name);
    if (
      value &&
      (control.tagName !== "SELECT" || [...control.options].some((one) => one.value === value))
    )
      control.value = value;
    control.addEventListener(control.type === "search" ? "input" : "change", () =>
      choose(control.name, control.value),
    );
  }
}

const THEMES = ["", "light", "dark"];

export function bindTheme(changed) {
  const button = byId("theme");
  const tell = () => {
    const theme = chosen("theme");
    button.textContent = `Colours: ${theme || "system"}`;
    if (theme) document.documentElement.dataset.theme = theme;
    else delete document.documentElement.dataset.theme;
  };
  button.addEventListener("click", () => {
    choose("theme", THEMES[(THEMES.indexOf(chosen("theme")) + 1) % THEMES.length]);
    tell();
    changed();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", changed);
  tell();
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

// The address holds the selected view, so that a link can be shared and a reload keeps the view:
// `?process=worker-3&axis=time#processes`.
import { byId } from "./dom.js";

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

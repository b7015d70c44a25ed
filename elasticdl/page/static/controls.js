// Controls that filter a tab. Each keeps its value in the address, under its name.
import { h } from "./dom.js";

export const filters = (...controls) => h("div", { class: "filters" }, ...controls);

// `options`: pairs of value and label; the value "" is the default.
export function choice(name, label, options) {
  const all = options.map(([value, word]) => h("option", { value }, word));
  return h("label", {}, h("span", {}, label), " ", h("select", { id: name, name }, all));
}

export function searchBox(name, label) {
  const input = h("input", {
    id: name,
    name,
    type: "search",
    autocomplete: "off",
    spellcheck: "false",
  });
  return h("label", {}, h("span", {}, label), " ", input);
}

export function button(id, word, kind) {
  return h("button", { type: "button", id, class: kind }, word);
}

// A table head: pairs of label and class.
export function columns(...heads) {
  return h(
    "thead",
    {},
    h(
      "tr",
      {},
      heads.map(([word, kind]) => h("th", { scope: "col", class: kind }, word)),
    ),
  );
}

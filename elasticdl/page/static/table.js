// Tables that stay fast with thousands of rows: they show a hundred rows per page.
import { byId, h, patchRows } from "./dom.js";
import { choose, chosen } from "./address.js";
import { count } from "./format.js";

export const PAGE = 100;

// Shows the rows of the page number in the address, and updates the pager.
export function page(name, total) {
  const pages = Math.max(1, Math.ceil(total / PAGE));
  const at = Math.min(pages, Math.max(1, Number.parseInt(chosen(`${name}-page`), 10) || 1));
  paintPager(name, total, pages, at);
  return { start: (at - 1) * PAGE, end: at * PAGE };
}

function paintPager(name, total, pages, at) {
  const pager = byId(`${name}-pager`);
  if (!pager) return;
  if (pages === 1) return pager.replaceChildren();
  const first = count((at - 1) * PAGE + 1);
  const last = count(Math.min(total, at * PAGE));
  const words = `${first} to ${last} of ${count(total)}`;
  if (pager.children.length !== 3) {
    const step = (by, word) =>
      h("button", { type: "button", "data-by": by, click: () => turn(name, by) }, word);
    pager.replaceChildren(step(-1, "Earlier rows"), h("span"), step(1, "Further rows"));
  }
  const [back, said, forth] = pager.children;
  if (said.textContent !== words) said.textContent = words;
  back.disabled = at === 1;
  forth.disabled = at === pages;
}

function turn(name, by) {
  const at = (Number.parseInt(chosen(`${name}-page`), 10) || 1) + by;
  choose(`${name}-page`, at > 1 ? String(at) : "");
}

export function firstPage(name) {
  if (chosen(`${name}-page`)) choose(`${name}-page`, "");
}

export function fill(name, body, rows, make, none, fixed = false) {
  const { start, end } = page(name, rows.length);
  patchRows(
    body,
    rows.length
      ? rows.slice(start, end).map(make)
      : [emptyRow(none, body.closest("table").tHead.rows[0].cells.length)],
    fixed,
  );
}

// The placeholder of an empty table.
export function emptyRow(text, columns) {
  return h("tr", { "data-id": text }, h("td", { colspan: columns, class: "empty" }, text));
}

// Column heads that sort: `?sort=cpu` ascending, `?sort=-cpu` descending.
export function bindSorting(head, name, changed) {
  for (const cell of head.querySelectorAll("th[data-key]")) {
    const key = cell.dataset.key;
    const button = h("button", { type: "button" }, cell.textContent);
    button.addEventListener("click", () => {
      const now = chosen(name);
      choose(name, now === `-${key}` ? key : now === key ? "" : `-${key}`);
      changed();
    });
    cell.replaceChildren(button);
  }
}

export function markSorting(head, name) {
  const now = chosen(name);
  for (const cell of head.querySelectorAll("th[data-key]")) {
    const key = cell.dataset.key;
    if (now === key) cell.setAttribute("aria-sort", "ascending");
    else if (now === `-${key}`) cell.setAttribute("aria-sort", "descending");
    else cell.removeAttribute("aria-sort");
  }
}

export function sorted(rows, name, values) {
  const now = chosen(name),
    value = values[now.replace(/^-/, "")];
  if (!value) return rows;
  const sign = now.startsWith("-") ? -1 : 1;
  const compare = (one, other) =>
    typeof one === "string" ? one.localeCompare(other, "en", { numeric: true }) : one - other;
  return [...rows].sort((one, other) => sign * compare(value(one), value(other)));
}

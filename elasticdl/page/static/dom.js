// Elements out of plain values. Text becomes text, never markup: nothing on this page parses a string as HTML.
const SVG = "http://www.w3.org/2000/svg";

export const byId = (id) => document.getElementById(id);

export function h(name, attributes, ...children) {
  return built(document.createElement(name), attributes, children);
}

export function svg(name, attributes, ...children) {
  return built(document.createElementNS(SVG, name), attributes, children);
}

function built(element, attributes, children) {
  for (const [key, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false || value === "") continue;
    if (typeof value === "function") element.addEventListener(key, value);
    else element.setAttribute(key, value === true ? "" : String(value));
  }
  for (const child of children.flat(3)) if (child !== null && child !== undefined) element.append(visible(child));
  return element;
}

// As `markup.visible`: without characters that no reader sees and that may turn the order of others.
export function visible(child) {
  if (child instanceof Node) return child;
  return String(child).replace(/[^\P{C}\n\t]|[\u2028\u2029]/gu, "\uFFFD");
}

export function setText(element, text) {
  const seen = visible(text);
  if (element && element.textContent !== seen) element.textContent = seen;
}

// Make `parent` hold `nodes`: what is the same already stays, with its focus, selection and open details.
export function patch(parent, nodes, same = sameWords) {
  const wanted = nodes.filter(Boolean);
  wanted.forEach((node, index) => {
    const old = parent.children[index];
    if (!old) parent.append(node);
    else if (!same(old, node)) old.replaceWith(node);
  });
  while (parent.children.length > wanted.length) parent.lastElementChild.remove();
}

function sameWords(old, node) {
  return old.tagName === node.tagName && old.className === node.className && old.textContent === node.textContent;
}

// The same for table rows with `data-id`: rows move as a whole, and only the cells that differ are replaced.
export function patchRows(body, rows, fixed = false) {
  const known = new Map([...body.children].map((row) => [row.dataset.id, row]));
  let cursor = body.firstElementChild;
  for (const row of rows) {
    const old = known.get(row.dataset.id);
    if (old && old.dataset.id) {
      known.delete(row.dataset.id);
      if (!fixed) patchCells(old, row);
    }
    const kept = old && old.dataset.id ? old : row;
    if (kept === cursor) cursor = cursor.nextElementSibling;
    else body.insertBefore(kept, cursor);
  }
  while (cursor) {
    const next = cursor.nextElementSibling;
    cursor.remove();
    cursor = next;
  }
}

function patchCells(old, row) {
  if (old.className !== row.className) old.className = row.className;
  [...row.children].forEach((cell, index) => {
    const before = old.children[index];
    if (before && !before.isEqualNode(cell) && !before.contains(document.activeElement)) before.replaceWith(cell);
  });
}

// Creates elements from plain values. Text stays text: nothing on this page parses a string as
// HTML, so a job's strings cannot inject markup.
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
    // An empty value has a meaning only in an option: "all".
    if (
      value === null ||
      value === undefined ||
      value === false ||
      (value === "" && key !== "value")
    )
      continue;
    if (typeof value === "function") element.addEventListener(key, value);
    else element.setAttribute(key, value === true ? "" : String(value));
  }
  for (const child of children.flat(3))
    if (child !== null && child !== undefined) element.append(visible(child));
  return element;
}

// Replaces invisible characters, some of which reorder others. The two joiners stay: emoji and some
// scripts need them. `markup.visible` does the same for the summary without script.
export function visible(child) {
  if (child instanceof Node) return child;
  return String(child).replace(
    /(?![\n\t\u200c\u200d])[\p{Cc}\p{Cf}\p{Cs}\u2028\u2029]/gu,
    "\uFFFD",
  );
}

// One click selects the whole command. A word breaks only if it is longer than the line, not at the
// hyphens of a flag.
export function commandOf(line) {
  return line.split(" ").flatMap((word) => [h("span", {}, word), " "]);
}

export function setText(element, text) {
  const seen = visible(text);
  if (element && element.textContent !== seen) element.textContent = seen;
}

// Makes the content of `parent` equal to `nodes`. Existing elements are updated in place, so that
// focus, selection and open details survive.
export function patch(parent, nodes) {
  const wanted = nodes.filter(Boolean);
  wanted.forEach((node, index) => {
    const old = parent.childNodes[index];
    if (!old) parent.append(node);
    else if (old.nodeName !== node.nodeName) old.replaceWith(node);
    else if (!old.isEqualNode(node)) morph(old, node);
  });
  while (parent.childNodes.length > wanted.length) parent.lastChild.remove();
}

function morph(old, node) {
  if (node.nodeType !== Node.ELEMENT_NODE) {
    old.nodeValue = node.nodeValue;
    return;
  }
  for (const { name } of [...old.attributes])
    if (!node.hasAttribute(name) && name !== "open") old.removeAttribute(name);
  for (const { name, value } of node.attributes)
    if (name !== "open" && old.getAttribute(name) !== value) old.setAttribute(name, value);
  patch(old, [...node.childNodes]);
}

// Like `patch`, for table rows with `data-id`: rows are moved, not rewritten.
export function patchRows(body, rows, fixed = false) {
  const known = new Map([...body.children].map((row) => [row.dataset.id, row]));
  let cursor = body.firstElementChild;
  for (const row of rows) {
    const old = known.get(row.dataset.id);
    if (old && old.dataset.id) {
      known.delete(row.dataset.id);
      if (!fixed && !old.isEqualNode(row)) morph(old, row);
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

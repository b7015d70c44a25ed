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

// As `markup.visible`: without characters that no reader sees and that may turn the order of others. The two joiners stay: emoji
// and scripts are written with them.
export function visible(child) {
  if (child instanceof Node) return child;
  return String(child).replace(/(?![\n\t\u200c\u200d])[\p{Cc}\p{Cf}\p{Cs}\u2028\u2029]/gu, "\uFFFD");
}

// One click takes all of it; a word breaks only where it is longer than the line, not at the hyphens of a flag.
export function commandOf(line) {
  return line.split(" ").flatMap((word) => [h("span", {}, word), " "]);
}

export function setText(element, text) {
  const seen = visible(text);
  if (element && element.textContent !== seen) element.textContent = seen;
}

// Make `parent` hold what `nodes` hold. What is there is changed where it differs and stays the same element: focus, selection and
// open details survive.
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
  for (const { name } of [...old.attributes]) if (!node.hasAttribute(name) && name !== "open") old.removeAttribute(name);
  for (const { name, value } of node.attributes) if (name !== "open" && old.getAttribute(name) !== value) old.setAttribute(name, value);
  patch(old, [...node.childNodes]);
}

// The same for table rows with `data-id`: rows move as a whole.
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

// Formats numbers, times, states and causes for display.
const NOTHING = "–";
const grouped = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });

export function count(value) {
  return value === null || value === undefined ? NOTHING : grouped.format(value);
}

export function number(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return NOTHING;
  const size = Math.abs(value);
  if (size < 1e12 && (size >= 100 || Number.isInteger(value))) return grouped.format(value);
  if (size < 1e-4 || size >= 1e12) return value.toExponential(2).replace("e+", "e");
  return value.toFixed(2 - Math.floor(Math.log10(size)));
}

const two = (value) => String(value).padStart(2, "0");

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return NOTHING;
  const whole = Math.max(0, Math.floor(seconds + 0.5));
  const hours = Math.floor(whole / 3600),
    minutes = Math.floor((whole % 3600) / 60),
    left = whole % 60;
  if (hours >= 48) return `${Math.floor(hours / 24)} d ${two(hours % 24)}:${two(minutes)}`;
  if (hours) return `${hours}:${two(minutes)}:${two(left)}`;
  return minutes ? `${minutes}:${two(left)}` : `${left} s`;
}

export function clock(seconds) {
  if (seconds === null || seconds === undefined || seconds >= 59.5) return duration(seconds);
  return `0:${two(Math.max(0, Math.floor(seconds + 0.5)))}`;
}

export function memory(bytes) {
  if (!bytes) return NOTHING;
  for (const [unit, scale] of [
    ["TiB", 2 ** 40],
    ["GiB", 2 ** 30],
    ["MiB", 2 ** 20],
    ["KiB", 2 ** 10],
  ]) {
    if (bytes >= scale) return `${number(bytes / scale)} ${unit}`;
  }
  return `${bytes.toFixed(0)} B`;
}

export function percent(done, expected) {
  return `${expected > 0 ? Math.min(100, Math.floor((100 * done) / expected)) : 0} %`;
}

export function amount(value, noun) {
  return `${count(value)} ${noun}${value === 1 ? "" : "s"}`;
}

// Without a prototype: keys come from the job, and `constructor` must not match.
export const CAUSES = {
  __proto__: null,
  finished: ["good", "✓", "finished"],
  drained: ["calm", "○", "ended on request"],
  fenced: ["calm", "○", "shut out"],
  preempted: ["moved", "△", "preempted"],
  evicted: ["moved", "△", "evicted"],
  not_placed: ["moved", "△", "not placed"],
  node_drained: ["moved", "△", "node drained"],
  node_lost: ["lost", "✕", "node lost"],
  deleted: ["lost", "✕", "deleted"],
  infrastructure: ["lost", "✕", "infrastructure"],
  stranded: ["lost", "✕", "stranded"],
  silent: ["lost", "✕", "silent"],
  straggler: ["lost", "✕", "straggler"],
  hung: ["error", "!", "hung"],
  stalled: ["lost", "✕", "stalled"],
  image_unavailable: ["error", "!", "image unavailable"],
  start_error: ["error", "!", "could not start"],
  user_error: ["error", "!", "user error"],
  out_of_memory: ["memory", "▲", "out of memory"],
};
export const STATES = {
  __proto__: null,
  ready: ["live", "●", "ready"],
  lost: ["lost", "✕", "lost"],
  stopping: ["calm", "◐", "stopping"],
  refused: ["moved", "△", "refused"],
  pending: ["wait", "◌", "waiting"],
  requested: ["wait", "◌", "requested"],
  starting: ["wait", "◌", "starting"],
};

export function toneOf(process) {
  const state = process.state || "",
    cause = process.cause || "";
  const found =
    state === "ended" || cause
      ? (CAUSES[cause] ?? ["calm", "○", cause.replaceAll("_", " ") || "ended"])
      : (STATES[state] ?? ["wait", "◌", state || "unknown"]);
  return { name: found[0], mark: found[1], word: found[2] };
}

// Ends that nobody requested.
export function troubled(process) {
  return process.state === "ended" && !["good", "calm"].includes(toneOf(process).name);
}

// The verb for a job's records; a receipt counts all of them as `trained`.
export function doneWord(action) {
  return { __proto__: null, evaluate: "Evaluated", predict: "Predicted" }[action] ?? "Trained";
}

export const capital = (word) => word[0].toUpperCase() + word.slice(1);

export function firstLine(text) {
  return String(text ?? "").split("\n", 1)[0];
}

// The message without its first words where they repeat the label of its tone.
export function told(text, tone) {
  const first = firstLine(text);
  if (first.toLowerCase().startsWith(tone.word)) return first.slice(tone.word.length);
  return first && ` ${first}`;
}

export function byName(left, right) {
  return left.localeCompare(right, "en", { numeric: true });
}

// The state of the job: a snapshot plus the stream's updates. This module touches no elements.
import { byName } from "./format.js";

const MOST_EVENTS = 1000;
const MOST_POINTS = 2048;
const MOST_BARS = 4000;
const MOST_MARKS = 500;
// The same value as in timeline.py.
const MARKED = ["checkpoint", "evaluation", "scale", "server", "memory", "export", "history"];

export const job = {
  about: {},
  status: {},
  outcome: null,
  rows: new Map(),
  bars: [],
  last: new Map(),
  generations: [],
  marks: [],
  nowS: 0,
  events: [],
  dropped: 0,
  series: new Map(),
  snapshot: {},
};

const keyOf = (series) => `${series.name}\n${series.label}`;

export function load(snapshot) {
  job.snapshot = snapshot;
  job.about = snapshot.job;
  job.outcome = snapshot.outcome ?? null;
  const { processes, gauges, ...status } = snapshot.status;
  job.status = status;
  job.rows = new Map(
    (processes ?? []).map((row) => [row.name, { ...(gauges ?? {})[row.name], ...row }]),
  );
  const line = snapshot.timeline ?? {};
  job.bars = line.bars ?? [];
  job.last = new Map(job.bars.map((bar) => [bar.process, bar]));
  job.generations = line.generations ?? [];
  job.marks = line.marks ?? [];
  job.nowS = line.now_s ?? status.at_s ?? 0;
  job.events = snapshot.events ?? [];
  job.dropped = snapshot.events_dropped ?? 0;
  job.series = new Map((snapshot.series ?? []).map((one) => [keyOf(one), one]));
}

export function takeStatus(status) {
  const { processes, gauges, ...rest } = status;
  job.status = { ...job.status, ...rest };
  job.nowS = Math.max(job.nowS, rest.at_s ?? 0);
}

export function takeRows({ rows, gone, all }) {
  if (all) job.rows = new Map(rows.map((row) => [row.name, row]));
  for (const row of rows ?? []) {
    job.rows.set(row.name, row);
    takeBar(row);
  }
  for (const name of gone ?? []) job.rows.delete(name);
}

function takeBar(row) {
  const bar = job.last.get(row.name) ?? begun(row);
  // The platform may report the cause of an end after the end itself.
  if (bar.ended_s !== null)
    return row.cause && Object.assign(bar, { cause: row.cause, text: row.message });
  Object.assign(bar, {
    state: row.state,
    cause: row.cause,
    text: row.message,
    where: row.where || bar.where,
  });
  if (row.state === "ready" && bar.ready_s === null) bar.ready_s = row.since_s;
  if (row.state === "ended") bar.ended_s = row.since_s;
}

function begun(row) {
  const bar = {
    process: row.name,
    role: row.role,
    ordered_s: row.started_s,
    ready_s: null,
    ended_s: null,
  };
  job.bars.push(bar);
  job.last.set(row.name, bar);
  if (job.bars.length > MOST_BARS) {
    const oldest = job.bars.findIndex((one) => one.ended_s !== null);
    if (oldest >= 0) job.last.delete(job.bars.splice(oldest, 1)[0].process);
  }
  return bar;
}

export function takeEvents(found) {
  const last = job.events.at(-1)?.seq ?? -1;
  for (const one of found) {
    if (one.seq <= last) continue;
    job.events.push(one);
    if (one.kind === "ring" && one.details?.step === "published") takeGeneration(one);
    else if (
      one.kind === "job"
        ? one.details?.step
        : MARKED.includes(one.kind) || (one.level === "error" && one.kind !== "process")
    )
      takeMark(one);
  }
  const over = job.events.length - MOST_EVENTS;
  if (over > 0) {
    job.events.splice(0, over);
    job.dropped += over;
  }
}

function takeMark({ at_s, kind, text }) {
  job.marks.push({ at_s, kind, text });
  if (job.marks.length > MOST_MARKS) job.marks.shift();
}

function takeGeneration(one) {
  const { generation, members, reason } = one.details;
  if (job.generations.some((known) => known.generation === generation)) return;
  job.generations.push({
    generation,
    at_s: one.at_s,
    members: String(members ?? "")
      .split(" ")
      .filter(Boolean),
    reason: reason ?? one.text,
  });
}

export function takeSamples(points) {
  for (const { name, label, unit, at_s, records, value } of points) {
    let series = job.series.get(`${name}\n${label}`);
    if (!series)
      job.series.set(
        `${name}\n${label}`,
        (series = { name, label, unit, at_s: [], records: [], values: [] }),
      );
    append(series, at_s, records, value);
  }
}

// A second point for the same time replaces the first: it is more accurate.
function append(series, at, records, value) {
  const last = series.at_s.at(-1) ?? -1;
  if (at < last) return;
  const where = at === last ? series.at_s.length - 1 : series.at_s.length;
  series.at_s[where] = at;
  series.records[where] = records;
  series.values[where] = value;
  if (series.at_s.length <= MOST_POINTS) return;
  for (const name of ["at_s", "records", "values"])
    series[name] = series[name].filter((_, index, all) => index % 2 || index === all.length - 1);
}

export function processRows() {
  const rows = [...job.rows.values()];
  return rows.sort(
    (one, other) =>
      (one.state === "ended") - (other.state === "ended") ||
      (one.state === "ended" ? other.since_s - one.since_s : 0) ||
      byName(one.name, other.name),
  );
}

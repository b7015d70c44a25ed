// The stream of updates from the master. It reconnects by itself after a break, and the page always
// shows how fresh its data are.
import { byId, setText } from "./dom.js";

const FIRST_RETRY_MS = 500;
const LAST_RETRY_MS = 5000;
const SILENT_MS = 40000;
const EVENTS = ["status", "processes", "events", "samples"];

// Requests from the master. Throws an Error with the master's message.
export async function ask(path, body) {
  const options =
    body === undefined
      ? {}
      : {
          method: "POST",
          headers: { "Content-Type": "application/json" },
          body: JSON.stringify(body),
        };
  let response;
  try {
    response = await fetch(path, { ...options, signal: AbortSignal.timeout(15000) });
  } catch {
    throw new Error(
      body === undefined
        ? "The master does not answer."
        : "The master does not answer; nothing is known to have been done.",
    );
  }
  if (response.ok) return response.status === 204 ? {} : response.json();
  const said = await response.json().catch(() => ({}));
  const error = new Error(
    [said.error?.message, said.error?.hint].filter(Boolean).join(": ") ||
      `The master said ${response.status}.`,
  );
  throw Object.assign(error, { status: response.status });
}

// Continues from the `snapshot` embedded in the page.
export function watch(snapshot, { begin, take, ended }) {
  const state = {
    source: null,
    retryMs: FIRST_RETRY_MS,
    heardMs: 0,
    over: false,
    brokenMs: 0,
    load: false,
    id: snapshot.stream_id,
  };

  async function connect() {
    if (state.over) return;
    try {
      if (state.load) {
        const snapshot = await ask("/api/v1/snapshot");
        state.load = false;
        begin(snapshot);
        state.id = snapshot.stream_id;
        if (snapshot.outcome) return finish();
      }
      open();
    } catch (error) {
      if (error.status === 401) return location.reload();
      broken();
    }
  }

  function open() {
    const source = new EventSource(
      `/api/v1/stream${state.id ? `?from=${encodeURIComponent(state.id)}` : ""}`,
    );
    state.source = source;
    source.addEventListener("open", heard);
    for (const name of EVENTS)
      source.addEventListener(name, (event) => (heard(event), take(name, JSON.parse(event.data))));
    source.addEventListener("reset", () => {
      source.close();
      state.load = true;
      connect();
    });
    source.addEventListener("ended", (event) => {
      finish();
      ended(JSON.parse(event.data));
    });
    // The page reconnects itself: EventSource gives up if the master is away for long, and repeats
    // the id of its first request.
    source.addEventListener("error", () => {
      // The server answered without a stream. EventSource hides the reason (an invalid token, too
      // many windows), so a plain request fetches it.
      if (source.readyState === EventSource.CLOSED) state.load = true;
      source.close();
      if (source === state.source) broken();
    });
  }

  function heard(event) {
    if (event.lastEventId) state.id = event.lastEventId;
    Object.assign(state, { retryMs: FIRST_RETRY_MS, heardMs: Date.now(), brokenMs: 0 });
    tell("live", "live");
  }

  function broken() {
    if (state.over) return;
    state.brokenMs ||= Date.now();
    state.load = state.load || Date.now() - state.brokenMs > 30000;
    const since = new Date(state.brokenMs).toLocaleTimeString();
    tell("broken", `connection lost at ${since}; trying again`);
    clearTimeout(state.timer);
    state.timer = setTimeout(connect, state.retryMs);
    state.retryMs = Math.min(LAST_RETRY_MS, state.retryMs * 2);
  }

  function finish() {
    state.over = true;
    state.source?.close();
    tell("", "the job has ended");
  }

  // A clock that was set back counts as silence, too.
  setInterval(() => {
    if (
      state.over ||
      state.brokenMs ||
      !state.source ||
      Math.abs(Date.now() - state.heardMs) < SILENT_MS
    )
      return;
    state.source.close();
    broken();
  }, 5000);
  if (snapshot.outcome) finish();
  else connect();
}

export function tell(kind, text) {
  byId("connection").className = `connection ${kind}`;
  setText(byId("connection"), text);
}

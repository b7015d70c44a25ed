"""Explain in words why a job took as long as it did: exits, waits and slow phases."""

from __future__ import annotations

from collections import Counter, deque
from typing import Any, TypeVar, final

from elasticdl.formatting import START_PARTS, amount, spoken
from elasticdl.history.awaited import Awaited, awaited_text
from elasticdl.history.diagnosis_entry import OTHERS, DiagnosisEntry, What
from elasticdl.history.job_event import EventStep, JobEvent

K = TypeVar("K")
V = TypeVar("V")
MOST_ENTRIES = 2_000
SLOW_S = 10.0
"""Starts, checkpoints and evaluations that take longer get an entry."""
_AWAY_S = 1.0
_MOST_OPEN = 1_000
_MOST_NAMED = 5
EXPECTED = ("finished", "drained", "fenced")
"""Causes of intended ends: `ASKED` of `master/core/processes/causes.py`, which is a layer above."""


@final
class Story:
    """Build a diagnosis from events in order.

    Keep the newest 2,000 entries and the totals of all.
    """

    def __init__(self) -> None:
        self._entries: deque[DiagnosisEntry] = deque(maxlen=MOST_ENTRIES)
        self._count = 0
        self._ending = self._has_ended = False
        self._going: dict[str, None] = {}
        """Processes that have not ended, in the order of their launch commands."""
        self._worked = self._compacted = False
        """Whether any process has made progress under this master."""
        self._at_s = 0.0
        self._stopped_s = 0.0
        """Seconds between ends of the job and the next resume."""
        self._exits: dict[str, DiagnosisEntry] = {}
        """Unintended exits without a recovery so far, by process."""
        self._ends: dict[str, DiagnosisEntry] = {}
        """Ends by process, for facts that arrive later."""
        self._replacing: dict[str, DiagnosisEntry] = {}
        """Exits by the process that replaces the one that ended."""
        self._early: dict[str, str] = {}
        """Successors that were ordered before the end of the process that they replace.

        '' if the successor works by now: nothing is left to wait for.
        """
        self._waits: dict[str, DiagnosisEntry] = {}
        self._shards: Counter[tuple[str, str, int]] = Counter()
        """Ends by role, cause and current shard."""
        self._causes: Counter[str] = Counter()
        self._waited_s: dict[str, float] = {}
        self._recovered: list[float] = [0.0, 0.0, 0.0]
        """Count, total and longest recovery, in seconds."""

    def add(self, event: JobEvent) -> None:
        self._at_s = max(self._at_s, event.at_s)
        self._compacted = self._compacted or event.kind == "history"
        match event.kind:
            case "process":
                self._process(event)
            case "wait":
                self._wait(event)
            case "job":
                self._job(event)
            case "ring":
                self._ring(event)
            case "shard" if event.process in self._ends:
                self._ends[event.process].records += max(0, int(event.number("trained")))
            case "checkpoint" | "evaluation" if event.step in (EventStep.SAVED, EventStep.ENDED):
                self._slow(event)
            case kind if event.level in ("warning", "error") or kind in (
                "straggler",
                "scale",
                "staleness",
                "memory",
                "history",
            ):
                self._note(event)
            case _:
                pass

    def cut_off(self, end: JobEvent) -> None:
        """Record that the master was killed, and all processes with it."""
        self._gone_with_master()
        self.add(end)

    def as_dict(self, now_s: float | None = None) -> dict[str, Any]:
        """Return `entries`, the number `dropped`, and `totals`, for JSON.

        Open entries last until `now_s`, by default the time of the newest event.
        """
        now_s = self._at_s if now_s is None else now_s
        count, total_s, worst_s = self._recovered
        recovered = {
            "count": int(count),
            "mean_s": round(total_s / count, 3) if count else None,
            "worst_s": round(worst_s, 3),
        }
        return {
            "entries": [entry.as_dict(now_s) for entry in self._entries],
            "dropped": self._count - len(self._entries),
            "now_s": round(now_s, 3),
            "totals": {
                "exits": dict(+self._causes),
                "waited_s": {what: round(seconds, 3) for what, seconds in self._waited_s.items()},
                "recoveries": recovered,
                "stopped_s": round(self._stopped_s, 3),
            },
        }

    def _put(
        self,
        event: JobEvent,
        what: What,
        text: str,
        *,
        lasted_s: float = 0.0,
        seconds: float | None = None,
        level: str = "info",
        process: str = "",
        cause: str = "",
    ) -> DiagnosisEntry:
        """Add what ended with the event and began `lasted_s` before it."""
        at, at_s, frames = event.at - lasted_s, event.at_s - lasted_s, _frames(event)
        entry = DiagnosisEntry(at, at_s, what, text, process, cause, seconds, level, frames=frames)
        self._entries.append(entry)
        self._count += 1
        return entry

    # processes

    def _process(self, event: JobEvent) -> None:
        if event.step == EventStep.ORDERED:
            self._going[event.process] = None
        elif event.step in (EventStep.ENDED, EventStep.LOST):
            self._going.pop(event.process, None)
        match event.step:
            case EventStep.ORDERED:
                self._ordered(event)
            case EventStep.READY:
                self._ready(event)
            case EventStep.WORKING:
                self._working(event)
            case EventStep.ENDED | EventStep.LOST:
                self._ended(event)
            case EventStep.EXPLAINED:
                entry = self._ends.get(event.process)
                if entry is not None:
                    self._causes[entry.cause] -= 1
                    self._causes[event.cause] += 1
                    entry.cause, entry.text = (
                        event.cause,
                        f"{event.process} {event.details.get('reason', event.text)}",
                    )
                    entry.frames = _frames(event)
            case "" if event.level in ("warning", "error"):
                self._note(event)
            case _:
                pass

    def _ordered(self, event: JobEvent) -> None:
        before = str(event.details.get("replaces", ""))
        entry = self._exits.pop(before, None)
        if entry is not None:
            self._replaces(event.process, entry)
        elif before in self._going:
            _make_room(self._early)
            self._early[before] = event.process

    def _replaces(self, process: str, entry: DiagnosisEntry) -> None:
        entry.replaced_by = process
        _make_room(self._replacing)
        self._replacing[process] = entry

    def _ready(self, event: JobEvent) -> None:
        after_s, pending_s, start_s = (
            event.number("after_s"),
            event.number("pending_s"),
            event.number("start_s"),
        )
        if after_s >= SLOW_S:
            parts = [
                f"{spoken(pending_s)} until it ran",
                f"{spoken(start_s)} until it attached",
            ]
            parts += [
                f"{spoken(event.number(f'{part}_s'))} {part_text}"
                for part, part_text in START_PARTS.items()
                if event.number(f"{part}_s")
            ]
            text = (
                f"{event.process} was ready {spoken(after_s)} after it was ordered:"
                f" {', '.join(parts)}"
            )
            self._put_slow_start(event, after_s, text)
        if event.process.startswith("ps-"):
            self._recover(event)

    def _working(self, event: JobEvent) -> None:
        self._worked = True
        for before, successor in self._early.items():
            if successor == event.process:
                self._early[before] = ""
        after_s = event.number("after_s")
        if after_s >= SLOW_S:
            text = f"{event.process} made its first progress {spoken(after_s)} after it was ready"
            if "first_s" in event.details:
                first_s = event.number("first_s")
                waited = (
                    f"{spoken(after_s - first_s)} until it had work, "
                    if after_s - first_s >= 1
                    else ""
                )
                text += f": {waited}{spoken(first_s)} for its first steps, including compilation"
            self._put_slow_start(event, after_s, text)
        self._recover(event)

    def _put_slow_start(self, event: JobEvent, after_s: float, text: str) -> None:
        """Add a part of a start that ended with this event and took `after_s`."""
        self._put(event, What.START, text, lasted_s=after_s, seconds=after_s, process=event.process)

    def _recover(self, event: JobEvent) -> None:
        entry = self._replacing.pop(event.process, None)
        if entry is not None:
            self._recovered_at(entry, event.at_s, event.process)

    def _recovered_at(self, entry: DiagnosisEntry, at_s: float, by: str) -> None:
        entry.recovered_s, entry.recovered_by = round(at_s - entry.at_s, 3), by
        count, total_s, worst_s = self._recovered
        self._recovered = [count + 1, total_s + entry.recovered_s, max(worst_s, entry.recovered_s)]

    def _ended(self, event: JobEvent) -> None:
        cause = event.cause or "unknown"
        self._causes[cause] += 1
        reason = str(event.details.get("reason", event.text))
        if cause == "finished" or (cause in EXPECTED and self._ending):
            return
        shard = event.details.get("shard")
        level = "info" if cause in EXPECTED else "warning"
        text = f"{event.process} {reason}"
        entry = self._put(event, What.EXIT, text, level=level, process=event.process, cause=cause)
        if cause in EXPECTED:
            return
        if isinstance(shard, int):
            key = event.process.rpartition("-")[0], cause, shard
            _make_room(self._shards)
            self._shards[key] += 1
            times = self._shards[key]
            entry.text += (
                f", {_times(times)} on shard {shard}" if times > 1 else f", on shard {shard}"
            )
        entry.records = int(event.number("records"))
        _make_room(self._ends)
        self._ends[event.process] = entry
        successor = self._early.pop(event.process, None)
        if successor:
            self._replaces(successor, entry)
        if successor is not None:
            return
        _make_room(self._exits)
        self._exits[event.process] = entry

    # waits

    def _wait(self, event: JobEvent) -> None:
        what = str(event.details.get("wait", ""))
        reason = str(event.details.get("reason", "")) or event.text
        match event.step:
            case EventStep.BEGUN:
                since_s = event.number("since_s", event.at_s)
                entry = self._waits.get(what)
                if entry is None:
                    entry = self._waits[what] = self._put(
                        event, What.WAIT, "", lasted_s=event.at_s - since_s, level="warning"
                    )
                    entry.open = True
                entry.text = f"for {awaited_text(what)}: {reason}"
            case EventStep.ENDED:
                self._over(event, what, reason)
            case _:
                self._note(event)

    def _over(self, event: JobEvent, what: str, reason: str) -> None:
        seconds = event.number("waited_s")
        entry = self._waits.pop(what, None) or self._put(event, What.WAIT, "", lasted_s=seconds)
        entry.text, entry.seconds = f"for {awaited_text(what)}: {reason}", seconds
        entry.open, entry.level = False, "info"
        self._waited_s[what] = self._waited_s.get(what, 0.0) + seconds

    # the job

    def _job(self, event: JobEvent) -> None:
        match event.step:
            case EventStep.BEGUN:
                self._begun(event)
            case EventStep.PHASE:
                self._ending = event.details.get("phase") == "ending"
                before, before_s = str(event.details.get("before", "")), event.number("before_s")
                if (
                    before == "working"
                    and event.level != "error"
                    and event.details.get("phase")
                    in ("evaluating", "checkpointing", "exporting", "ending")
                ):
                    self._workers_recovered(event, OTHERS)
                what = f"{'the check of model and data' if before == 'starting' else before} took"
                if before == "working" and not self._worked and not self._compacted:
                    what = "no progress in"
                took = f" ({what} {spoken(before_s)})" if before_s >= SLOW_S else ""
                text = f"{_first_line(event.text)}{took}"
                self._put(event, What.PHASE, text, level=event.level)
            case EventStep.ENDED:
                self._has_ended = True
                self._end_waits(event)
                self._note(event)
            case _ if event.level in ("warning", "error") or "ended_early" in event.details:
                self._note(event)
            case _:
                pass

    def _end_waits(self, event: JobEvent) -> None:
        """Close all open waits."""
        for what, wait in self._waits.items():
            wait.open, wait.level, wait.seconds = False, "info", max(0.0, event.at_s - wait.at_s)
            self._waited_s[what] = self._waited_s.get(what, 0.0) + wait.seconds
        self._waits.clear()

    def _workers_recovered(self, event: JobEvent, by: str) -> None:
        """Record that others do the work of lost workers before a replacement came."""
        for pending in (self._exits, self._replacing):
            for process in [
                name for name, entry in pending.items() if entry.process.startswith("worker-")
            ]:
                self._recovered_at(pending.pop(process), event.at_s, by)

    def _begun(self, event: JobEvent) -> None:
        """Handle a new master: add the time that the job was away.

        Time between the job's end and a --resume is reported, but does not count as a wait.
        """
        if "kept" not in event.details:
            self._begun_anew(event)
        away_s = event.number("away_s")
        if not self._has_ended and away_s >= _AWAY_S:
            text = "for a master: the previous one was gone"
            self._put(event, What.WAIT, text, lasted_s=away_s, seconds=away_s)
            self._waited_s[Awaited.MASTER] = self._waited_s.get(Awaited.MASTER, 0.0) + away_s
        self._put(event, What.PHASE, event.text)
        self._has_ended = False

    def _begun_anew(self, event: JobEvent) -> None:
        """Handle a master that took over no process: those before it ended with their master."""
        self._ending = self._worked = False
        for wait in self._waits.values():
            wait.open, wait.seconds = False, max(0.0, event.at_s - wait.at_s)
        self._waits.clear()
        self._exits.clear()
        self._replacing.clear()
        self._early.clear()
        away_s = event.number("away_s")
        if self._has_ended:
            self._going.clear()
            self._stopped_s += away_s
        elif gone := self._gone_with_master():
            listed = ", ".join(gone[:_MOST_NAMED]) + (", …" if len(gone) > _MOST_NAMED else "")
            text = (
                f"the master was killed or lost with {amount(len(gone), 'process', 'processes')}:"
                f" {listed}"
            )
            self._put(event, What.NOTE, text, lasted_s=away_s, level="error")

    def _gone_with_master(self) -> list[str]:
        """Count the processes that ended with the master, and return their names."""
        gone = list(self._going)
        self._going.clear()
        self._causes.update({"infrastructure": len(gone)} if gone else {})
        return gone

    def _ring(self, event: JobEvent) -> None:
        match event.step:
            case EventStep.PUBLISHED:
                reason = event.details.get("reason", "")
                members = len(str(event.details.get("members", "")).split())
                text = (
                    f"generation {event.number('generation'):.0f} of the ring,"
                    f" {amount(members, 'member')}: {reason}"
                )
                self._put(event, What.RING, text)
            case EventStep.COMPLETE:
                self._workers_recovered(event, "ring")
            case _:
                self._note(event)

    def _slow(self, event: JobEvent) -> None:
        seconds = event.number("seconds")
        if seconds >= SLOW_S:
            text = f"{_first_line(event.text)} ({spoken(seconds)})"
            self._put(event, What.PHASE, text, lasted_s=seconds, seconds=seconds)

    def _note(self, event: JobEvent) -> None:
        self._put(
            event,
            What.NOTE,
            _first_line(event.text),
            level=event.level,
            process=event.process,
            cause=event.cause,
        )


def _frames(event: JobEvent) -> str:
    return str(event.details.get("frames", ""))


def _times(count: int) -> str:
    return {2: "twice", 3: "three times"}.get(count, f"{count} times")


def _first_line(text: str) -> str:
    return text.partition("\n")[0]


def _make_room(entries: dict[K, V]) -> None:
    """Drop the oldest item to make room."""
    while len(entries) >= _MOST_OPEN:
        del entries[next(iter(entries))]

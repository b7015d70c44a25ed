"""What the next report to the master contains: progress merged per lease, all else in order.

Progress enters only when it is true: in parameter-server mode after every server has acknowledged
the push. Reports about a void lease are dropped and counted. Reports that contradict earlier ones
are a defect of this worker.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias, final

from elasticdl.dropped import GAUGE_PREFIX, DropCause
from elasticdl.errors import PermanentError
from elasticdl.rpc.conversation import (
    Failure,
    MetricState,
    Progress,
    Report,
    RingCut,
    RingReport,
    RingSaved,
    Summary,
)
from elasticdl.shard import Applied, Lease, Shard, ShardId
from elasticdl.worker.pipeline.carried_request import CarriedRequest

LeaseKey: TypeAlias = tuple[ShardId, int]

_REMEMBERED = 1000
"""Void leases to remember, more than can be in transit, since reports about them may still come."""


class Contradiction(PermanentError):
    """A report of this worker is impossible: a defect that would otherwise lose records."""


@dataclass(frozen=True, slots=True)
class Advance:
    """The first `offset` records of a lease's shard are done.

    `bad` counts newly found unreadable records. `bad_so_far`, if set, replaces it: the total of the
    whole lease, for a reporter that did not report all of the lease.
    """

    offset: int
    version: int = 0
    loss: float | None = None
    bad: int = 0
    bad_examples: tuple[str, ...] = ()
    done: bool = False
    metrics: Mapping[str, MetricState] = field(default_factory=dict)
    bad_so_far: int | None = None


@dataclass(slots=True)
class _Held:
    """A lease that is not done.

    Invariant: `offset` and `bad` never fall; `losses` and examples are those since the last report.
    """

    lease: Lease
    shard: Shard
    offset: int
    version: int = 0
    losses: list[float] = field(default_factory=list)
    bad: int = 0
    bad_ahead: dict[int, int] = field(default_factory=dict)
    """Bad records of batches that are not reported as done yet, by the begin of the batch."""
    ahead_changed: bool = False
    bad_examples: tuple[str, ...] = ()
    metrics: Mapping[str, MetricState] = field(default_factory=dict)
    changed: bool = False
    done: bool = False
    closed: bool = False
    """Nothing more is accepted for it. The master is informed only if it was given back."""
    given_back: bool = False

    @property
    def standing(self) -> str:
        """For people: why it cannot be granted."""
        return "given back" if self.given_back else "done" if self.done else "held"

    def add(self, advance: Advance) -> None:
        if self.done or not self.offset <= advance.offset <= self.shard.records:
            state = "done" if self.done else f"at {self.offset} of {self.shard.records} records"
            raise Contradiction(f"{advance} is reported of {self.lease}, which is {state}")
        self.offset = advance.offset
        self.version = max(self.version, advance.version)
        if advance.loss is not None:
            self.losses.append(advance.loss)
        self.bad = self.bad + advance.bad if advance.bad_so_far is None else advance.bad_so_far
        self.bad_ahead = {
            begin: bad for begin, bad in self.bad_ahead.items() if begin >= advance.offset
        }
        self.bad_examples = (self.bad_examples + advance.bad_examples)[:3]
        self.metrics = advance.metrics or self.metrics
        self.done = self.done or advance.done
        self.changed = True

    def take(self) -> list[Progress]:
        """What changed.

        Bad records ahead of `offset` come as a separate report, after what is done.
        """
        reports = [self._progress()] if self.changed else []
        if (self.changed or self.ahead_changed) and not self.closed:
            bad = self.bad
            for begin, more in sorted(self.bad_ahead.items()):
                bad += more
                applied = Applied(self.shard.id, self.lease.attempt, begin)
                reports.append(
                    Progress(self.lease.task, applied, self.version, bad_records=bad, ahead=True)
                )
        self.changed = self.ahead_changed = False
        return reports

    def _progress(self) -> Progress:
        progress = Progress(
            task=self.lease.task,
            applied=Applied(self.shard.id, self.lease.attempt, self.offset),
            version=self.version,
            loss=sum(self.losses) / len(self.losses) if self.losses else None,
            bad_records=self.bad,
            bad_examples=self.bad_examples,
            done=self.done,
            returned=self.given_back,
            metrics=self.metrics,
        )
        # They are sent once; offset and bad are totals and may be repeated.
        self.losses, self.bad_examples = [], ()
        return progress


RingPosition: TypeAlias = Callable[[], tuple[int, int, int]]
"""Steps in a member's weights, the item that it is at, and the offset in it; from any thread."""


@final
class Outbox:
    """Thread-safe. `urgent` is set while something waits that should be sent at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[LeaseKey, _Held] = {}
        self._closed: dict[LeaseKey, None] = {}
        """Leases that were closed and reported for the last time, the oldest first."""
        self._reported_held: set[LeaseKey] = set()
        """Leases that the newest `tell_all` reported as held."""
        self._reported_too_many = False
        """Whether some of those were forgotten since."""
        self._dropped: Counter[DropCause] = Counter()
        self._summaries: list[Summary] = []
        self._failures: list[Failure] = []
        self._exported = self._export_problem = ""
        self._stop_asked = ""
        self._ring: tuple[RingReport, RingPosition] | None = None
        self._cuts: list[RingCut] = []
        self._saves: list[RingSaved] = []
        self._starting: list[str] = []
        self._pushes = self._pushes_taken = 0
        self._met: dict[str, int] = {}
        self._crowded = False
        self._awaited: list[threading.Event] = []
        """Set when the next report has arrived; `_under_way`: when the last one has."""
        self._under_way: list[threading.Event] = []
        self.urgent = threading.Event()
        self.carried = CarriedRequest()

    def tell_all(self) -> tuple[Applied, ...]:
        """Include every lease in hand in the next report, changed or not.

        Returns their progress.
        """
        with self._lock:
            for held in self._held.values():
                held.changed = held.changed or not held.closed
            open_leases = {key: held for key, held in self._held.items() if not held.closed}
            self._reported_held, self._reported_too_many = set(open_leases), False
        self.urgent.set()
        return tuple(Applied(*key, held.offset) for key, held in open_leases.items())

    @property
    def reported_too_many(self) -> bool:
        """Whether `tell_all` reported a lease that the worker has forgotten since."""
        return self._reported_too_many

    def starting(self, part: str) -> None:
        """This worker has reached a part of its start; '': it is ready for work."""
        with self._lock:
            self._starting.append(part)
        self.urgent.set()

    def pushed(self, number: int, met: Mapping[str, int], *, crowded: bool = False) -> None:
        """Push `number` is on every server. `met`, `crowded`: see `rpc.parameters.Pushed`."""
        with self._lock:
            self._pushes = number
            self._met.update(met)
            self._crowded = crowded

    def met(self, met: Mapping[str, int]) -> None:
        """Servers that were met without a push; see `rpc.parameters.Pushed.met`."""
        with self._lock:
            self._met.update(met)
        if met:
            self.urgent.set()

    def hold(self, lease: Lease) -> None:
        """A lease was granted.

        Leases without a shard are not held: nothing of them can be given back. A forgotten lease
        may be held again, by a ring member that repeats its progress; its unreported progress
        stays. Raises Contradiction for a lease that is held, done or given back.
        """
        if lease.shard is None:
            return
        key = lease.shard.id, lease.attempt
        with self._lock:
            before = self._held.get(key)
            if before is None:
                self._closed.pop(key, None)
                self._held[key] = _Held(lease, lease.shard, lease.offset)
            elif before.closed and not before.given_back:
                before.closed = False
            else:
                raise Contradiction(f"{lease} is granted, but it is {before.standing}")

    def advance(self, lease: Lease, advance: Advance) -> None:
        """More of a lease is done; ignored if the lease was given back or voided.

        Raises Contradiction for a lease that this worker never held or has finished, and for an
        offset outside of the lease or before the last one.
        """
        assert lease.shard is not None
        key = lease.shard.id, lease.attempt
        with self._lock:
            held = self._held.get(key)
            # A revocation may arrive while the last push is in flight: no fault of this worker.
            if key in self._closed or (held is not None and held.closed):
                self._dropped[DropCause.VOIDED_LEASE] += 1
                return
            if held is None:
                raise Contradiction(
                    f"{advance} is reported of {lease}, which is not held: never granted, or"
                    " already done"
                )
            held.add(advance)
        if advance.done:
            self.urgent.set()

    def foretell_bad(self, lease: Lease, bad: int, begin: int | None = None) -> None:
        """Report the number of bad records in a batch of the lease that is not done yet.

        It begins at `begin`; None: where what is done ends.
        Nothing is reported of a lease that ended or is void.
        """
        assert lease.shard is not None
        with self._lock:
            held = self._held.get((lease.shard.id, lease.attempt))
            if held is not None and not held.done and not held.closed:
                held.bad_ahead[held.offset if begin is None else begin] = bad
                held.ahead_changed = True

    def arrival(self) -> threading.Event:
        """An event that is set when the master knows everything added before this call."""
        known = threading.Event()
        with self._lock:
            self._awaited.append(known)
        self.urgent.set()
        return known

    def arrived(self) -> None:
        """The master has received the last report that was taken."""
        with self._lock:
            arrived, self._under_way = self._under_way, []
        for known in arrived:
            known.set()

    def drop(self, cause: DropCause) -> None:
        """Count a message that this worker ignores."""
        with self._lock:
            self._dropped[cause] += 1

    def held(self) -> tuple[Lease, ...]:
        """Leases that are neither done nor given back."""
        with self._lock:
            return tuple(
                held.lease for held in self._held.values() if not held.done and not held.closed
            )

    def give_back(self, leases: Collection[Lease]) -> None:
        """Return the rest of these leases to the master, with the next report.

        It is not urgent by itself. It should be the last report, since the master may refuse later
        ones.
        """
        keys = {(lease.shard.id, lease.attempt) for lease in leases if lease.shard is not None}
        with self._lock:
            for key in keys & self._held.keys():
                if not self._held[key].done:
                    held = self._held[key]
                    held.closed = held.given_back = held.changed = True

    def forget(self, leases: Collection[Lease]) -> None:
        """The master has voided these leases: nothing more is reported of them.

        If the last report named them as held, the next one is due at once: the master waits for it.
        """
        keys = {(lease.shard.id, lease.attempt) for lease in leases if lease.shard is not None}
        with self._lock:
            for key in keys & self._held.keys():
                if not self._held[key].done:
                    self._held[key].closed = True
            if self._reported_held & keys:
                self._reported_held -= keys
                self._reported_too_many = True
                self.urgent.set()

    def summarise(self, summary: Summary) -> None:
        """Report the values of an evaluation round."""
        with self._lock:
            self._summaries.append(summary)
        self.urgent.set()

    def fail(self, failure: Failure) -> None:
        """Report a failure of user code."""
        with self._lock:
            self._failures.append(failure)
        self.urgent.set()

    def exported(self, path: str, problem: str = "") -> None:
        """Report that the model was written to `path`, or why it was not."""
        with self._lock:
            self._exported, self._export_problem = path, problem
        self.urgent.set()

    def ask_stop(self, reason: str) -> None:
        """Report that a callback requests the end of training."""
        with self._lock:
            self._stop_asked = reason
        self.urgent.set()

    def say(self, report: RingReport, position: RingPosition) -> None:
        """This worker's state in the ring, part of each report from now on."""
        with self._lock:
            self._ring = report, position
        self.urgent.set()

    def cut(self, cut: RingCut) -> None:
        """Report that a copy of the weights is kept."""
        with self._lock:
            self._cuts.append(cut)
        self.urgent.set()

    def saved(self, saved: RingSaved) -> None:
        """Report that a copy was written, or why not."""
        with self._lock:
            self._saves.append(saved)
        self.urgent.set()

    def _ring_report(self) -> RingReport | None:
        if self._ring is None:
            return None
        report, position = self._ring
        version, number, offset = position()
        return replace(report, version=version, number=number, offset=offset)

    def take(self, gauges: Mapping[str, float]) -> Report:
        """Everything waiting, as one report; only gauges if nothing is."""
        with self._lock:
            # Clear before taking: what is added afterwards sets it again and goes with the next
            # report.
            self.urgent.clear()
            pushed = self._pushes != self._pushes_taken
            report = Report(
                progress=tuple(report for held in self._held.values() for report in held.take()),
                summaries=tuple(self._summaries),
                failures=tuple(self._failures),
                exported=self._exported,
                export_problem=self._export_problem,
                stop_asked=self._stop_asked,
                gauges={
                    **gauges,
                    **{
                        f"{GAUGE_PREFIX}{cause}": float(count)
                        for cause, count in self._dropped.items()
                    },
                },
                ring=self._ring_report(),
                ring_cuts=tuple(self._cuts),
                ring_saves=tuple(self._saves),
                starting=tuple(self._starting),
                pushes=self._pushes if pushed else 0,
                met=self._met,
                # With each report of new pushes: one checkpoint may not be enough.
                crowded=pushed and self._crowded,
            )
            self._starting = []
            self._pushes_taken, self._met = self._pushes, {}
            # These waiters are satisfied when this very report arrives.
            self._under_way, self._awaited = self._awaited, []
            self._cuts, self._saves = [], []
            self._let_go()
            self._summaries, self._failures, self._exported, self._stop_asked = [], [], "", ""
            self._export_problem = ""
            return report

    def _let_go(self) -> None:
        """Remove leases whose last report was taken."""
        self._closed.update(
            (key, None) for key, held in self._held.items() if held.closed and not held.done
        )
        self._held = {
            # The report with their last state has been taken.
            key: held
            for key, held in self._held.items()
            if not held.done and not held.closed
        }
        for key in list(self._closed)[:-_REMEMBERED]:
            del self._closed[key]

"""What the master is to be told next: progress merged per lease, and everything else in the order it happened.

Progress gets in only when it is true: in parameter-server mode after every server acknowledged the push.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias, final

from elasticdl.rpc.conversation import Failure, MetricState, Progress, Report, RingCut, RingSaved, RingWord, Summary
from elasticdl.shard import Applied, Lease, Shard, ShardId

LeaseKey: TypeAlias = tuple[ShardId, int]


@dataclass(frozen=True, slots=True)
class Advance:
    """The first `offset` records of a lease's shard are done. `bad` of them, newly counted, could not be read."""

    offset: int
    version: int = 0
    loss: float | None = None
    bad: int = 0
    bad_examples: tuple[str, ...] = ()
    done: bool = False
    metrics: Mapping[str, MetricState] = field(default_factory=dict)


@dataclass(slots=True)
class _Held:
    """A lease that is not done. Invariant: `offset` never falls; `losses` are those since the last report."""

    lease: Lease
    shard: Shard
    offset: int
    version: int = 0
    losses: list[float] = field(default_factory=list)
    bad: int = 0
    bad_examples: tuple[str, ...] = ()
    metrics: Mapping[str, MetricState] = field(default_factory=dict)
    changed: bool = False
    done: bool = False
    closed: bool = False
    """Nothing more is accepted of it. Told to the master only if it was given back."""
    given_back: bool = False

    def add(self, advance: Advance) -> None:
        self.offset = max(self.offset, advance.offset)
        self.version = max(self.version, advance.version)
        if advance.loss is not None:
            self.losses.append(advance.loss)
        self.bad += advance.bad
        self.bad_examples = (self.bad_examples + advance.bad_examples)[:3]
        self.metrics = advance.metrics or self.metrics
        self.done = self.done or advance.done
        self.changed = True

    def take(self) -> Progress:
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
        self.losses, self.bad, self.bad_examples, self.changed = [], 0, (), False
        return progress


@final
class Outbox:
    """Thread-safe. `urgent` is set while something waits that should be sent at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[LeaseKey, _Held] = {}
        self._summaries: list[Summary] = []
        self._failures: list[Failure] = []
        self._exported = ""
        self._stop_asked = ""
        self._word: RingWord | None = None
        self._cuts: list[RingCut] = []
        self._saves: list[RingSaved] = []
        self._starting: list[str] = []
        self.urgent = threading.Event()

    def starting(self, part: str) -> None:
        """This worker has come to a part of its start; '': it is ready for work."""
        with self._lock:
            self._starting.append(part)
        self.urgent.set()

    def hold(self, lease: Lease) -> None:
        """A lease was granted. Leases without a shard are not held: there is nothing of them to give back."""
        if lease.shard is not None:
            with self._lock:
                self._held[lease.shard.id, lease.attempt] = _Held(lease, lease.shard, lease.offset)

    def advance(self, lease: Lease, advance: Advance) -> None:
        """More of a lease is done. Of a lease that was given back meanwhile, nothing is told any more."""
        assert lease.shard is not None
        with self._lock:
            held = self._held.get((lease.shard.id, lease.attempt))
            if held is None or held.closed:
                return
            held.add(advance)
        if advance.done:
            self.urgent.set()

    def held(self) -> tuple[Lease, ...]:
        """Leases that are neither done nor given back."""
        with self._lock:
            return tuple(held.lease for held in self._held.values() if not held.done and not held.closed)

    def give_back(self, leases: Collection[Lease]) -> None:
        """The rest of these leases goes back to the master, with the next report.

        It is not urgent by itself: the master may refuse every report after that one, so it should be the last.
        """
        keys = {(lease.shard.id, lease.attempt) for lease in leases if lease.shard is not None}
        with self._lock:
            for key in keys & self._held.keys():
                if not self._held[key].done:
                    held = self._held[key]
                    held.closed = held.given_back = held.changed = True

    def forget(self, leases: Collection[Lease]) -> None:
        """These leases were voided by the master: what is told of them already is the last."""
        keys = {(lease.shard.id, lease.attempt) for lease in leases if lease.shard is not None}
        with self._lock:
            for key in keys & self._held.keys():
                if not self._held[key].done:
                    self._held[key].closed = True

    def summarise(self, summary: Summary) -> None:
        """Values of an evaluation round."""
        with self._lock:
            self._summaries.append(summary)
        self.urgent.set()

    def fail(self, failure: Failure) -> None:
        """User code failed."""
        with self._lock:
            self._failures.append(failure)
        self.urgent.set()

    def exported(self, path: str) -> None:
        """The model was written to `path`."""
        with self._lock:
            self._exported = path
        self.urgent.set()

    def ask_stop(self, reason: str) -> None:
        """A callback asks that training end."""
        with self._lock:
            self._stop_asked = reason
        self.urgent.set()

    def say(self, word: RingWord) -> None:
        """Where this worker stands with the ring; told in each report from now on."""
        with self._lock:
            self._word = word
        self.urgent.set()

    def cut(self, cut: RingCut) -> None:
        """A copy of the weights is kept."""
        with self._lock:
            self._cuts.append(cut)
        self.urgent.set()

    def saved(self, saved: RingSaved) -> None:
        """A copy was written, or could not be."""
        with self._lock:
            self._saves.append(saved)
        self.urgent.set()

    def take(self, gauges: Mapping[str, float]) -> Report:
        """All that waits, as one report. Empty but for the gauges if nothing does."""
        with self._lock:
            self.urgent.clear()
            report = Report(
                progress=tuple(held.take() for held in self._held.values() if held.changed),
                summaries=tuple(self._summaries),
                failures=tuple(self._failures),
                exported=self._exported,
                stop_asked=self._stop_asked,
                gauges=gauges,
                ring=self._word,
                ring_cuts=tuple(self._cuts),
                ring_saves=tuple(self._saves),
                starting=tuple(self._starting),
            )
            self._starting = []
            self._cuts, self._saves = [], []
            self._held = {key: held for key, held in self._held.items() if not held.done and not held.closed}
            self._summaries, self._failures, self._exported, self._stop_asked = [], [], "", ""
            return report

"""Counts the updates of the model: applied, lost with parameter servers, and undone.

An update is a push that every server acknowledged or, in synchronous steps and on a ring, a step. A
server that starts again from a checkpoint lacks its part of the updates since. Workers push again
what they have kept of them. What they cannot push again is lost, and counts once, however many
servers lack it.

A worker numbers its pushes from 1 without gaps, and a push is complete only if every server is
there. So what a restored server lacks of one worker is one range: it begins after the last push in
the checkpoint, and ends with the last one that the worker cannot push again. The worker reports
where it ends when it has met the server. Until then everything that the worker reports is in the
range: it is lost if the worker ends.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, final

from elasticdl.cluster.base import ProcessName
from elasticdl.job_status import NO_UPDATES, UpdateCounts
from elasticdl.master.core.events import ProgressReported, PushesReported, StepApplied, WorkerFenced

Range: TypeAlias = tuple[int, int]
"""Updates after the first number, up to the second."""


@dataclass(frozen=True, slots=True)
class UpdateMark:
    """The updates in one cut: each worker's last push, and the number of complete steps.

    `reached`: each worker's last push on any server. A server that lost its memory before the cut
    may not have seen the worker again: then the worker has no push in the cut, but the parts of the
    others have all that it did. `behind` has, by index, what the parts of such servers have
    instead. `moves`: how often the parameters had moved to other servers. `lost`: the steps that
    some server lacked.
    """

    pushes: Mapping[str, int] = field(default_factory=dict)
    steps: int = 0
    reached: Mapping[str, int] = field(default_factory=dict)
    behind: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    moves: int = 0
    lost: Sequence[Range] = ()

    def of_part(self, index: int) -> dict[str, int]:
        """Each worker's last push in the part of the server with this index."""
        # Journals of earlier versions have `pushes` only, which all parts have.
        return {**self.pushes, **self.reached, **self.behind.get(str(index), {})}


NOTHING = UpdateMark()


@dataclass(frozen=True, slots=True)
class _UnmetRestore:
    """A restored server that a worker has not met: the last of its updates that it `has`.

    `again`: the worker may push again what came after. `since_s`: when the server was restored.
    """

    has: int
    again: bool
    since_s: float


@dataclass(frozen=True, slots=True)
class _Restored:
    """What a restored server has of each worker: see `_UnmetRestore`."""

    has: Mapping[str, int]
    again: bool
    since_s: float

    def part(self, worker: str) -> _UnmetRestore:
        return _UnmetRestore(self.has.get(worker, 0), self.again, self.since_s)


@dataclass(slots=True)
class _Updates:
    """The updates of one worker, or the steps.

    `begin`: what is before no longer counts. `booked`: the last one known to be complete. `lost`:
    disjoint ranges, ascending. `lacking`: restored servers that it has not met.
    """

    begin: int = 0
    booked: int = 0
    lost: list[Range] = field(default_factory=list)
    lacking: dict[ProcessName, _UnmetRestore] = field(default_factory=dict)

    def lose(self, after: int, last: int) -> None:
        """Count a range as lost; what is in it already counts once."""
        self.lost = _joined([*self.lost, (max(after, self.begin), last)])

    def book(self, number: int) -> None:
        """All updates up to `number` are complete."""
        self.booked = max(self.booked, number)
        for part in self.lacking.values():
            if not part.again:
                self.lose(part.has, self.booked)

    def awaited(self, after_s: float) -> bool:
        """Whether a server restored after that time may get updates again.

        It need not lack any that are booked: reports are late.
        """
        return any(part.again and part.since_s > after_s for part in self.lacking.values())

    def lost_until(self, number: int, *, comes_again: bool) -> int:
        """How many of the updates up to `number` are lost, but for those that may come again."""
        lost = self.lost
        if not comes_again:
            open_ends = [(max(part.has, self.begin), self.booked) for part in self.lacking.values()]
            lost = _joined([*lost, *open_ends])
        return sum(max(0, min(end, number) - begin) for begin, end in lost)


def _joined(ranges: Iterable[Range]) -> list[Range]:
    """The same as disjoint ranges, ascending."""
    joined: list[Range] = []
    for begin, end in sorted(interval for interval in ranges if interval[0] < interval[1]):
        if joined and begin <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((begin, end))
    return joined


@final
class UpdateAccount:
    """The account of one job. Its counts only become more exact; see `UpdateCounts.at_least`."""

    def __init__(self) -> None:
        self.before = NO_UPDATES
        """What earlier runs did, up to the checkpoint that this one began with."""
        self._workers: dict[str, _Updates] = {}
        self._awaited: dict[str, None] = {}
        """Workers that may push something again to a server that they have not met."""
        self._steps = _Updates()
        self.step = 0
        """The number of the newest step, complete or not."""
        self._restored: dict[ProcessName, _Restored] = {}
        """Servers that started again from a checkpoint."""
        self._firsts: list[int] = []
        """The index of the first server of each map that followed another one."""
        self._undone = 0
        self._first_incarnations: dict[int, int] = {}
        """Of each server, the first process that counts after a return to a checkpoint."""
        self._at_least = False

    # what happened

    def reported(
        self,
        event: ProgressReported | PushesReported,
        met: Mapping[ProcessName, int],
    ) -> None:
        """Book a worker's pushes. `met`: the last one that a server lacks for good."""
        if not event.pushes and not met:
            return
        mine = self._of(str(event.worker))
        # It met the older processes of a server first.
        for server, last in sorted(met.items(), key=_age):
            # Whoever has met a server has nothing under way to those before it.
            for older in [older for older in mine.lacking if self._succeeds(server, older)]:
                mine.lose(mine.lacking.pop(older).has, last)
        mine.book(event.pushes)
        self._await(str(event.worker), mine)

    def fenced(self, event: WorkerFenced, indices: Sequence[int]) -> None:
        """Book the pushes of a lost worker that all servers have, which have these indices."""
        known = [sequence for sequence in event.sequences if sequence is not None]
        if len(known) < len(event.sequences) or not known:
            return
        mine, number = self._of(str(event.worker)), min(known)
        here = dict(zip(indices, known, strict=False))
        for server, part in list(mine.lacking.items()):
            at = here.get(server.index, number)
            if at <= part.has:
                continue
            # It has met a restored server and did not say which of its pushes that lacks for good.
            self._at_least = True
            del mine.lacking[server]
            # It may have ended before it had pushed all again.
            mine.lose(at, mine.booked)
        mine.book(number)
        self._await(str(event.worker), mine)

    def stepped(self, event: StepApplied, *, undone: bool = False) -> None:
        """Count a step if every server applied it. `undone`: all return to a checkpoint."""
        if event.number <= self.step:
            return
        # An earlier master may have ended before the steps in between were in its journal.
        unseen, self.step = event.number - self.step - 1, event.number
        steps, added = self._steps, unseen + event.complete
        if undone or self.is_undone(event):
            self._undone += added
            return
        steps.book(steps.booked + added)
        if self.lacks(event):
            # One of them ended right after it, and has been replaced by now.
            steps.lose(steps.booked - 1, steps.booked)

    def lacks(self, event: StepApplied) -> bool:
        """Whether a server has applied this step and then lost its memory."""
        return event.complete and any(
            _follows(restored, server) and restored != server
            for restored in self._restored
            for server in event.servers
        )

    def is_undone(self, event: StepApplied) -> bool:
        """Whether a step was made before all servers returned to a checkpoint."""
        first = self._first_incarnations
        return any(server.incarnation < first.get(server.index, 0) for server in event.servers)

    def go_back(self, mark: UpdateMark, first_incarnations: Mapping[int, int]) -> None:
        """All servers return to a cut: the steps since are undone, and made again.

        `first_incarnations`: of each server, the first process that counts from now on.
        """
        steps = self._steps
        # Below 0 for a cut that was completed after a return to an earlier one.
        self._undone += steps.booked - mark.steps
        steps.booked = mark.steps
        steps.lost = list(mark.lost)
        self._first_incarnations = dict(first_incarnations)

    def restored(
        self, server: ProcessName, mark: UpdateMark | None, at_s: float, *, again: bool
    ) -> None:
        """A server started again with what `mark` has; None: it is not known what that is.

        `again`: workers push again what came after, if they have kept it.
        """
        if mark is None:
            self._at_least = True
            # As if it had all that is booked: no more than what is known to be lost counts.
            has = {name: mine.booked for name, mine in self._workers.items()}
        elif mark.moves == self.moves:
            has = mark.of_part(server.index)
        else:
            # Its part is made of those of several servers.
            has = dict(mark.pushes)
        self._restored[server] = _Restored(has, again, at_s)
        for name, mine in self._workers.items():
            mine.lacking[server] = self._restored[server].part(name)
            mine.book(mine.booked)
            self._await(name, mine)
        if mark is not None:
            self._steps.lose(mark.steps, self._steps.booked)

    def moved(self, first: int) -> None:
        """The parameters have moved to servers with indices from `first` on."""
        self._firsts.append(first)

    def undo(self, steps: int, *, at_least: bool) -> None:
        """A ring lost its weights, and these steps with them; `at_least`: and maybe more."""
        self._undone += max(0, steps)
        self._at_least |= at_least

    def begin_again(self) -> None:
        """All training is repeated: the servers have initial values again."""
        counts = self.counts()
        self._undone += counts.applied + counts.lost
        self.before = UpdateCounts(0, 0, self.before.repeated, self.before.at_least)
        for mine in (*self._workers.values(), self._steps):
            mine.begin, mine.lost = mine.booked, []
            mine.lacking.clear()
        self._awaited.clear()
        # Workers may still report pushes from before.
        self._at_least = True

    # what it comes to

    @property
    def moves(self) -> int:
        """How often the parameters moved to other servers."""
        return len(self._firsts)

    @property
    def steps(self) -> int:
        """Complete steps of this run."""
        return self._steps.booked

    def mark_of_steps(self) -> UpdateMark:
        """The steps in a cut that is made now."""
        return UpdateMark(steps=self._steps.booked, lost=tuple(self._steps.lost))

    def awaited(self, after_s: float) -> Iterator[str]:
        """Workers that a server restored after that time has not met.

        Until then it may lack updates that they push again, if they live.
        """
        # Asked after each event: it must not look at all workers.
        return (name for name in self._awaited if self._workers[name].awaited(after_s))

    def lost_of(self, worker: ProcessName) -> int:
        """How many updates of a living worker are lost for good."""
        mine = self._workers.get(str(worker), _Updates())
        return mine.lost_until(mine.booked, comes_again=True)

    def counts(self, living: Container[str] = ()) -> UpdateCounts:
        """All updates so far. Those that `living` workers may push again are not lost."""
        known = {name: mine.booked for name, mine in self._workers.items()}
        return self.counts_at(UpdateMark(known, self._steps.booked), living)

    def counts_at(self, mark: UpdateMark, living: Container[str] = ()) -> UpdateCounts:
        """The updates in a cut. `living`: as in `counts`."""
        total = lost = 0
        at_least = self._at_least or self.before.at_least
        for name, last in (*mark.pushes.items(), ("", mark.steps)):
            mine = self._workers.get(name, _Updates()) if name else self._steps
            total += max(0, last - mine.begin)
            lost += mine.lost_until(last, comes_again=name in living)
            late = last > mine.booked and any(part.has < last for part in mine.lacking.values())
            at_least = at_least or late
        before = self.before
        return UpdateCounts(
            before.applied + total - lost,
            before.lost + lost,
            before.repeated + self._undone,
            at_least,
        )

    def _succeeds(self, server: ProcessName, other: ProcessName) -> bool:
        """Whether `server` has the parameters of `other`, and maybe of others."""
        return _follows(server, other) or any(
            other.index < first <= server.index for first in self._firsts
        )

    def _of(self, worker: str) -> _Updates:
        if worker not in self._workers:
            # Its first pushes may have been to servers that were replaced before it reported.
            lacking = {server: restored.part(worker) for server, restored in self._restored.items()}
            self._workers[worker] = _Updates(lacking=lacking)
            self._await(worker, self._workers[worker])
        return self._workers[worker]

    def _await(self, worker: str, mine: _Updates) -> None:
        if mine.awaited(-math.inf):
            self._awaited[worker] = None
        else:
            self._awaited.pop(worker, None)


def _age(met: tuple[ProcessName, int]) -> tuple[int, int]:
    server, _ = met
    return server.index, server.incarnation


def _follows(server: ProcessName, other: ProcessName) -> bool:
    """Whether `server` is `other` or a later process of the same index."""
    return server.index == other.index and server.incarnation >= other.incarnation

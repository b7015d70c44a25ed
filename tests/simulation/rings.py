"""A simulated ring, and weights that remember exactly which records they were trained on.

Members of a generation meet, and every operation completes for all of them or, where one is killed
on the way, for some. The
rest is the workers' own: who trains on what, who has which step, what is told of it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from elasticdl.checkpoint.manifest import PartFile
from elasticdl.shard import WorkItem
from elasticdl.worker.ring.base import RingBroken, RingMembership
from tests.simulation.scheduler import Process, Scheduler, Task, Violation

SILENCE_S = 4.0


@dataclass(frozen=True, slots=True, eq=False)
class Weights:
    """`ids` of `epoch` were trained on in the last step, after all that is in `before`.

    `version`: steps in all.
    """

    version: int = 0
    records: int = 0
    epoch: int = 0
    ids: NDArray[np.int64] | None = None
    before: Weights | None = None

    def after(self, epoch: int, ids: NDArray[np.int64]) -> Weights:
        return Weights(self.version + 1, self.records + len(ids), epoch, ids, self)

    def counts(self, records: int, epochs: int) -> NDArray[np.int64]:
        """int64[epochs, records]: how often each record is in them."""
        parts: list[NDArray[np.int64]] = []
        one: Weights | None = self
        while one is not None:
            if one.ids is not None:
                parts.append(one.ids + one.epoch * records)
            one = one.before
        every = np.concatenate(parts) if parts else np.empty(0, np.int64)
        return np.bincount(every, minlength=records * epochs).reshape(epochs, records)


TORN = Weights(-1)
"""Half of one's own and half of another's: nobody may go on from these."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """As `model.ring_step.RingOutcome`."""

    loss: float
    examples: int
    wishes: int
    nonfinite: str = ""
    waited_s: float = 0.0

    @property
    def applied(self) -> bool:
        return self.examples > 0


@dataclass(slots=True, eq=False)
class Together:
    """What all members gave to one operation, by rank; the same object for all.

    `made`: what the first made of it.
    """

    values: list[Any]
    made: Any = None


@dataclass(slots=True, eq=False)
class _Member:
    """Who is in a generation, or waits to be."""

    process: Process
    task: Task
    rank: int
    operations: int = 0
    kind: str = ""
    """What it waits for; '' while it does something else."""
    given: Any = None
    result: Any = None
    done: bool = False
    broken: str = ""


@dataclass(slots=True, eq=False)
class _Generation:
    place: RingMembership
    members: dict[int, _Member] = field(default_factory=dict)
    formed: bool = False
    withdrawn: bool = False
    over: str = ""
    """Why it is over."""
    ending: list[_Member] = field(default_factory=list)
    """Those to whom the result of an operation that is complete is still on its way."""


@final
class Hub:
    """All rings of a job: one a generation. It stands for the rendezvous, too."""

    def __init__(
        self, scheduler: Scheduler, latency_s: Callable[[], float], stepped: Callable[[], None]
    ) -> None:
        """`stepped` is called when the first member has a step."""
        self._scheduler = scheduler
        self._latency_s = latency_s
        self._stepped = stepped
        self._rings: dict[str, _Generation] = {}
        self._gone: set[str] = set()
        self._meets: dict[str, str] = {}
        self.tears: list[tuple[str, float, Callable[[Process], None]]] = []
        """At the next operation of such a kind (`step`, `piece`, `gather`): one member has the
        result, and is killed, by the call,
        so many seconds later; some of the others never get it.
        """
        self._generation = 0
        self.newest = Weights()
        """Those of the last step, or restoring, that any member completed."""
        self.most_records = 0
        """In any member's weights, since the last time that all were lost."""

    # The rendezvous, as the master sees it

    async def start(self, host: str = "", port: int = 0, *, reuse_port: bool = False) -> int:
        return 1

    def open(self, scopes: Sequence[str]) -> None:
        """Members may meet, each below its own scope; the first stands for all."""
        self._meets |= dict.fromkeys(scopes, next(iter(scopes), ""))

    def withdraw(self, scopes: Sequence[str]) -> None:
        for scope in scopes[:1]:
            self._withdraw(scope)

    def withdraw_all(self) -> None:
        """The master, and its rendezvous with it, is gone."""
        for scope in dict.fromkeys(self._meets.values()):
            self._withdraw(scope)

    def _withdraw(self, scope: str) -> None:
        self._gone.add(scope)
        ring = self._rings.get(scope)
        if ring is not None and not ring.formed:
            self._break(ring, "the rendezvous was withdrawn")

    async def close(self) -> None:
        """Nothing is open."""

    # The members' side

    def enter(self, place: RingMembership, process: Process) -> tuple[_Generation, _Member]:
        """Blocks until all are there. Raises RingBroken."""
        task = self._scheduler.current
        assert task is not None
        own = place.rendezvous.rpartition("/")[2]
        scope = (
            self._meets.get(own, own)
            if place.size > 1
            else f"alone {process.name} {place.generation}"
        )
        member = _Member(process, task, place.rank)
        ring = self._rings.setdefault(scope, _Generation(place))
        if scope in self._gone or ring.over:
            raise RingBroken(
                f"generation {place.generation}: {ring.over or 'the rendezvous is gone'}"
            )
        if place.rank in ring.members or ring.place.size != place.size:
            raise Violation(f"two members of rank {place.rank} of {place}")
        ring.members[place.rank] = member
        process.at_death.append(lambda: self._died(ring, member))
        if len(ring.members) == place.size:
            ring.formed = True
            for other in ring.members.values():
                other.done = True
                self._scheduler.wake(other.task)
        self._await(ring, member, "enter")
        return ring, member

    def leave(self, ring: _Generation, member: _Member) -> None:
        """The others find the connection closed."""
        if ring.members.get(member.rank) is member:
            del ring.members[member.rank]
            self._fall_apart(ring, "a member has left")

    def together(
        self, ring: _Generation, member: _Member, kind: str, given: Any, took_s: float = 0.0
    ) -> Together:
        """One operation of all members. Raises RingBroken."""
        if ring.over:
            raise RingBroken(ring.over)
        member.operations += 1
        member.kind, member.given, member.done = kind, given, False
        waiting = [other for other in ring.members.values() if other.kind and not other.done]
        if len(waiting) == ring.place.size:
            self._complete(ring, waiting, took_s)
        return self._await(ring, member, kind)

    def _complete(self, ring: _Generation, members: list[_Member], took_s: float) -> None:
        kinds = {member.kind for member in members}
        if len(kinds) > 1:
            told = {member.process.name: member.kind for member in members}
            raise Violation(
                f"members of generation {ring.place.generation} do not do the same: {told}"
            )
        members.sort(key=lambda one: one.rank)
        results = Together([member.given for member in members])
        tear = (
            next((tear for tear in self.tears if members[0].kind.startswith(tear[0])), None)
            if ring.place.generation
            else None
        )
        first = self._first(members) if tear is not None else None
        for one in members:
            one.done, one.result = True, results
            ring.ending.append(one)
            late_s = tear[1] + 1.0 if tear is not None and one is not first else 0.0
            self._scheduler.after(
                took_s + late_s + self._latency_s(), partial(self._ends, ring, one)
            )
        if tear is not None and first is not None:
            self.tears.remove(tear)
            self._scheduler.after(took_s + tear[1], lambda: tear[2](first.process))

    def _first(self, members: list[_Member]) -> _Member:
        """Who has the result before the others, and dies. In a hand-over mostly who gives."""
        giving = [
            member
            for member in members
            if member.kind.startswith("piece") and member.given is not None
        ]
        return self._scheduler.random.choice(
            giving if giving and self._scheduler.random.random() < 0.7 else members
        )

    def _ends(self, ring: _Generation, member: _Member) -> None:
        if member in ring.ending:
            ring.ending.remove(member)
            self._scheduler.wake(member.task)

    def _await(self, ring: _Generation, member: _Member, kind: str) -> Together:
        member.kind = kind
        silent_s = 0.0
        while not member.broken and (not member.done or member in ring.ending):
            if not self._scheduler.park(1.0):
                silent = any(other.process.stopped for other in ring.members.values())
                silent_s = silent_s + 1.0 if silent and kind != "enter" else 0.0
                if silent_s > SILENCE_S:
                    self._break(ring, "a member is silent")
        member.kind = ""
        if member.broken:
            raise RingBroken(member.broken)
        return member.result  # None of `enter`, which nobody looks at

    def _died(self, ring: _Generation, member: _Member) -> None:
        if ring.members.get(member.rank) is member:
            del ring.members[member.rank]
            self._fall_apart(ring, f"{member.process.name} is gone")

    def _fall_apart(self, ring: _Generation, why: str) -> None:
        """Whoever has the result under way may still get it."""
        if not ring.over:
            self._scheduler.after(self._latency_s(), lambda: self._break(ring, why))

    def _break(self, ring: _Generation, why: str) -> None:
        if ring.over:
            return
        ring.over = why
        for one in list(ring.members.values()):
            if not one.kind or (one.done and one not in ring.ending):
                continue  # it does something else, or has the result already
            if one in ring.ending:
                ring.ending.remove(one)
            if (
                not one.done or self._scheduler.random.random() < 0.5
            ):  # else it was on its way, and arrives
                one.broken = why
            self._scheduler.wake(one.task)

    def break_newest(self) -> None:
        """Connections between its members break, and nobody dies."""
        for ring in reversed(list(self._rings.values())):
            if ring.formed and not ring.over and ring.place.generation:
                self._break(ring, "a connection broke")
                return

    def saw(self, weights: Weights, generation: int) -> None:
        """Some member of this generation has these now."""
        if generation < self._generation:
            return  # of a ring that is over: it did not run for a while
        self._generation = generation
        if weights is not self.newest:
            self._stepped()
        self.newest = weights
        self.most_records = max(self.most_records, weights.records)

    def restored(self, weights: Weights, generation: int) -> None:
        """This generation begins with these: all others are lost."""
        if generation < self._generation:
            return  # of a ring that is over: it did not run for a while
        self._generation = generation
        self.newest = weights
        self.most_records = weights.records


@final
class Ring:
    """The seam `worker.ring.base.Ring`, for one process."""

    def __init__(self, hub: Hub, process: Process) -> None:
        self.hub = hub
        self._process = process
        self._inside: tuple[_Generation, _Member] | None = None

    def enter(self, place: RingMembership) -> None:
        self.leave()
        self._inside = self.hub.enter(place, self._process)

    def leave(self) -> None:
        if self._inside is not None:
            inside, self._inside = self._inside, None
            self.hub.leave(*inside)

    def reduced(self, name: str, tensor: Any) -> Any:
        raise AssertionError("nothing is traced here")

    gathered = reduced

    @contextmanager
    def guarded(self) -> Iterator[None]:
        yield

    @property
    def generation(self) -> int:
        return self._inside[0].place.generation if self._inside is not None else 0

    @property
    def rank(self) -> int:
        return self._inside[1].rank if self._inside is not None else -1

    @property
    def waits(self) -> bool:
        """This member has come to an operation, and waits for the others."""
        return self._inside is not None and bool(self._inside[1].kind)

    def together(self, kind: str, given: Any, took_s: float = 0.0) -> Together:
        if self._inside is None:
            raise Violation(f"{self._process.name}: {kind} outside of any ring")
        return self.hub.together(*self._inside, kind, given, took_s)


@final
class Exchange:
    """As `worker.ring.exchange.Exchange`, of one value: the weights. They travel in two pieces."""

    def __init__(self, ring: Ring, violated: Callable[[str], None]) -> None:
        self._ring = ring
        self._violated = violated
        self.weights = Weights()

    def gather(self, numbers: Sequence[int]) -> NDArray[np.int64]:
        return np.asarray(
            self._ring.together(f"gather {len(numbers)}", list(numbers)).values, np.int64
        )

    def hand_over(self, *, giving: bool, whole: bool = False) -> None:
        if giving and self.weights is TORN:
            self._violated("torn weights are handed over")
        mine = self.weights
        for piece in range(2):
            pieces = self._ring.together(f"piece {piece}", mine if giving else None).values
            given = [weights for weights in pieces if weights is not None]
            if len(given) != 1:
                self._violated(f"{len(given)} members give their weights")
            if piece:
                self.weights = given[0]
            elif not whole and self.weights is not given[0]:  # half of the same is the same
                self.weights = TORN

    def copied(self) -> list[Weights]:
        return [self.weights]

    def load(self, values: Sequence[Weights]) -> None:
        (self.weights,) = values


@final
class Step:
    """As `model.ring_step.RingStep`: the step is in the weights when the reduction is complete."""

    def __init__(
        self,
        scheduler: Scheduler,
        ring: Ring,
        exchange: Exchange,
        step_s: float,
        violated: Callable[[str], None],
    ) -> None:
        self._scheduler = scheduler
        self._ring = ring
        self._exchange = exchange
        self._step_s = step_s
        self._violated = violated
        self.item: WorkItem | None = None
        """Of the step that comes; None for trial batches."""

    def train(
        self,
        parts: Sequence[tuple[Any, Any] | None],
        *,
        rank: int,
        size: int,
        iteration: int,
        wish: bool = False,
    ) -> Outcome:
        item, weights = self.item, self._exchange.weights
        if self._step_s:
            self._scheduler.sleep(self._step_s * (0.5 + self._scheduler.random.random()))
        if weights is TORN or iteration != weights.version:
            self._violated(
                f"a step on torn or other weights: version {weights.version}, the trainer says"
                f" {iteration}"
            )
        number, batch = (item.number, item.batch) if item is not None else (0, 0)
        lease = item.lease if item is not None else None
        given = (
            iteration,
            number,
            weights if number else None,
            [part[0] for part in parts if part is not None],
            wish,
        )
        begin_s = self._scheduler.now_s
        together = self._ring.together("step", given)
        waited_s = self._scheduler.now_s - begin_s
        results = together.values
        if len({result[:3] for result in results}) != 1:
            self._violated(
                f"members train at different places: {[result[:2] for result in results]}"
            )
        brought = [part for result in results for part in result[3]]
        window = np.concatenate(brought) if brought else np.empty(0, np.int64)
        if lease is not None and len(window):
            if len(window) > batch:
                self._violated(f"{len(window)} records in a step of {batch}")
            if together.made is None:
                together.made = weights.after(lease.epoch, window)
            self._exchange.weights = together.made
            self._ring.hub.saw(self._exchange.weights, self._ring.generation)
        wishes = sum(result[4] for result in results)
        return Outcome(1.0, len(window), wishes, waited_s=waited_s)

    def waits(self) -> bool:
        return self._ring.waits


@final
class Disk:
    """What is written, in memory: stands for `checkpoint.ring_file` and keeps what servers save,
    too.
    """

    def __init__(self) -> None:
        self.rings: dict[str, tuple[int, Weights]] = {}
        self.servers: dict[str, dict[int, Any]] = {}
        """By directory and server: a `servers.View`."""
        self.versions: dict[str, int] = {}
        """Of what servers saved, by directory: as its manifest has it."""
        self.damaged: set[tuple[str, int]] = set()
        """Parts that cannot be read: their directory, and the index of their server."""
        self.removed: set[str] = set()
        self.fails: Callable[[], bool] = lambda: False

    def damage_newest(self, listed: Sequence[str], server: int) -> None:
        """A part of the newest one of a job cannot be read, if an earlier one is intact.

        One of the same version is none: on disk the newest has taken its place.
        """
        damaged = {directory for directory, _ in self.damaged}
        versions = [self.versions.get(one) for one in listed]
        earlier = [
            one
            for one, version in zip(listed[:-1], versions, strict=False)
            if version is None or version != versions[-1]
        ]
        if any(one not in damaged for one in earlier):
            self.damaged.add((listed[-1], server))

    def prune(self, version: int, keep: int, held: Collection[str]) -> None:
        """As `checkpoint.directories.prune`."""
        older = {one: of for one, of in self.versions.items() if of <= version}
        there = [one for one in older if one not in self.removed]
        there.sort(key=lambda one: older[one], reverse=True)
        self.removed.update(one for one in there[keep:] if keep and one not in held)

    def before(self, directory: str) -> list[str]:
        """The directories of earlier versions, newest first, as `checkpoint.directories.before`."""
        version = self.versions[directory]
        older = [
            one for one, of in self.versions.items() if of < version and one not in self.removed
        ]
        return sorted(older, key=lambda one: self.versions[one], reverse=True)

    def write(self, directory: Path, version: int, arrays: Mapping[str, Any]) -> PartFile:
        if self.fails():
            raise OSError(28, "No space left on device")
        self.rings[str(directory)] = (version, arrays["weights"])
        return PartFile(name="ring.bin", bytes=1, checksum="crc32c:00000000")

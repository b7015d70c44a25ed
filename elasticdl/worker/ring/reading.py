"""From the ring's items to this member's parts of global minibatches, a few steps ahead.

There are two threads: one requests items and reads their shards, the other cuts this member's parts
and applies `feed`. A change of members or of the position is a new `ReadPlan`. Work for the old
plan is dropped, but shards in memory stay, so that the minibatch in flight is available again after
one `feed`.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias, final

from elasticdl.data.base import Block
from elasticdl.errors import TransientError
from elasticdl.rpc.conversation import Finished, LeaseAnswer, Wait
from elasticdl.shard import Lease, Task, WorkItem
from elasticdl.time_use import TimeUse
from elasticdl.worker.pipeline.reading import Sources
from elasticdl.worker.pipeline.record_order import LoadedShard, Positions, order_of
from elasticdl.worker.process.hang_watch import HangWatch
from elasticdl.worker.process.shutdown import Draining, Shutdown
from elasticdl.worker.process.thread_queue import LOOK_AGAIN_S, Ended
from elasticdl.worker.process.time_account import Stage, TimeAccount

if TYPE_CHECKING:  # it imports TensorFlow, which takes seconds
    from elasticdl.model.contribution import Part

_log = logging.getLogger(__name__)

DEPTH = 2
"""Parts that are ready before they are needed."""

UNDER_WAY = 2
"""Parts of a new plan to deliver before an early shard is read: forming a ring needs the cores."""

WAIT_S = 2.0
"""How long the master may hold a request for an item.

A new plan may have to wait for the answer to an old request.
"""

_LEAST_S = 0.02
_GIVE_UP_S = 600.0


class ItemSource(Protocol):
    """Knows the sequence of items: the master's client."""

    def request_item(self, number: int, wait_s: float, *, at_mark: bool = False) -> LeaseAnswer:
        """Block up to `wait_s` for an item. Raises Refused, TransientError."""


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """Begin at `offset` of item `number` (None: the start of its lease), as `rank` of `size`."""

    number: int
    offset: int | None
    rank: int
    size: int


@dataclass(frozen=True, slots=True)
class BatchPart:
    """This member's part of one global minibatch: entries [begin, end) of an item's order.

    `batches` has (features, labels) of this member's part, None if it is empty: one entry, or one
    for each of its virtual workers. `records` counts the whole window, `mine` this member's
    records.
    """

    item: WorkItem
    begin: int
    end: int
    mine: int
    bad: int = 0
    bad_examples: tuple[str, ...] = ()
    batches: tuple[Part, ...] = (None,)

    @property
    def records(self) -> int:
        """Records of the whole window, on all members."""
        return self.end - self.begin


@dataclass(frozen=True, slots=True)
class AtBarrier:
    """The next item is not training."""

    item: WorkItem


@dataclass(frozen=True, slots=True)
class End:
    """There are no more items."""


Next: TypeAlias = BatchPart | AtBarrier | End


def slice_of(begin: int, end: int, rank: int, size: int) -> tuple[int, int]:
    """The part of [begin, end) for member `rank` of `size`.

    The parts are consecutive, and their lengths differ by at most one.
    """
    length = end - begin
    return begin + length * rank // size, begin + length * (rank + 1) // size


@final
class RingReading:
    """Thread-safe. The loop's thread calls `begin` and `next`; any thread calls `wake`.

    `changed` is the condition of `Generations`: whatever waits here also wakes for a newer one.
    """

    def __init__(
        self,
        source: ItemSource,
        sources: Sources,
        watch: HangWatch,
        shutdown: Shutdown,
        changed: threading.Condition,
        times: TimeAccount,
        virtual_workers: int = 0,
    ) -> None:
        """With `virtual_workers` windows are cut into as many parts, whatever the members are."""
        self._virtual_workers = virtual_workers
        self._source = source
        self._sources = sources
        self._watch = watch
        self._shutdown = shutdown
        self._changed = changed
        self._times = times
        self._plan: ReadPlan | None = None
        self._turn = 0
        """Grows with each plan; results of earlier turns are dropped."""
        self._taken = 0
        """How many parts of the plan `next` has returned."""
        self._items: dict[int, WorkItem | Finished] = {}
        self._shards: dict[int, LoadedShard] = {}
        self._ready: deque[Next] = deque()
        self._wanted = 0
        shutdown.listen(self.wake)

    def start(self) -> None:
        """Start to wait for a plan."""
        for name, stage, run in (
            ("items", Stage.READ, self._fetch),
            ("feeder", Stage.FEED, self._feed),
        ):
            threading.Thread(target=self._top, args=(stage, run), name=name, daemon=True).start()

    def read_ahead(self) -> None:
        """Load the ring's current shards, so that a new member does not read while the others wait.

        Call it before `start`. Nothing is read if there is no ring or no answer from the master.
        Raises Ended.
        """
        number = 0
        for _ in range(2):  # the ring may reach the next item before this worker joins
            try:
                answer = self._source.request_item(number, 0.0)
            except TransientError as error:
                _log.info("not reading ahead: %s", error)
                return
            if not isinstance(answer, WorkItem) or answer.lease is None:
                return
            with self._shutdown.failing_for(answer.lease):
                self._items[answer.number] = answer
                self._read(answer.number, answer.lease)
            number = answer.number + 1

    def begin(self, plan: ReadPlan) -> None:
        """Make `next` follow this plan from now on.

        It does nothing if that plan is already in progress and untouched.
        """
        with self._changed:
            # The trainer plans before and after the rendezvous; usually the second plan equals the
            # first, and restarting would throw away parts that are ready.
            if plan == self._plan and not self._taken:
                return
            self._plan = plan
            self._taken = 0
            # Both threads may be in the middle of something for the old plan; they compare the
            # turn.
            self._turn += 1
            self._ready.clear()
            self._wanted = plan.number
            for number in [
                # Keep the neighbours: after a broken ring most members continue where they were.
                item
                for item in self._items
                if not plan.number - 1 <= item <= plan.number + 2
            ]:
                self._forget(number)
            self._changed.notify_all()

    def next(self, stop: Callable[[], bool]) -> Next | None:
        """The next part, barrier or end; blocks until it is available.

        None as soon as `stop()` (see `wake`). Raises Ended.
        """
        with self._changed:
            while not self._ready:
                self._check()
                if stop():
                    return None
                self._changed.wait(LOOK_AGAIN_S)
            item = self._ready.popleft()
            self._taken += 1
            self._changed.notify_all()
            return item

    def wake(self) -> None:
        """Wake all waiters to check their conditions."""
        with self._changed:
            self._changed.notify_all()

    def _check(self) -> None:
        reason = self._shutdown.reason
        if reason is not None and not isinstance(reason, Draining):
            raise Ended

    def _top(self, stage: Stage, run: Callable[[], None]) -> None:
        self._times.join(stage)
        try:
            run()
        except Ended:
            return
        except BaseException as error:  # noqa: BLE001 - the top of a thread: it ends the worker visibly
            self._shutdown.fail(error)

    # Thread 1: items and their shards.

    def _fetch(self) -> None:
        while True:
            number = self._missing()
            answer = self._ask(number)
            if answer is None:
                continue
            with self._changed:
                self._items[number] = answer
                self._changed.notify_all()
            if isinstance(answer, WorkItem) and answer.lease is not None:
                with self._shutdown.failing_for(answer.lease):
                    self._read(number, answer.lease)

    def _missing(self) -> int:
        """The item to request next: the current one, or the one after it.

        After a pause it is unknown: it depends on the work at the pause.
        """
        with self._changed:
            while True:
                self._check()
                number = self._wanted
                beyond = self._wanted + (1 if self._taken < UNDER_WAY else 2)
                while number and number in self._items and number < beyond:
                    item = self._items[number]
                    # What follows a pause is decided there, so it cannot be requested yet.
                    if isinstance(item, Finished) or item.mark == "pause":
                        break
                    number += 1
                if number and number not in self._items and number < beyond:
                    return number
                self._changed.wait(LOOK_AGAIN_S)

    def _ask(self, number: int) -> WorkItem | Finished | None:
        tries = 0
        while True:
            try:
                answer = self._source.request_item(number, WAIT_S)
            except TransientError as error:
                tries += 1
                if tries * error.retry_after_s > _GIVE_UP_S:
                    raise
                _log.warning("waiting for item %d of the ring: %s", number, error)
                self._pause(error.retry_after_s)
                return None
            match answer:
                case WorkItem() | Finished():
                    return answer
                case Wait(reason):
                    _log.debug("no item %d now: %s", number, reason)
                    self._pause(_LEAST_S)
                    return None
                case Lease():
                    raise AssertionError(
                        f"asked for item {number} of the ring, got a lease of {answer.task}"
                    )

    def _pause(self, seconds: float) -> None:
        """Wait, but not by `Shutdown`: a draining worker continues while the ring needs it."""
        with self._changed:
            self._check()
            self._changed.wait(seconds)

    def _read(self, number: int, lease: Lease) -> None:
        assert lease.shard is not None
        with self._watch.doing("reading a shard"), self._times.spending(TimeUse.READ):
            blocks = self._sources.reader(Task.TRAINING).read(lease.shard)
            loaded = LoadedShard.read(lease.shard, self._giving_way(number, blocks))
        with self._changed:
            # A newer plan may have forgotten this item while it was read.
            if number in self._items:
                self._shards[number] = loaded
                self._changed.notify_all()

    def _giving_way(self, number: int, blocks: Iterable[Block]) -> Iterator[Block]:
        """Yield the blocks. An early shard pauses until a new plan is in progress."""
        for block in blocks:
            yield block
            with self._changed:
                while self._gives_way(number):
                    self._check()
                    with self._times.spending(None):
                        self._changed.wait(LOOK_AGAIN_S)

    def _gives_way(self, number: int) -> bool:
        """Whether the shard of that item may wait.

        It may not if an earlier item is missing, since this thread requests items.
        """
        early = (
            self._plan is not None
            and self._taken < UNDER_WAY
            and self._wanted < number <= self._wanted + 2
        )
        return early and all(earlier in self._items for earlier in range(self._wanted, number))

    def _forget(self, number: int) -> None:
        self._items.pop(number, None)
        self._shards.pop(number, None)

    # Thread 2: parts.

    def _feed(self) -> None:
        turn = 0
        while True:
            with self._changed:
                while self._turn == turn or self._plan is None:
                    self._check()
                    self._changed.wait(LOOK_AGAIN_S)
                turn, plan = self._turn, self._plan
            for item in self._made(plan, turn):
                if not self._put(item, turn):
                    break

    def _put(self, item: Next, turn: int) -> bool:
        with self._changed:
            # Bounded: a fed minibatch may be large, and reading must not run far ahead of training.
            while len(self._ready) >= DEPTH and self._turn == turn:
                self._check()
                self._changed.wait(LOOK_AGAIN_S)
            # Checked under the same lock as the append: no part of an old plan gets through.
            if self._turn != turn:
                return False
            self._ready.append(item)
            self._changed.notify_all()
            return True

    def _made(self, plan: ReadPlan, turn: int) -> Iterator[Next]:
        number, offset = plan.number, plan.offset
        while True:
            item = self._item(number, turn)
            if item is None:
                return
            if isinstance(item, Finished):
                yield End()
                return
            if item.lease is None:
                yield AtBarrier(item)
                if item.mark == "pause":
                    return
            else:
                loaded = self._loaded(number, turn)
                if loaded is None:
                    return
                yield from self._parts(
                    plan, item, loaded, item.lease.offset if offset is None else offset
                )
            # Only the first item begins at the plan's offset.
            number, offset = number + 1, None

    def _item(self, number: int, turn: int) -> WorkItem | Finished | None:
        """The item; None if the plan is an old one."""
        with self._changed:
            if self._turn == turn:
                self._wanted = number
                for old in [item for item in self._items if item < number - 1]:
                    self._forget(old)
                self._changed.notify_all()
            while number not in self._items and self._turn == turn:
                self._check()
                self._changed.wait(LOOK_AGAIN_S)
            return self._items[number] if self._turn == turn else None

    def _loaded(self, number: int, turn: int) -> LoadedShard | None:
        with self._changed:
            while number not in self._shards and self._turn == turn:
                self._check()
                self._changed.wait(LOOK_AGAIN_S)
            return self._shards[number] if self._turn == turn else None

    def _parts(
        self, plan: ReadPlan, item: WorkItem, loaded: LoadedShard, offset: int
    ) -> Iterator[BatchPart]:
        lease = item.lease
        assert lease is not None and lease.shard is not None
        order = order_of(lease.shard.records, lease.order_seed)
        for begin in range(offset, lease.end, item.batch):
            with (
                self._shutdown.failing_for(lease),
                self._watch.owing("feed"),
                self._times.spending(TimeUse.FEED),
            ):
                part = self._part(plan, item, loaded, order, begin)
            yield part

    def _part(
        self, plan: ReadPlan, item: WorkItem, loaded: LoadedShard, order: Positions, begin: int
    ) -> BatchPart:
        assert item.lease is not None
        end = min(begin + item.batch, item.lease.end)
        count = self._virtual_workers or plan.size
        slices = [
            slice_of(begin, end, part, count)
            for part in range(*slice_of(0, count, plan.rank, plan.size))
        ]
        batches = tuple(self._batch(loaded, order, low, high) for low, high in slices)
        bad = loaded.bad_among(order, begin, end)
        mine = sum(high - low for low, high in slices)
        return BatchPart(item, begin, end, mine, bad, loaded.bad_examples[:bad], batches)

    def _batch(self, loaded: LoadedShard, order: Positions, begin: int, end: int) -> Part:
        records, bad = loaded.entries(order, begin, end)
        # `feed` sees only readable records; a part without any is still a part of the reduction.
        return self._sources.feed(Task.TRAINING)(records) if end - begin - bad else None

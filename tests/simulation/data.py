"""Data in memory whose records are their own numbers, and what a worker's stages do with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from elasticdl.data.base import Block, Metadata, Records
from elasticdl.shard import Shard, Source, Task
from elasticdl.time_use import GAUGE_PREFIX, TimeUse
from elasticdl.worker.pipeline.reading import Sources
from elasticdl.worker.process.time_account import TimeAccount
from tests.simulation.scheduler import Scheduler
from tests.simulation.threads import Clock, Lock

_BLOCK = 512
Bad: TypeAlias = Callable[[NDArray[np.int64]], NDArray[np.bool_]]


@final
class Reader:
    """The seam `data.base.Reader`: record `i` of all sources together is the number `i`."""

    def __init__(self, sources: tuple[Source, ...], bad: Bad) -> None:
        self._sources = sources
        self._bad = bad
        self._begins: dict[str, int] = {}
        total = 0
        for source in sources:
            self._begins[source.name] = total
            total += source.records
        self.metadata = Metadata()

    def sources(self) -> tuple[Source, ...]:
        return self._sources

    def read(self, shard: Shard) -> Iterator[Block]:
        base = self._begins[shard.source]
        for begin in range(shard.begin, shard.end, _BLOCK):
            end = min(begin + _BLOCK, shard.end)
            numbers = np.arange(base + begin, base + end, dtype=np.int64)
            good = numbers[~self._bad(numbers)]
            yield Block(good, end - begin, bad=end - begin - len(good))

    def close(self) -> None:
        """Nothing is open."""


def sources_of(
    scheduler: Scheduler,
    training: tuple[Source, ...],
    validation: tuple[Source, ...],
    minibatch_size: int,
    slow_s: float,
    bad: Bad,
    may_hang: Callable[[], None],
) -> Sources:
    """`slow_s`: how long a `feed` takes at most. `bad`: which training records cannot be read.

    `may_hang` is called in each `feed`, and may not return.
    """
    readers = {
        Task.TRAINING: Reader(training, bad),
        Task.EVALUATION: Reader(validation, lambda numbers: np.zeros(len(numbers), np.bool_)),
    }

    def feed(window: Records) -> tuple[Any, Any] | None:
        if slow_s:
            scheduler.work(slow_s * scheduler.random.random())
        may_hang()
        return (window, window) if len(window) else None

    def feed_of(task: Task) -> Any:
        return feed

    most = sum(one.records for one in training)
    return Sources(readers.__getitem__, feed_of, minibatch_size, most, reading=Lock())


@final
class Gauges:
    """Numbers for people; the master looks at the levels only.

    `before_report` is called before what is to be reported is taken. The account of times is real.
    """

    _nothing = nullcontext()

    def __init__(self, clock: Clock, before_report: Callable[[TimeAccount], None]) -> None:
        self.times = TimeAccount(clock)
        self._before_report = before_report
        self._levels: dict[str, float] = {}

    def timed(self, name: str, use: TimeUse | None = None) -> Any:
        return self._nothing if use is None else self.times.spending(use)

    def add(self, name: str, value: float) -> None:
        """Not kept."""

    def count_records(self, records: int) -> None:
        """Not kept."""

    def level(self, name: str, value: float | None) -> None:
        if value is None:
            self._levels.pop(name, None)
        else:
            self._levels[name] = value

    def take(self) -> dict[str, float]:
        self._before_report(self.times)
        spent = {f"{GAUGE_PREFIX}{use}": spent_s for use, spent_s in self.times.spent_s().items()}
        return {**self._levels, **spent}


@final
class Callbacks:
    """A module without callbacks."""

    any = False

    def begin(self, params: object) -> None: ...

    def before_step(self, lease: object) -> None: ...

    def after_step(self, loss: float | None, version: int) -> None: ...

    def recall(self, rounds: object) -> None: ...

    def tested(self, lease: object, values: object) -> bool:
        return False

    def end(self) -> None: ...


@final
class MetricStep:
    """Metrics that know which validation records they saw: how many, and the sum of their
    numbers.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        validation_records: int,
        step_s: float,
        violated: Callable[[str], None],
    ) -> None:
        self._scheduler = scheduler
        self._expected = (float(validation_records), float(sum(range(validation_records))))
        self._step_s = step_s
        self._violated = violated
        self._seen = (0.0, 0.0)

    def evaluate(self, features: Any, labels: Any, lookups: Any, pulled: Any) -> None:
        if self._step_s:
            self._scheduler.work(self._step_s * self._scheduler.random.random())
        self._seen = (self._seen[0] + len(features), self._seen[1] + float(features.sum()))

    def metric_states(self) -> dict[str, Any]:
        return {"seen": (self._seen,)}

    def reset_metrics(self) -> None:
        self._seen = (0.0, 0.0)

    def metric_values(self, states: Any) -> dict[str, float]:
        seen = tuple(states["seen"][0])
        if seen != self._expected:
            self._violated(
                f"an evaluation round saw {seen[0]:.0f} records that sum to {seen[1]:.0f}, not"
                f" {self._expected}"
            )
        return {"mean": seen[1] / max(1.0, seen[0])}


def unwritten(dense: object, tables: object, directory: Path) -> None:
    """Write no export."""


class Exports:
    """Numbered folders that hold nothing."""

    def publish(self, number: int, write: Callable[[Path], object]) -> str:
        write(Path(str(number)))
        return f"out/{number}"

    def publish_last(self, number: int, write: Callable[[Path], object]) -> tuple[int, str]:
        return number, self.publish(number, write)

    def prune(self, number: int) -> None:
        """Nothing is there."""

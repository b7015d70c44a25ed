"""Runs the jobs of many seeds."""

from __future__ import annotations

import gc
import time
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tests.simulation.world import simulate, simulation


@dataclass(frozen=True, slots=True)
class Failed:
    """A job that did what no job may do."""

    seed: int
    strategy: str
    what: str
    story: str


@dataclass(slots=True)
class Seen:
    """What came of many jobs."""

    jobs: int = 0
    simulated_s: float = 0.0
    turns: int = 0
    failures: list[Failed] = field(default_factory=list)
    traces: list[str] = field(default_factory=list)
    """Of each job that ended well, a line that tells whether it went exactly as another time."""

    def add(self, other: Seen) -> None:
        """What came of other jobs, too."""
        self.jobs += other.jobs
        self.simulated_s += other.simulated_s
        self.turns += other.turns
        self.failures += other.failures
        self.traces += other.traces


def run_jobs(
    seeds: Iterable[int],
    strategies: Sequence[str],
    *,
    seconds: float | None = None,
    most_failures: int = 1,
) -> Seen:
    """One job of each seed and strategy, until so many have failed, or so much CPU time was used:
    others may use the machine.
    """
    seen, begin_s = Seen(), time.process_time()
    end_s = None if seconds is None else begin_s + seconds
    with simulation():
        for seed in seeds:
            for strategy in strategies:
                if (end_s is not None and time.process_time() > end_s) or len(
                    seen.failures
                ) >= most_failures:
                    return seen
                seen.jobs += 1
                try:
                    ran = simulate(seed, strategy)
                except Exception as error:  # noqa: BLE001 - whatever it is, it is told with its seed
                    text = "".join(traceback.format_exception(error))
                    seen.failures.append(
                        Failed(seed, strategy, f"{type(error).__name__}: {error}", text)
                    )
                else:
                    seen.simulated_s += ran.simulated_s
                    seen.turns += ran.turns
                    seen.traces.append(f"{strategy} {seed} {ran}")
            if seen.jobs % 200 == 0:
                gc.collect()
    return seen


def timed(
    seeds: Iterable[int], *, strategies: Sequence[str], seconds: float | None, most_failures: int
) -> tuple[Seen, float]:
    """`run_jobs`, and the CPU time that it took."""
    begin_s = time.process_time()
    return run_jobs(
        seeds, strategies, seconds=seconds, most_failures=most_failures
    ), time.process_time() - begin_s

"""Simulate many jobs: `python -m tests.simulation --jobs N --seed S --strategy ring|ps|sync|all
--seconds T`.
"""

from __future__ import annotations

import argparse
import functools
import multiprocessing
import sys

from tests.simulation.runner import Seen, timed
from tests.simulation.shrinking import failure_of, shrunk
from tests.simulation.workload import plan_of
from tests.simulation.world import simulation


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--jobs", type=int, default=200, help="so many of each strategy, at most")
    parser.add_argument(
        "--seed", type=int, default=0, help="of the first job; the next one has the next"
    )
    parser.add_argument("--strategy", choices=["ring", "ps", "sync", "all"], default="all")
    parser.add_argument(
        "--seconds", type=float, default=None, help="begin no job after so much CPU time"
    )
    parser.add_argument("--processes", type=int, default=1, help="run in so many processes")
    parser.add_argument("--failures", type=int, default=5, help="stop after so many")
    parser.add_argument(
        "--trace", action="store_true", help="print a line about each job that ended well"
    )
    parser.add_argument(
        "--quiet", action="store_true", help="do not tell the story of each failure"
    )
    parser.add_argument(
        "--shrink", action="store_true", help="of each failure, look for the smallest job like it"
    )
    given = parser.parse_args()
    strategies = ("ring", "ps", "sync") if given.strategy == "all" else (given.strategy,)
    ranges = [
        range(given.seed + one, given.seed + given.jobs, given.processes)
        for one in range(given.processes)
    ]
    run = functools.partial(
        timed, strategies=strategies, seconds=given.seconds, most_failures=given.failures
    )
    if given.processes == 1:
        seen, took_s = run(ranges[0])
    else:
        with multiprocessing.get_context("spawn").Pool(given.processes) as pool:
            parts = pool.map(run, ranges)
        seen, took_s = Seen(), max(part_s for _, part_s in parts)
        for part, _ in parts:
            seen.add(part)
    for line in seen.traces if given.trace else ():
        print("trace", line)
    for failure in seen.failures:
        print(f"\n{failure.strategy} {failure.seed} FAILED: {failure.what}")
        print(
            f"  again: python -m tests.simulation --strategy {failure.strategy} --seed"
            f" {failure.seed} --jobs 1"
        )
        if not given.quiet:
            print(failure.story)
        if given.shrink:
            with simulation():
                small = shrunk(plan_of(failure.seed, failure.strategy), failure.what)
                print(f"  smallest job that fails so: {small}\n  {failure_of(small)}")
    print(
        f"{seen.jobs} jobs ({', '.join(strategies)}) in {took_s:.1f} s of CPU:"
        f" {seen.jobs / took_s * 60:,.0f} jobs/min, {seen.simulated_s / 3600:.1f} simulated hours,"
        f" {seen.turns:,} turns; {len(seen.failures)} failed"
    )
    return 1 if seen.failures else 0


if __name__ == "__main__":
    sys.exit(main())

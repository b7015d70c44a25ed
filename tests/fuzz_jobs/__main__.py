"""Whole jobs with random flags: `python -m tests.fuzz_jobs --seconds 600`.

The exit code is 1 if one of them failed.
"""

from __future__ import annotations

import argparse
import itertools
import time
from pathlib import Path

from tests.fuzz_jobs.chaos import Role
from tests.fuzz_jobs.flags import Strategy
from tests.fuzz_jobs.fuzzing import Plan, fuzz


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz_jobs", description=__doc__)
    parser.add_argument(
        "--seconds",
        type=float,
        default=300,
        help="start no job after this many seconds (default: 300)",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=None,
        help="seed of the first job; each next one has the next (default: by the time)",
    )
    parser.add_argument("--strategy", choices=[*Strategy, "both"], default="both")
    parser.add_argument(
        "--jobs", type=int, default=0, help="most jobs (default: as many as there is time for)"
    )
    parser.add_argument("--parallel", type=int, default=2, help="jobs at a time (default: 2)")
    parser.add_argument(
        "--kill",
        type=float,
        default=0.0,
        metavar="SHARE",
        help="share of jobs of which a worker is killed (default: 0)",
    )
    parser.add_argument(
        "--chaos",
        default="",
        metavar="ROLES",
        help="in each job, signals to random processes of these roles: master,worker,ps",
    )
    parser.add_argument(
        "--sync", action="store_true", help="only jobs of synchronous steps, through servers"
    )
    parser.add_argument(
        "--patience",
        type=float,
        default=1.0,
        metavar="TIMES",
        help="on a busy machine: wait so many times as long for a job that stands still",
    )
    parser.add_argument(
        "--keep", action="store_true", help="leave the folders of jobs that ended well, too"
    )
    parser.add_argument(
        "--folder", type=Path, default=None, help="where the jobs' folders are made"
    )
    chosen = parser.parse_args()
    first = int(time.time()) if chosen.seed is None else chosen.seed
    print(f"the first seed is {first}", flush=True)
    strategies = list(Strategy) if chosen.strategy == "both" else [Strategy(chosen.strategy)]
    if chosen.sync:
        if chosen.strategy == Strategy.RING:
            parser.error("--sync is about jobs through servers")
        strategies = [Strategy.PS]
    plan = Plan(
        strategies=strategies,
        sync=chosen.sync,
        seeds=itertools.count(first),
        seconds=chosen.seconds,
        jobs=chosen.jobs,
        parallel=chosen.parallel,
        kill_share=chosen.kill,
        chaos=[Role(role) for role in chosen.chaos.split(",") if role],
        keep=chosen.keep,
        patience=chosen.patience,
        **({"folder": chosen.folder} if chosen.folder else {}),
    )
    summary = fuzz(plan, lambda text: print(text, flush=True))
    print(summary, flush=True)
    return 1 if summary.failed else 0


if __name__ == "__main__":
    raise SystemExit(main())

"""Whole jobs in one process on simulated time: the master's core and driver with the workers' own
state machines.

What fails here is replayed with `python -m tests.simulation --strategy STRATEGY --seed SEED --jobs
1`. See docs/testing.md.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys

import pytest

from tests.conftest import ROOT
from tests.simulation import mutants
from tests.simulation.defects import DEFECTS, seeds_of
from tests.simulation.mutant import Mutant
from tests.simulation.runner import Seen, run_jobs
from tests.simulation.scheduler import Process, Scheduler, Violation
from tests.simulation.shrinking import failure_of, shrunk
from tests.simulation.workload import Plan, plan_of
from tests.simulation.world import simulation

pytestmark = pytest.mark.core

RANDOM = 30
"""Jobs with new seeds: 3 s of CPU, as a rule."""
FIXED = 5


def check(seen: Seen) -> None:
    assert not seen.failures, "\n\n".join(
        f"{failure.strategy} {failure.seed}: {failure.what}\n{failure.story}"
        for failure in seen.failures
    )


def test_the_documentation_has_each_defect_with_its_seeds() -> None:
    rows = (ROOT / "docs/testing.md").read_text().splitlines()
    for defect in DEFECTS:
        seeds = ", ".join(map(str, defect.seeds))
        assert f"| {defect.strategy} | {seeds} | {defect.what} |" in rows


@pytest.mark.parametrize("strategy", ["ring", "ps", "sync"])
def test_the_jobs_of_these_seeds_end_with_each_record_trained_once(strategy: str) -> None:
    seen = run_jobs((*range(FIXED), *seeds_of(strategy)), [strategy])
    check(seen)
    assert seen.jobs == FIXED + len(seeds_of(strategy))


@pytest.mark.parametrize("strategy", ["ring", "ps", "sync"])
def test_random_jobs_end_with_each_record_trained_once(strategy: str) -> None:
    first = int.from_bytes(os.urandom(3))
    seen = run_jobs(range(first, first + RANDOM), [strategy])
    check(seen)
    assert seen.jobs == RANDOM


def test_a_shard_that_is_reported_done_at_the_end_of_an_item_is_found_within_a_minute() -> None:
    """The defect that had ordinary jobs stand still for ever."""
    seen = mutants.look_for(mutants.DONE_AT_ITEM_END, seconds=60.0)
    (failure,) = seen.failures
    assert "records are shown as trained" in failure.what or "stands still" in failure.what


def test_a_job_that_fails_is_made_smaller_and_fails_in_the_same_way() -> None:
    with mutants.put_in(mutants.DONE_AT_ITEM_END):
        (failure,) = run_jobs(itertools.count(), ["ring"], seconds=60.0).failures
        with simulation():
            whole = plan_of(failure.seed, failure.strategy)
            small = shrunk(whole, failure.what, tries=60)
            again = failure_of(small)
    assert again.split(":")[0] == failure.what.split(":")[0]
    assert len(small.faults) <= len(whole.faults)
    assert size_of(small) < size_of(whole)


def size_of(plan: Plan) -> tuple[int, int]:
    return len(plan.faults), sum(one.records for one in plan.training)


@pytest.mark.parametrize(
    "mutant",
    [mutants.SILENT_STALL, mutants.STALL_TOO_SOON],
    ids=["not announced", "announced too soon"],
)
def test_a_stall_that_is_announced_wrongly_or_not_at_all_is_found(mutant: Mutant) -> None:
    (failure,) = mutants.look_for(mutant, seconds=60.0).failures
    assert mutant.shows in failure.what


def test_a_stall_that_is_announced_is_no_silent_one() -> None:
    (failure,) = mutants.look_for(mutants.NO_ROOM, seconds=60.0).failures
    assert mutants.SILENT_STALL.shows not in failure.what


@pytest.mark.parametrize("mutant", mutants.MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_still_fits_the_code(mutant: Mutant) -> None:
    """Whether it is found takes minutes: `python -m tests.simulation.mutants`."""
    with mutants.put_in(mutant):
        pass


def test_a_seed_replays_exactly_in_another_process() -> None:
    """Nothing may depend on the addresses of objects, or on how strings are hashed there."""
    lines = set()
    for hash_seed in ("1", "2"):
        command = [
            sys.executable,
            "-m",
            "tests.simulation",
            "--seed",
            "3",
            "--jobs",
            "3",
            "--trace",
        ]
        ran = subprocess.run(
            command,
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            timeout=240,
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
        lines.add("\n".join(line for line in ran.stdout.splitlines() if line.startswith("trace")))
    assert len(lines) == 1 and lines != {""}


def test_when_nobody_can_ever_continue_that_is_reported_at_once() -> None:
    scheduler = Scheduler(0)
    Process(scheduler, "worker-0").spawn(scheduler.park, "main")
    with pytest.raises(Violation, match="nothing will ever happen"):
        scheduler.run()


def test_a_killed_process_runs_no_further_and_a_stopped_one_only_when_it_is_let() -> None:
    scheduler, seen = Scheduler(0), []
    killed, stopped = Process(scheduler, "killed"), Process(scheduler, "stopped")

    def work(name: str) -> None:
        for number in range(3):
            scheduler.sleep(1.0)
            seen.append((name, number, scheduler.now_s))

    killed.spawn(lambda: work("killed"), "main")
    stopped.spawn(lambda: work("stopped"), "main")
    scheduler.after(1.5, killed.kill)
    scheduler.after(1.5, stopped.stop)
    scheduler.after(9.0, stopped.go_on)
    scheduler.after(20.0, lambda: setattr(scheduler, "over", True))
    scheduler.run()
    assert sorted(seen) == [
        ("killed", 0, 1.0),
        ("stopped", 0, 1.0),
        ("stopped", 1, 9.0),
        ("stopped", 2, 10.0),
    ]

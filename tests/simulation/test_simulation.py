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
from tests.simulation.mutant import Mutant
from tests.simulation.runner import Seen, run_jobs
from tests.simulation.scheduler import Process, Scheduler, Violation
from tests.simulation.shrinking import failure_of, shrunk
from tests.simulation.workload import Plan, plan_of
from tests.simulation.world import simulation

pytestmark = pytest.mark.core

CPU_S = 5.0
FIXED = 40
FOUND = {
    # A read ahead of its time gave way to a plan that waited for the reader.
    # A member that joined did not know the bad records of a shard that ended before. A step of bad
    # records alone was told as the step before it, of another shard. What a stopped member restored
    # for a generation that was over was taken for the newest weights. The last four: a killed
    # worker was heard while its threads unwound, which no real one is. After a takeover the master
    # decided before it had heard all members (503771).
    "ring": (
        *(18, 52, 115, 149, 3005961, 3006038, 21018117),
        *(20004157, 20006730, 20007173, 20016280, 503771),
    ),
    # Training ended before the first step, and a last checkpoint of nothing was waited for. A first
    # push came to a server that had not met the worker, which no real one does. A worker dropped a
    # revoked lease and was killed: its push of a later lease was taken to include the dropped one
    # (the last two).
    # A server ended between its part of a frozen view and the master's word on the whole.
    "ps": (49, 3005936, 20017477, 21032880, 70005278),
    # Bad records of several batches without an outcome; a lease of nothing but bad records behind
    # other leases; new leases while revoked ones were not back; a turn given up by a dead process.
    # A late gradient hid the outcome of an earlier one of its lease. A server ended before it
    # applied a step, which counted as trained. A step waited for a worker whose leases, bad records
    # among them, all waited for that step. A stopped job waited for its last checkpoint after a
    # server had taken all that was trained with it. After a takeover a turn was given again, and
    # the push of its first time did not count (the last four).
    "sync": (
        *(3, 161, 241, 264, 1434, 30000662),
        *(41000119, 41001184, 42000190, 42000440, 42000651, 60004538),
        100008756,
        *(501094, 503638, 503781, 504566),
    ),
}
"""Seeds of jobs that failed once."""


def check(seen: Seen) -> None:
    assert not seen.failures, "\n\n".join(
        f"{one.strategy} {one.seed}: {one.what}\n{one.story}" for one in seen.failures
    )


@pytest.mark.parametrize("strategy", ["ring", "ps", "sync"])
def test_the_jobs_of_these_seeds_end_with_each_record_trained_once(strategy: str) -> None:
    seen = run_jobs((*range(FIXED), *FOUND[strategy]), [strategy])
    check(seen)
    assert seen.jobs == FIXED + len(FOUND[strategy])


@pytest.mark.parametrize("strategy", ["ring", "ps", "sync"])
def test_random_jobs_end_with_each_record_trained_once(strategy: str) -> None:
    seen = run_jobs(itertools.count(int.from_bytes(os.urandom(3))), [strategy], seconds=CPU_S)
    check(seen)
    assert seen.jobs > 10


def test_a_shard_that_is_told_done_at_the_end_of_an_item_is_found_within_a_minute() -> None:
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
            "6",
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


def test_when_nobody_can_ever_go_on_that_is_told_at_once() -> None:
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

"""Workers and servers that hang, stop or are slow while the others get on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from elasticdl.cluster.base import STOPPED, ExitStatus
from elasticdl.master.core import commands as c
from elasticdl.master.core import events as e
from elasticdl.master.core.ps.server_delays import ServerDelays
from elasticdl.master.core.ps.step_waits import StepWaits
from elasticdl.shard import Applied, Lease, Source
from tests.core.conftest import KILLED, Bench, ps, worker
from tests.present import present

pytestmark = pytest.mark.core

LARGE = (Source("a", 100_000),)
FRAME = "/zoo/m.py:7, in feed"
HELD = (
    "thread loader has held the interpreter's lock for 5 s, in the user's code at:\n"
    f"  at /zoo/m.py:20, in parse\n  at {FRAME}"
)


def told(job: Bench, kind: str = "straggler") -> list[c.Announce]:
    return [command for command in job.of(c.Announce) if command.kind == kind]


def cause_of(job: Bench, index: int) -> str | None:
    found = {process.name: process.cause for process in job.state.status().processes}
    return found[str(worker(index))]


def train(job: Bench, seconds: int, paces: dict[int, int], held: dict[int, Any]) -> None:
    """Each second every worker reports so many records; `held` are leases and offsets."""
    for _ in range(seconds):
        job.tick(1.0)
        for index, records in paces.items():
            if job.state.status().phase != "working":
                return
            lease, offset = held.get(index) or (None, 0)
            if lease is None:
                commands = job.put(e.LeaseRequested(0, worker(index)))
                granted = job.of(c.GrantLease, commands)
                if not granted:
                    continue
                lease = granted[0].lease
            end = present(lease.shard).records
            offset = min(end, offset + records)
            job.progress(index, lease, offset, done=offset == end)
            held[index] = None if offset == end else (lease, offset)


# code that hangs


def hanging(busy: int, **flags: Any) -> tuple[Bench, list[Lease]]:
    """A job of three workers, of which the first `busy` are in `feed`."""
    job = Bench.running(3, num_workers=3, **flags)
    leases = [job.lease(index) for index in range(3)]
    for index in range(busy):
        job.put(e.ActivityReported(0, worker(index), "feed", 0.0))
    return job, leases


def pass_time(job: Bench, seconds: int) -> list[c.Command]:
    return [command for _ in range(seconds) for command in job.tick(1.0)]


def test_a_worker_whose_feed_hangs_is_replaced_after_half_a_minute_while_others_get_on() -> None:
    job, leases = hanging(1, max_relaunches=0)
    commands = pass_time(job, 16)
    assert [one.process for one in job.of(c.AskState, commands)] == [worker(0)]
    job.put(e.StateReported(0, worker(0), stacks="…", doing="in feed", frames=(FRAME,)))
    assert not job.of(c.StopProcess, pass_time(job, 14))
    commands = pass_time(job, 1)
    (stop,) = job.of(c.StopProcess, commands)
    assert (stop.name, stop.grace_s) == (worker(0), 0.0)
    assert stop.reason == f"hung: in feed for 31 s, at {FRAME} (limit 30 s)"
    assert job.of(c.FenceWorker, commands)
    # It spends no budget for failures.
    assert job.of(c.StartProcess, commands)[0].name == worker(3)
    assert cause_of(job, 0) == "hung"
    lost = next(one for one in told(job, "process") if one.cause == "hung")
    assert lost.details["frames"] == FRAME
    # Who trains the rest is decided by the attempt: what it reports now is too late.
    job.fenced(0, None)
    job.progress(0, leases[0], 16, done=True)
    assert job.total["trained"] == 0
    again = job.lease(1)
    assert (again.shard, again.attempt) == (leases[0].shard, 1)


def test_a_job_that_is_slow_as_a_whole_replaces_nobody() -> None:
    job, _ = hanging(3)
    assert not job.of(c.StopProcess, pass_time(job, 500))


def test_a_shard_that_hangs_every_worker_is_given_up_with_the_place() -> None:
    job, [lease, *_] = hanging(1)
    for attempt in range(3):
        index = attempt and attempt + 2
        if attempt:
            job.attach(worker(index))
            found = job.lease(index)
            assert (found.shard, found.attempt) == (lease.shard, attempt)
            job.put(e.ActivityReported(0, worker(index), "feed", 0.0))
        for _ in range(130):
            job.tick(1.0)
            if job.state.status().phase == "ended" or cause_of(job, index) == "hung":
                break
        job.fenced(index, None)
        job.die(worker(index))
    job.tick(31)
    assert job.end.exit_code == 1
    assert job.end.message.count("hung: in feed for") == 3


@pytest.mark.parametrize(
    ("status", "cause", "text"),
    [
        (ExitStatus(signal=9, conditions=(STOPPED,)), "silent", "it was stopped (SIGSTOP)"),
        (ExitStatus(signal=9, log_tail=HELD), "hung", f"holds the interpreter's lock, at {FRAME}"),
        (KILLED, "silent", ""),
    ],
)
def test_a_silent_worker_has_the_cause_that_its_end_shows(
    status: ExitStatus, cause: str, text: str
) -> None:
    job = Bench.running(2, num_workers=2, max_relaunches=0)
    job.lease(0)
    job.put(e.ProcessSilent(0, worker(0), 10.0))
    job.die(worker(0), status)
    assert cause_of(job, 0) == cause
    assert text in "\n".join(one.text for one in told(job, "process"))
    assert not job.of(c.FinishJob)


def test_a_lock_that_was_free_again_is_no_cause() -> None:
    job = Bench.running(2, num_workers=2)
    job.lease(0)
    job.put(e.ProcessSilent(0, worker(0), 10.0))
    later = "\n2026-11-24 14:00:00,000 I elasticdl.worker.ps.trainer: recomputing a step"
    job.die(worker(0), ExitStatus(signal=9, log_tail=HELD + later))
    assert cause_of(job, 0) == "silent"


# slow workers


def test_a_slow_worker_is_named_with_numbers_and_replaced_without_a_failure() -> None:
    job, held = Bench(num_workers=3, records_per_task=1000, max_relaunches=0), dict[int, Any]()
    job.up(3, training=LARGE)
    train(job, 60, {0: 20, 1: 22, 2: 1}, held)
    [named] = [one for one in told(job) if "is slow" in one.text]
    assert named.process == "worker-2"
    assert named.text.endswith("times the others: 1 s per record, the others 50 ms")
    assert named.details["slow_times"] == pytest.approx(20.0)
    train(job, 30, {0: 20, 1: 22, 2: 1}, held)
    [stop] = job.of(c.StopProcess)
    assert stop.name == worker(2) and stop.grace_s > 0
    assert worker(3) in [one.name for one in job.of(c.StartProcess)]


@pytest.mark.parametrize("exit_code", [66, 68])
def test_a_replaced_slow_worker_is_one_however_it_ends(exit_code: int) -> None:
    """One that had to end itself by force was called hung, so `why` blamed the user's code."""
    job, held = Bench(num_workers=3, records_per_task=1000), dict[int, Any]()
    job.up(3, training=LARGE)
    train(job, 90, {0: 20, 1: 22, 2: 1}, held)
    job.die(worker(2), ExitStatus(exit_code=exit_code, log_tail="still running", asked=True))
    assert cause_of(job, 2) == "straggler"
    text = told(job, "process")[-1].text
    assert "replaced: it is slow, 20 times the others" in text
    assert ("; it ended by force: still running" in text) == (exit_code == 68)


def test_workers_that_are_all_slow_or_only_somewhat_slower_stay() -> None:
    job = Bench(num_workers=3, records_per_task=1000)
    job.up(3, training=LARGE)
    train(job, 200, {0: 4, 1: 3, 2: 1}, {})
    assert not told(job) and not job.of(c.StopProcess)


def replaced_in_vain(
    job: Bench, held: dict[int, Any], turns: int, train_once: Callable[[int, int], None]
) -> None:
    """Train in turns, of which each gets the slow worker; its successors are as slow."""
    slow = 2
    for turn in range(turns):
        train_once(turn, slow)
        ordered = max(one.name.index for one in job.of(c.StartProcess) if one.name.role == "worker")
        if ordered > slow:
            gone, held[slow] = held.get(slow), None
            if gone is not None:
                lease, offset = gone
                applied = Applied(present(lease.shard).id, lease.attempt, offset)
                job.put(e.LeaseReturned(0, worker(slow), applied))
            job.die(worker(slow), ExitStatus(exit_code=66))
            slow = ordered
            job.attach(worker(slow))


def test_replacements_that_do_not_help_end_after_three() -> None:
    job, held = Bench(num_workers=3, records_per_task=1000), dict[int, Any]()
    job.up(3, training=LARGE)
    replaced_in_vain(job, held, 30, lambda _, slow: train(job, 30, {0: 20, 1: 20, slow: 1}, held))
    assert len(job.of(c.StopProcess)) == 3


def test_replacements_whose_successors_report_rarely_end_after_three() -> None:
    """A successor is no cure before it has reported enough to be compared."""
    job, held = Bench(num_workers=3, records_per_task=1000), dict[int, Any]()
    job.up(3, training=LARGE)

    def train_once(second: int, slow: int) -> None:
        train(job, 1, {0: 20, 1: 20, **({slow: 25} if second % 25 == 0 else {})}, held)

    replaced_in_vain(job, held, 3000, train_once)
    slow_ones = [one for one in job.of(c.StopProcess) if "it is slow" in one.reason]
    assert len(slow_ones) == 3


def test_a_worker_that_steps_do_without_gets_work_again_after_a_minute() -> None:
    job = Bench(num_workers=4, sync=True, records_per_task=100)
    job.up(3, training=LARGE)  # The fourth waits for a place, so nobody is replaced.
    job.put(e.StepsWaited(0, worker(2), 9.0, 10.0))
    asks = e.LeaseRequested(0, worker(2))
    assert not job.of(c.GrantLease, job.put(asks))
    pass_time(job, 62)
    assert job.of(c.GrantLease, job.put(asks))


# backup leases


def at_the_end() -> tuple[Bench, Lease, int]:
    """All is trained but the rest of the slow worker's shard; returns it and its offset."""
    job, held = Bench(num_workers=2, records_per_task=1000), dict[int, Any]()
    job.up(2, training=(Source("a", 2000),))
    train(job, 49, {0: 20, 1: 1}, held)
    job.put(e.LeaseRequested(0, worker(1)))
    assert not job.of(c.RevokeLeases)
    job.finish(0, held[0][0])
    return job, *held[1]


def test_an_idle_worker_gets_the_rest_of_the_last_shard_of_a_slow_one() -> None:
    job, lease, offset = at_the_end()
    commands = pass_time(job, 3)
    [order] = job.of(c.RevokeLeases, commands)
    assert order.worker == worker(1)
    [text] = [one.text for one in told(job) if "idle workers get" in one.text]
    assert f"the last {1000 - offset} records" in text
    # Not before the slow worker has nothing of it any more.
    assert "all shards are leased" in job.refused(0)
    job.progress(1, lease, offset + 8)
    job.put(e.StateReported(0, worker(1)))
    again = job.lease(0)
    assert (present(again.shard).id, again.attempt) == (present(lease.shard).id, 1)
    assert again.offset == offset + 8
    # Its late report of the old attempt counts nothing, and it gets no other lease.
    before = job.total["trained"]
    job.progress(1, lease, 1000, done=True)
    assert job.total["trained"] == before
    job.finish(0, again)
    assert (job.total["trained"], job.total["repeated"]) == (2000, 0)


def test_nobody_loses_a_lease_while_no_worker_is_idle_or_little_is_left() -> None:
    job, held = Bench(num_workers=2, records_per_task=1000), dict[int, Any]()
    job.up(2, training=(Source("a", 4000),))
    train(job, 150, {0: 5, 1: 5}, held)
    assert not job.of(c.RevokeLeases)
    # One is idle, the other has a few seconds left.
    job.finish(0, held[0][0])
    while job.state.status().phase == "working" and held[1]:
        train(job, 1, {1: 20}, held)
    assert not job.of(c.RevokeLeases)


# synchronous steps


def test_steps_that_waited_for_one_worker_twice_name_it() -> None:
    waits = StepWaits()
    reports = []
    for step in range(60):
        opened_s = step * 1.0
        waits.came(worker(0), opened_s + 0.1)
        waits.came(worker(1), opened_s + 0.9)
        reports.append(waits.completed([worker(0), worker(1)], opened_s, opened_s + 0.9))
    found = [report for report in reports if report is not None]
    assert found and {one.worker for one in found} == {worker(1)}
    assert found[0].waited_s / found[0].of_s == pytest.approx(0.8 / 0.9)


def test_steps_whose_workers_come_together_name_nobody() -> None:
    waits = StepWaits()
    for step in range(60):
        waits.came(worker(step % 2), step + 0.8)
        waits.came(worker(1 - step % 2), step + 0.9)
        assert waits.completed([worker(0), worker(1)], float(step), step + 0.9) is None


# slow servers

GAUGES = {"slowest_ps": 1.0, "slowest_ps_ms": 400.0, "other_ps_ms": 4.0, "step_ms": 50.0}


def delayed(gauges: list[dict[str, float]], seconds: int = 30) -> list[e.ServerDelayed]:
    delays, found = ServerDelays(), []
    for second in range(seconds):
        for index, one in enumerate(gauges):
            delays.reported(worker(index), one, float(second))
        event = delays.tick(float(second))
        found += [event] if event else []
    return found


def test_a_server_that_most_workers_wait_for_is_named_after_ten_seconds() -> None:
    assert delayed([GAUGES, GAUGES, {}]) == [e.ServerDelayed(10.0, 1, 400.0, 4.0)]
    # One of two workers may be slow itself, and servers that are all slow are nobody's fault.
    assert not delayed([GAUGES, {**GAUGES, "slowest_ps": 0.0}])
    assert not delayed([{**GAUGES, "other_ps_ms": 300.0}] * 3)
    # What does not delay steps does not matter.
    assert not delayed([{**GAUGES, "step_ms": 4000.0}] * 3)


def test_a_slow_server_is_replaced_after_a_checkpoint() -> None:
    job = Bench(num_ps_pods=2, num_workers=2, max_relaunches=0)
    job.up(2, training=LARGE)
    job.lease(0)
    job.put(e.CpuShareReported(0, ps(1), 0.05))
    job.put(e.VersionAdvanced(0, 5))
    job.put(e.ServerDelayed(0, 1, 400.0, 4.0))
    [named] = told(job)
    assert named.text == (
        "ps-1 is slow: workers wait 400 ms for its part of a pull and push, 4 ms for the others;"
        " it gets 5% of the CPU time that it asks for, the others 100%"
    )
    pass_time(job, 21)
    [take] = job.of(c.TakeSnapshot)
    assert not job.of(c.StopProcess)
    [save] = job.of(c.SaveSnapshot, job.put(e.SnapshotCut(0, take.snapshot, 5, {})))
    job.put(e.SnapshotSaved(0, save.snapshot, 5, "version-5", 1000))
    job.tick(1.0)
    [stop] = job.of(c.StopProcess)
    assert stop.name == ps(1)
    job.die(ps(1))
    job.tick(1.0)
    assert ps(1, 1) in [one.name for one in job.of(c.StartProcess)]


def test_a_slow_server_does_not_wait_for_the_pauses_of_a_checkpoint() -> None:
    job = Bench(num_ps_pods=2, num_workers=2, checkpoint_seconds=60)
    job.up(2, training=LARGE)
    job.put(e.VersionAdvanced(0, 5))
    [take] = job.of(c.TakeSnapshot, job.tick(60))
    [save] = job.of(c.SaveSnapshot, job.put(e.SnapshotCut(0, take.snapshot, 5, {})))
    assert save.pause_s > 0
    job.put(e.ServerDelayed(0, 1, 400.0, 4.0))
    pass_time(job, 19)
    assert not job.of(c.HurrySnapshot)
    pass_time(job, 3)
    assert job.of(c.HurrySnapshot) == [c.HurrySnapshot(save.snapshot)]
    job.put(e.SnapshotSaved(0, save.snapshot, 5, "version-5", 1000))
    pass_time(job, 2)
    assert len(job.of(c.TakeSnapshot)) == 2


def test_a_server_stays_without_a_checkpoint() -> None:
    job = Bench(num_ps_pods=2, num_workers=2, stall_seconds=600)
    job.up(2, training=LARGE)
    job.put(e.VersionAdvanced(0, 5))
    job.put(e.ServerDelayed(0, 1, 400.0, 4.0))
    pass_time(job, 21)
    [take] = job.of(c.TakeSnapshot)
    job.put(e.SnapshotFailed(0, take.snapshot, "No space left on device"))
    pass_time(job, 125)
    assert not job.of(c.StopProcess)
    assert told(job)[-1].text == "ps-1 is not replaced: no checkpoint within 120 s"

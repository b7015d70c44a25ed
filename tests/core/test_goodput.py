"""The account of all workers' time: through deaths, takeovers and lost weights."""

from __future__ import annotations

import json
import math
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticdl.cluster.base import ExitStatus, ProcessName
from elasticdl.errors import ExitCode
from elasticdl.job_choices import Action
from elasticdl.job_status import Goodput, JobStatus, Receipt
from elasticdl.master.core import events as e
from elasticdl.master.core.codec import event_of, event_plain
from elasticdl.master.core.job_context import Limits
from elasticdl.master.core.processes.worker_times import WorkerTimes
from elasticdl.master.core.state import JobState
from elasticdl.master.journal.rules import may_free_work, worth_keeping
from elasticdl.time_use import TimeUse
from tests.core.conftest import TRAINING, Bench, worker
from tests.present import present

pytestmark = pytest.mark.core


def tell(job: Bench, *names: ProcessName, **spent_s: float) -> None:
    """Workers report their accounts; `pull__servers` is the use `pull.servers`."""
    account = {use.replace("__", "."): seconds for use, seconds in spent_s.items()}
    job.put(e.TimeReported(0, {str(name): account for name in names}))


def account(job: Bench) -> Goodput:
    return present(job.state.receipt().goodput)


def by_use(job: Bench) -> dict[str, float]:
    found = account(job)
    spent = {f"{one.kind}.{one.cause}": one.seconds for one in found.spent}
    assert math.isclose(sum(spent.values()), found.seconds, rel_tol=1e-6)
    return spent


@pytest.fixture
def job() -> Bench:
    """Two workers that ran at 2 s and attached at 5 s."""
    made = Bench(num_workers=2)
    made.start()
    made.attach(made.ps(0))
    made.t = 2.0
    for index in range(2):
        made.put(e.ProcessSeen(0, worker(index), True))
    made.t = 5.0
    made.attach(worker(0), worker(1))
    return made


def test_there_is_no_account_before_a_worker_has_reported(job: Bench) -> None:
    assert job.state.receipt().goodput is None


def test_an_account_starts_when_a_worker_runs_and_grows_with_its_reports(job: Bench) -> None:
    job.t = 15.0
    tell(job, worker(0), compute__step=6.0, pull__servers=3.5)
    job.t = 25.0
    tell(job, worker(0), compute__step=12.0, pull__servers=4.0, wait__lease=3.5)
    assert by_use(job) == {
        "start.launch": 3.0,
        "compute.step": 12.0,
        "pull.servers": 4.0,
        "wait.lease": 3.5,
    }
    assert account(job).share == pytest.approx(12.0 / 22.5, abs=1e-4)


def test_what_a_killed_worker_had_not_reported_is_lost(job: Bench) -> None:
    job.t = 15.0
    tell(job, worker(0), compute__step=9.0)
    job.t = 18.0
    job.die(worker(0))
    assert by_use(job) == {"start.launch": 3.0, "compute.step": 9.0, "lost.infrastructure": 4.0}
    tell(job, worker(0), compute__step=11.0)
    assert by_use(job)["compute.step"] == 9.0, "a late account of an ended worker"
    assert job.state.status().dropped == {"ended_process": 1}


def test_a_silent_worker_is_lost_until_its_end_is_seen(job: Bench) -> None:
    job.t = 15.0
    tell(job, worker(0), compute__step=10.0)
    job.t = 27.0
    job.put(e.ProcessSilent(0, worker(0), 10.0))
    assert "lost.silent" not in by_use(job), "its end is not known yet"
    job.t = 40.0
    job.die(worker(0))
    assert by_use(job)["lost.silent"] == 25.0


@pytest.mark.parametrize("use", ["compute.step", "input.feed"])
@pytest.mark.parametrize("replaced", [False, True])
def test_code_that_hung_is_lost_and_not_what_it_was_to_do(
    job: Bench, use: str, replaced: bool
) -> None:
    job.lease(0)
    job.t = 15.0
    tell(job, worker(0), compute__step=8.0, input__feed=2.0)
    job.t = 20.0
    job.put(e.ActivityReported(0, worker(0), "what callbacks do after a step", 5.0))
    spent = {"compute.step": 8.0, "input.feed": 2.0}
    for job.t in (25.0, 35.0, 645.0):
        more = {**spent, use: spent[use] + job.t - 15.0}
        job.put(e.TimeReported(0, {"worker-0": more}))
    if replaced:
        job.tick()
        assert job.said("hung: in what callbacks do after a step for 630 s")
        assert by_use(job) == {"start.launch": 3.0, **spent, "lost.hung": 630.0}
        job.t += 1.0
        job.put(e.TimeReported(0, {"worker-0": {**more, use: more[use] + 1.0}}))
        assert by_use(job) == {"start.launch": 3.0, **spent, "lost.hung": 631.0}
        job.die(worker(0))
    else:
        job.t += 1.0
        job.die(worker(0), ExitStatus(exit_code=ExitCode.FORCED))
    assert by_use(job) == {"start.launch": 3.0, **spent, "lost.hung": 631.0}
    for row in account(job).spent:
        assert present(row.process_s) <= row.seconds


def test_no_more_is_lost_by_a_hang_than_the_worker_ran(job: Bench) -> None:
    job.t = 15.0
    tell(job, worker(0), compute__step=4.0, wait__lease=6.0)
    job.put(e.ActivityReported(0, worker(0), "a training step", 15.0))
    job.die(worker(0), ExitStatus(exit_code=ExitCode.FORCED))
    assert by_use(job) == {"start.launch": 3.0, "compute.step": 4.0, "lost.hung": 6.0}


def test_two_workers_that_hang_in_their_first_feed_have_lost_that_time(job: Bench) -> None:
    job.t = 15.0
    for index in range(2):
        job.put(e.ActivityReported(0, worker(index), "feed", 10.0))
    tell(job, worker(0), worker(1), input__feed=10.0)
    for index in range(2):
        job.die(worker(index), ExitStatus(exit_code=ExitCode.FORCED))
    spent = by_use(job)
    assert spent["lost.hung"] == 20.0 and not spent.get("input.feed")


def test_a_worker_that_ends_before_it_attaches_only_started() -> None:
    job = Bench(num_workers=2)
    job.start()
    job.put(e.ProcessSeen(0, worker(0), True))
    job.t = 7.0
    job.die(worker(0))
    job.die(worker(1))
    assert by_use(job) == {"start.launch": 7.0}, "worker-1 never ran"


def test_a_worker_that_ends_as_it_should_was_ending(job: Bench) -> None:
    job.put(e.StopRequested(0, "enough"))
    job.t = 15.0
    tell(job, worker(0), compute__step=10.0)
    job.t = 16.0
    job.put(e.ProcessEnded(0, worker(0), job.KILLED.__class__(exit_code=66)))
    assert by_use(job) == {"start.launch": 3.0, "compute.step": 10.0, "idle.ending": 1.0}


def test_another_master_continues_with_the_account(job: Bench) -> None:
    job.t = 15.0
    tell(job, worker(0), worker(1), compute__step=9.0)
    image = json.loads(json.dumps(job.state.image(job.spec)))
    started = present(job.state.started)
    before = by_use(job)
    job.state = JobState.from_image(job.spec, Limits(), started, image)
    assert by_use(job) == before
    job.t = 30.0
    job.put(e.MasterTookOver(0, 2, 10.0))
    tell(job, worker(0), compute__step=20.0, pull__servers_away=4.0)
    job.die(worker(1))
    assert by_use(job) == {
        "start.launch": 6.0,
        "compute.step": 29.0,
        "pull.servers_away": 4.0,
        "lost.infrastructure": 16.0,
    }


def test_the_journal_gives_the_same_account_again(job: Bench) -> None:
    account = {"worker-0": {"compute.step": 1.0 / 3.0}, "worker-1": {"wait.lease": 2.0}}
    event = e.TimeReported(7.5, account)
    assert event_of(json.loads(json.dumps(event_plain(event)))) == event
    assert worth_keeping(event, job.put(event))
    assert not may_free_work(event)


def test_steps_on_records_that_are_lost_with_the_weights_count_as_repeated() -> None:
    job = Bench.running(1, num_workers=1)
    job.finish(0, job.lease(0))
    job.finish(0, job.lease(0))
    job.t = 10.0
    tell(job, worker(0), compute__step=8.0, input__feed=2.0)
    assert by_use(job) == {"compute.step": 8.0, "input.feed": 2.0}
    work = job.state._context.work
    present(work).undone = 8
    assert job.state.receipt().total.trained == 32
    found = by_use(job)
    assert found == {"compute.step": 6.0, "repeated.records": 2.0, "input.feed": 2.0}
    assert account(job).share == 0.6


def test_evaluating_is_what_an_evaluation_is_for() -> None:
    for action, share in ((Action.EVALUATE, 0.75), (Action.TRAIN, 0.0)):
        job = Bench.running(1, action=action)
        job.t = 4.0
        tell(job, worker(0), evaluation__metrics=3.0, input__feed=1.0)
        assert account(job).share == share


def test_the_account_names_the_worker_with_the_most_of_each_cause(job: Bench) -> None:
    job.t = 20.0
    tell(job, worker(0), compute__step=10.0, input__read=1.0)
    tell(job, worker(1), compute__step=4.0, input__read=7.0)
    job.die(worker(1))
    most = {one.cause: (one.process, one.process_s) for one in account(job).spent}
    assert most["step"] == ("worker-0", 10.0)
    assert most["read"] == ("worker-1", 7.0)


def test_a_receipt_and_a_status_have_the_same_account_after_json(job: Bench) -> None:
    job.t = 15.0
    tell(job, worker(0), compute__step=6.0, pull__servers=3.5)
    receipt, status = job.state.receipt(), job.state.status()
    assert Receipt.from_json(json.loads(json.dumps(receipt.to_json()))) == receipt
    again = JobStatus.from_json(json.loads(json.dumps(status.to_json())))
    assert present(again.receipt).goodput == receipt.goodput
    assert Goodput.from_json(receipt.to_json()["goodput"]) == receipt.goodput
    old: dict[str, Any] = receipt.to_json()
    del old["goodput"]
    assert Receipt.from_json(old).goodput is None


FATES = st.tuples(
    st.floats(0.0, 10.0),
    st.lists(st.floats(0.0, 50.0), max_size=4),
    st.floats(0.0, 30.0),
    st.sampled_from(["killed", "silent", "drained"]),
)


@given(st.lists(FATES, min_size=1, max_size=6))
def test_all_time_of_all_workers_is_accounted_for(
    fates: list[tuple[float, list[float], float, str]],
) -> None:
    """Whenever they attach, report and end: to 0.5 % of what they ran for."""
    job = Bench(num_workers=len(fates))
    job.start(training=TRAINING)
    ran_s = 0.0
    for index, (launch_s, reports, rest_s, fate) in enumerate(fates):
        name, began_s = worker(index), job.t
        job.put(e.ProcessSeen(0, name, True))
        job.t += launch_s
        job.attach(name)
        spent: dict[str, float] = {}
        for number, seconds in enumerate(reports):
            job.t += seconds
            use = list(TimeUse)[1 + number]
            spent[use.value] = spent.get(use.value, 0.0) + seconds
            job.put(e.TimeReported(0, {str(name): dict(spent)}))
        job.t += rest_s
        if fate == "silent":
            job.put(e.ProcessSilent(0, name, rest_s))
        drained = job.KILLED.__class__(exit_code=66)
        job.put(e.ProcessEnded(0, name, drained if fate == "drained" else job.KILLED))
        ran_s += job.t - began_s
    found = job.state.receipt().goodput
    seconds = sum(one.seconds for one in found.spent) if found else 0.0
    assert seconds == pytest.approx(ran_s, rel=0.005, abs=0.05)


def test_what_is_kept_does_not_grow_with_the_workers_that_ended() -> None:
    times = WorkerTimes()

    def live_and_die(first: int, count: int) -> int:
        tracemalloc.start()
        for index in range(first, first + count):
            times.reported(worker(index), 1.0, {"compute.step": 5.0 + index, "wait.lease": 1.0})
            times.ended(worker(index), 1.0, 10.0 + index, "preempted")
        kept = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        return kept

    live_and_die(0, 100)
    assert live_and_die(100, 5_000) < 10_000
    assert sum(times.spent_s.values()) == pytest.approx(sum(10.0 + i for i in range(5_100)))

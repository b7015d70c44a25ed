"""A job that stands still, with real calls to the master from processes that a test plays."""

from __future__ import annotations

import threading
from contextlib import closing
from pathlib import Path

import pytest

from elasticdl.clock import SystemClock
from elasticdl.cluster.base import ProcessName
from elasticdl.errors import ExitCode, Refused, TransientError
from elasticdl.job import JobSpec
from elasticdl.job_choices import Action
from elasticdl.master.core import commands as do
from elasticdl.master.core import events as happened
from elasticdl.master.core.state import JobState
from elasticdl.rpc.conversation import Activity, Order, Report, RingReport, State, TellState
from elasticdl.rpc.master_client import MasterClient
from elasticdl.shard import Applied, ShardId, Source
from tests.conftest import whole_lines
from tests.contract.driver_stage import WORKER, Stage
from tests.present import present
from tests.waiting import until

pytestmark = pytest.mark.contract
HELD = (Applied(ShardId(4), 0, 70),)


def test_a_process_is_asked_for_its_state_and_its_answer_is_heard(stage: Stage) -> None:
    client = stage.worker()
    stage.order(do.AskState(WORKER))
    assert next(order for order in client.orders() if isinstance(order, TellState)) == TellState()
    client.report(Report(state=State(HELD, "feed.py:3", "in feed for 95 s")))
    told = stage.core.wait_for(happened.StateReported)
    assert (told.process, told.held, told.stacks, told.doing) == (
        WORKER,
        HELD,
        "feed.py:3",
        "in feed for 95 s",
    )


def test_a_server_reports_its_stacks_too(stage: Stage) -> None:
    stage.attach_servers()
    stage.clients[0].report(Report(version=3, state=State(stacks="serving.py:9")))
    told = stage.core.wait_for(happened.StateReported)
    assert (str(told.process), told.stacks) == ("ps-0", "serving.py:9")


def test_stacks_of_any_length_are_cut_to_what_a_message_bears(stage: Stage) -> None:
    stage.worker().report(Report(state=State(stacks="x" * 1_000_000)))
    assert len(stage.core.wait_for(happened.StateReported).stacks) == 16_000


def test_a_long_activity_is_told_to_the_core_once_and_once_more_when_it_is_over(
    stage: Stage,
) -> None:
    client = stage.worker()
    for age_s in (5.0, 5.5, 6.0):
        client.report(Report(activity=Activity("feed", age_s)))
    client.report(Report())
    client.report(Report())
    stage.core.wait_for(happened.ActivityReported, 2)
    assert [(event.what, event.age_s) for event in stage.core.of(happened.ActivityReported)] == [
        ("feed", 5.0),
        ("", 0.0),
    ]


def test_a_member_of_a_ring_reports_where_it_is(tmp_path: Path) -> None:
    with closing(Stage(tmp_path, on_ring=True)) as stage:
        stage.worker().report(
            Report(ring=RingReport(ready=True, entered=2, version=944, number=9, offset=-1))
        )
        told = stage.core.wait_for(happened.RingReported)
    assert (told.version, told.number, told.offset) == (944, 9, -1)


class Idle:
    """A worker that comes up, lives, answers, and never asks for work: the protocol's fault, not
    the user's.
    """

    def __init__(self, client: MasterClient) -> None:
        self.client = client
        self.told = 0
        self._over = threading.Event()
        client.attach()
        self.threads = [
            threading.Thread(target=self._report),
            threading.Thread(target=self._listen),
        ]
        for thread in self.threads:
            thread.start()

    def _report(self) -> None:
        while not self._over.wait(0.1):
            try:
                self.client.report(Report())
            except (Refused, TransientError):
                return

    def _listen(self) -> None:
        try:
            for order in self.client.orders():
                self._follow(order)
        except (Refused, TransientError):
            return

    def _follow(self, order: Order) -> None:
        if isinstance(order, TellState):
            self.told += 1
            self.client.report(
                Report(
                    state=State((), f"{threading.current_thread().name} is at idle.py:7, in wait")
                )
            )

    def end(self) -> None:
        self._over.set()
        self.client.close()
        for thread in self.threads:
            thread.join(20)


def test_a_worker_that_never_asks_is_diagnosed_replaced_and_at_last_the_job_ends(
    tmp_path: Path,
) -> None:
    flags = {
        "model_zoo": "zoo",
        "model_def": "iris",
        "training_data": "t",
        "num_ps_pods": 2,
        "stall_seconds": 1,
    }
    core = JobState(JobSpec.from_flags(Action.TRAIN, flags))
    stage = Stage(tmp_path, core, SystemClock())
    idle: list[Idle] = []
    try:
        stage.post(happened.JobStarted(0.0, (Source("t", 640),)))
        stage.attach_servers()
        quiet = threading.Event()
        servers = threading.Thread(target=lambda: _beat(stage.clients[:2], quiet))
        servers.start()
        idle.append(Idle(stage.client("worker-0")))
        status = until(
            "the stall is diagnosed", lambda: found if (found := core.status()).stall else None
        )
        assert "a request for one of" in present(status.stall).waits_for
        assert present(status.stall).debtors == ("worker-0",)
        assert "booked 0 of 640 records" in present(status.stall).numbers
        assert status.waiting[0].startswith("stalled for")
        until("worker-1 is expected", lambda: core.may_attach(ProcessName.parse("worker-1")))
        idle.append(Idle(stage.client("worker-1")))
        until("the job ends", lambda: core.status().exit_code is not None)
        assert core.status().exit_code == ExitCode.STALLED
        assert "from worker-1" in present(core.status().outcome)
        assert idle[0].told >= 1
        quiet.set()
        servers.join(20)
    finally:
        for one in idle:
            one.end()
        stage.close()
    lines = [
        line["text"] for line in whole_lines(tmp_path / "events.jsonl") if line["kind"] == "stall"
    ]
    assert lines[0].startswith("the job is stalled: no activity for")
    assert any("idle.py:7, in wait" in line for line in lines)
    assert any("replacing worker-0" in line for line in lines)
    ends = [line for line in whole_lines(tmp_path / "events.jsonl") if line["cause"] == "stalled"]
    assert [line["process"] for line in ends] == ["worker-0"]


def _beat(clients: list[MasterClient], over: threading.Event) -> None:
    while not over.wait(0.5):
        for client in clients:
            try:
                client.report(Report())
            except Refused:
                # The job has ended, and its servers with it.
                return

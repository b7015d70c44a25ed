"""Reports on the open stream of orders: what they bring, and when a report is a call instead."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from elasticdl.errors import Refused, UserError
from elasticdl.master.core import commands as do
from elasticdl.master.core import events as happened
from elasticdl.master.core.presence import AttachedProcess, Presence
from elasticdl.rpc.conversation import Finish, Order, Progress, Report
from elasticdl.rpc.master_client import MasterClient
from elasticdl.shard import Applied, ShardId, Task
from tests.contract.driver_stage import LEASE, WORKER, Stage
from tests.present import present
from tests.waiting import until

pytestmark = pytest.mark.contract

DONE = Report(progress=(Progress(Task.TRAINING, Applied(ShardId(3), 0, 100), done=True),))


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path)
    yield made
    made.close()


class Follower:
    """A worker whose thread reads its orders, and that counts its reports by call."""

    def __init__(self, stage: Stage, pool: concurrent.futures.ThreadPoolExecutor) -> None:
        self.client = stage.worker()
        self.calls = 0
        self.orders: list[Order] = []
        self._report = self.client._stub.Report
        self.client._stub.Report = self._call
        self.reading = pool.submit(self._read)
        self.until_streaming()

    def until_streaming(self) -> None:
        def open_stream() -> bool:
            stream, term = self.client._stream, self.client._term
            return stream is not None and stream.term == term and stream._unread_s is None

        until("somebody reads the stream", open_stream)

    def _read(self) -> None:
        for order in self.client.orders():
            self.orders.append(order)

    def _call(self, request: Any, **how: Any) -> Any:
        self.calls += 1
        return self._report(request, **how)


@pytest.fixture
def follower(stage: Stage) -> Iterator[Follower]:
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        made = Follower(stage, pool)
        try:
            yield made
        finally:
            made.client.close()


def test_a_report_on_the_stream_counts_and_brings_a_lease(stage: Stage, follower: Follower) -> None:
    stage.core.answers[happened.LeaseRequested] = lambda event: (
        do.GrantLease(event.worker, LEASE),
    )
    assert follower.client.report(Report()) == 2.0
    assert follower.client.report_and_request(DONE) == (2.0, LEASE)
    assert stage.core.of(happened.ProgressReported)[0] in stage.journal.safe
    assert follower.calls == 0
    stage.order(do.WorkFinished(WORKER))
    until("orders still arrive", lambda: Finish() in follower.orders)


def test_a_report_that_is_invalid_is_refused_as_by_a_call(stage: Stage, follower: Follower) -> None:
    with pytest.raises(UserError, match="offset is -1"):
        follower.client.report(
            Report(progress=(Progress(Task.TRAINING, Applied(ShardId(1), 0, -1)),))
        )
    assert not stage.core.of(happened.ProgressReported)
    assert follower.calls == 1
    follower.client.report(DONE)
    assert follower.calls == 1, "the stream is still open"


def test_a_report_of_a_process_that_was_given_up_is_refused(
    stage: Stage, follower: Follower
) -> None:
    async def leave() -> None:
        stage.gateway.sessions.leave(WORKER, "has ended")

    stage.call(leave())
    with pytest.raises(Refused, match="has ended: this process was replaced"):
        follower.client.report(DONE)
    assert not stage.core.of(happened.ProgressReported)


def test_a_report_is_a_call_while_nobody_reads_the_stream(stage: Stage) -> None:
    client: MasterClient = stage.worker()
    orders = client.orders()
    next(orders)
    client.report(DONE)
    assert len(stage.core.of(happened.ProgressReported)) == 1
    present(client._stream).close()


def test_a_report_finds_the_next_master_and_the_stream_follows(
    stage: Stage, follower: Follower
) -> None:
    follower.client.report(Report())
    worker = AttachedProcess(WORKER, follower.client._credentials.instance, "")
    stage.replace_master(Presence((worker,), (), (), 7, (), None, None))
    follower.client.report(DONE)
    assert len(stage.core.of(happened.ProgressReported)) == 1
    follower.until_streaming()
    calls = follower.calls
    follower.client.report(Report())
    assert follower.calls == calls

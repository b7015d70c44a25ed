"""Processes whose master is replaced attach to the next one, by real calls."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from elasticdl.cluster.base import ProcessName, Role
from elasticdl.errors import Refused, TransientError
from elasticdl.master.core import commands as do
from elasticdl.master.core import events as happened
from elasticdl.master.core.presence import AttachedProcess, Presence
from elasticdl.master.gateway import returning
from elasticdl.master.gateway.heartbeats import SILENCE_S
from elasticdl.master.gateway.process_gateway import ProcessGateway, Returning
from elasticdl.master.gateway.returning import ReturningProcesses
from elasticdl.rpc import master_client
from elasticdl.rpc.conversation import Failure, Report, Revoke, Servers
from elasticdl.rpc.master_client import MasterClient
from elasticdl.shard import Lease, ReceivedLease, ShardId, Task
from tests.contract.driver_stage import LEASE, PS, TERM, WORKER, Stage
from tests.waiting import LIMIT_S

pytestmark = pytest.mark.contract


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(tmp_path)
    yield stage
    stage.close()


@pytest.fixture
def pool() -> Iterator[concurrent.futures.ThreadPoolExecutor]:
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        yield pool


def presence(
    client: MasterClient,
    *gone: ProcessName,
    address: str = "",
    others: Iterable[AttachedProcess] = (),
    starting: bool = False,
) -> Presence:
    """The worker, the others, and with an address the server, as an earlier master knew them."""
    worker = AttachedProcess(WORKER, client._credentials.instance, "", starting)
    server = (AttachedProcess(PS[0], "x", address),) if address else ()
    return Presence((worker, *server, *others), gone, gone, 7, (), None, None)


def granted(stage: Stage) -> MasterClient:
    """A worker with a lease."""
    client = stage.worker()
    stage.core.answers[happened.LeaseRequested] = lambda _: [do.GrantLease(WORKER, LEASE)]
    lease = client.request_lease(5.0)
    assert isinstance(lease, Lease) and lease.shard == LEASE.shard
    return client


def test_a_worker_attaches_again_by_itself_and_reports_what_it_received(stage: Stage) -> None:
    client = granted(stage)
    stage.replace_master(presence(client))
    client.report(Report(failures=(Failure(Task.TRAINING, ShardId(4), 0, "boom"),)))
    returned = stage.core.wait_for(happened.ProcessReturned)
    assert returned.name == WORKER
    assert returned.received == (ReceivedLease(Task.TRAINING, ShardId(4), 0),)
    assert len(stage.core.of(happened.TaskFailed)) == 1
    assert len(stage.core.of(happened.ProcessAttached)) == 1, "it is not a new process"


def test_all_calls_of_a_process_find_the_next_master_and_it_returns_once(
    stage: Stage, pool: concurrent.futures.ThreadPoolExecutor
) -> None:
    client = granted(stage)
    orders = client.orders()
    next(orders)
    stage.core.answers[happened.LeaseRequested] = lambda _: [do.NoLeaseNow(WORKER, "later")]
    waiting = pool.submit(client.request_lease, 20.0)
    order = pool.submit(next, orders)
    stage.core.wait_for(happened.LeaseRequested, 2)
    stage.core.answers[happened.LeaseRequested] = lambda _: [do.GrantLease(WORKER, LEASE)]
    stage.replace_master(presence(client))
    lease = waiting.result(20)
    assert isinstance(lease, Lease) and lease.shard == LEASE.shard
    assert order.result(20) == Servers(("", ""))
    assert len(stage.core.of(happened.ProcessReturned)) == 1


def test_revocations_are_counted_on_from_what_the_worker_has_seen(stage: Stage) -> None:
    client = stage.worker()
    orders = client.orders()
    next(orders)
    for number in (1, 2):
        stage.order(do.RevokeLeases(WORKER, "a test"))
        assert next(orders) == Revoke("a test", number)
    stage.replace_master(presence(client))
    assert next(orders) == Servers(("", ""))
    stage.order(do.RevokeLeases(WORKER, "again"))
    assert next(orders) == Revoke("again", 3)


def test_another_process_of_the_name_and_one_that_was_given_up_are_refused(stage: Stage) -> None:
    client = granted(stage)
    other = stage.client()
    other._attached, other._term = client._attached, TERM
    given_up = stage.client("worker-2")
    given_up.attach()
    stage.replace_master(presence(client, ProcessName.parse("worker-2")))
    with pytest.raises(Refused, match="another process is already attached"):
        other.report(Report())
    with pytest.raises(Refused, match="was replaced"):
        given_up.report(Report())
    client.report(Report())


def test_a_process_that_had_not_attached_yet_attaches_as_a_new_one(stage: Stage) -> None:
    client = stage.worker()
    late = stage.client("worker-3")
    late.attach()
    stage.replace_master(presence(client))
    late.report(Report())
    attached = [one.name for one in stage.core.of(happened.ProcessAttached)]
    assert attached.count(ProcessName.parse("worker-3")) == 2


def test_a_master_that_was_replaced_asks_its_callers_to_try_again(stage: Stage) -> None:
    client = stage.client(away_s=1.0)
    client.attach()
    client._term = TERM + 1
    with pytest.raises(TransientError, match=f"term {TERM + 1}, but this is term {TERM}"):
        client.report(Report())


def test_servers_are_reached_at_once_and_refuse_the_replaced_master(stage: Stage) -> None:
    client = stage.worker()
    address = stage.call(stage.serve(PS[0]))
    stage.replace_master(presence(client, address=address))
    stage.order(do.KeepSnapshots(()))
    stage.servers[PS[0]].wait_for_call("Keep")


async def pass_time(stage: Stage, seconds: int) -> None:
    for _ in range(seconds):
        stage.clock.advance(1.0)
        stage.gateway.tick()


def test_a_process_that_does_not_return_is_given_up_as_silent(stage: Stage) -> None:
    client = stage.worker()
    stage.replace_master(presence(client))
    stage.call(pass_time(stage, 12))
    assert stage.core.wait_for(happened.ProcessSilent).name == WORKER


def test_a_worker_that_starts_may_be_silent_for_longer_also_after_a_takeover(stage: Stage) -> None:
    client = stage.client()
    client.attach(starting=True)
    stage.replace_master(presence(client, starting=True))
    stage.call(pass_time(stage, 59))
    client.report(Report(starting=("build",)))
    stage.call(pass_time(stage, 59))
    assert not stage.core.of(happened.ProcessSilent)
    client.report(Report(starting=("",)))
    stage.call(pass_time(stage, 10))
    assert stage.core.wait_for(happened.ProcessSilent).silent_s == 10


class Crowd:
    """A worker, and so many other processes of an earlier master that its calls wait for them."""

    def __init__(self, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
        self._stage, self.waits = stage, threading.Event()
        self.client = stage.client(away_s=LIMIT_S)
        self.client.attach()
        self.late = stage.client("worker-2")
        late = ProcessName.parse("worker-2"), self.late._credentials.instance
        others = [
            (ProcessName(Role.WORKER, number), "x") for number in range(3, 3 + returning._FEW - 1)
        ]
        self.last, *self._others = (name for name, _ in others)
        all_are_back = ReturningProcesses.all_are_back

        async def waited(expected: ReturningProcesses) -> None:
            self.waits.set()
            await all_are_back(expected)

        monkeypatch.setattr(ReturningProcesses, "all_are_back", waited)
        # Nobody who stays away is given up meanwhile.
        monkeypatch.setattr(returning, "_QUIET_S", 3600.0)
        stage.replace_master(
            presence(self.client, others=(AttachedProcess(*one, "") for one in (late, *others)))
        )

    def come(self) -> None:
        """All others are back but worker-2 and the last one."""
        for name in self._others:
            self._stage.call(self._stage.gateway.attach_again(name, "x", Returning()))

    def leave(self, name: ProcessName) -> None:
        async def leave() -> None:
            self._stage.gateway.leave(name, "has ended")

        self._stage.call(leave())


@pytest.fixture
def crowd(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> Crowd:
    return Crowd(stage, monkeypatch)


FAILURE = Report(failures=(Failure(Task.TRAINING, ShardId(4), 0, "boom"),))


@pytest.fixture
def report(
    crowd: Crowd, pool: concurrent.futures.ThreadPoolExecutor
) -> concurrent.futures.Future[float | None]:
    """A report of the worker, which waits for the last two of the crowd."""
    waiting = pool.submit(crowd.client.report, FAILURE)
    assert crowd.waits.wait(LIMIT_S)
    crowd.come()
    return waiting


def test_a_report_waits_until_each_process_has_attached_or_left(
    stage: Stage, crowd: Crowd, report: concurrent.futures.Future[float | None]
) -> None:
    crowd.late.attach()
    assert not stage.core.of(happened.TaskFailed)
    crowd.leave(crowd.last)
    report.result(LIMIT_S)
    assert len(stage.core.of(happened.TaskFailed)) == 1


def test_a_process_that_no_master_has_answered_attaches_as_a_new_one_and_none_waits_for_it(
    stage: Stage, crowd: Crowd, report: concurrent.futures.Future[float | None]
) -> None:
    crowd.leave(crowd.last)
    assert not stage.core.of(happened.TaskFailed)
    crowd.late.attach()
    report.result(LIMIT_S)
    assert len(stage.core.of(happened.ProcessAttached)) == 1, "the core knows of it"


def test_a_worker_that_leaves_while_its_request_waits_is_refused(
    stage: Stage, crowd: Crowd, pool: concurrent.futures.ThreadPoolExecutor
) -> None:
    request = pool.submit(crowd.client.request_lease, LIMIT_S)
    assert crowd.waits.wait(LIMIT_S)
    crowd.leave(WORKER)
    crowd.come()
    crowd.late.attach()
    crowd.leave(crowd.last)
    with pytest.raises(Refused, match="was replaced"):
        request.result(LIMIT_S)
    assert not stage.gateway.leases.waiting()
    assert not stage.core.of(happened.LeaseRequested)


def test_a_process_that_gets_no_answer_when_it_attaches_again_waits_as_long_as_for_its_call(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert master_client.ATTACH_AGAIN_S < SILENCE_S, "it is heard in time if one call is lost"

    async def no_answer(*_: object) -> bool:
        await asyncio.Event().wait()
        return False

    client = stage.client(away_s=1.0)
    client.attach()
    monkeypatch.setattr(master_client, "ATTACH_AGAIN_S", 3600.0)
    monkeypatch.setattr(ProcessGateway, "attach_again", no_answer)
    stage.replace_master(presence(client))
    with pytest.raises(TransientError):
        client.report(Report())

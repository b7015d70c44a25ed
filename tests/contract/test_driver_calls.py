"""What processes say to the master in calls, and what it says to them."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Iterator
from typing import Any

import pytest

from elasticdl.cluster.base import ProcessName, Role
from elasticdl.dropped import DropCause
from elasticdl.errors import PermanentError, Refused, TransientError, UserError
from elasticdl.master.core import commands as do
from elasticdl.master.core import events as happened
from elasticdl.master.core.ps.roll_back import RollBack
from elasticdl.rpc import elasticdl_pb2 as pb
from elasticdl.rpc.call_frames import METHODS, CallFailed
from elasticdl.rpc.conversation import (
    Drain,
    Failure,
    Finish,
    Finished,
    Progress,
    Report,
    Revoke,
    Servers,
    Summary,
    Wait,
)
from elasticdl.rpc.master_client import MasterClient
from elasticdl.shard import Applied, ShardId, Task
from elasticdl.tokens import process_token
from tests.contract.driver_stage import LEASE, PS, SPEC, TERM, TOKEN, WORKER, Stage
from tests.waiting import until

pytestmark = pytest.mark.contract


@pytest.fixture
def pool() -> Iterator[concurrent.futures.ThreadPoolExecutor]:
    with concurrent.futures.ThreadPoolExecutor(4) as made:
        yield made


# who may speak


def test_a_process_that_attaches_is_told_what_it_needs(stage: Stage) -> None:
    attached = stage.client().attach()
    assert (attached.term, attached.spec, attached.restore_from) == (
        TERM,
        SPEC,
        "checkpoints/version-5",
    )
    assert stage.core.wait_for(happened.ProcessAttached).name == WORKER


@pytest.mark.parametrize("token", ["", "wrong", TOKEN + "x", TOKEN[:-1]])
def test_a_wrong_token_is_refused_and_nothing_is_acted_on(stage: Stage, token: str) -> None:
    client = stage.client(token=token)
    for call in (
        client.attach,
        client.status,
        lambda: client.stop("x"),
        lambda: client.report(Report()),
    ):
        with pytest.raises(Refused, match="token"):
            call()
    assert not stage.core.of(happened.ProcessAttached)
    assert not stage.core.of(happened.StopRequested)


def test_a_second_process_that_claims_a_name_is_refused(stage: Stage) -> None:
    first, second = stage.client(), stage.client()
    first.attach()
    with pytest.raises(Refused, match="already attached as worker-1"):
        second.attach()
    with pytest.raises(Refused):
        second.report(Report())
    first.report(Report())
    assert len(stage.core.of(happened.ProcessAttached)) == 1


def test_a_process_that_nobody_ordered_is_refused(stage: Stage) -> None:
    with pytest.raises(Refused, match="this job does not expect worker-9"):
        stage.client("worker-9").attach()


def test_an_attach_repeated_by_the_same_process_is_one_event(stage: Stage) -> None:
    client = stage.client()
    client.attach()
    client.attach()
    assert len(stage.core.of(happened.ProcessAttached)) == 1


def test_a_process_that_never_attached_is_refused(stage: Stage) -> None:
    client = stage.client("worker-8")
    client._term = TERM
    with pytest.raises(Refused, match="worker-8 is not attached"):
        client.report(Report())


def test_a_process_that_ended_is_refused_however_late_it_comes(stage: Stage) -> None:
    client = stage.worker()
    stage.order(do.StartProcess(WORKER))
    stage.core.wait_for(happened.ProcessSeen)
    stage.call(asyncio.sleep(0))
    stage._loop.call_soon_threadsafe(stage.cluster.kill, WORKER)
    stage.core.wait_for(happened.ProcessEnded)
    with pytest.raises(Refused, match="replaced"):
        client.report(Report())
    with pytest.raises(Refused, match="replaced"):
        stage.client().attach()


def test_a_server_that_follows_another_one_in_its_place_learns_who_it_is(stage: Stage) -> None:
    assert stage.client("ps-0").who() == ProcessName.parse("ps-0")
    stage.client("ps-0").attach()
    with pytest.raises(TransientError, match="the successor of ps-0 is not known yet"):
        stage.client("ps-0", away_s=1.0).who()
    second = ProcessName.parse("ps-0.1")
    stage.residents[ProcessName.parse("ps-0")] = second
    assert stage.client("ps-0").who() == second
    # The pod has the token of its first process only.
    stage.client("ps-0.1", process_token(TOKEN, "ps-0")).attach()
    with pytest.raises(TransientError, match="not known yet"):
        stage.client("ps-0", away_s=1.0).who()
    with pytest.raises(Refused, match="may not call Who"):
        stage.client("worker-1").who()


@pytest.mark.parametrize("name", ["", "cook-1", "worker", "worker-x", "../etc-1", "master-0"])
def test_a_name_that_is_none_of_a_process_may_not_attach(stage: Stage, name: str) -> None:
    with pytest.raises(Refused, match=r"may not call Attach|token is missing or wrong"):
        stage.client(name).attach()
    assert not stage.core.of(happened.ProcessAttached)


def test_a_server_with_half_of_its_addresses_is_invalid(stage: Stage) -> None:
    with pytest.raises(UserError, match="one address missing"):
        stage.client("ps-0").attach("127.0.0.1:1")


@pytest.mark.parametrize("number", [-1, 2**63 - 1])
def test_a_number_that_no_job_can_have_is_invalid(stage: Stage, number: int) -> None:
    with pytest.raises(UserError, match=f"restored_version is {number}"):
        stage.client("ps-0").attach("127.0.0.1:1", "127.0.0.1:2", number)
    assert not stage.core.of(happened.ProcessAttached)
    worker = stage.client("worker-1")
    worker.attach()
    worker._revocation = number
    with pytest.raises(CallFailed) as refused:
        worker._attach_again(TERM, 5.0)
    assert f"revocation is {number}" in str(refused.value.details())


def test_a_server_learns_that_it_returns_to_a_checkpoint_with_the_others(stage: Stage) -> None:
    server = stage.client("ps-0")
    assert not server.attach().rolls_back
    stage.core.roll_back = RollBack(4, "checkpoints/version-4")
    attached = server.attach()
    assert attached.rolls_back and attached.restore_from == "checkpoints/version-4"
    assert not stage.client(str(WORKER)).attach().rolls_back


def test_a_server_learns_what_to_restore_before_anybody_hears_of_it(stage: Stage) -> None:
    client = stage.client("ps-0")
    assert client.attach().restore_from == "checkpoints/version-5"
    client.report(Report())
    assert not stage.core.of(happened.ProcessAttached)
    for _ in range(2):
        client.attach(stage.call(stage.serve(PS[0])), "127.0.0.1:9", 5)
    [attached] = stage.core.of(happened.ProcessAttached)
    assert (attached.name, attached.bulk_address, attached.restored_version) == (
        PS[0],
        "127.0.0.1:9",
        5,
    )


def test_a_message_that_is_too_big_is_refused_and_the_master_continues(stage: Stage) -> None:
    client = stage.worker()
    big = Report(
        failures=tuple(Failure(Task.TRAINING, ShardId(1), 0, "x" * 60_000) for _ in range(300))
    )
    with pytest.raises(PermanentError, match=r"RESOURCE_EXHAUSTED|larger than max"):
        client.report(big)
    client.report(Report(gauges={"rss_bytes": 1.0}))


def test_nonsense_is_invalid_and_nothing_of_it_counts(stage: Stage) -> None:
    client = stage.worker()
    with pytest.raises(UserError, match="offset is -1"):
        client.report(Report(progress=(Progress(Task.TRAINING, Applied(ShardId(1), 0, -1)),)))
    assert not stage.core.of(happened.ProgressReported)
    with pytest.raises(UserError, match="expected 1 <= MIN <= MAX"):
        stage.client("cli").scale(4, 2)


def test_what_is_asked_for_too_late_is_refused_with_its_reason(stage: Stage) -> None:
    client = stage.client("cli")
    assert client.scale(1, 4) == "4 are too many"
    asked = len(stage.core.of(happened.ScaleRequested))
    stage.core.too_late = "the job has ended"
    with pytest.raises(PermanentError, match=r"workers to 1:2: the job has ended$"):
        client.scale(1, 2)
    with pytest.raises(PermanentError, match=r"^cannot take a checkpoint: the job has ended$"):
        client.checkpoint()
    assert len(stage.core.of(happened.ScaleRequested)) == asked == 1
    assert not stage.core.of(happened.CheckpointRequested)


# leases


def test_a_lease_is_granted(stage: Stage) -> None:
    stage.core.answers[happened.LeaseRequested] = lambda event: (
        do.GrantLease(event.worker, LEASE),
    )
    assert stage.worker().request_lease(5) == LEASE


def test_a_long_poll_ends_with_the_reason_or_with_work_when_it_appears(
    stage: Stage, pool: concurrent.futures.ThreadPoolExecutor
) -> None:
    stage.core.answers[happened.LeaseRequested] = lambda event: (
        do.NoLeaseNow(event.worker, "all shards are leased"),
    )
    client = stage.worker()
    assert client.request_lease(0.05) == Wait("all shards are leased")
    asked = len(stage.core.of(happened.LeaseRequested))
    waiting = pool.submit(client.request_lease, 20)
    stage.core.wait_for(happened.LeaseRequested, asked + 1)
    stage.core.answers[happened.LeaseRequested] = lambda event: (
        do.GrantLease(event.worker, LEASE),
    )
    stage.post(
        happened.LeaseReturned(0.0, ProcessName.parse("worker-9"), Applied(ShardId(4), 0, 0))
    )
    assert waiting.result(20) == LEASE


def test_the_end_of_the_work_is_reported(stage: Stage) -> None:
    stage.core.answers[happened.LeaseRequested] = lambda event: (do.WorkFinished(event.worker),)
    assert stage.worker().request_lease(5) == Finished()


def test_a_lease_granted_to_a_call_that_was_cancelled_goes_back(stage: Stage) -> None:
    client = stage.worker()
    request = pb.LeaseRequest(wait_s=20, sequence=1)
    call = client._calls._run(
        client._calls._client.call(METHODS["RequestLease"], request, term=TERM, timeout_s=20)
    )
    stage.core.wait_for(happened.LeaseRequested)
    call.cancel()
    # The cancellation travels on the same connection, so it is known when a later call has been
    # answered.
    client.report(Report())
    stage.order(do.GrantLease(WORKER, LEASE))
    back = stage.core.wait_for(happened.LeaseReturned)
    assert (back.worker, back.applied) == (WORKER, Applied(ShardId(4), 0, 0))


def test_no_event_of_an_unanswered_question_is_kept(stage: Stage) -> None:
    stage.core.answers[happened.LeaseRequested] = lambda event: (
        do.NoLeaseNow(event.worker, "wait"),
    )
    stage.worker().request_lease(0.05)
    assert "LeaseRequested" not in stage.journal.log


# reports


def test_a_report_becomes_events_in_order(stage: Stage) -> None:
    client = stage.worker()
    done = Progress(Task.TRAINING, Applied(ShardId(4), 0, 100), version=9, loss=0.5, done=True)
    back = Progress(Task.TRAINING, Applied(ShardId(5), 1, 20), returned=True)
    client.report(
        Report(
            progress=(done, back),
            summaries=(Summary(2, {"accuracy": 0.9}),),
            failures=(Failure(Task.TRAINING, ShardId(6), 0, "ZeroDivisionError"),),
            exported="out/model",
            stop_asked="enough",
        )
    )
    kinds = [
        type(event).__name__
        for event in stage.journal.safe
        if not isinstance(event, happened.ProcessAttached)
    ]
    assert kinds == [
        "ProgressReported",
        "ProgressReported",
        "LeaseReturned",
        "SummaryReported",
        "TaskFailed",
        "ExportFinished",
        "WorkerStopRequested",
    ]


def test_a_report_that_was_answered_is_on_disk(stage: Stage) -> None:
    client = stage.worker()
    for offset in range(1, 50):
        client.report(Report(progress=(Progress(Task.TRAINING, Applied(ShardId(4), 0, offset)),)))
        assert stage.journal.safe[-1].applied.offset == offset  # type: ignore[attr-defined]


def test_the_accounts_of_all_workers_time_reach_the_core_in_one_event(stage: Stage) -> None:
    client = stage.worker()
    other = ProcessName(Role.WORKER, 4)
    again = stage.client(str(other))
    again.attach()
    client.report(Report(gauges={"step_ms": 2.0, "spent_compute.step": 3.0}))
    again.report(Report(gauges={"spent_compute.step": 1.0, "spent_wait.lease": 4.0}))
    assert stage.gateway.sessions.gauges(WORKER) == {"step_ms": 2.0}, "for people"

    async def pass_time(ticks: int) -> None:
        for _ in range(ticks):
            stage.clock.advance(2)
            stage.gateway.tick()

    stage.call(pass_time(1))
    told = stage.core.wait_for(happened.TimeReported)
    assert told.spent_s == {
        str(WORKER): {"compute.step": 3.0},
        str(other): {"compute.step": 1.0, "wait.lease": 4.0},
    }
    assert told in stage.journal.safe
    for seconds in (4.0, 5.0):
        client.report(Report(gauges={"spent_compute.step": seconds}))
        again.report(Report())
        stage.call(pass_time(2))
        assert len(stage.core.of(happened.TimeReported)) == 1, "each 10 s"
    stage.call(pass_time(1))
    told = stage.core.wait_for(happened.TimeReported, 2)
    assert told.spent_s == {str(WORKER): {"compute.step": 5.0}}


def test_the_last_account_of_a_workers_time_precedes_its_end(stage: Stage) -> None:
    client = stage.worker()
    stage.order(do.StartProcess(WORKER))
    stage.core.wait_for(happened.ProcessSeen)
    client.report(Report(gauges={"spent_compute.step": 3.0}))
    client.report(Report(gauges={"spent_compute.step": 5.0}))
    stage._loop.call_soon_threadsafe(stage.cluster.kill, WORKER)
    stage.core.wait_for(happened.ProcessEnded)
    last = [
        event
        for event in stage.journal.safe
        if isinstance(event, happened.TimeReported | happened.ProcessEnded)
    ]
    assert [type(event) for event in last] == [happened.TimeReported, happened.ProcessEnded]
    assert last[0] == happened.TimeReported(last[0].at_s, {str(WORKER): {"compute.step": 5.0}})


def test_a_report_that_is_repeated_counts_once(stage: Stage) -> None:
    client = stage.worker()
    report = Report(failures=(Failure(Task.TRAINING, ShardId(6), 0, "boom"),))
    client.report(report)
    client._reports = 0
    client.report(report)
    client.report(report)
    assert len(stage.core.of(happened.TaskFailed)) == 2
    [repeated] = stage.core.of(happened.MessagesDropped)
    assert (repeated.name, repeated.cause, repeated.count) == (WORKER, DropCause.REPEATED_REPORT, 1)
    assert repeated in stage.journal.safe


def test_a_report_brings_the_next_lease(stage: Stage) -> None:
    stage.core.answers[happened.LeaseRequested] = lambda event: (
        do.GrantLease(event.worker, LEASE),
    )
    client = stage.worker()
    done = Progress(Task.TRAINING, Applied(ShardId(3), 0, 100), done=True)
    heartbeat_s, lease = client.report_and_request(Report(progress=(done,)))
    assert (heartbeat_s, lease) == (2.0, LEASE)
    kinds = [type(event).__name__ for event in stage.journal.safe]
    assert kinds[-2:] == ["ProgressReported", "LeaseRequested"], "what is done makes room first"
    stage.core.answers[happened.LeaseRequested] = lambda event: (
        do.NoLeaseNow(event.worker, "all shards are leased"),
    )
    assert client.report_and_request(Report())[1] == Wait("all shards are leased")
    stage.core.answers[happened.LeaseRequested] = lambda event: (do.WorkFinished(event.worker),)
    assert client.report_and_request(Report())[1] == Finished()


def test_a_repeated_report_brings_the_same_lease_again(stage: Stage) -> None:
    stage.core.answers[happened.LeaseRequested] = lambda event: (
        do.GrantLease(event.worker, LEASE),
    )
    client = stage.worker()
    report = Report(progress=(Progress(Task.TRAINING, Applied(ShardId(3), 0, 100), done=True),))
    first = client.report_and_request(report)
    client._reports = client._leases = 0
    assert client.report_and_request(report) == first
    assert len(stage.core.of(happened.LeaseRequested)) == 1
    assert len(stage.core.of(happened.ProgressReported)) == 1


def test_a_server_gets_no_lease_with_its_report(stage: Stage) -> None:
    client = stage.client("ps-0")
    client.attach()
    with pytest.raises(UserError, match="ps-0 requested a lease; only workers have leases"):
        client.report_and_request(Report())
    assert not stage.core.of(happened.LeaseRequested)


def test_what_a_process_drops_itself_is_in_the_journal(stage: Stage) -> None:
    client = stage.worker()
    for count in (2, 2, 5):
        client.report(
            Report(
                gauges={"dropped_voided_lease": float(count)},
                stop_asked="so that the answer waits for it",
            )
        )
    told = [(event.cause, event.count) for event in stage.core.of(happened.MessagesDropped)]
    assert told == [(DropCause.VOIDED_LEASE, 2), (DropCause.VOIDED_LEASE, 3)]
    assert all(event in stage.journal.safe for event in stage.core.of(happened.MessagesDropped))


def test_gauges_and_records_per_second_are_shown(stage: Stage) -> None:
    stage.core.answers[happened.LeaseRequested] = lambda event: (
        do.GrantLease(event.worker, LEASE),
    )
    client = stage.worker()
    client.request_lease(5)
    client.report(Report(progress=(Progress(Task.TRAINING, Applied(ShardId(4), 0, 20)),)))
    stage.clock.advance(4)
    client.report(
        Report(
            progress=(Progress(Task.TRAINING, Applied(ShardId(4), 0, 60)),), gauges={"step_ms": 3.5}
        )
    )
    status = stage.client("cli").status()
    assert status.records_per_s == 10.0
    assert status.gauges["worker-1"] == {"step_ms": 3.5, "records_per_s": 10.0}


def test_the_version_of_the_job_is_that_of_the_least_advanced_server(stage: Stage) -> None:
    stage.attach_servers()
    stage.clients[0].report(Report(version=12))
    assert not stage.core.of(happened.VersionAdvanced)
    stage.clients[1].report(Report(version=11))
    stage.clients[1].report(Report(version=11))
    stage.clients[1].report(Report(version=15))
    stage.core.wait_for(happened.VersionAdvanced, 2)
    assert [event.version for event in stage.core.of(happened.VersionAdvanced)] == [11, 12]


def test_a_process_that_is_not_heard_of_is_given_up_once(stage: Stage) -> None:
    client = stage.worker()

    async def pass_time() -> None:
        for _ in range(8):
            stage.clock.advance(2)
            stage.gateway.tick()

    stage.call(pass_time())
    silent = stage.core.wait_for(happened.ProcessSilent)
    assert silent.name == WORKER and silent.silent_s >= 10 and silent.connected
    assert len(stage.core.of(happened.ProcessSilent)) == 1
    with pytest.raises(Refused, match="sent no message"):
        client.report(Report())


def test_a_worker_that_starts_may_be_silent_for_longer(stage: Stage) -> None:
    """TensorFlow's import lets no other thread of its process run."""
    client = stage.client()
    client.attach(starting=True)

    async def pass_time(ticks: int) -> None:
        for _ in range(ticks):
            stage.clock.advance(2)
            stage.gateway.tick()

    stage.call(pass_time(29))
    assert not stage.core.of(happened.ProcessSilent)
    client.report(Report(starting=("build",)))
    stage.call(pass_time(29))
    assert not stage.core.of(happened.ProcessSilent)
    client.report(Report(starting=("",)))
    stage.call(pass_time(5))
    assert stage.core.wait_for(happened.ProcessSilent).silent_s == 10


def test_a_worker_that_never_gets_out_of_its_start_is_given_up(stage: Stage) -> None:
    stage.client().attach(starting=True)

    async def pass_time() -> None:
        for _ in range(30):
            stage.clock.advance(2)
            stage.gateway.tick()

    stage.call(pass_time())
    assert stage.core.wait_for(happened.ProcessSilent).silent_s == 60


def test_among_thousands_reports_are_rarer_but_a_broken_connection_is_noticed_as_soon(
    stage: Stage,
) -> None:
    client, sessions = stage.worker(), stage.gateway.sessions

    async def crowd() -> None:
        for number in range(100, 4100):
            sessions.claim(ProcessName(Role.WORKER, number), "x").heartbeat_s = 3600.0

    async def pass_time(ticks: int) -> None:
        for _ in range(ticks):
            stage.clock.advance(2)
            stage.gateway.tick()

    stage.call(crowd())
    assert client.report(Report()) == pytest.approx(10.0, rel=0.01)
    # Python would end the stream with its last reference.
    orders = client.orders()
    assert isinstance(next(orders), Servers)
    stage.call(pass_time(20))
    assert not stage.core.of(happened.ProcessSilent)
    client.report(Report())
    client.close()
    until("its stream broke", lambda: dict(sessions)[WORKER].streams is False)
    stage.call(pass_time(6))
    silent = stage.core.wait_for(happened.ProcessSilent)
    assert silent.name == WORKER and not silent.connected


def test_a_master_that_was_stopped_itself_gives_nobody_up(stage: Stage) -> None:
    stage.worker()
    stage.clock.advance(3600)

    async def tick() -> None:
        stage.gateway.tick()

    stage.call(tick())
    assert not stage.core.of(happened.ProcessSilent)


# orders


def test_orders_reach_a_worker_and_begin_with_the_servers(stage: Stage) -> None:
    client = stage.worker()
    stage.order(do.PublishServers(("a:1", "b:2")), do.RevokeLeases(WORKER, "it took too long"))
    orders = client.orders()
    assert next(orders) == Servers(("a:1", "b:2"))
    assert next(orders) == Revoke("it took too long", 1)
    stage.order(do.PublishServers(("a:1", "")))
    assert next(orders) == Servers(("a:1", ""))


def test_a_worker_that_does_not_ask_for_work_yet_is_told_that_there_is_none_any_more(
    stage: Stage,
) -> None:
    """It may be importing TensorFlow: the job's end does not wait for that."""
    client = stage.worker()
    stage.order(do.WorkFinished(WORKER))
    orders = client.orders()
    assert [next(orders), next(orders)] == [Servers(("", "")), Finish()]


def test_a_stream_that_is_opened_again_takes_over(stage: Stage) -> None:
    client = stage.worker()
    old, new = client.orders(), client.orders()
    assert next(old) == next(new) == Servers(("", ""))
    stage.order(do.RevokeLeases(WORKER, "late"))
    assert next(new) == Revoke("late", 1)


def test_a_worker_that_is_stopped_is_told_why(stage: Stage) -> None:
    client = stage.worker()
    orders = client.orders()
    next(orders)
    stage.order(do.StopProcess(WORKER, 5.0, "scaled down to 1"))
    assert next(orders) == Drain("scaled down to 1", 5.0)


def test_a_worker_that_is_stopped_again_without_grace_is_told_so(stage: Stage) -> None:
    """Kubelets keep to a pod's first grace, so only the worker itself can end earlier."""
    client = stage.worker()
    orders = client.orders()
    next(orders)
    stage.order(do.StopProcess(WORKER, 30.0, "stopped"), do.StopProcess(WORKER, 0.0, "stopped"))
    assert [next(orders), next(orders)] == [Drain("stopped", 30.0), Drain("stopped", 0.0)]


def test_orders_end_when_the_client_is_closed(
    stage: Stage, pool: concurrent.futures.ThreadPoolExecutor
) -> None:
    client = stage.worker()
    orders = client.orders()
    next(orders)
    rest = pool.submit(list, orders)
    client.close()
    assert rest.result(20) == []


def test_a_client_survives_a_master_that_is_away(
    stage: Stage, pool: concurrent.futures.ThreadPoolExecutor
) -> None:
    client = stage.worker()
    client._away_s = 30
    orders = client.orders()
    next(orders)
    stage.call(stage.vanish())
    failure = Report(failures=(Failure(Task.TRAINING, ShardId(6), 0, "boom"),))
    calls: list[concurrent.futures.Future[Any]] = [
        pool.submit(client.report, failure),
        pool.submit(client.request_lease, 0.2),
        pool.submit(next, orders),
    ]
    assert not concurrent.futures.wait(calls, timeout=0.3).done
    stage.call(stage.come_back())
    calls[0].result(20)
    assert isinstance(calls[1].result(20), Wait)
    assert calls[2].result(20) == Servers(("", ""))
    assert len(stage.core.of(happened.TaskFailed)) == 1
    assert len(stage.core.of(happened.ProcessAttached)) == 1


def test_a_client_gives_up_on_a_master_that_stays_away() -> None:
    client = MasterClient("127.0.0.1:1", TOKEN, "worker-1", away_s=0.3)
    with pytest.raises(
        TransientError, match=r"attach of worker-1 at master 127.0.0.1:1.*gave up after"
    ):
        client.attach()
    client.close()
    # No time for a second one.
    client = MasterClient("127.0.0.1:1", TOKEN, "worker-1", away_s=0.01)
    with pytest.raises(TransientError, match=r"gave up after 1 attempt in 0\.01 s"):
        client.attach()
    client.close()

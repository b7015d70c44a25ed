"""The small decisions of the driver's side, called with plain values."""

from __future__ import annotations

import asyncio
import json
import random
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticdl.clock import ManualClock
from elasticdl.cluster.base import ExitStatus, ProcessName, ProcessSpec, Role
from elasticdl.errors import ExitCode, PermanentError, Refused, TransientError, UserError
from elasticdl.history.lines import JsonLines
from elasticdl.job import JobSpec
from elasticdl.job_choices import Action
from elasticdl.jobdir.layout import write_json
from elasticdl.master.core import commands as do
from elasticdl.master.core import events as happened
from elasticdl.master.event_queue import EventQueue
from elasticdl.master.executor.executor import Executor, ExecutorDeps
from elasticdl.master.executor.launcher import Launcher
from elasticdl.master.executor.process_env import ProcessEnv
from elasticdl.master.executor.snapshots import Cut, agreed, highest
from elasticdl.master.gateway.heartbeats import heartbeat_s
from elasticdl.master.gateway.order_streams import OrderStreams
from elasticdl.master.gateway.sessions import Sessions
from elasticdl.master.journal.rules import may_free_work, worth_keeping
from elasticdl.master.throughput import Throughput
from elasticdl.rpc.channel import Credentials, caller_of
from elasticdl.rpc.conversation import Finish, Progress, Revoke, Servers
from elasticdl.rpc.ps_control import ServerCut
from elasticdl.rpc.retry import delay_s, mapped
from elasticdl.shard import Applied, Lease, Shard, ShardId, SnapshotId, Task
from elasticdl.tokens import process_token
from tests.fake_cluster import FakeCluster
from tests.present import present

pytestmark = pytest.mark.core

WORKER = ProcessName(Role.WORKER, 1)
OTHER = ProcessName(Role.WORKER, 2)


def applied(offset: int, shard: int = 4, attempt: int = 0) -> Applied:
    return Applied(ShardId(shard), attempt, offset)


# one cut


def test_what_any_server_has_all_are_to_get() -> None:
    assert highest([{"a": 3, "b": 1}, {"a": 4}]) == {"a": 4, "b": 1}


def test_a_push_that_only_some_servers_have_is_not_in_the_cut() -> None:
    cuts = [ServerCut(10, {"a": applied(80)}, {"a": 8}), ServerCut(9, {"a": applied(70)}, {"a": 7})]
    assert (agreed(cuts).version, agreed(cuts).applied) == (9, {"a": applied(70)})


def test_the_push_before_may_be_of_another_shard() -> None:
    cuts = [
        ServerCut(1, {"a": applied(10, shard=9)}, {"a": 8}),
        ServerCut(1, {"a": applied(100, shard=2)}, {"a": 7}),
    ]
    assert agreed(cuts).applied == {"a": applied(100, shard=2)}


def test_a_cut_says_how_far_any_server_came_with_a_worker() -> None:
    """Also where one of them has lost its memory and has not seen the worker since."""
    cuts = [ServerCut(5, {"a": applied(10)}, {"a": 8}), ServerCut(0, {}, {})]
    cut = agreed(cuts, [2, 3])
    assert (cut.sequences, cut.reached, cut.behind) == ({}, {"a": 8}, {"3": {"a": 0}})


@given(st.integers(1, 6), st.integers(0, 2**32))
def test_a_cut_never_claims_more_than_the_server_that_has_least(servers: int, seed: int) -> None:
    chance = random.Random(seed)
    whole = {worker: chance.randrange(1, 100) for worker in "abc"}
    cuts = []
    for _ in range(servers):
        numbers = {worker: number - chance.randrange(2) for worker, number in whole.items()}
        numbers = {worker: number for worker, number in numbers.items() if number}
        cuts.append(
            ServerCut(0, {worker: applied(number) for worker, number in numbers.items()}, numbers)
        )
    for worker, part in agreed(cuts).applied.items():
        assert part.offset == min(cut.applied[worker].offset for cut in cuts)


# journal


def test_time_and_questions_without_effect_are_not_kept() -> None:
    announce = do.Announce("wait", "x")
    assert not worth_keeping(happened.Tick(1.0), [])
    assert worth_keeping(happened.Tick(1.0), [announce])
    asked = happened.LeaseRequested(1.0, WORKER)
    assert not worth_keeping(asked, [do.NoLeaseNow(WORKER, "wait")])
    assert worth_keeping(asked, [do.GrantLease(WORKER, Lease(Task.EXPORT, None, 0))])
    assert worth_keeping(asked, [do.NoLeaseNow(WORKER, "wait"), announce])
    assert worth_keeping(happened.CheckpointRequested(1.0), [])


def test_progress_in_the_middle_of_a_shard_frees_no_work() -> None:
    assert not may_free_work(happened.ProgressReported(1.0, WORKER, Task.TRAINING, applied(3)))
    assert may_free_work(
        happened.ProgressReported(1.0, WORKER, Task.TRAINING, applied(3), done=True)
    )
    assert may_free_work(happened.WorkerFenced(1.0, WORKER, ()))
    assert may_free_work(happened.Tick(1.0))
    assert not may_free_work(happened.LeaseRequested(1.0, WORKER)), (
        "or the questions would never end"
    )


# throughput


def progress(offset: int, *, attempt: int = 0, done: bool = False) -> Progress:
    return Progress(Task.TRAINING, applied(offset, attempt=attempt), done=done)


def lease(attempt: int = 0, offset: int = 0, task: Task = Task.TRAINING) -> Lease:
    return Lease(task, Shard(ShardId(4), "a", 0, 1000), attempt, offset)


def test_records_per_second_are_those_of_the_last_while() -> None:
    speed = Throughput(Task.TRAINING)
    speed.granted(lease())
    for second in range(1, 101):
        speed.reported(WORKER, progress(10 * second), float(second))
    assert speed.total(100.0) == pytest.approx(10.0, rel=0.1)
    assert speed.total(130.0) == 0.0


def test_a_rate_does_not_begin_with_a_peak() -> None:
    speed = Throughput(Task.TRAINING)
    speed.granted(lease())
    speed.reported(WORKER, progress(160), 10.0)
    assert speed.total(10.1) == 0.0
    speed.reported(WORKER, progress(320), 12.0)
    assert speed.total(12.0) == 80.0
    assert speed.of_worker(WORKER, 12.0) == 80.0
    speed.reported(OTHER, progress(330), 12.0)
    speed.reported(OTHER, progress(360), 12.01)
    assert speed.of_worker(OTHER, 12.1) == 15.0


def test_records_skipped_by_a_later_attempt_and_repeats_are_not_counted() -> None:
    speed = Throughput(Task.TRAINING)
    speed.granted(lease(attempt=1, offset=600))
    speed.reported(WORKER, progress(600, attempt=1), 0.0)
    for _ in range(3):
        speed.reported(WORKER, progress(700, attempt=1), 10.0)
    assert speed.total(10.0) == 10.0


def test_other_tasks_and_leases_that_are_over_do_not_count() -> None:
    speed = Throughput(Task.TRAINING)
    speed.granted(lease(task=Task.EVALUATION))
    speed.reported(WORKER, progress(500), 1.0)
    speed.granted(lease(attempt=2))
    speed.reported(WORKER, progress(0, attempt=2), 0.0)
    speed.reported(WORKER, progress(20, attempt=2, done=True), 2.0)
    speed.reported(WORKER, progress(900, attempt=2), 2.0)
    assert speed.total(2.0) == 10.0
    assert speed.of_worker(WORKER, 2.0) == 10.0
    speed.leave(WORKER)
    assert speed.of_worker(WORKER, 2.0) is None


# attendance


def test_of_two_processes_of_one_name_the_first_speaks() -> None:
    book = Sessions()
    assert book.refusal(WORKER, "a") == "worker-1 is not attached"
    assert book.claim(WORKER, "a") is book.claim(WORKER, "a")
    assert book.refusal(WORKER, "a") is None
    assert "another process" in present(book.refusal(WORKER, "b"))
    assert book.leave(WORKER, "has ended")
    assert not book.leave(WORKER, "again")
    assert "has ended: this process was replaced" in present(book.refusal(WORKER, "a"))


def limit_s(book: Sessions) -> float:
    """The silence after which the only process is given up; then it says something."""
    for _ in range(200):
        if found := book.silent():
            ((name, silent_s),) = found
            book.heard(name)
            return silent_s
        book.pass_time(1.0)
    raise AssertionError("it is never given up")


def test_the_bound_on_silence_is_five_periods_and_shorter_without_a_stream_of_orders() -> None:
    assert [heartbeat_s(number) for number in (1, 800, 10_000)] == [2.0, 2.0, 25.0]
    book = Sessions()
    session = book.claim(WORKER, "a")
    assert limit_s(book) == 10.0
    session.heartbeat_s = 25.0
    assert limit_s(book) == 125.0, "it has had no stream yet: many attach at once"
    book.streams(WORKER, opened=True)
    book.pass_time(2.0)
    book.streams(WORKER, opened=False)
    assert limit_s(book) == 10.0, "silence counts from the break"
    book.streams(WORKER, opened=True)
    assert limit_s(book) == 125.0


def test_a_start_lengthens_the_bound_on_silence_and_never_shortens_it() -> None:
    book = Sessions()
    session = book.claim(WORKER, "a")
    session.starting = True
    assert limit_s(book) == 60.0
    session.heartbeat_s = 25.0
    assert limit_s(book) == 125.0
    book.streams(WORKER, opened=False)
    assert limit_s(book) == 60.0


def test_silence_ends_with_a_word_and_a_pause_of_the_master_is_not_held_against_anybody() -> None:
    book = Sessions()
    book.claim(WORKER, "a")
    book.claim(OTHER, "b")
    for _ in range(4):
        book.pass_time(2.0)
    book.heard(WORKER)
    book.pass_time(3600.0)
    # 0.5 s and 8.5 s of silence so far.
    for _ in range(2):
        # A master that gets a tick every four seconds only: whoever reports in between is never
        # silent for long.
        book.pass_time(4.0)
        assert not book.silent()
    book.pass_time(4.0)
    assert book.silent() == [(OTHER, 10.0)]
    for _ in range(16):
        book.pass_time(0.5)
    assert book.silent() == [(WORKER, 10.0), (OTHER, 18.0)]
    assert (book.peak_bytes(WORKER), book.peak_bytes(ProcessName(Role.WORKER, 9))) == (None, None)
    present = book.heard(WORKER)
    assert present is not None
    for rss_bytes in (5.0, 9.0, 7.0):
        present.reported({"rss_bytes": rss_bytes})
    assert book.peak_bytes(WORKER) == 9


# orders


async def test_orders_wait_for_a_stream_and_one_that_was_not_taken_is_sent_again() -> None:
    board = OrderStreams(2)
    board.put(WORKER, Revoke("a", 1))
    board.put(WORKER, Finish())
    first = board.stream(WORKER)
    assert await anext(first) == Servers(("", ""))
    assert await anext(first) == Revoke("a", 1)
    # The stream breaks before the transport has asked for more.
    second = board.stream(WORKER)
    assert await anext(second) == Servers(("", ""))
    assert await anext(second) == Revoke("a", 1)
    assert await anext(second) == Finish()
    board.leave(WORKER)
    assert [order async for order in second] == []
    assert [order async for order in first] == []


# processes


def test_a_process_gets_its_address_and_the_users_environment_cannot_change_ours() -> None:
    flags = {
        "model_zoo": "z",
        "model_def": "m",
        "training_data": "t",
        "num_workers": "1:4",
        "num_ps_pods": 2,
    }
    spec = JobSpec.from_flags(Action.TRAIN, {**flags, "envs": "A=1;ELASTICDL_MASTER=evil"})
    placing = ProcessEnv(spec, "/job", "127.0.0.1:7", "hush-hush", cores=8.0)
    worker, server = placing(WORKER), placing(ProcessName(Role.PS, 1, 3))
    assert worker.env == {
        "A": "1",
        "ELASTICDL_MASTER": "127.0.0.1:7",
        "ELASTICDL_PROCESS": "worker-1",
        "ELASTICDL_JOB_DIR": "/job",
    }
    assert (worker.cores, server.cores) == (2.0, 4.0)
    assert worker.command[1:] == ("-m", "elasticdl.worker.main")
    assert server.env["ELASTICDL_PROCESS"] == "ps-1.3"
    assert worker.secrets == {"ELASTICDL_TOKEN": process_token("hush-hush", "worker-1")}
    assert "hush-hush" not in repr(placing)


def test_workers_on_a_ring_keep_memory_that_is_quick_to_free_by_default() -> None:
    flags = {
        "model_zoo": "z",
        "model_def": "m",
        "training_data": "t",
        "distribution_strategy": "AllreduceStrategy",
    }
    spec = JobSpec.from_flags(Action.TRAIN, {**flags, "envs": "PYTHONMALLOC=debug"})
    worker = ProcessEnv(spec, "/job", "127.0.0.1:7", "hush-hush", cores=8.0)(WORKER)
    assert worker.env["GLIBC_TUNABLES"] == "glibc.malloc.hugetlb=1"
    assert worker.env["PYTHONMALLOC"] == "debug"


class SlowCluster:
    """Creates a process only when it may; `launcher` is one on it."""

    def __init__(self) -> None:
        self.cluster, self.made = FakeCluster(), list[ProcessName]()
        self.begun, self.go = asyncio.Event(), asyncio.Event()
        self._create = self.cluster.create
        self.cluster.create = self.create  # type: ignore[method-assign]
        self.launcher = Launcher(self.cluster, lambda name: ProcessSpec(name, ("true",)))

    async def create(self, spec: ProcessSpec) -> None:
        self.made.append(spec.name)
        self.begun.set()
        await self.go.wait()
        await self._create(spec)


async def test_a_stop_waits_for_a_start_that_is_under_way() -> None:
    slow = SlowCluster()
    start = asyncio.create_task(slow.launcher.start(WORKER, 0.0))
    await slow.begun.wait()
    stop = asyncio.create_task(slow.launcher.stop(WORKER, 1.0))
    await asyncio.sleep(0)
    slow.go.set()
    assert await start
    await stop
    assert slow.cluster.live == ()
    assert WORKER in slow.cluster.specs


async def test_a_start_that_takes_so_long_that_it_is_ordered_again_is_made_once() -> None:
    """An API server that is slow to create: the second order came while the first was under way,
    and ended the master.
    """
    slow = SlowCluster()
    first = asyncio.create_task(slow.launcher.start(WORKER, 0.0))
    await slow.begun.wait()
    second = asyncio.create_task(slow.launcher.start(WORKER, 0.0))
    await asyncio.sleep(0)
    slow.go.set()
    assert await first
    assert await second
    assert slow.made == [WORKER]


async def test_gates_stay_closed_until_the_core_has_handled_the_cut() -> None:
    """A push that is let in before could be reported before: the ledger of the cut would have it,
    the weights would not.
    """

    class Gates:
        closed = False

        @asynccontextmanager
        async def cut(self, snapshot: SnapshotId, *, seal: bool) -> AsyncIterator[Cut]:
            self.closed = True
            yield Cut(5, {})
            self.closed = False

    gates, inbox = Gates(), EventQueue(ManualClock())
    executor = Executor(inbox, None, ExecutorDeps(None, None, gates, None, None, None, None))  # type: ignore[arg-type]
    executor.carry_out(do.TakeSnapshot(SnapshotId(6), do.Purpose.CHECKPOINT))
    (entry,) = await inbox.take()
    assert isinstance(entry.event, happened.SnapshotCut)
    for _ in range(5):
        await asyncio.sleep(0)
    assert gates.closed
    entry.handled.set_result(None)
    for _ in range(5):
        await asyncio.sleep(0)
    assert not gates.closed
    await inbox.close()


# inbox


async def test_events_come_out_in_order_and_a_task_that_fails_is_heard_of() -> None:
    inbox = EventQueue(ManualClock(now_s=50.0), began_s=7.0)
    assert inbox.at_s() == 7.0
    first = inbox.post(happened.Tick(1.0))
    inbox.post(happened.ProcessEnded(2.0, WORKER, ExitStatus()))
    assert [entry.event.at_s for entry in await inbox.take()] == [1.0, 2.0]

    async def fail() -> None:
        raise ZeroDivisionError

    inbox.spawn("the watch", fail())
    with pytest.raises(RuntimeError, match="the watch failed: ZeroDivisionError"):
        await inbox.take()
    waiting = inbox.post(happened.Tick(3.0))
    await inbox.close()
    assert waiting.cancelled() and not first.cancelled()


# files


def test_a_file_is_replaced_whole_and_with_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "master.json"
    write_json(path, {"token": "a"})
    write_json(path, {"token": "b"})
    assert json.loads(path.read_text()) == {"token": "b"}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_lines_that_cannot_be_written_cost_a_warning_not_the_job(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lines = JsonLines(tmp_path / "missing" / "events.jsonl")
    lines.append({"a": 1})
    lines.append({"a": 2})
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    (tmp_path / "missing").mkdir()
    lines.append({"a": 3})
    lines.close()
    assert (tmp_path / "missing" / "events.jsonl").read_text() == '{"a": 3}\n'


# errors of the wire


class Fault(grpc.RpcError):
    def __init__(self, code: grpc.StatusCode, details: str = "") -> None:
        self._code, self._details = code, details

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._details


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (grpc.StatusCode.UNAUTHENTICATED, Refused),
        (grpc.StatusCode.FAILED_PRECONDITION, Refused),
        (grpc.StatusCode.UNAVAILABLE, TransientError),
        (grpc.StatusCode.DEADLINE_EXCEEDED, TransientError),
        (grpc.StatusCode.INVALID_ARGUMENT, UserError),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, PermanentError),
        (grpc.StatusCode.UNIMPLEMENTED, PermanentError),
    ],
)
def test_every_error_of_grpc_becomes_one_of_ours(
    code: grpc.StatusCode, kind: type[Exception]
) -> None:
    error = mapped(Fault(code, "what it said"), "lease of worker-1")
    assert type(error) is kind
    assert error.message.startswith("lease of worker-1: what it said")


def test_no_error_of_grpc_is_without_a_class() -> None:
    assert all(mapped(Fault(code), "x").message for code in grpc.StatusCode)


def test_a_process_that_is_refused_leaves_with_the_code_of_its_own() -> None:
    assert mapped(Fault(grpc.StatusCode.FAILED_PRECONDITION), "x").exit_code is ExitCode.FENCED


def test_back_off_grows_to_a_second_and_has_jitter() -> None:
    assert all(0.05 <= delay_s(1) <= 0.1 for _ in range(100))
    assert all(0.5 <= delay_s(99) <= 1.0 for _ in range(100))
    assert len({delay_s(5) for _ in range(10)}) > 1


def test_credentials_do_not_show_the_token() -> None:
    mine = Credentials("secret", "worker-1")
    assert "secret" not in repr(mine)
    assert mine.instance != Credentials("secret", "worker-1").instance
    caller = caller_of(mine.metadata(4))
    assert (caller.name, caller.term, caller.instance) == ("worker-1", 4, mine.instance)

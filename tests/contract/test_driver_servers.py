"""What the driver does to servers and processes when the core orders it, over gRPC and on a cluster
in memory.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import grpc
import grpc.aio
import pytest

from elasticdl.cluster.base import ProcessName, ProcessSpec
from elasticdl.errors import ExitCode, Refused, TransientError
from elasticdl.master.core import commands as do
from elasticdl.master.core import events as happened
from elasticdl.master.core.commands import Command
from elasticdl.master.core.events import Event
from elasticdl.master.executor.snapshots import CutLimits, Snapshots
from elasticdl.rpc import elasticdl_pb2 as pb
from elasticdl.rpc.conversation import Failure, Report
from elasticdl.shard import Applied, ShardId, SnapshotId, Task
from tests.contract.driver_stage import PS, WORKER, Stage

pytestmark = pytest.mark.contract


@pytest.fixture
def stage(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Stage]:
    made = Stage(tmp_path, limits=getattr(request, "param", CutLimits()))
    yield made
    made.close()


# servers


def test_a_fenced_worker_is_fenced_on_every_server_and_what_they_have_is_reported(
    stage: Stage,
) -> None:
    stage.attach_servers()
    stage.servers[PS[1]].last = {}
    stage.order(do.FenceWorker(WORKER))
    fenced = stage.core.wait_for(happened.WorkerFenced)
    assert fenced.applied == (Applied(ShardId(4), 0, 70), None)


def test_a_server_that_does_not_answer_is_asked_until_it_does(stage: Stage) -> None:
    stage.attach_servers()
    server = stage.servers[PS[0]]
    server.fail["Fence"] = grpc.StatusCode.UNAVAILABLE
    stage.order(do.FenceWorker(WORKER))
    server.wait_for_call("Fence", 2)
    assert not stage.core.of(happened.WorkerFenced)
    server.fail.clear()
    assert len(stage.core.wait_for(happened.WorkerFenced).applied) == 2


def test_of_a_server_that_ended_nothing_is_known_in_a_fence(stage: Stage) -> None:
    stage.attach_servers()
    stage.order(do.StartProcess(PS[0]))
    stage.core.wait_for(happened.ProcessSeen)
    server = stage.servers[PS[0]]
    server.fail["Fence"] = grpc.StatusCode.UNAVAILABLE
    stage.order(do.FenceWorker(WORKER))
    server.wait_for_call("Fence")
    stage._loop.call_soon_threadsafe(stage.cluster.kill, PS[0])
    assert stage.core.wait_for(happened.WorkerFenced).applied == (None, Applied(ShardId(4), 0, 70))


def test_a_worker_that_was_fenced_is_refused_by_the_master(stage: Stage) -> None:
    client = stage.worker()
    stage.order(do.FenceWorker(WORKER))
    stage.core.wait_for(happened.WorkerFenced)
    with pytest.raises(Refused, match="fenced"):
        client.report(Report())


def test_a_server_that_comes_later_refuses_the_fenced_too(stage: Stage) -> None:
    stage.order(do.FenceWorker(WORKER))
    stage.core.wait_for(happened.WorkerFenced)
    stage.attach_servers()
    for name in PS:
        stage.servers[name].wait_for_call("Fence")


def test_nobody_hears_of_a_server_that_does_not_refuse_the_fenced_yet(stage: Stage) -> None:
    stage.order(do.FenceWorker(WORKER))
    stage.core.wait_for(happened.WorkerFenced)
    address = stage.call(stage.serve(PS[0]))
    server = stage.servers[PS[0]]
    server.fail["Fence"] = grpc.StatusCode.UNAVAILABLE
    attaching = threading.Thread(
        target=lambda: stage.client("ps-0").attach(address, "127.0.0.1:1", None)
    )
    attaching.start()
    server.wait_for_call("Fence", 2)
    assert not stage.core.of(happened.ProcessAttached)
    server.fail.clear()
    assert stage.core.wait_for(happened.ProcessAttached).name == PS[0]
    attaching.join(20)
    assert not attaching.is_alive()


def test_a_cut_lets_all_servers_reach_the_same_push_and_opens_the_gates(stage: Stage) -> None:
    stage.attach_servers()
    first, second = (stage.servers[name] for name in PS)
    second.last = {
        "worker-1": (8, pb.Applied(shard=4, attempt=0, offset=80)),
        "worker-2": (1, pb.Applied(shard=5)),
    }
    second.version = 12
    gated: list[bool] = []
    stage.core.answers[happened.SnapshotCut] = lambda _: (
        gated.append(first.gated and second.gated) or ()  # type: ignore[func-returns-value]
    )
    stage.order(do.TakeSnapshot(SnapshotId(6), do.Purpose.CHECKPOINT))
    cut = stage.core.wait_for(happened.SnapshotCut)
    assert first.admitted == second.admitted == {"worker-1": 8, "worker-2": 1}
    # The first server never got push 8: the cut has push 7 of worker-1, and nothing of worker-2.
    assert (cut.snapshot, cut.version, cut.applied) == (
        SnapshotId(6),
        10,
        {"worker-1": Applied(ShardId(4), 0, 70)},
    )
    assert gated == [True], "the cut is handled while nobody can push"
    for server in (first, second):
        server.wait_for_call("Ungate")
        assert server.calls == ["Gate", "Cut", "Ungate"]


@pytest.mark.parametrize("stage", [CutLimits(sure_s=0.0)], indirect=True)
def test_a_cut_whose_gates_may_have_opened_since_is_none(stage: Stage) -> None:
    """A master that was stopped for a while may have heard of later pushes before the answers to
    its cut.
    """
    stage.attach_servers()
    stage.order(do.TakeSnapshot(SnapshotId(6), do.Purpose.CHECKPOINT))
    failed = stage.core.wait_for(happened.SnapshotFailed)
    assert "the gates may have timed out" in failed.reason
    for server in stage.servers.values():
        server.wait_for_call("Drop")
        assert server.calls[-2:] == ["Ungate", "Drop"]
    assert not stage.core.of(happened.SnapshotCut)


@pytest.mark.parametrize("step", ["Gate", "Cut"])
def test_a_server_that_fails_in_a_cut_leaves_every_gate_open(stage: Stage, step: str) -> None:
    stage.attach_servers()
    stage.servers[PS[1]].fail[step] = grpc.StatusCode.INTERNAL
    stage.order(do.TakeSnapshot(SnapshotId(6), do.Purpose.CHECKPOINT))
    failed = stage.core.wait_for(happened.SnapshotFailed)
    assert failed.snapshot == SnapshotId(6) and f"{step} was told to fail" in failed.reason
    for server in stage.servers.values():
        server.wait_for_call("Drop")
        assert server.calls[-2:] == ["Ungate", "Drop"]
        assert not server.gated
    assert not stage.core.of(happened.SnapshotCut)


def test_a_server_that_is_away_fails_the_cut_by_name(stage: Stage) -> None:
    stage.client("ps-0").attach(stage.call(stage.serve(PS[0])), "127.0.0.1:1")
    stage.order(do.TakeSnapshot(SnapshotId(6), do.Purpose.EVALUATION))
    assert stage.core.wait_for(happened.SnapshotFailed).reason == "ps-1 is away"
    assert "Gate" not in stage.servers[PS[0]].calls


def test_a_server_that_ends_in_a_cut_leaves_the_other_gates_open(stage: Stage) -> None:
    stage.attach_servers()
    stage.order(do.StartProcess(PS[1]))
    stage.core.wait_for(happened.ProcessSeen)
    stage.servers[PS[1]].hang.add("Cut")
    stage.order(do.TakeSnapshot(SnapshotId(6), do.Purpose.CHECKPOINT))
    stage.servers[PS[1]].wait_for_call("Cut")
    stage._loop.call_soon_threadsafe(stage.cluster.kill, PS[1])
    assert "given up" in stage.core.wait_for(happened.SnapshotFailed).reason
    assert not stage.servers[PS[0]].gated


def test_cuts_come_one_after_the_other(stage: Stage) -> None:
    stage.attach_servers()
    stage.order(
        *(do.TakeSnapshot(SnapshotId(number), do.Purpose.EVALUATION) for number in (1, 2, 3))
    )
    stage.core.wait_for(happened.SnapshotCut, 3)
    stage.servers[PS[0]].wait_for_call("Ungate", 3)
    assert stage.servers[PS[0]].calls == ["Gate", "Cut", "Ungate"] * 3


def test_a_save_that_fails_is_an_event_and_the_job_continues(stage: Stage) -> None:
    stage.order(do.SaveSnapshot(SnapshotId(6), 40, "{}"))
    assert stage.core.wait_for(happened.SnapshotFailed).reason == "no space left on device"
    stage.worker().report(Report())


def test_a_server_that_cannot_save_ends_the_pauses_of_the_others(stage: Stage) -> None:
    stage.attach_servers()
    stage.servers[PS[0]].fail["Save"] = grpc.StatusCode.UNAVAILABLE
    snapshots = Snapshots(stage.roster, CutLimits(save_s=10.0))
    with pytest.raises(TransientError, match="Save was told to fail"):
        stage.call(snapshots.save(SnapshotId(6), "/checkpoints/making", pause_s=30.0))
    # Either may arrive first: a view that was hurried stays so.
    assert sorted(stage.servers[PS[1]].calls) == ["Hurry", "Save"]


def test_a_view_is_dropped_everywhere_though_one_server_fails_for_a_moment(stage: Stage) -> None:
    stage.attach_servers()
    failing = stage.servers[PS[0]]
    failing.fail["Drop"] = grpc.StatusCode.UNAVAILABLE
    stage.order(do.DropSnapshot(SnapshotId(6)))
    for name in PS:
        stage.servers[name].wait_for_call("Drop")
    failing.wait_for_call("Drop", 2)
    failing.fail.clear()
    asked = failing.calls.count("Drop")
    failing.wait_for_call("Drop", asked + 1)


def test_a_server_that_never_drops_a_view_is_not_asked_for_ever(stage: Stage) -> None:
    limits = CutLimits(drop_tries=3, drop_delay_s=lambda _: 0.0)
    stage.attach_servers()
    stage.servers[PS[0]].fail["Drop"] = grpc.StatusCode.UNAVAILABLE
    stage.call(Snapshots(stage.roster, limits).drop(SnapshotId(6)))
    assert stage.servers[PS[0]].calls.count("Drop") == 3


# processes


def test_a_process_is_started_after_its_delay_and_seen(stage: Stage) -> None:
    stage.order(do.StartProcess(WORKER, 0.01))
    assert stage.core.wait_for(happened.ProcessSeen).name == WORKER


def test_a_refused_start_is_an_event_with_the_reason(stage: Stage) -> None:
    stage.cluster.refuse("quota cpu 8/8", retry=True)
    stage.order(do.StartProcess(WORKER))
    failed = stage.core.wait_for(happened.CreateFailed)
    assert (failed.name, failed.reason, failed.retry) == (WORKER, "quota cpu 8/8", True)


def test_a_process_that_is_stopped_before_its_delay_is_over_never_starts(stage: Stage) -> None:
    stage.order(do.StartProcess(WORKER, 60.0))
    stage.order(do.StopProcess(WORKER, 5.0, "not needed any more"))
    ended = stage.core.wait_for(happened.ProcessEnded)
    assert ended.name == WORKER and ended.exit_status.asked
    assert WORKER not in stage.cluster.specs


def test_events_are_on_disk_before_their_commands_are_carried_out(stage: Stage) -> None:
    seen_at_create: list[list[str]] = []

    def launch(name: ProcessName) -> ProcessSpec:
        seen_at_create.append(list(stage.journal.log))
        return ProcessSpec(name, ("true",))

    async def rig() -> None:
        stage.cluster.specs.clear()

    stage.call(rig())
    create = stage.cluster.create

    async def watched(spec: ProcessSpec) -> None:
        launch(spec.name)
        await create(spec)

    stage.cluster.create = watched  # type: ignore[method-assign]
    stage.order(do.StartProcess(WORKER))
    stage.core.wait_for(happened.ProcessSeen)
    assert seen_at_create == [["CheckpointRequested"]]


def test_announcements_and_metrics_are_lines_of_json(stage: Stage) -> None:
    stage.order(
        do.Announce(
            "exit",
            "worker-1 was killed by SIGKILL",
            process="worker-1",
            cause="infrastructure",
            level="warning",
        ),
        do.RecordMetrics("evaluation", 40, 900, {"accuracy": 0.95}),
    )
    event = json.loads((stage.directory / "events.jsonl").read_text())
    assert (event["process"], event["cause"], event["level"]) == (
        "worker-1",
        "infrastructure",
        "warning",
    )
    row = json.loads((stage.directory / "metrics.jsonl").read_text())
    assert (row["version"], row["values"]) == (40, {"accuracy": 0.95})


def test_a_core_that_contradicts_itself_ends_the_driver_visibly(stage: Stage) -> None:
    def fail(_: Event) -> Sequence[Command]:
        raise ZeroDivisionError("the state contradicts itself")

    async def outcome() -> None:
        await asyncio.wait_for(asyncio.shield(stage.run), 10)

    client = stage.worker()
    stage.core.answers[happened.TaskFailed] = fail
    client._away_s = 0.2
    with pytest.raises(TransientError):
        client.report(Report(failures=(Failure(Task.TRAINING, ShardId(6), 0, "boom"),)))
    with pytest.raises(ZeroDivisionError):
        stage.call(outcome())


def test_the_last_command_ends_the_driver(stage: Stage) -> None:
    finish = do.FinishJob(ExitCode.DONE, "trained 150 records")

    async def outcome() -> do.FinishJob:
        return await asyncio.wait_for(asyncio.shield(stage.run), 10)

    stage.order(finish)
    assert stage.call(outcome()) == finish

"""Checkpoints of servers that share no directory: real servers, the master's archive, a store."""

from __future__ import annotations

import asyncio
import errno
import itertools
import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from elasticdl.checkpoint import copies, inspection, object_store
from elasticdl.checkpoint.manifest import Manifest
from elasticdl.cli.main import run
from elasticdl.errors import (
    Corrupted,
    ElasticDLError,
    ExitCode,
    PermanentError,
    TransientError,
    UserError,
)
from elasticdl.job import JobSpec
from elasticdl.job_choices import Action
from elasticdl.job_status import CheckpointStatus, JobStatus
from elasticdl.master.core.commands import SaveSnapshot
from elasticdl.master.core.state import JobState
from elasticdl.master.executor.checkpoint_archive import CheckpointArchive, SavedCheckpoint
from elasticdl.ps.checkpoint_files import StoredFiles
from elasticdl.ps.restoring import Restoration, restore, restore_newest_intact
from elasticdl.ps.saving import save_at
from elasticdl.rpc.conversation import WrittenFile
from elasticdl.rpc.ps_control import ServerSaved
from elasticdl.shard import SnapshotId
from tests.contract.ps_stage import Stage
from tests.contract.test_checkpoint_deltas import Training, same, spec_of
from tests.contract.test_checkpoint_restore import RULES, place
from tests.object_store import ObjectStore

pytestmark = [pytest.mark.contract, pytest.mark.usefixtures("empty")]
ADDRESS, KEYS = "s3://bucket/job", "job/"


def archive_of(folder: Path, **flags: object) -> CheckpointArchive:
    """That of a job on a cluster without a volume."""
    given = {"model_def": "m", "training_data": "t", "image_name": "i", "checkpoint_dir": ADDRESS}
    return CheckpointArchive(JobSpec.from_flags(Action.TRAIN, {**given, **flags}), folder)


@dataclass
class Job(Training):
    """Its servers upload their parts, and its master has the manifest."""

    archive: CheckpointArchive = field(kw_only=True)
    paused_s: list[float] = field(default_factory=list)
    is_wanted: Callable[[], bool] = lambda: True

    async def save(
        self,
        snapshot: SnapshotId,
        directory: str,
        base: SnapshotId | None = None,
        pause_s: float = 0.0,
    ) -> tuple[ServerSaved, ...]:
        saved = [
            save_at(
                server, place(self.stage, k), snapshot, directory, base, pause_s, self.is_wanted
            )
            for k, server in enumerate(self.stage.servers)
        ]
        return tuple(
            ServerSaved(
                (WrittenFile(one.name, one.bytes, one.checksum),),
                one.version,
                one.rows,
                one.parameters,
                one.delta,
                one.paused_s,
            )
            for one in saved
        )

    def take(self, ledger: str = "{}", *, pause_s: float = 0.0, held: str = "") -> SavedCheckpoint:
        """Take a checkpoint as the master does."""
        snapshot, saved = self.cut(), None
        version = self.stage.servers[0].version
        command = SaveSnapshot(SnapshotId(snapshot), version, ledger, False, (held,), pause_s)
        try:
            saved = asyncio.run(self.archive.save(command, self))
        finally:
            for server in self.stage.servers:
                if saved is not None:
                    server.set_base(snapshot)
                server.drop(snapshot)
        return saved


@pytest.fixture(autouse=True)
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where all servers have their temporary files; none is left."""
    folder = tmp_path / "disk"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    assert [path for path in folder.rglob("*") if path.is_file()] == []


@pytest.fixture
def job(open_stage: Callable[[int], Stage], tmp_path: Path) -> Job:
    archive = archive_of(tmp_path / "master", num_ps_pods=2, keep_checkpoint_max=2)
    made = Job(open_stage(2), spec_of(RULES[2]), tmp_path / "made", archive=archive)
    for _ in range(5):
        made.push(400)
    return made


def names(server: ObjectStore, version: int) -> set[str]:
    return {key.rpartition("/")[2] for key in server.keys(f"{KEYS}version-{version}/")} - {""}


def test_deltas_restore_bit_for_bit_on_any_number_of_servers(
    job: Job, server: ObjectStore, open_stage: Callable[[int], Stage], tmp_path: Path
) -> None:
    first = job.take().directory
    assert first == f"{ADDRESS}/version-5"
    ahead = open_stage(3)
    early = [Restoration(one, place(ahead, k)) for k, one in enumerate(ahead.servers)]
    assert all(one.load(first) for one in early)
    for _ in range(2):
        job.push()
        newest = job.take()
    manifest = copies.manifest(newest.directory)
    assert [link.version for link in manifest.links] == [5, 6]
    assert names(server, 7) == {file.name for file in manifest.files} | {"manifest.json"}
    assert [one.finish(newest.directory) for one in early] == [7, 7, 7]
    alone = open_stage(1)
    assert restore(alone.servers[0], place(alone, 0), newest.directory) == 7
    for stage in (ahead, alone):
        same(job.stage, stage, tmp_path)


def test_the_manifest_comes_after_all_parts_and_no_server_writes_it(
    job: Job, server: ObjectStore
) -> None:
    server.requests.clear()
    job.take()
    sent = [request.rpartition("/")[2] for request in server.requests if request.startswith("PUT")]
    assert sent[-2:] == ["manifest.json", "newest.json"]
    assert all(name.startswith("server-") for name in sent[:-2]) and len(sent) == 4


def test_a_checkpoint_counts_though_the_object_that_names_the_newest_cannot_be_written(
    job: Job, server: ObjectStore
) -> None:
    server.faults.read_only = copies.NEWEST
    try:
        there = job.take().directory
        job.push()
        newest = copies.manifest(job.take().directory)
    finally:
        server.faults.read_only = ""
    assert not server.keys(f"{KEYS}{copies.NEWEST}")
    assert there == f"{ADDRESS}/version-5" and [link.version for link in newest.links] == [5]
    found = object_store.newest(ADDRESS)
    assert found is not None and found.manifest == newest


def test_a_version_that_is_written_again_replaces_nothing_before_its_manifest(
    job: Job, monkeypatch: pytest.MonkeyPatch, open_stage: Callable[[int], Stage]
) -> None:
    before = job.take("first").directory
    with monkeypatch.context() as patch:
        patch.setattr("elasticdl.checkpoint.object_store.complete", _away)
        with pytest.raises(TransientError, match="away"):
            job.take("second")
    found = object_store.newest(ADDRESS)
    assert found is not None and found.manifest.ledger == "first"
    assert job.take("third").directory == before
    found = object_store.newest(ADDRESS)
    assert found is not None and found.manifest.ledger == "third"
    back = open_stage(1)
    assert restore(back.servers[0], place(back, 0), before) == 5


def _away(*_: object) -> str:
    raise TransientError("the store is away")


def test_a_store_that_is_away_for_a_moment_costs_a_while_and_a_refusal_only_that_checkpoint(
    job: Job, server: ObjectStore
) -> None:
    server.faults.unavailable = 5
    first = job.take().directory
    job.push()
    bucket = server.buckets.pop("bucket")
    with pytest.raises(UserError, match="the bucket does not exist"):
        job.take()
    server.buckets["bucket"] = bucket
    found = object_store.newest(ADDRESS)
    assert found is not None and found.where == first
    job.push()
    # What was changed since the failed one is in it, too: a delta of the first.
    newest = copies.manifest(job.take().directory)
    assert [link.version for link in newest.links] == [5]


@pytest.mark.parametrize("lost", [5, 6], ids=["of its base", "of its own"])
def test_a_checkpoint_without_one_of_its_files_is_not_complete_and_the_next_one_is_full(
    lost: int, job: Job, server: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lifecycle rule, or a master that was paused and then removed old versions."""
    job.take()
    complete = object_store.complete

    def removed_before(address: str, manifest: Manifest) -> str:
        (name,) = [name for name in names(server, lost) if name.startswith("server-1")]
        del server.buckets["bucket"][f"{KEYS}version-{lost}/{name}"]
        return complete(address, manifest)

    job.push()
    with monkeypatch.context() as patch:
        patch.setattr("elasticdl.checkpoint.object_store.complete", removed_before)
        with pytest.raises(TransientError, match=rf"version-{lost}/server-1-of-2-\w+\.bin is gone"):
            job.take()
    assert "manifest.json" not in names(server, 6)
    job.push()
    newest = copies.manifest(job.take().directory)
    assert newest.links == ()
    copies.verify(ADDRESS, newest)


def test_an_upload_ends_when_the_master_does_not_wait_any_longer(
    job: Job, server: ObjectStore
) -> None:
    job.is_wanted = lambda: False
    with pytest.raises(TransientError, match="no longer wanted"):
        job.take()
    assert not server.keys(f"{KEYS}version-5/manifest.json")


def test_an_upload_is_a_pause_also_if_somebody_waits(job: Job, server: ObjectStore) -> None:
    server.faults.latency_s = 0.2
    try:
        assert job.take().paused_s >= 0.2
        job.push()
        assert job.take(pause_s=0.01).paused_s >= 0.2
    finally:
        server.faults.latency_s = 0.0


@pytest.mark.parametrize("damage", ["other bytes", "cut off", "gone"])
def test_a_damaged_part_is_named_and_the_checkpoint_before_is_taken(
    damage: str, job: Job, server: ObjectStore, open_stage: Callable[[int], Stage], tmp_path: Path
) -> None:
    older = job.take("older").directory
    job.push()
    newer = job.take("newer").directory
    (key,) = [key for key in server.keys(f"{KEYS}version-6/") if "server-1" in key]
    data = server.get(key)
    if damage == "gone":
        del server.buckets["bucket"][key]
    else:
        server.put(key, data[:-1] if damage == "cut off" else data[:-1] + bytes([data[-1] ^ 1]))
    name = key.rpartition("/")[2]
    back = open_stage(2)
    assert restore_newest_intact(back.servers[1], place(back, 1), newer) == 5
    if damage == "other bytes":  # It has no share of that file, and does not read it.
        assert restore_newest_intact(back.servers[0], place(back, 0), newer) == 6
    start = archive_of(tmp_path / "next", resume=True).beginning()
    assert (start.restore_from, start.ledger, start.version) == (older, "older", 5)
    (why,) = start.passed_over
    assert name in why
    shown, whole = inspection.verify_copies(ADDRESS)
    assert name in shown.problems[0] and not whole.problems
    del server.buckets["bucket"][f"{KEYS}version-5/manifest.json"]
    with pytest.raises(Corrupted, match=f"no usable checkpoint in {ADDRESS}"):
        archive_of(tmp_path / "next", resume=True).beginning()


def test_a_checkpoint_that_was_never_complete_does_not_count(
    job: Job, server: ObjectStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    resume = archive_of(tmp_path / "next", resume=True)
    with monkeypatch.context() as patch:
        patch.setattr("elasticdl.checkpoint.object_store.complete", _away)
        with pytest.raises(TransientError):
            job.take()
        assert server.keys(f"{KEYS}version-5/") and resume.beginning().anew
        job.push()
        patch.undo()
        newest = job.take("{}").directory
    start = resume.beginning()
    assert (start.restore_from, start.passed_over, start.anew) == (newest, (), False)


def test_old_checkpoints_go_but_for_those_that_others_need(
    job: Job, server: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = job.take().directory
    for _ in range(4):
        job.push(400)
        job.take(held=held)
    assert [
        copy.version for copy in inspection.summaries_of_copies(ADDRESS) if not copy.problem
    ] == [
        9,
        8,
        5,
    ]
    with monkeypatch.context() as patch:
        patch.setattr("elasticdl.checkpoint.object_store.complete", _away)
        job.push(400)
        with pytest.raises(TransientError):
            job.take()
    for _ in range(20):
        job.push(400)
        job.take()
    # Version 10 was never complete.
    assert not names(server, 5) and not names(server, 10)
    verified = inspection.verify_copies(ADDRESS)
    assert verified and all(not checkpoint.problems for checkpoint in verified)


def test_a_job_begins_with_a_checkpoint_that_nobody_fetches(job: Job, tmp_path: Path) -> None:
    place_of_another = {"checkpoint_dir": "", "checkpoint_dir_for_init": ADDRESS}
    archive = archive_of(tmp_path / "next", **place_of_another)
    with pytest.raises(UserError, match=f"no checkpoint in {ADDRESS}"):
        archive.beginning()
    there = job.take().directory
    assert archive.beginning().restore_from == there and not (tmp_path / "next").exists()


@dataclass
class Running:
    """A job on a cluster, as the command line sees it."""

    status: JobStatus
    name: str = "iris"

    def report(self) -> Running:
        return self


def test_the_command_line_reads_the_checkpoints_of_a_job_on_a_cluster(
    job: Job, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    there = job.take().directory
    flags = {"model_def": "m", "training_data": "t", "image_name": "i"}
    status = JobState(JobSpec.from_flags(Action.TRAIN, flags)).status()
    running = Running(replace(status, checkpoints=(CheckpointStatus(5, there, 1, 0.0),)))
    monkeypatch.setattr(
        "elasticdl.cli.verbs.checkpoints.resolve_job", lambda _: nullcontext(running)
    )
    assert run(["checkpoints", "list", "iris", "-o", "json"]) == ExitCode.DONE
    (one,) = json.loads(capsys.readouterr().out)
    assert (one["path"], one["servers"], one["problem"]) == (there, 2, "")
    assert run(["checkpoints", "verify", "iris"]) == ExitCode.DONE
    assert "intact" in capsys.readouterr().out
    running.status = status
    assert run(["checkpoints", "list", "iris"]) == ExitCode.USAGE
    assert "--checkpoint-dir" in capsys.readouterr().err


def test_a_server_without_room_for_a_file_says_how_much_it_needs(
    job: Job, monkeypatch: pytest.MonkeyPatch, open_stage: Callable[[int], Stage]
) -> None:
    there, back = job.take().directory, open_stage(1)
    (file, _) = copies.manifest(there).files

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("elasticdl.checkpoint.copies.fetch_part", full)
        with pytest.raises(PermanentError, match=f"no room .* of {file.bytes:,} bytes") as refused:
            restore_newest_intact(back.servers[0], place(back, 0), there)
        assert "--ps-resource-request ephemeral-storage=1Gi" in refused.value.hint
    files = StoredFiles(there, place(back, 0))
    files.manifest()
    with pytest.raises(OSError, match="while it is read"), files.verified(file):
        raise OSError("while it is read")


def test_a_server_waits_for_a_store_that_is_away_and_takes_no_older_checkpoint(
    job: Job,
    server: ObjectStore,
    monkeypatch: pytest.MonkeyPatch,
    open_stage: Callable[[int], Stage],
) -> None:
    """It ends as unavailable, and its successor restores."""
    job.take()
    job.push()
    newest, now_s = job.take().directory, itertools.count(0.0, 100.0)
    back = open_stage(1)
    server.faults.down = True
    try:
        with monkeypatch.context() as patch:
            clock = SimpleNamespace(monotonic=lambda: next(now_s), sleep=lambda _: None)
            patch.setattr("elasticdl.storage.attempts.time", clock)
            with pytest.raises(TransientError, match="tried for 100 s"):
                restore_newest_intact(back.servers[0], place(back, 0), newest)
    finally:
        server.faults.down = False
    assert restore_newest_intact(back.servers[0], place(back, 0), newest) == 6


def test_a_disk_without_room_costs_the_checkpoint(job: Job, disk: Path) -> None:
    disk.rmdir()
    disk.write_text("a file")
    try:
        with pytest.raises(ElasticDLError, match=r"cannot use .*disk"):
            job.take()
    finally:
        disk.unlink()
        disk.mkdir()

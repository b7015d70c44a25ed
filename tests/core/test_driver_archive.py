"""What a job begins with, and how a view becomes a checkpoint: on a real directory, with servers
that only write files.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import shutil
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial, partialmethod
from pathlib import Path

import pytest

from elasticdl.checkpoint import directories
from elasticdl.checkpoint.manifest import Manifest
from elasticdl.cluster.base import ProcessName
from elasticdl.embedding.spec import OptimizerKind, OptimizerSpec, ParametersSpec
from elasticdl.errors import Corrupted, ElasticDLError, PermanentError, TransientError, UserError
from elasticdl.job import JobSpec
from elasticdl.job_choices import Action
from elasticdl.master.core.commands import SaveSnapshot
from elasticdl.master.core.data.resuming import counts_of
from elasticdl.master.core.data.sharding import ShardPlan
from elasticdl.master.executor.checkpoint_archive import CheckpointArchive, SavedCheckpoint
from elasticdl.master.executor.snapshots import Snapshots
from elasticdl.master.gateway.ps_registry import PsRegistry
from elasticdl.rpc.conversation import WrittenFile
from elasticdl.rpc.ps_control import Fenced, RecentSteps, ServerCut, ServerSaved
from elasticdl.shard import SnapshotId, Source

pytestmark = pytest.mark.core


class Writer:
    """A server of which only `save` is asked."""

    def __init__(self, name: str, kind: OptimizerKind = OptimizerKind.SGD) -> None:
        self.name = name
        self.parameters = ParametersSpec(optimizer=OptimizerSpec(kind=kind)).model_dump_json()
        self.problem: ElasticDLError | None = None
        self.checksum = ""
        self.notes_changes = False
        self.pauses_s = self.takes_s = 0.0
        self.bases: list[SnapshotId | None] = []

    async def save(
        self,
        snapshot: SnapshotId,
        directory: str,
        base: SnapshotId | None = None,
        pause_s: float = 0.0,
        *,
        timeout_s: float,
    ) -> ServerSaved:
        if self.problem is not None:
            raise self.problem
        self.bases.append(base)
        if self.takes_s:
            await asyncio.sleep(self.takes_s)
        path = Path(directory) / f"{self.name}.bin"
        delta = self.notes_changes and base is not None
        rows = 1 if delta else 10
        path.write_bytes(b"row" * rows)
        file = WrittenFile(path.name, 3 * rows, self.checksum or directories.checksum(path))
        return ServerSaved((file,), 0, 7, self.parameters, delta, min(pause_s, self.pauses_s))

    async def hurry(self, snapshot: SnapshotId, *, timeout_s: float) -> None:
        raise NotImplementedError

    async def fence(self, worker: str, *, timeout_s: float) -> Fenced:
        raise NotImplementedError

    async def gate(self, *, timeout_s: float) -> dict[str, int]:
        raise NotImplementedError

    async def cut(
        self, snapshot: SnapshotId, admit_until: Mapping[str, int], *, timeout_s: float
    ) -> ServerCut:
        raise NotImplementedError

    async def apply_step(
        self, step: int, contributions: Sequence[tuple[str, int, float]], *, timeout_s: float
    ) -> int:
        raise NotImplementedError

    async def recent_steps(self, *, timeout_s: float) -> RecentSteps:
        raise NotImplementedError

    async def ungate(self, *, timeout_s: float) -> None:
        raise NotImplementedError

    async def seal(self, snapshot: SnapshotId, *, timeout_s: float) -> dict[str, int]:
        raise NotImplementedError

    async def unseal(self, snapshot: SnapshotId, *, timeout_s: float) -> None:
        raise NotImplementedError

    async def drop(self, snapshot: SnapshotId, *, saved: bool = False, timeout_s: float) -> None:
        raise NotImplementedError

    async def keep(self, snapshots: Sequence[SnapshotId], *, timeout_s: float) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        pass


class Bench:
    def __init__(self, directory: Path, **flags: object) -> None:
        self.checkpoints = directory / "checkpoints"
        given = {
            "model_zoo": "z",
            "model_def": "m",
            "training_data": "t",
            "num_ps_pods": 2,
            **flags,
        }
        self.archive = CheckpointArchive(JobSpec.from_flags(Action.TRAIN, given), self.checkpoints)
        self.writers = [Writer("a"), Writer("b")]

    def save(
        self,
        version: int,
        ledger: str = "{}",
        *,
        hurried: bool = False,
        held: str = "",
        keeps: bool = False,
    ) -> tuple[str, int]:
        saving = self.saving(version, ledger, hurried=hurried, held=held, keeps=keeps)
        saved = asyncio.run(saving)
        assert not saved.not_copied
        return saved.directory, saved.bytes

    async def saving(
        self,
        version: int,
        ledger: str = "{}",
        *,
        hurried: bool = False,
        held: str = "",
        pause_s: float = 0.0,
        keeps: bool = False,
    ) -> SavedCheckpoint:
        count = len(self.writers)
        names = [ProcessName.parse(f"ps-{index}") for index in range(count)]
        roster = PsRegistry(count, lambda name, _: self.writers[name.index])
        for name in names:
            roster.attach(name, "x")
        return await self.archive.save(
            SaveSnapshot(SnapshotId(version), version, ledger, hurried, (held,), pause_s, keeps),
            Snapshots(roster),
        )

    def names(self) -> list[str]:
        return sorted(path.name for path in self.checkpoints.iterdir())


def test_a_checkpoint_may_be_a_delta_of_the_one_that_this_master_took_last(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    for writer in bench.writers:
        writer.notes_changes = True
    bench.save(40)
    bench.save(50)
    # A restarted server knows of no changes and writes all its rows: still a delta of the others.
    bench.writers[0].notes_changes = False
    path, size = bench.save(60)
    assert bench.writers[0].bases == [None, SnapshotId(40), SnapshotId(50)]
    manifest = directories.verify(Path(path))
    assert [link.version for link in manifest.links] == [40, 50] and size == 33
    # After that all servers are new: nothing is left of the chain.
    bench.writers[1].notes_changes = False
    path, _ = bench.save(70)
    assert directories.verify(Path(path)).links == ()
    assert len(list(Path(path).iterdir())) == 3
    assert Bench(tmp_path).save(80) and bench.names()[-1] == "version-80"


def links(path: str) -> list[int]:
    return [link.version for link in directories.verify(Path(path)).links]


def test_a_checkpoint_that_others_wait_for_is_a_delta_however_long_the_chain_is(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path)
    for writer in bench.writers:
        writer.notes_changes = True
    # Ten deltas have as many bytes as the full checkpoint.
    last = 10
    assert [links(bench.save(version)[0]) for version in range(last + 1)][-1] == [*range(last)]
    assert links(bench.save(last + 1, hurried=True)[0]) == [*range(last + 1)]
    # Also if nothing was trained since the one before.
    assert links(bench.save(last + 1, hurried=True)[0]) == [*range(last + 2)]
    assert links(bench.save(last + 2)[0]) == [], "the chain ends with the next ordinary one"


def test_a_copied_checkpoint_is_no_delta_of_one_that_is_not_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied: list[int] = []
    monkeypatch.setattr(
        "elasticdl.checkpoint.copies.upload",
        lambda directory, manifest, address: copied.append(manifest.version),
    )
    monkeypatch.setattr("elasticdl.checkpoint.copies.prune", lambda *_: None)
    bench = Bench(tmp_path, checkpoint_dir="s3://bucket/copies")
    for writer in bench.writers:
        writer.notes_changes = True
    assert links(bench.save(1)[0]) == []
    assert links(bench.save(2, hurried=True)[0]) == [1]
    assert links(bench.save(3)[0]) == []
    assert links(bench.save(4)[0]) == [3]
    assert copied == [1, 3, 4]


def test_a_delta_of_another_number_of_servers_is_taken_again_as_a_full_checkpoint(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path)
    bench.save(40)
    bench.writers.append(Writer("c"))
    for writer in bench.writers:
        writer.notes_changes = True
    with pytest.raises(TransientError, match="3 servers wrote a delta of a checkpoint of 2"):
        bench.save(50)
    assert bench.names() == ["version-40"]
    path, _ = bench.save(50)
    assert directories.verify(Path(path)).links == ()


def test_a_checkpoint_is_whole_and_servers_that_come_up_restore_it(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    path, size = bench.save(40, json.dumps({"cursor": 3}))
    found = directories.newest(bench.checkpoints)
    assert found is not None and found.where == path == bench.archive.restore_from
    assert (found.manifest.version, found.manifest.servers, found.manifest.rows, size) == (
        40,
        2,
        14,
        60,
    )
    assert json.loads(found.manifest.ledger) == {"cursor": 3}


def test_a_checkpoint_that_cannot_be_copied_counts_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise TransientError("the store does not answer")

    monkeypatch.setattr("elasticdl.checkpoint.copies.upload", full)
    bench = Bench(tmp_path, keep_checkpoint_max=1, checkpoint_dir="s3://bucket/copies")
    for version in (1, 2):
        saved = asyncio.run(bench.saving(version))
    why = "cannot copy version-2 to s3://bucket/copies: the store does not answer"
    assert saved.not_copied == why
    assert bench.names() == ["version-2"] and bench.archive.restore_from == saved.directory


def test_the_pauses_of_a_checkpoint_are_those_of_all_its_servers(tmp_path: Path) -> None:
    """While one of them works, training has less of the processors."""
    bench = Bench(tmp_path)
    bench.writers[0].pauses_s, bench.writers[1].pauses_s = 4.0, 3.0
    assert asyncio.run(bench.saving(1)).paused_s == 0.0
    assert asyncio.run(bench.saving(2, pause_s=30.0)).paused_s == 3.0


def test_a_server_that_is_done_pauses_until_all_are(tmp_path: Path) -> None:
    """Else one slow upload would count as time that the checkpoint takes."""
    bench = Bench(tmp_path)
    bench.writers[1].pauses_s = bench.writers[1].takes_s = 0.1
    assert asyncio.run(bench.saving(1, pause_s=30.0)).paused_s == 0.1


def test_a_checkpoint_that_servers_load_is_removed_after_that(tmp_path: Path) -> None:
    bench = Bench(tmp_path, keep_checkpoint_max=1)
    held, _ = bench.save(1)
    bench.save(2, held=held)
    bench.save(3, held=held)
    assert bench.names() == ["version-1", "version-3"]
    bench.save(4)
    assert bench.names() == ["version-4"]


def test_what_a_job_may_return_to_is_removed_when_the_core_says_so(tmp_path: Path) -> None:
    bench = Bench(tmp_path, keep_checkpoint_max=1)
    held, _ = bench.save(1, keeps=True)
    bench.save(2, keeps=True)
    bench.save(3, keeps=True)
    assert bench.names() == ["version-1", "version-2", "version-3"]
    asyncio.run(bench.archive.prune(3, (held,)))
    assert bench.names() == ["version-1", "version-3"]


def test_no_checkpoint_is_removed_while_others_wait_for_a_new_one(tmp_path: Path) -> None:
    bench = Bench(tmp_path, keep_checkpoint_max=1)
    bench.save(1)
    bench.save(2, hurried=True)
    bench.save(3, hurried=True)
    assert bench.names() == ["version-1", "version-2", "version-3"]
    asyncio.run(bench.archive.prune(3))
    assert bench.names() == ["version-3"]


def test_only_the_newest_are_kept_and_zero_keeps_all(tmp_path: Path) -> None:
    two, every = (
        Bench(tmp_path / "two", keep_checkpoint_max=2),
        Bench(tmp_path / "all", keep_checkpoint_max=0),
    )
    for version in (1, 2, 10, 11):
        two.save(version)
        every.save(version)
    assert two.names() == ["version-10", "version-11"]
    assert len(every.names()) == 4


def test_a_checkpoint_is_not_removed_for_a_later_version_that_was_passed_over(
    tmp_path: Path,
) -> None:
    """A job that went on from version 3, since 5 was damaged, is at 4 when it saves."""
    bench = Bench(tmp_path, keep_checkpoint_max=1, resume=True)
    bench.save(3)
    damaged, _ = bench.save(5)
    (Path(damaged) / "a.bin").write_bytes(b"cow" * 10)
    bench = Bench(tmp_path, keep_checkpoint_max=1, resume=True)
    path, _ = bench.save(4, "newest that is whole")
    assert bench.archive.restore_from == path and Path(path).exists()
    assert bench.archive.beginning().ledger == "newest that is whole"
    bench.save(6)
    assert bench.names() == ["version-6"]


@pytest.mark.parametrize(("written_s", "age_s"), [(1000.0, 3600.0), (9000.0, 0.0), (0.0, 0.0)])
def test_the_age_of_the_checkpoint_to_resume_is_that_of_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written_s: float, age_s: float
) -> None:
    """The clock may have been set back since; a manifest of an old version has no time."""
    monkeypatch.setattr("time.time", lambda: written_s)
    Bench(tmp_path).save(5)
    monkeypatch.setattr("time.time", lambda: 4600.0)
    start = Bench(tmp_path, resume=True).archive.beginning()
    assert start.restored_age_s == age_s


def test_a_slow_checkpoint_that_is_complete_after_a_newer_one_is_not_the_newest(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path)
    newest, _ = bench.save(5)
    bench.save(4)
    assert bench.archive.restore_from == newest and len(bench.names()) == 2


@pytest.mark.parametrize("beginning", ["resume", "init"])
def test_a_checkpoint_of_the_other_strategy_is_refused_by_name(
    tmp_path: Path, beginning: str
) -> None:
    """Before any process starts: servers and rings would only find files that they cannot read."""
    made = Bench(tmp_path)
    path, _ = made.save(3, "ledger")
    asked = {"resume": True} if beginning == "resume" else {"checkpoint_dir_for_init": path}
    ring = Bench(tmp_path, distribution_strategy="AllreduceStrategy", num_ps_pods=0, **asked)
    with pytest.raises(
        UserError,
        match=(
            "made with --distribution-strategy ParameterServerStrategy, but this job uses"
            " AllreduceStrategy"
        ),
    ):
        ring.archive.beginning()


def test_a_version_that_is_saved_again_takes_the_place_of_the_first(tmp_path: Path) -> None:
    bench = Bench(tmp_path, resume=True)
    bench.save(3, "first")
    path, _ = bench.save(3, "second")
    assert (bench.names(), bench.archive.beginning().ledger) == (["version-3"], "second")
    assert bench.archive.restore_from == path


def test_all_of_a_checkpoint_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    acts: list[str] = []
    with monkeypatch.context() as patched:
        patched.setattr(
            "os.fsync",
            lambda descriptor: acts.append(
                os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}"))
            ),
        )
        rename = Path.rename
        patched.setattr(
            Path,
            "rename",
            lambda path, target: acts.append("rename") or rename(path, target),  # type: ignore[func-returns-value]
        )
        Bench(tmp_path).save(3)
    manifest, making, *rest = acts
    assert manifest == "manifest.json" and making.startswith(".making-")
    assert rest == ["rename", "checkpoints"]


def test_a_master_that_dies_while_it_replaces_a_checkpoint_leaves_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last act is each of those on the directories, in turn."""
    for last in range(1, 4):
        bench = Bench(tmp_path / str(last), resume=True)
        bench.save(3, "kept")
        acts = 0

        def act(
            real: Callable[..., object], *arguments: object, last: int = last, **options: object
        ) -> object:
            nonlocal acts
            acts += 1
            if acts > last:
                raise SystemExit
            return real(*arguments, **options)

        with monkeypatch.context() as patched:
            patched.setattr(
                Path,
                "rename",
                partialmethod(lambda path, target, real: act(real, path, target), real=Path.rename),
            )
            patched.setattr(shutil, "rmtree", partial(act, shutil.rmtree))
            with suppress(SystemExit):
                bench.save(3, "kept")
        found = directories.newest(bench.checkpoints)
        assert found is not None and found.manifest.ledger == "kept"
        bench.save(3, "after all")
        assert (bench.names(), bench.archive.beginning().ledger) == (["version-3"], "after all")


def test_a_job_that_ends_while_a_checkpoint_is_made_complete_leaves_it_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread is at it, which nobody can stop: its files are not to be taken away under it."""
    bench = Bench(tmp_path)
    bench.save(3, "first")
    begun, go, real = threading.Event(), threading.Event(), directories.complete

    def slow(making: Path, manifest: Manifest) -> Path:
        begun.set()
        assert go.wait(10)
        return real(making, manifest)

    async def story() -> None:
        monkeypatch.setattr(directories, "complete", slow)
        saving = asyncio.create_task(bench.saving(3, "second"))
        assert await asyncio.to_thread(begun.wait, 10)
        saving.cancel()
        with suppress(asyncio.CancelledError):
            await saving
        go.set()

    asyncio.run(story())
    found = directories.newest(bench.checkpoints)
    assert found is not None and found.manifest.ledger == "second"


def test_an_old_checkpoint_that_cannot_be_removed_does_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(tmp_path, keep_checkpoint_max=1)
    bench.save(1)

    def refuse(path: Path, missing_ok: bool = False) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", refuse)
        path, _ = bench.save(2)
    assert bench.archive.restore_from == path
    assert "Read-only file system" in caplog.text


def test_a_server_that_fails_leaves_the_earlier_set_and_nothing_half_made(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    first, _ = bench.save(1)
    bench.writers[1].problem = TransientError("ps-1: no space left on device")
    with pytest.raises(TransientError, match="no space left"):
        bench.save(2)
    assert bench.names() == ["version-1"]
    assert bench.archive.restore_from == first


def test_servers_of_different_models_make_no_checkpoint(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.writers[1] = Writer("b", OptimizerKind.ADAM)
    with pytest.raises(PermanentError, match="parameters of 2 different models"):
        bench.save(1)
    assert bench.names() == []


def test_a_server_that_describes_its_part_badly_makes_no_checkpoint(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.writers[0].checksum = "trust me"
    with pytest.raises(Corrupted, match="no valid manifest"):
        bench.save(1)
    assert bench.names() == []


def test_a_directory_that_cannot_be_written_is_said_in_words(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.checkpoints.write_text("a file")
    with pytest.raises(TransientError, match=r"cannot write to .*checkpoints: File exists"):
        bench.save(1)


def test_a_fresh_job_begins_with_nothing(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.save(3)
    beginning = bench.archive.beginning()
    assert (beginning.restore_from, beginning.ledger, beginning.version) == ("", "", 0)


def test_a_resumed_job_begins_with_all_of_its_newest_whole_checkpoint(tmp_path: Path) -> None:
    bench = Bench(tmp_path, resume=True)
    older, _ = bench.save(3, "older")
    newer, _ = bench.save(5, "newer")
    beginning = bench.archive.beginning()
    assert (beginning.restore_from, beginning.ledger, beginning.version) == (newer, "newer", 5)
    (Path(newer) / "a.bin").write_bytes(b"row" * 9 + b"cow")
    beginning = bench.archive.beginning()
    assert (beginning.restore_from, beginning.version) == (older, 3)
    (reason,) = beginning.passed_over
    assert str(Path(newer) / "a.bin") in reason


@pytest.mark.parametrize(
    ("lost", "words"),
    [
        ("b.bin", r"no usable checkpoint.*b\.bin"),
        ("manifest.json", "version-5 has no manifest"),  # It is not begun over.
    ],
)
def test_a_resume_with_no_whole_checkpoint_lists_what_was_tried(
    tmp_path: Path, lost: str, words: str
) -> None:
    bench = Bench(tmp_path, resume=True)
    path, _ = bench.save(5)
    (Path(path) / lost).unlink()
    with pytest.raises(Corrupted, match=words):
        bench.archive.beginning()


def test_a_resume_from_nothing_starts_over(tmp_path: Path) -> None:
    bench = Bench(tmp_path, resume=True)
    start = bench.archive.beginning()
    assert start.anew and (start.restore_from, start.ledger, start.version) == ("", "", 0)
    plan = ShardPlan((Source("a", 64),), 16, 2)
    start = bench.archive.begin_again(start, plan)
    assert start.again == 0 and counts_of(start.ledger) == {}
    bench.save(5)
    assert not bench.archive.beginning().anew


def test_a_resume_from_nothing_has_the_parameters_that_the_job_began_with(tmp_path: Path) -> None:
    path, _ = Bench(tmp_path / "first").save(9)
    init = str(tmp_path / "first" / "checkpoints")
    bench = Bench(tmp_path / "second", resume=True, checkpoint_dir_for_init=init)
    start = bench.archive.beginning()
    assert (start.anew, start.restore_from) == (True, path)


def test_a_resume_from_parameters_alone_is_refused(tmp_path: Path) -> None:
    bench = Bench(tmp_path, resume=True)
    bench.save(5, ledger="")
    with pytest.raises(UserError, match="no data ledger"):
        bench.archive.beginning()


def test_another_jobs_checkpoint_gives_its_parameters_only(tmp_path: Path) -> None:
    path, _ = Bench(tmp_path / "first").save(9, "its ledger")
    bench = Bench(
        tmp_path / "second", checkpoint_dir_for_init=str(tmp_path / "first" / "checkpoints")
    )
    beginning = bench.archive.beginning()
    assert (beginning.restore_from, beginning.ledger, beginning.version) == (path, "", 0)
    with pytest.raises(UserError, match="no checkpoint in"):
        Bench(
            tmp_path / "third", checkpoint_dir_for_init=str(tmp_path / "nowhere")
        ).archive.beginning()

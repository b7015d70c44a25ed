"""Checkpoints of changed rows: base and deltas restore as a full checkpoint of that cut does."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticdl.checkpoint import directories, inspection
from elasticdl.checkpoint.layout import MANIFEST, part_name
from elasticdl.checkpoint.manifest import MOST_DELTAS, Manifest, PartFile
from elasticdl.checkpoint.part import read_header
from elasticdl.embedding.spec import DenseSpec, OptimizerSpec, ParametersSpec, TableSpec
from elasticdl.errors import Corrupted, ExitCode
from elasticdl.job_choices import WirePrecision
from elasticdl.ps.lifecycle import _stand_by
from elasticdl.ps.restoring import Restoration, restore, restore_newest_intact
from elasticdl.ps.saving import save
from elasticdl.rpc.conversation import Finish, Load, Order
from elasticdl.rpc.parameters import Pushed, Update
from elasticdl.shard import Applied, ShardId
from tests.contract.ps_stage import LIMIT_S, Stage
from tests.contract.test_checkpoint_restore import RULES, contents, place

pytestmark = pytest.mark.contract

IDS = 400


def spec_of(rule: OptimizerSpec) -> ParametersSpec:
    return ParametersSpec(
        optimizer=rule,
        dense=(DenseSpec(path="w", shape=(5,)), DenseSpec(path="mean", shape=(3,), additive=True)),
        tables=(TableSpec(name="a", dim=3, seed=3), TableSpec(name="b", dim=1, seed=-4)),
    )


@dataclass
class Training:
    """A job's servers, its only worker, and what its master remembers of the newest checkpoint."""

    stage: Stage
    spec: ParametersSpec
    checkpoints: Path
    choose: np.random.Generator = field(default_factory=lambda: np.random.default_rng(1))
    sequence: int = 0
    snapshot: int = 100
    base: tuple[int, Path, Manifest] | None = None
    kept_bytes: int = 0
    precision: WirePrecision = WirePrecision.FLOAT32

    def __post_init__(self) -> None:
        self.pool = self.stage.pool(kept_bytes=self.kept_bytes, precision=self.precision)
        self.pool.initialise(self.spec, np.zeros(8, np.float32), timeout_s=LIMIT_S)

    def push(self, most: int = 40) -> Pushed:
        ids = [
            np.unique(self.choose.integers(-IDS // 2, IDS // 2, self.choose.integers(0, most)))
            for _ in self.spec.tables
        ]
        # The next numbers of a random sequence, whatever else was asked for.
        self.sequence += 1
        pulled = self.pool.pull(ids, timeout_s=LIMIT_S)
        update = Update(
            self.sequence,
            Applied(ShardId(1), 0, self.sequence),
            pulled.versions,
            float(self.choose.choice([0.01, 0.02])),
            self.choose.normal(size=8).astype(np.float32),
            tuple(ids),
            tuple(self.choose.normal(size=rows.shape).astype(np.float32) for rows in pulled.rows),
        )
        return self.pool.push(update, timeout_s=LIMIT_S)

    def pull_some(self) -> None:
        """Make rows that no push has touched."""
        ids = [np.unique(self.choose.integers(-IDS, IDS, 5)) for _ in self.spec.tables]
        self.pool.pull(ids, timeout_s=LIMIT_S)

    def cut(self) -> int:
        self.snapshot += 1
        self.stage.cut(self.snapshot)
        return self.snapshot

    def write(
        self, snapshot: int, checkpoints: Path, *, delta: bool = True, forgetful: int = -1
    ) -> tuple[Path, Manifest]:
        """What the archive does; `forgetful` is a server that knows of no changes."""
        making = directories.begin(checkpoints)
        base = self.base if delta else None
        links = directories.link_base(making, base[1], base[2]) if base else ()
        asked = base[0] if base and links else None
        parts = [
            save(server, place(self.stage, k), snapshot, making, None if k == forgetful else asked)
            for k, server in enumerate(self.stage.servers)
        ]
        if not any(part.delta for part in parts):
            directories.unlink(making, links)
            links = ()
        manifest = Manifest(
            version=max(part.version for part in parts),
            servers=len(parts),
            parameters=self.spec,
            files=tuple(
                PartFile(name=part.name, bytes=part.bytes, checksum=part.checksum) for part in parts
            ),
            links=links,
            rows=sum(part.rows for part in parts),
        )
        return directories.complete(making, manifest), manifest

    def checkpoint(self, *, forgetful: int = -1, fails: bool = False) -> Path:
        """Take one as the master does. One that `fails` is written and never complete."""
        snapshot = self.cut()
        directory, manifest = self.write(snapshot, self.checkpoints, forgetful=forgetful)
        for server in self.stage.servers:
            if not fails:
                server.set_base(snapshot)
            server.drop(snapshot)
        if fails:
            shutil.rmtree(directory)
        else:
            self.base = (snapshot, directory, manifest)
        return directory


@pytest.fixture
def training(open_stage: Callable[[int], Stage], tmp_path: Path) -> Training:
    return Training(open_stage(2), spec_of(RULES[2]), tmp_path / "made")


def restored(stage: Stage, directory: Path) -> Stage:
    for k, server in enumerate(stage.servers):
        restore(server, place(stage, k), directory)
    return stage


def same(a: Stage, b: Stage, scratch: Path) -> None:
    """Both hold the same, bit for bit, now and after the same update."""
    first, second = contents(a, scratch), contents(b, scratch)
    for mine, theirs in zip(first[0], second[0], strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert first[1] == second[1]


ROUND = st.tuples(
    st.integers(0, 3),  # pushes
    st.booleans(),  # rows that are only read
    st.sampled_from(["saved", "saved", "failed", "looked at", "forgotten"]),
    st.booleans(),  # other servers load it ahead of the last one
)


@settings(max_examples=25, deadline=None)
@given(
    rule=st.sampled_from(RULES),
    servers=st.integers(1, 3),
    readers=st.integers(1, 3),
    rounds=st.lists(ROUND, min_size=1, max_size=6),
)
def test_a_chain_restores_bit_for_bit_on_any_number_of_servers(
    rule: OptimizerSpec, servers: int, readers: int, rounds: list[tuple[int, bool, str, bool]]
) -> None:
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(TemporaryDirectory()))

        def make(count: int) -> Stage:
            stage = Stage(count)
            stack.callback(stage.close)
            return stage

        job = Training(make(servers), spec_of(rule), scratch / "made")
        # Many rows, or the chain would end soon.
        for _ in range(5):
            job.push(400)
        job.checkpoint()
        ahead = make(readers)
        restorations = [
            Restoration(server, place(ahead, k)) for k, server in enumerate(ahead.servers)
        ]
        for pushes, reads, what, loads in rounds:
            for _ in range(pushes):
                job.push()
            if reads:
                job.pull_some()
            match what:
                case "looked at":
                    # An evaluation's view lives on while updates come.
                    view = job.cut()
                    job.push()
                    for server in job.stage.servers:
                        server.drop(view)
                case "failed":
                    job.checkpoint(fails=True)
                case "forgotten":
                    job.checkpoint(forgetful=0)
                case _:
                    job.checkpoint()
            assert job.base is not None
            if loads:
                for one in restorations:
                    one.load(job.base[1])
        snapshot = job.cut()
        # The view is written while training goes on.
        job.push()
        chain, _ = job.write(snapshot, job.checkpoints)
        full, manifest = job.write(snapshot, scratch / "full", delta=False)
        assert manifest.links == ()
        by_chain, by_full = restored(make(readers), chain), restored(make(readers), full)
        same(by_chain, by_full, scratch)
        for one in restorations:
            one.finish(chain)
        same(ahead, by_full, scratch)
        for stage in (by_chain, by_full, ahead):
            again = Training(stage, spec_of(rule), scratch / "unused", sequence=job.sequence)
            again.push()
            again.push()
        same(by_chain, by_full, scratch)
        same(ahead, by_full, scratch)


def test_only_what_is_new_in_a_chain_is_read_again(
    training: Training, open_stage: Callable[[int], Stage], tmp_path: Path
) -> None:
    for _ in range(20):
        training.push(200)
    first, stage = training.checkpoint(), open_stage(3)
    restorations = [Restoration(one, place(stage, k)) for k, one in enumerate(stage.servers)]
    assert all(restoration.load(first) for restoration in restorations)
    training.push(10)
    second = training.checkpoint()
    for path in second.glob("link-0-*"):
        path.unlink()
    assert [restoration.finish(second) for restoration in restorations] == [21, 21, 21]
    same(training.stage, stage, tmp_path)


@dataclass
class Attaching:
    """The client of a master that only hears what a server could not load."""

    not_loaded: list[str] = field(default_factory=list)

    def attach(self, *, not_loaded: str) -> None:
        self.not_loaded.append(not_loaded)


def test_a_checkpoint_that_is_removed_while_it_is_loaded_is_passed_over(
    training: Training, open_stage: Callable[[int], Stage], tmp_path: Path
) -> None:
    training.push(200)
    gone, stage = training.checkpoint(), open_stage(1)
    restoration = Restoration(stage.servers[0], place(stage, 0))
    shutil.rmtree(gone)
    assert not restoration.load(gone)
    client, told = Attaching(), list[Order]([Load(str(gone)), Finish()])
    assert _stand_by(restoration, cast("Any", client), iter(told), Event()) is ExitCode.DONE
    assert client.not_loaded == [str(gone)], "the master does not count it as loaded"
    training.base = None
    directory = training.checkpoint()
    whole, _ = training.write(training.cut(), tmp_path / "whole", delta=False)
    torn = directory / part_name(1, 2)
    data = torn.read_bytes()
    torn.write_bytes(data[:-1] + bytes([data[-1] ^ 4]))
    with pytest.raises(Corrupted, match=torn.name):
        restoration.load(directory)
    # What the failed one has left behind does not count.
    restoration.finish(whole)
    same(training.stage, stage, tmp_path)


def test_a_delta_has_the_changed_rows_only_and_the_files_of_its_base(training: Training) -> None:
    for _ in range(20):
        training.push(200)
    first = training.checkpoint()
    training.push(10)
    second = training.checkpoint()
    names = [part_name(k, 2) for k in range(2)]
    assert sorted(path.name for path in second.iterdir()) == sorted(
        [MANIFEST, *names, *(f"link-0-{name}" for name in names)]
    )
    for name in names:
        assert (second / f"link-0-{name}").samefile(first / name)
        old, new = read_header(first / name).header, read_header(second / name).header
        assert new.delta and sum(new.rows) < sum(old.rows) / 8
    summary, base = inspection.summaries(training.checkpoints)
    assert (summary.base, summary.deltas, base.base, base.deltas) == (20, 1, None, 0)
    assert summary.rows == base.rows and (summary.bytes or 0) < (base.bytes or 0)


def test_a_checkpoint_is_whole_though_those_before_it_are_removed(
    training: Training, open_stage: Callable[[int], Stage], tmp_path: Path
) -> None:
    for _ in range(20):
        training.push(200)
    for _ in range(4):
        training.push(10)
        training.checkpoint()
    directories.prune(training.checkpoints, 1, training.sequence)
    (left,) = directories.complete_ones(training.checkpoints)
    assert len(directories.verify(left).links) == 3
    moved = shutil.move(left, tmp_path / "elsewhere")
    same(training.stage, restored(open_stage(3), Path(moved)), tmp_path)


def test_pauses_change_nothing_in_a_file_and_end_when_somebody_waits(
    training: Training, tmp_path: Path
) -> None:
    server, part = training.stage.servers[0], place(training.stage, 0)

    def written(snapshot: int, pause_s: float) -> tuple[str, bool]:
        found = save(server, part, snapshot, tmp_path, pause_s=pause_s)
        return found.checksum, found.paused_s > 0

    for _ in range(9):
        training.push()
    first = training.cut()
    checksum, pauses = written(first, 0.0)
    assert not pauses
    assert written(first, 60.0) == (checksum, True)
    server.hurry(first)
    assert written(first, 60.0) == (checksum, False)
    server.hurry(1000)
    # Most of the rows are copied by now: the pauses would cost ever more memory.
    large = training.cut()
    checksum, _ = written(large, 0.0)
    for _ in range(40):
        training.push()
    assert written(large, 60.0) == (checksum, False)


def test_a_chain_ends_after_many_deltas_and_after_many_bytes(training: Training) -> None:
    for _ in range(20):
        training.push(200)
    lengths = []
    for _ in range(MOST_DELTAS + 2):
        training.push(4)
        lengths.append(len(directories.verify(training.checkpoint()).links))
    assert lengths == [*range(MOST_DELTAS + 1), 0]
    for _ in range(3):
        for _ in range(30):
            training.push(200)
        lengths.append(len(directories.verify(training.checkpoint()).links))
    # A delta of nearly all rows is allowed once; then the base has cost as much again.
    assert lengths[-3:] in ([1, 0, 1], [1, 2, 0])


@pytest.mark.parametrize("victim", ["link-0", "link-1", "own"])
@pytest.mark.parametrize("damage", ["flip", "remove"])
def test_a_torn_link_is_named_and_the_newest_whole_checkpoint_is_used(
    training: Training, open_stage: Callable[[int], Stage], victim: str, damage: str
) -> None:
    training.push(200)
    training.checkpoint()
    old = training.write(training.cut(), training.checkpoints, delta=False)[0]
    for _ in range(2):
        training.push()
        new = training.checkpoint()
    name = part_name(1, 2)
    path = new / (name if victim == "own" else f"{victim}-{name}")
    data = path.read_bytes()
    path.unlink()
    if damage == "flip":
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 4]))
    with pytest.raises(Corrupted, match=path.name):
        directories.verify(new)
    (damaged,) = inspection.verify_all(training.checkpoints, directories.version_in_name(new))
    assert len(damaged.problems) == 1 and str(path) in damaged.problems[0]
    found = directories.newest(training.checkpoints)
    assert found is not None and found.where != str(new) and str(path) in found.rejected[0]
    stage = open_stage(2)
    assert restore_newest_intact(stage.servers[1], place(stage, 1), new) < training.sequence
    assert old in directories.complete_ones(training.checkpoints)


def test_a_delta_whose_writing_is_killed_leaves_its_base_as_it_was(training: Training) -> None:
    for _ in range(20):
        training.push(200)
    first = training.checkpoint()
    before = {path.name: path.read_bytes() for path in first.iterdir()}
    training.push()
    snapshot = training.cut()
    making = directories.begin(training.checkpoints)
    assert training.base is not None
    assert directories.link_base(making, first, training.base[2])
    save(training.stage.servers[0], place(training.stage, 0), snapshot, making, training.base[0])
    # Here the master is killed: the next one finds no manifest.
    assert directories.complete_ones(training.checkpoints) == [first]
    for server in training.stage.servers:
        server.drop(snapshot)
    second = training.checkpoint()
    assert len(directories.verify(second).links) == 1 and not making.exists()
    assert {path.name: path.read_bytes() for path in first.iterdir()} == before


def test_a_delta_without_its_base_is_refused(
    training: Training, open_stage: Callable[[int], Stage]
) -> None:
    training.push()
    training.checkpoint()
    training.push()
    directory = training.checkpoint()
    manifest = directories.read_manifest(directory)
    text = manifest.model_copy(update={"links": ()}).model_dump_json()
    (directory / MANIFEST).write_text(text)
    stage = open_stage(1)
    with pytest.raises(Corrupted, match="lacks the checkpoint that the delta of ps-0 needs"):
        restore(stage.servers[0], place(stage, 0), directory)


def test_a_file_system_without_hard_links_gets_full_checkpoints(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    training.push()
    training.checkpoint()
    training.push()
    monkeypatch.setattr("os.link", refused)
    directory = training.checkpoint()
    assert directories.verify(directory).links == ()
    assert sorted(path.name for path in directory.iterdir()) == [
        MANIFEST,
        part_name(0, 2),
        part_name(1, 2),
    ]

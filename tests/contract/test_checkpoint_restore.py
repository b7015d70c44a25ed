"""Checkpoints of real servers: every bit comes back, on any number of servers; damage is found and
named.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elasticdl.checkpoint import directories
from elasticdl.checkpoint.layout import part_name
from elasticdl.checkpoint.manifest import Manifest, PartFile
from elasticdl.checkpoint.part import read_header
from elasticdl.embedding.spec import Dtype, OptimizerKind, OptimizerSpec, ParametersSpec
from elasticdl.errors import Corrupted, TransientError, UserError
from elasticdl.ps.restoring import restore, restore_newest_intact
from elasticdl.ps.saving import Diverged, ServerPart, save
from elasticdl.rpc.parameters import Update
from elasticdl.rpc.ps_client import ServerPool
from elasticdl.shard import Applied, ShardId
from elasticdl.tokens import run_name
from tests.contract.ps_stage import LIMIT_S, TOKEN, Stage, as_ids, rich_spec, shown
from tests.present import present

pytestmark = pytest.mark.contract

RULES = [
    OptimizerSpec(kind=OptimizerKind.SGD),
    OptimizerSpec(kind=OptimizerKind.SGD, momentum=0.9),
    OptimizerSpec(kind=OptimizerKind.ADAM, amsgrad=True),
    OptimizerSpec(kind=OptimizerKind.FTRL),
]


@pytest.fixture
def open_stage() -> Iterator[Callable[..., Stage]]:
    with ExitStack() as stack:

        def make(count: int, token: str = TOKEN, first: int = 0) -> Stage:
            stage = Stage(count, token, first=first)
            stack.callback(stage.close)
            return stage

        yield make


def place(stage: Stage, server: int, token: str = TOKEN) -> ServerPart:
    return ServerPart(server, len(stage.servers), run_name(token))


def checkpoint(stage: Stage, checkpoints: Path, snapshot: int = 1) -> Path:
    """What the master does."""
    facts = stage.cut(snapshot)
    making = directories.begin(checkpoints)
    parts = [
        save(server, place(stage, k), snapshot, making) for k, server in enumerate(stage.servers)
    ]
    for server in stage.servers:
        server.drop(snapshot)
    manifest = Manifest(
        version=int(facts[0]["version"]),
        servers=len(parts),
        parameters=ParametersSpec.model_validate_json(parts[0].parameters),
        files=tuple(
            PartFile(name=part.name, bytes=part.bytes, checksum=part.checksum) for part in parts
        ),
        rows=sum(part.rows for part in parts),
        ledger='{"epoch": 3}',
    )
    return directories.complete(making, manifest)


def train(stage: Stage, spec: ParametersSpec, steps: int = 5, first: int = 1) -> None:
    choose, dtype = np.random.default_rng(first), spec.dtype.value
    pool = stage.pool()
    pool.initialise(spec, choose.normal(size=37).astype(dtype), timeout_s=LIMIT_S)
    for sequence in range(first, first + steps):
        ids = [
            np.unique(choose.integers(-20_000, 20_000, 15_000)),
            np.unique(choose.integers(-(2**62), 2**62, 50)),
        ]
        pulled = pool.pull(ids, timeout_s=LIMIT_S)
        gradients = tuple(choose.normal(size=rows.shape).astype(dtype) for rows in pulled.rows)
        dense = choose.normal(size=37).astype(dtype)
        pool.push(
            Update(
                sequence,
                Applied(ShardId(1), 0, sequence),
                pulled.versions,
                0.01,
                dense,
                tuple(ids),
                gradients,
            ),
            timeout_s=LIMIT_S,
        )


def contents(stage: Stage, tmp_path: Path) -> tuple[list[np.ndarray], list[dict[int, bytes]]]:
    """Everything that the servers hold, in an order that does not depend on their number: dense
    sections, rows by id.
    """
    directory = checkpoint(stage, tmp_path / f"contents-{len(list(tmp_path.iterdir()))}")
    parts = [(directory / part_name(k, len(stage.servers)), k) for k in range(len(stage.servers))]
    spec = present(directories.read_manifest(directory).parameters)
    dense: dict[int, list[np.ndarray]] = {}
    tables: list[dict[int, bytes]] = [{} for _ in spec.tables]
    for path, k in parts:
        part, data = read_header(path), path.read_bytes()
        for read in part.dense_reads(k, len(parts)):
            dense.setdefault(read.section, []).append(
                np.frombuffer(data, spec.dtype.value, read.count, read.offset)
            )
        for table in part.table_reads(k, len(parts)):
            tables[table.table].update(
                rows_at(
                    data,
                    table.offset,
                    table.rows,
                    spec.dtype.bytes * spec.tables[table.table].dim * (1 + spec.optimizer.slots),
                    tagged=part.header.tagged,
                )
            )
    return [np.concatenate(dense[section]) for section in sorted(dense)], tables


def rows_at(data: bytes, offset: int, rows: int, width: int, *, tagged: bool) -> dict[int, bytes]:
    found = {}
    while rows:
        count = min(rows, 16384)
        ids = np.frombuffer(data, np.int64, count, offset)
        offset += (16 if tagged else 8) * count
        found.update(
            {
                int(one): data[offset + i * width : offset + (i + 1) * width]
                for i, one in enumerate(ids)
            }
        )
        offset += width * count
        rows -= count
    return found


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.kind}-{rule.slots}")
@pytest.mark.parametrize("dtype", Dtype)
def test_one_server_to_three_to_two_keeps_every_bit(
    open_stage: Callable[..., Stage], tmp_path: Path, rule: OptimizerSpec, dtype: Dtype
) -> None:
    spec = rich_spec().model_copy(update={"optimizer": rule, "dtype": dtype})
    one = open_stage(1)
    train(one, spec)
    dense, tables = contents(one, tmp_path)
    assert len(tables[0]) > 20_000 and len(dense) == 2 + rule.slots
    before, directory = one, checkpoint(one, tmp_path / "1", 2)
    for count in (3, 2, 2):
        stage = open_stage(count)
        for k, server in enumerate(stage.servers):
            assert restore(server, place(stage, k), directory) == before.servers[0].version == 5
        dense_now, tables_now = contents(stage, tmp_path)
        for mine, theirs in zip(dense, dense_now, strict=True):
            np.testing.assert_array_equal(mine, theirs)
        assert tables_now == tables
        before, directory = (
            stage,
            checkpoint(stage, tmp_path / f"to-{count}-{len(list(tmp_path.iterdir()))}", 9),
        )


def test_training_continues_after_a_restore_as_if_nothing_had_happened(
    open_stage: Callable[..., Stage], tmp_path: Path
) -> None:
    undisturbed, first, second = open_stage(2), open_stage(2), open_stage(3)
    train(undisturbed, rich_spec(), 4)
    train(undisturbed, rich_spec(), 4, first=5)
    train(first, rich_spec(), 4)
    directory = checkpoint(first, tmp_path / "made")
    for k, server in enumerate(second.servers):
        restore(server, place(second, k), directory)
    train(second, rich_spec(), 4, first=5)
    expected, restored = contents(undisturbed, tmp_path), contents(second, tmp_path)
    for mine, theirs in zip(expected[0], restored[0], strict=True):
        np.testing.assert_array_equal(mine, theirs)
    for now, then in zip(expected[1], restored[1], strict=True):
        assert now == then


def test_a_checkpoint_holds_the_cut_though_training_continues_while_it_is_written(
    open_stage: Callable[..., Stage], tmp_path: Path
) -> None:
    stage = open_stage(2)
    train(stage, rich_spec(), 3)
    expected = contents(stage, tmp_path)
    stage.cut(5)
    making = directories.begin(tmp_path / "made")
    training = threading.Thread(target=train, args=(stage, rich_spec(), 5, 4))
    training.start()
    parts = [save(server, place(stage, k), 5, making) for k, server in enumerate(stage.servers)]
    training.join(LIMIT_S)
    files = tuple(
        PartFile(name=part.name, bytes=part.bytes, checksum=part.checksum) for part in parts
    )
    spec = ParametersSpec.model_validate_json(parts[0].parameters)
    directory = directories.complete(
        making, Manifest(version=parts[0].version, servers=2, parameters=spec, files=files)
    )
    restored = open_stage(2)
    for k, server in enumerate(restored.servers):
        assert restore(server, place(restored, k), directory) == 3
    found = contents(restored, tmp_path)
    for mine, theirs in zip(expected[0], found[0], strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert expected[1] == found[1]


def steps(pool: ServerPool, spec: ParametersSpec, sequences: range) -> Update:
    """Some steps, which depend on their numbers only; returns the last update."""
    for sequence in sequences:
        choose, dtype = np.random.default_rng(sequence), spec.dtype.value
        ids = (as_ids(range(sequence, 4000, 3)), as_ids(range(-sequence, 50)))
        pulled = pool.pull(ids, timeout_s=LIMIT_S)
        gradients = tuple(choose.normal(size=rows.shape).astype(dtype) for rows in pulled.rows)
        last = Update(
            sequence,
            Applied(ShardId(1), 0, sequence),
            pulled.versions,
            0.01,
            choose.normal(size=37).astype(dtype),
            ids,
            gradients,
        )
        pool.push(last, timeout_s=LIMIT_S)
    return last


def test_a_worker_follows_its_parameters_to_three_servers_and_back_bit_for_bit(
    open_stage: Callable[..., Stage], tmp_path: Path
) -> None:
    spec = rich_spec().model_copy(update={"optimizer": RULES[0], "dtype": Dtype.FLOAT64})
    undisturbed, here = open_stage(2), open_stage(2)
    for one in (undisturbed, here):
        pool = one.pool()
        pool.initialise(spec, np.zeros(37), timeout_s=LIMIT_S)
        last = steps(pool, spec, range(1, 4))
        if one is undisturbed:
            steps(pool, spec, range(4, 9))
    for first, count, sequences in ((2, 3, range(4, 7)), (5, 2, range(7, 9))):
        directory = checkpoint(here, tmp_path / f"to-{count}")
        here = open_stage(count, first=first)
        for k, server in enumerate(here.servers):
            restore(server, place(here, k), directory)
        pool.move(here.addresses, first, shown(count, "worker-0", first=first))
        # It does not know that its last push is in the checkpoint, and computed it on two versions.
        assert pool.push(last, timeout_s=LIMIT_S).versions == (last.sequence,) * count
        last = steps(pool, spec, sequences)
    expected, found = contents(undisturbed, tmp_path), contents(here, tmp_path)
    for mine, theirs in zip(expected[0], found[0], strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert expected[1] == found[1]


def test_a_call_under_way_continues_with_the_servers_that_follow(
    open_stage: Callable[..., Stage], tmp_path: Path
) -> None:
    spec = rich_spec()
    here = open_stage(2)
    pool = here.pool()
    pool.initialise(spec, np.zeros(37, np.float32), timeout_s=LIMIT_S)
    steps(pool, spec, range(1, 2))
    directory = checkpoint(here, tmp_path / "made")
    for server in here.servers:
        server.gate(LIMIT_S)
    late = threading.Thread(target=steps, args=(pool, spec, range(2, 3)))
    late.start()
    there = open_stage(3, first=2)
    for k, server in enumerate(there.servers):
        restore(server, place(there, k), directory)
    pool.move(there.addresses, 2, shown(3, "worker-0", first=2))
    late.join(LIMIT_S)
    assert [server.version for server in there.servers] == [2, 2, 2]
    assert [server.version for server in here.servers] == [1, 1]


def test_a_push_that_some_server_never_saw_is_unknown_to_another_number_of_servers(
    open_stage: Callable[..., Stage], tmp_path: Path
) -> None:
    first, second = open_stage(2), open_stage(3)
    # It was killed when its first push was at one server only.
    first.servers[0].restore_worker("worker-1", (5, 1, 0, 0, 1))
    train(first, rich_spec(), 2)
    assert first.servers[0].gate(LIMIT_S) == {"worker-0": 2, "worker-1": 1}
    directory = checkpoint(first, tmp_path / "made")
    for k, server in enumerate(second.servers):
        restore(server, place(second, k), directory)
        assert server.gate(LIMIT_S) == {"worker-0": 2}


def test_a_restored_server_remembers_the_pushes_of_its_own_run_only(
    open_stage: Callable[..., Stage], tmp_path: Path
) -> None:
    first = open_stage(2)
    train(first, rich_spec(), 3)
    directory = checkpoint(first, tmp_path)
    again, other_run = open_stage(2), open_stage(2)
    for k in range(2):
        restore(again.servers[k], place(again, k), directory)
        restore(other_run.servers[k], place(other_run, k, "another run's token"), directory)
    assert again.servers[0].gate(LIMIT_S) == {"worker-0": 3}
    known = again.servers[1].fence("worker-0")
    assert known is not None and known[1:] == (3, 1, 0, 3)
    assert other_run.servers[0].gate(LIMIT_S) == {}


def test_a_worker_with_another_model_is_refused_by_a_restored_server(
    open_stage: Callable[..., Stage], tmp_path: Path
) -> None:
    first, second = open_stage(1), open_stage(1)
    train(first, rich_spec())
    restore(second.servers[0], place(second, 0), checkpoint(first, tmp_path))
    other = rich_spec().model_copy(update={"optimizer": OptimizerSpec(kind=OptimizerKind.ADAGRAD)})
    with pytest.raises(
        UserError, match=r"made with optimizer adam \(2 slots\), the model uses adagrad \(1 slots\)"
    ):
        second.pool().initialise(other, np.zeros(37, np.float32), timeout_s=LIMIT_S)


def test_each_file_is_verified_once(
    open_stage: Callable[..., Stage], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = rich_spec()
    two = open_stage(2)
    train(two, spec)
    directory = checkpoint(two, tmp_path)
    verified: list[str] = []
    verify = directories.verify_part

    def noted(directory: Path, file: PartFile) -> None:
        verified.append(file.name)
        verify(directory, file)

    monkeypatch.setattr(directories, "verify_part", noted)
    one = open_stage(1)
    restore(one.servers[0], place(one, 0), directory)
    assert sorted(verified) == [part_name(0, 2), part_name(1, 2)]


@pytest.mark.parametrize("damage", ["flip", "truncate", "extend", "remove", "mix"])
def test_damage_is_found_named_and_the_checkpoint_before_is_used(
    open_stage: Callable[..., Stage], tmp_path: Path, damage: str
) -> None:
    stage = open_stage(2)
    train(stage, rich_spec(), 2)
    old = checkpoint(stage, tmp_path / "made", 1)
    train(stage, rich_spec(), 1, first=3)
    new = checkpoint(stage, tmp_path / "made", 2)
    victim = new / part_name(1, 2)
    data = victim.read_bytes()
    match damage:
        case "flip":
            at = len(data) * 2 // 3
            victim.write_bytes(data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :])
        case "truncate":
            victim.write_bytes(data[:-1])
        case "extend":
            victim.write_bytes(data + b"\0")
        case "remove":
            victim.unlink()
        case _:
            victim.write_bytes((old / part_name(1, 2)).read_bytes())
    found = directories.newest(tmp_path / "made")
    assert found is not None and found.where == str(old) and found.manifest.ledger == '{"epoch": 3}'
    assert len(found.rejected) == 1 and str(victim) in found.rejected[0]
    restored = open_stage(1)
    assert restore(restored.servers[0], place(restored, 0), tmp_path / "made") == 2
    (old / "manifest.json").write_text("{")
    with pytest.raises(Corrupted) as error:
        directories.newest(tmp_path / "made")
    assert str(victim) in str(error.value) and str(old) in str(error.value)


def test_a_server_that_comes_back_passes_damage_over_and_says_so(
    open_stage: Callable[..., Stage], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stage = open_stage(2)
    train(stage, rich_spec(), 2)
    old = checkpoint(stage, tmp_path / "made", 1)
    train(stage, rich_spec(), 1, first=3)
    new = checkpoint(stage, tmp_path / "made", 2)
    for directory in (new, old):
        victim = directory / part_name(1, 2)
        data = victim.read_bytes()
        victim.write_bytes(data[:-1] + bytes([data[-1] ^ 4]))
        back = open_stage(2)
        assert restore_newest_intact(back.servers[0], place(back, 0), new) == 3, (
            "its own part is whole"
        )
        if directory is new:
            assert restore_newest_intact(back.servers[1], place(back, 1), new) == 2
            assert str(victim) in caplog.text
    with pytest.raises(Corrupted) as error:
        restore_newest_intact(back.servers[1], place(back, 1), new)
    assert str(new) in str(error.value) and str(old) in str(error.value)


def test_parts_of_two_checkpoints_are_not_taken_for_one(
    open_stage: Callable[..., Stage], tmp_path: Path
) -> None:
    stage = open_stage(2)
    train(stage, rich_spec(), 2)
    directory = checkpoint(stage, tmp_path)
    first = directory / part_name(0, 2)
    (directory / part_name(1, 2)).write_bytes(first.read_bytes())
    manifest = directories.read_manifest(directory)
    twice = tuple(
        file.model_copy(
            update={"bytes": manifest.files[0].bytes, "checksum": manifest.files[0].checksum}
        )
        for file in manifest.files
    )
    (directory / "manifest.json").write_text(
        manifest.model_copy(update={"files": twice}).model_dump_json()
    )
    with pytest.raises(Corrupted, match=r"parts of different checkpoints: of servers \[0, 0\]"):
        restore(open_stage(2).servers[0], place(stage, 0), directory)


def rewrite_header(path: Path, **changes: object) -> None:
    """Change fields of a part's header, and of nothing else."""
    data = path.read_bytes()
    size = int.from_bytes(data[8:16], "little")
    header = json.loads(data[16 : 16 + size]) | changes
    text = json.dumps(header).encode()
    path.write_bytes(data[:8] + len(text).to_bytes(8, "little") + text + data[16 + size :])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rows": [0, 0, 0]}, "rows of 3 tables"),
        ({"rows": [-1, 1]}, "rows.0"),
        ({"trainable": [0, 2**40]}, "trainable is"),
        ({"version": 2**63}, "version"),
        ({"server": 1}, "server 1 of 1"),
        ({"workers": {"worker-0": [2**64, 1, 1, 1, 1]}}, "workers.worker-0.0"),
        ({"tables.dim": 2**30}, "dimension 1073741824"),
        ({"tables.dim": -1}, "dimension -1"),
        ({"dense.shape": [2**20, 2**20]}, "more than 268435456 dense weights"),
    ],
)
def test_a_header_that_no_server_wrote_is_corrupted(
    open_stage: Callable[..., Stage], tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    stage = open_stage(1)
    stage.pool().initialise(rich_spec(), np.zeros(37, np.float32), timeout_s=LIMIT_S)
    path = checkpoint(stage, tmp_path) / part_name(0, 1)
    parameters = rich_spec().model_dump(mode="json")
    for name, value in changes.items():
        part, _, key = name.partition(".")
        if key:
            parameters[part][0][key] = value
            changes = {"parameters": parameters}
    rewrite_header(path, **changes)
    with pytest.raises(Corrupted, match=words):
        read_header(path)


def test_a_disk_that_takes_no_more_is_said_and_leaves_nothing(
    open_stage: Callable[..., Stage], tmp_path: Path
) -> None:
    stage = open_stage(1)
    train(stage, rich_spec(), 2)
    checkpoint(stage, tmp_path / "made", 1)
    stage.cut(2)
    making = directories.begin(tmp_path / "made")
    (making / "server-0-of-1.making").symlink_to("/dev/full")
    with pytest.raises(TransientError, match=r"cannot write .*: .*No space left"):
        save(stage.servers[0], place(stage, 0), 2, making)
    assert list(making.iterdir()) == []
    with pytest.raises(TransientError, match="No such file"):
        save(stage.servers[0], place(stage, 0), 2, tmp_path / "nowhere")
    found = directories.newest(tmp_path / "made")
    assert found is not None and found.manifest.version == 2
    train(stage, rich_spec(), 1, first=3)


def test_a_view_that_is_dropped_while_it_is_written_is_written_to_the_end(
    open_stage: Callable[..., Stage], tmp_path: Path
) -> None:
    stage = open_stage(1)
    train(stage, rich_spec(), 3)
    stage.cut(1)
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    expected = save(stage.servers[0], place(stage, 0), 1, tmp_path / "a")
    saved = []
    writing = threading.Thread(
        target=lambda: saved.append(save(stage.servers[0], place(stage, 0), 1, tmp_path / "b"))
    )
    writing.start()
    while writing.is_alive() and not list((tmp_path / "b").iterdir()):
        pass
    stage.servers[0].drop(1)
    writing.join(LIMIT_S)
    assert saved == [expected]


def test_rows_that_were_never_touched_begin_alike_on_any_number_of_servers(
    open_stage: Callable[..., Stage],
) -> None:
    ids = [np.arange(-500, 500), as_ids([2**62])]
    rows = []
    for count in (1, 2, 3):
        pool = open_stage(count).pool()
        pool.initialise(rich_spec(), np.zeros(37, np.float32), timeout_s=LIMIT_S)
        rows.append(pool.pull(ids, timeout_s=LIMIT_S).rows)
    for other in rows[1:]:
        for mine, theirs in zip(rows[0], other, strict=True):
            np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("where", ["dense", "additive", "table"])
def test_a_weight_that_overflowed_is_named_and_gets_into_no_checkpoint(
    open_stage: Callable[..., Stage], tmp_path: Path, where: str
) -> None:
    """Each gradient is finite; what becomes of the weight is not."""
    stage = open_stage(2)
    spec = rich_spec().model_copy(update={"optimizer": OptimizerSpec(kind=OptimizerKind.SGD)})
    pool = stage.pool()
    pool.initialise(spec, np.zeros(37, np.float32), timeout_s=LIMIT_S)
    index = spec.trainable_size + 1 if where == "additive" else 5
    dense, ids = np.zeros(37, np.float32), [np.array([], np.int64) for _ in spec.tables]
    if where == "table":
        ids[1] = np.array([-3, 4], np.int64)
    rows = [
        np.zeros((len(one), table.dim), np.float32)
        for one, table in zip(ids, spec.tables, strict=True)
    ]
    for sequence in (1, 2):
        if where == "table":
            rows[1][0, -1] = -3e38
        else:
            dense[index] = 3e38 if where == "additive" else -3e38
        pulled = pool.pull(ids, timeout_s=LIMIT_S)
        update = Update(
            sequence,
            Applied(ShardId(1), 0, sequence),
            pulled.versions,
            1.0,
            dense,
            tuple(ids),
            tuple(rows),
        )
        pool.push(update, timeout_s=LIMIT_S)
    stage.cut(1)
    problems, written = [], []
    for k, server in enumerate(stage.servers):
        try:
            written.append(save(server, place(stage, k), 1, tmp_path).name)
        except Diverged as error:
            problems.append(error.message)
    name = f"row -3 of table {spec.tables[1].name}" if where == "table" else named(spec, index)
    assert len(problems) == 1 and problems[0].startswith(f"{name} is inf in version 2")
    assert [path.name for path in tmp_path.iterdir()] == written


def named(spec: ParametersSpec, index: int) -> str:
    for variable in spec.dense:
        if index < variable.size:
            return f"{variable.path}[{index}]"
        index -= variable.size
    raise AssertionError(index)

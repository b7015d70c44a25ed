"""SQLite: addresses, keys, types, writers; the suite of all readers has its records."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from elasticdl.cli.request import Request, settle
from elasticdl.data import Reader, open_reader
from elasticdl.data.files import DataChanged
from elasticdl.data.origins import require
from elasticdl.data.places import place_of
from elasticdl.errors import UserError
from elasticdl.job_choices import Action
from elasticdl.shard import Shard, ShardId

pytestmark = pytest.mark.contract


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "my data#1.sqlite"


def run(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as database, database:
        for statement in statements:
            database.execute(statement)


def opened(path: Path, table: str = "t", **params: Any) -> Reader:
    return open_reader(f"sqlite:///{path}?table={table}", params)


def read(reader: Reader, begin: int = 0, end: int | None = None) -> list[Any]:
    (source,) = reader.sources()
    last = source.records if end is None else end
    return list(reader.read(Shard(ShardId(1), source.name, begin, last)))


def test_values_have_the_types_that_are_declared(path: Path) -> None:
    run(
        path,
        "CREATE TABLE t (i BIGINT, yes BOOLEAN, x DOUBLE PRECISION, price DECIMAL(9, 2),"
        " text VARCHAR(9), raw BLOB, day DATE, free)",
        "INSERT INTO t VALUES (9007199254740993, 1, 2, 3, 'ü', x'ff', '2026-01-02', 5)",
        "INSERT INTO t VALUES (-1, 0, NULL, 1.5, NULL, NULL, '2026-01-03', 6)",
    )
    reader = opened(path)
    (block,) = read(reader)
    found = {name: values.tolist() for name, values in block.records.items()}
    assert str(found["x"].pop()) == "nan"
    assert found == {
        "i": [9007199254740993, -1], "yes": [1, 0], "x": [2.0], "price": [3.0, 1.5],
        "text": ["ü".encode(), b""], "raw": [b"\xff", b""],
        "day": [b"2026-01-02", b"2026-01-03"], "free": [5, 6],
    }  # fmt: skip
    assert reader.metadata.column_dtypes == {
        name: str(values.dtype) for name, values in block.records.items()
    }
    assert opened(path, columns="x,i").metadata.column_names == ("x", "i")


def test_values_of_another_type_make_bad_records(path: Path) -> None:
    run(path, "CREATE TABLE t (i INT, x REAL)", "INSERT INTO t VALUES (1, 1)",
        "INSERT INTO t VALUES ('one', 2)", "INSERT INTO t VALUES (NULL, 3)",
        "INSERT INTO t VALUES (4, 'four')", "INSERT INTO t VALUES (5, 5)")  # fmt: skip
    (block,) = read(opened(path))
    assert (block.count, block.bad, block.records["i"].tolist()) == (5, 3, [1, 5])
    name = f"sqlite:///{path}?table=t"
    assert set(block.bad_examples) == {
        f"{name}: rowid 2: column 'i' has b'one', expected int64",
        f"{name}: rowid 4: column 'x' has b'four', expected double",
        f"{name}: rowid 3: column 'i' is null",
    }
    (block,) = read(opened(path, fill_null=0))
    assert (block.bad, block.records["i"].tolist()) == (2, [1, 0, 5])


def test_a_key_orders_a_view_and_a_table_without_rowid(path: Path) -> None:
    rows = ", ".join(f"('k{(i * 7) % 5000:05}', {(i * 7) % 5000})" for i in range(5000))
    run(
        path,
        "CREATE TABLE w (k TEXT PRIMARY KEY, n INT) WITHOUT ROWID",
        f"INSERT INTO w VALUES {rows}",
        "CREATE VIEW v AS SELECT k, n FROM w WHERE n >= 100",
    )
    for table, first in (("w", 0), ("v", 100)):
        reader = opened(path, table, key="k")
        found = [n for block in read(reader, 0, 4900) for n in block.records["n"].tolist()]
        assert found == list(range(first, first + 4900))
        found = [n for block in read(reader, 4090, 4100) for n in block.records["n"].tolist()]
        assert found == list(range(first + 4090, first + 4100))
        with pytest.raises(UserError, match="a view or a table without rowid") as caught:
            opened(path, table).sources()
        assert "key=NAME" in caught.value.hint
    where = place_of(opened(path, "v", key="k"), "", 4500)
    assert where == f'sqlite:///{path}?table=v: "k" k04600'


@pytest.mark.parametrize("values", ["(1), (1)", "(1), (NULL)"])
def test_a_key_that_is_not_unique_is_refused(path: Path, values: str) -> None:
    run(path, "CREATE TABLE t (k INT)", f"INSERT INTO t VALUES {values}")
    words = 'key "k" is null or not unique: 1 value in 2 records|its key is null'
    with pytest.raises(UserError, match=words):
        opened(path, key="k").sources()


def test_the_only_table_needs_no_name(path: Path) -> None:
    run(path, "CREATE TABLE a (n INT)", "INSERT INTO a VALUES (1)")
    (source,) = open_reader(f"sqlite:///{path}", {}).sources()
    assert (source.name, source.records) == (f"sqlite:///{path}?table=a", 1)
    run(path, "CREATE TABLE b (n INT)")
    with pytest.raises(UserError, match="2 tables: a, b"):
        open_reader(f"sqlite:///{path}", {})


def test_a_job_may_start_if_the_file_of_its_table_is_there(path: Path) -> None:
    run(path, "CREATE TABLE t (n INT)")
    require(f"sqlite:///{path}?table=t", "--training-data")
    path.unlink()
    with pytest.raises(UserError, match="No such file"):
        require(f"sqlite:///{path}?table=t", "--training-data")


def test_what_cannot_be_read_is_named(path: Path) -> None:
    with pytest.raises(UserError, match="No such file"):
        opened(path)
    path.write_bytes(b"something else" * 100)
    with pytest.raises(UserError, match=r"SQLite refuses it: file is not a database"):
        opened(path)
    path.unlink()
    run(path, "CREATE TABLE t (n INT, odd)", "INSERT INTO t VALUES (1, NULL)", "CREATE TABLE e (n)")
    for words, table, params in (
        ("no table or view 'x'", "x", {}),
        ("no column 'z'; available: n, odd", "t", {"columns": "z"}),
        ("no column 'z'; available: n, odd", "t", {"key": "z"}),
        ("column 'odd' is declared as nothing, and its first value is null", "t", {}),
        ("no reader parameter 'header'", "t", {"header": True}),
    ):
        with pytest.raises(UserError, match=words):
            opened(path, table, **params)
    with pytest.raises(UserError, match="no records"):
        run(path, "CREATE TABLE f (n INT)")
        opened(path, "f").sources()
    with pytest.raises(UserError, match="not the address of a table"):
        open_reader("sqlite://host/db", {})
    with pytest.raises(UserError, match="is a SQLite database") as caught:
        open_reader(str(path), {})
    assert f"sqlite:///{path}?table=NAME" in caught.value.hint


def test_changes_that_are_only_in_a_journal_are_refused(path: Path) -> None:
    run(path, "PRAGMA journal_mode = WAL", "CREATE TABLE t (n INT)")
    with closing(sqlite3.connect(path)) as writer:
        with writer:
            writer.execute("INSERT INTO t VALUES (1)")
        with pytest.raises(UserError, match=r"-wal has changes that are not in the database"):
            opened(path)
    assert opened(path).sources()[0].records == 1
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_a_database_that_changed_is_refused(path: Path) -> None:
    run(path, "CREATE TABLE t (n INT)", "INSERT INTO t VALUES (1), (2)")
    reader = opened(path)
    counted = reader.sources()
    name = counted[0].name
    again = open_reader(name, {}, counted=counted)
    assert again.sources() == counted and read(again)[0].count == 2
    run(path, "INSERT INTO t VALUES (3)")
    os.utime(path, ns=(1, 1))
    with pytest.raises(DataChanged, match="changed during the job"):
        read(reader)
    with pytest.raises(DataChanged, match="changed since its records were counted"):
        open_reader(name, {}, counted=counted)


def test_a_job_takes_the_path_from_the_command_s_directory(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(path.parent)
    flags = {"model_zoo": "zoo", "model_def": "iris", "training_data": "sqlite:///a.sqlite?table=t"}
    spec = settle(Request(Action.TRAIN, flags))
    assert spec.data.training_data == f"sqlite:///{path.parent}/a.sqlite?table=t"

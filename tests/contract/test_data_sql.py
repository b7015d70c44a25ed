"""Tables of databases with an ADBC driver; the suite of all readers has the records of DuckDB."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest

from elasticdl.cli.request import Request, settle
from elasticdl.data import Reader, open_reader, sql_tables
from elasticdl.data.files import DataChanged
from elasticdl.data.origins import require
from elasticdl.data.sql_address import parse_sql, with_deadlines
from elasticdl.errors import SpecError, UserError
from elasticdl.job_choices import Action
from elasticdl.shard import Shard, ShardId

pytestmark = pytest.mark.contract


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "my data.duckdb"


def run(path: Path, *statements: str) -> None:
    with duckdb.connect(str(path)) as connection:
        for statement in statements:
            connection.execute(statement)


def opened(path: Path, table: str = "t", **params: Any) -> Reader:
    return open_reader(f"duckdb:///{path}?table={table}", {"key": "id", **params})


def read(reader: Reader, begin: int = 0, end: int | None = None) -> list[Any]:
    (source,) = reader.sources()
    last = source.records if end is None else end
    return list(reader.read(Shard(ShardId(1), source.name, begin, last)))


def test_columns_have_numpy_types_and_a_null_makes_a_bad_record(path: Path) -> None:
    run(
        path,
        "CREATE TABLE t (id INT, x DOUBLE, price DECIMAL(9, 2), word TEXT, day DATE, list REAL[])",
        "INSERT INTO t VALUES (7, NULL, 1.5, 'ü', '1970-01-03', [1, 2])",
        "INSERT INTO t VALUES (3, 2, 3, NULL, '1970-01-02', [3, 4])",
        "INSERT INTO t VALUES (5, 2, 3, NULL, NULL, [3, 4])",
        "INSERT INTO t VALUES (9, 2, 3, NULL, '1970-01-02', [3])",
    )
    reader = opened(path)
    (block,) = read(reader)
    assert (block.count, block.bad) == (4, 2)
    found = {name: values.tolist() for name, values in block.records.items()}
    assert str(found["x"].pop()) == "nan"
    assert found == {
        "id": [3, 7], "x": [2.0], "price": [3.0, 1.5], "word": [b"", "ü".encode()],
        "day": [1, 2], "list": [[3.0, 4.0], [1.0, 2.0]],
    }  # fmt: skip
    where = f'{reader.sources()[0].name}: "id"'
    assert block.bad_examples[0] == f"{where} 5: column 'day' is null"
    assert reader.metadata.column_dtypes["list"] == "float32[2]"
    (block,) = read(opened(path, columns="x,id"))
    assert tuple(block.records) == ("x", "id") and block.bad == 0


def test_what_cannot_be_read_is_named(path: Path) -> None:
    run(
        path,
        "CREATE TABLE t (id INT, x INT, y DOUBLE)",
        "INSERT INTO t VALUES (1, 1, 1), (2, 1, 2)",
        "CREATE TABLE empty (id INT)",
        "CREATE TABLE nothing (id INT)",
        "INSERT INTO nothing VALUES (1), (NULL)",
    )
    cases: list[tuple[str, Callable[[], object]]] = [
        ("needs a key", lambda: opened(path, key="")),
        ("no column 'z'; available: id, x, y", lambda: opened(path, key="z")),
        ("no column 'z'; available: id, x, y", lambda: opened(path, columns="z")),
        ("no reader parameter 'header'", lambda: opened(path, header=True)),
        ('key "x" is null or not unique', lambda: opened(path, key="x").sources()),
        ("a key has integers or text", lambda: opened(path, key="y").sources()),
        ('key "id" is null or not unique', lambda: opened(path, "nothing").sources()),
        ("has no records", lambda: opened(path, "empty").sources()),
        ("database refuses it: .*does not exist", lambda: opened(path, "t2")),
        ("database refuses it", lambda: opened(path.with_name("none"))),
    ]
    for words, call in cases:
        with pytest.raises(UserError) as caught:
            call()
        assert re.search(words, f"{caught.value.message} {caught.value.hint}")


def test_names_are_no_part_of_a_query(path: Path) -> None:
    odd = 'a"; DROP TABLE t; --'
    quoted = odd.replace('"', '""')
    run(path, "CREATE TABLE t (id INT)", f'CREATE TABLE "{quoted}" (id INT, "{quoted}" INT)')
    run(path, f'INSERT INTO "{quoted}" VALUES (1, 5)', "INSERT INTO t VALUES (1)")
    (block,) = read(opened(path, "a%22; DROP TABLE t; --", columns=odd, key=odd))
    assert block.records[odd].tolist() == [5]
    assert read(opened(path))[0].count == 1


def test_a_table_that_loses_or_gets_records_is_named(path: Path) -> None:
    run(path, "CREATE TABLE t AS SELECT i AS id FROM range(10) AS r(i)")
    counted = opened(path).sources()
    name = counted[0].name

    def again() -> list[int]:
        reader = open_reader(name, {"key": "id"}, counted=counted)
        return [block.count for block in reader.read(Shard(ShardId(1), name, 2, 8))]

    run(path, "DELETE FROM t WHERE id > 5 AND id < 9")
    with pytest.raises(DataChanged, match="keys around record 2 have 4 records, expected 6"):
        again()
    run(path, "INSERT INTO t VALUES (6), (7), (8)")
    assert sum(again()) == 6
    run(path, "INSERT INTO t VALUES (10)")
    with pytest.raises(DataChanged, match="had the keys 0 to 9, now 0 to 10"):
        again()


BLOCKS = 4 * 4096 + 100


@pytest.mark.parametrize("step", [1, 3])
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("DELETE FROM t WHERE id = 6000 * {step}", "keys around record 4096 have 4,095 records"),
        ("INSERT INTO t VALUES (6000 * {step} + {step} - 1)", "have 4,097 records"),
    ],
)
def test_a_record_in_the_middle_that_comes_or_goes_shifts_no_other(
    path: Path, step: int, change: str, words: str
) -> None:
    run(path, f"CREATE TABLE t AS SELECT i * {step} AS id FROM range({BLOCKS}) AS r(i)")
    counted = opened(path).sources()
    reader = open_reader(counted[0].name, {"key": "id"}, counted=counted)
    # It learns the keys before the change.
    assert sum(block.count for block in read(reader)) == BLOCKS
    run(path, change.format(step=step))
    for begin, end in ((0, 4096), (2 * 4096, BLOCKS), (BLOCKS - 50, BLOCKS - 20)):
        ids = [i for block in read(reader, begin, end) for i in block.records["id"].tolist()]
        assert ids == [i * step for i in range(begin, end)]
    # One whole block, and a part of it that has its record in another place.
    for begin, end in ((4096, 2 * 4096), (6000, 6010))[: 1 if step == 1 else 2]:
        with pytest.raises(DataChanged, match=words if begin == 4096 else "changed: the keys"):
            read(reader, begin, end)
    with pytest.raises(DataChanged):
        read(open_reader(counted[0].name, {"key": "id"}, counted=counted))


def test_processes_that_find_other_keys_of_the_same_number_stop(path: Path) -> None:
    run(path, f"CREATE TABLE t AS SELECT i * 3 AS id FROM range({BLOCKS}) AS r(i)")
    counted = opened(path).sources()
    run(path, "DELETE FROM t WHERE id = 300", "INSERT INTO t VALUES (30001)")
    with pytest.raises(DataChanged, match="it had the keys 0 to"):
        read(open_reader(counted[0].name, {"key": "id"}, counted=counted), 0, 10)


@pytest.mark.parametrize(
    ("origin", "database", "table"),
    [
        ("postgresql://h:5/d?table=a.b", "postgresql://h:5/d", "a.b"),
        ("postgresql:///d?table=t&sslmode=require", "postgresql:///d?sslmode=require", "t"),
        (
            "postgresql:///d?options=-c%20x%3D1&host=/a+b&table=a%20b",
            "postgresql:///d?options=-c%20x%3D1&host=/a+b",
            "a b",
        ),
        ("duckdb:///a/b.duckdb?table=t%22", "a/b.duckdb", 't"'),
        ("duckdb:////a/b.duckdb?table=main.t", "/a/b.duckdb", "main.t"),
    ],
)
def test_an_address_names_a_database_and_a_table(origin: str, database: str, table: str) -> None:
    found = parse_sql(origin)
    assert (found.database, found.table) == (database, table)
    assert parse_sql(str(found)) == found


def test_a_connection_has_deadlines_unless_the_user_gives_others() -> None:
    ours = with_deadlines("postgresql://h/d?connect_timeout=60", {})
    assert ours.startswith("postgresql://h/d?connect_timeout=60&tcp_user_timeout=30000&")
    assert "connect_timeout=15" in with_deadlines("postgresql://h/d", {})
    assert "connect_timeout" not in with_deadlines("postgresql://h/d", {"PGCONNECT_TIMEOUT": "5"})


@pytest.mark.parametrize(
    "origin",
    [
        "postgresql://h/d",
        "postgresql://h/?table=t",
        "postgresql://[h/d?table=t",
        "postgresql://h/d?table=a.",
        "duckdb://h/d?table=t",
        "duckdb:///d?table=t&access_mode=READ_WRITE",
    ],
)
def test_an_address_of_another_form_is_refused(origin: str) -> None:
    with pytest.raises(UserError, match="is not the address of a table"):
        require(origin, "--training-data")


def test_a_job_has_the_absolute_path_of_a_file_and_no_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def origin_of(data: str) -> str:
        flags = {"model_zoo": "zoo", "model_def": "m", "training_data": data}
        return settle(Request(Action.TRAIN, flags)).data.training_data

    assert origin_of("duckdb:///a.duckdb?table=t") == f"duckdb:///{tmp_path}/a.duckdb?table=t"
    # Others may be those of the module's own reader.
    for kept in ("postgresql://u@h/d?table=t", "postgresql://h/d", "postgresql://h/d?table=t&q=a+b",
                 "duckdb:mine", "duckdb://[", "sqlite:mine"):  # fmt: skip
        assert origin_of(kept) == kept
    for secret in ("postgresql://u:pw@h/d?table=t", "postgresql://h/d?table=t&password=pw"):
        with pytest.raises(SpecError, match="contains a password"):
            origin_of(secret)


@pytest.mark.parametrize(
    ("origin", "package"),
    [("postgresql://h/d?table=t", "adbc-driver-postgresql"), ("duckdb:///d?table=t", "duckdb")],
)
def test_a_missing_driver_is_named_with_the_command(
    monkeypatch: pytest.MonkeyPatch, origin: str, package: str
) -> None:
    monkeypatch.setattr(sql_tables, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=f"adbc-driver-manager and {package}") as caught:
        require(origin, "--training-data")
    assert caught.value.hint == "pip install 'elasticdl[sql]'"

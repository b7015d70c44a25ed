"""Readers that users wrote for ElasticDL."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from elasticdl.data import open_custom_reader
from elasticdl.errors import UserError
from elasticdl.shard import Shard, ShardId, Source

pytestmark = pytest.mark.contract


class Reader:
    metadata: SimpleNamespace
    """Some readers have it."""

    def __init__(self, shards: Any, records: Any = lambda i: b"%d" % i, extra: Any = 0) -> None:
        self.shards, self.records, self.extra = shards, records, extra
        self.tasks: list[Any] = []
        self.closed = False

    def create_shards(self) -> Any:
        return self.shards

    def read_records(self, task: Any) -> Any:
        self.tasks.append(task)
        assert (task.shard.name, task.shard.start, task.shard.end) == (
            task.shard_name,
            task.start,
            task.end,
        )
        for i in range(task.start, task.end + self.extra):
            yield self.records(i)

    def close(self) -> None:
        self.closed = True


def opened(inner: Any) -> Any:
    return open_custom_reader(lambda origin, records_per_task=None, **kwargs: inner, "origin", {})


def read(reader: Any, source: Any, begin: int, end: int) -> Any:
    return list(reader.read(Shard(ShardId(1), source, begin, end)))


def test_the_factory_gets_the_origin_the_task_size_and_the_parameters() -> None:
    seen = []

    def custom_data_reader(data_origin: Any, records_per_task: Any = None, **kwargs: Any) -> Any:
        seen.append((data_origin, records_per_task, kwargs))
        return Reader({"a": (0, 1)})

    open_custom_reader(custom_data_reader, "table", {"part": 3}, records_per_task=64)
    assert seen == [("table", 64, {"part": 3})]


def test_adjoining_shards_of_one_name_are_one_source_and_others_keep_their_place() -> None:
    inner = Reader(
        [
            ("a", 10, 5),
            ("b", 0, 3),
            ("a", 15, 5),
            ("c", 0, 2),
            ("c", np.int64(7), np.int64(2)),
            ("d", 0, 0),
        ]
    )
    reader = opened(inner)
    assert reader.sources() == (Source("a", 10), Source("b", 3), Source("c@0", 2), Source("c@7", 2))
    (block,) = read(reader, "a", 3, 6)
    assert block.records.tolist() == [b"13", b"14", b"15"]
    (block,) = read(reader, "c@7", 1, 2)
    assert (inner.tasks[-1].shard_name, inner.tasks[-1].start, inner.tasks[-1].end) == ("c", 8, 9)
    reader.close()
    assert inner.closed


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (lambda i: "ü", ["ü".encode()] * 2),
        (lambda i: [i, "a", b"b", 0.5], [[b"0", b"a", b"b", b"0.5"], [b"1", b"a", b"b", b"0.5"]]),
        (lambda i: (i, 0.5), [[0, 0.5], [1, 0.5]]),
        (lambda i: np.full((2,), i, np.int32), [[0, 0], [1, 1]]),
        (lambda i: i, [0, 1]),
    ],
)
def test_records_of_many_kinds_are_stacked(record: Any, expected: Any) -> None:
    (block,) = read(opened(Reader({"a": (0, 2)}, record)), "a", 0, 2)
    assert block.records.tolist() == expected


def test_dicts_become_columns() -> None:
    (block,) = read(
        opened(Reader({"a": (0, 2)}, lambda i: {"x": np.ones(3), "y": i, "z": "t"})), "a", 0, 2
    )
    assert {name: column.tolist() for name, column in block.records.items()} == {
        "x": [[1, 1, 1]] * 2,
        "y": [0, 1],
        "z": [b"t"] * 2,
    }


def test_column_names_come_from_the_readers_metadata() -> None:
    inner = Reader({"a": (0, 1)})
    inner.metadata = SimpleNamespace(
        column_names=["x", "y"], column_dtypes={"x": np.dtype("float32")}
    )
    assert opened(inner).metadata.column_names == ("x", "y")
    assert opened(inner).metadata.column_dtypes == {"x": "float32"}
    assert opened(Reader({"a": (0, 1)})).metadata.column_names == ()


@pytest.mark.parametrize("extra", [-1, 1])
def test_more_or_fewer_records_than_asked_for_are_refused(extra: int) -> None:
    with pytest.raises(UserError, match=r"read_records\(\) returned"):
        read(opened(Reader({"a": (0, 20)}, extra=extra)), "a", 0, 20)


@pytest.mark.parametrize(
    "shards",
    [{}, [("a", 0)], {"a": (0, -1)}, [(1, 0, 2)], {"a": 5}, [("a", 0, 5), ("a", 3, 5)]],
    ids=str,
)
def test_shards_that_make_no_sense_are_refused(shards: dict[str, Any] | list[Any]) -> None:
    with pytest.raises(UserError, match="create_shards"):
        opened(Reader(shards)).sources()


@pytest.mark.parametrize(
    "record", [lambda i: ["a"] * (i + 1), lambda i: np.zeros(i + 1)], ids=["text", "numbers"]
)
def test_records_that_do_not_fit_together_are_refused(record: Any) -> None:
    with pytest.raises(UserError, match="read_records"):
        read(opened(Reader({"a": (0, 2)}, record)), "a", 0, 2)


def test_the_users_own_error_comes_through() -> None:
    def broken(i: Any) -> None:
        raise KeyError("column")

    with pytest.raises(KeyError, match="column"):
        read(opened(Reader({"a": (0, 2)}, broken)), "a", 0, 2)


def test_something_else_is_refused() -> None:
    with pytest.raises(UserError, match="returned a list, which is not a reader"):
        open_custom_reader(lambda origin, records_per_task: [], "x", {})

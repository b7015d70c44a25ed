"""Tables of an export: rows that arrive in any order come by ascending id, in parts."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticdl.embedding.spec import Dtype, InitializerSpec, TableSpec
from elasticdl.model import exported_table
from elasticdl.model.row_runs import RowRuns
from tests.reference_initializers import initial_weights

pytestmark = pytest.mark.contract

DIM = 2
SIZE = 60
TABLE = TableSpec(name="items", dim=DIM, initializer=InitializerSpec(), seed=7)
PAGES = st.lists(st.lists(st.integers(0, SIZE - 1), max_size=20, unique=True), max_size=12)


def paged(pages: list[list[int]]) -> tuple[list[tuple[np.ndarray, np.ndarray]], dict[int, float]]:
    """Pages whose rows all differ, and the row that each id has at last."""
    made, count = [], 0
    last: dict[int, float] = {}
    for ids in pages:
        values = np.arange(count, count + len(ids), dtype=np.float32)
        count += len(ids)
        last.update(zip(ids, values.tolist(), strict=True))
        made.append((np.array(ids, np.int64), np.repeat(values[:, None], DIM, 1)))
    return made, last


@pytest.fixture(params=[8, 100, 1 << 20])
def part_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """One row a run, some rows a run, one run."""
    monkeypatch.setattr(exported_table, "_PART_BYTES", request.param)


@pytest.mark.usefixtures("part_bytes")
@settings(max_examples=40, deadline=None)
@given(PAGES)
def test_of_a_bounded_table_untouched_rows_have_their_initial_values(
    pages: list[list[int]],
) -> None:
    made, last = paged(pages)
    expected = initial_weights(TABLE.initializer, TABLE.seed, np.arange(SIZE), DIM, Dtype.FLOAT32)
    for one, value in last.items():
        expected[one] = value
    with tempfile.TemporaryDirectory() as folder:
        table = exported_table.bounded(TABLE, SIZE, made, Dtype.FLOAT32, Path(folder) / "0")
        for _ in range(2):
            np.testing.assert_array_equal(np.concatenate([*table.parts()]), expected)
    assert table.shape == expected.shape


@pytest.mark.usefixtures("part_bytes")
@settings(max_examples=40, deadline=None)
@given(PAGES, st.sampled_from([1, -(2**57), 2**57]))
def test_an_unbounded_table_has_the_rows_that_came_by_ascending_id(
    pages: list[list[int]], scale: int
) -> None:
    made, last = paged([[one * scale for one in ids] for ids in pages])
    with tempfile.TemporaryDirectory() as folder:
        table = exported_table.unbounded(TABLE, made, Dtype.FLOAT32, Path(folder) / "0")
        assert np.concatenate([np.empty(0, np.int64), *table.ids()]).tolist() == sorted(last)
        rows = np.concatenate([np.empty((0, DIM)), *table.parts()])
    assert rows.tolist() == [[last[one]] * DIM for one in sorted(last)]
    assert table.shape == rows.shape


def test_ranges_have_about_the_same_length_wherever_the_ids_are(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    ids = np.concatenate([rng.integers(0, 2**62, 3000), np.arange(7000), -np.arange(1, 100)])
    runs = RowRuns(tmp_path / "0", DIM, np.dtype(np.float32), 500 * 16)
    runs.write([(rng.permutation(ids), np.zeros((len(ids), DIM), np.float32))])
    lengths = [len(one) for one in runs.cut(runs.splitters(2 * len(runs))).ids()]
    assert sum(lengths) == len(np.unique(ids)) and max(lengths) <= 500


def test_a_disk_without_room_is_an_error_of_the_disk() -> None:
    pages = [(np.arange(1000), np.zeros((1000, DIM), np.float32))]
    with pytest.raises(OSError, match="No space left"):
        RowRuns(Path("/dev/full"), DIM, np.dtype(np.float32), 1 << 20).write(pages)

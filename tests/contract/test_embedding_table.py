"""One suite for every table: C++ and NumPy do the same, bit for bit."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticdl.embedding.spec import (
    Dtype,
    InitializerKind,
    InitializerSpec,
    OptimizerKind,
    OptimizerSpec,
    TableSpec,
)
from elasticdl.embedding.table import native_table
from tests.reference_table import LIVE, ReferenceTable, Table

pytestmark = pytest.mark.contract

OPTIMIZERS = {
    "sgd": OptimizerSpec(kind=OptimizerKind.SGD),
    "momentum": OptimizerSpec(kind=OptimizerKind.SGD, momentum=0.9),
    "nesterov": OptimizerSpec(kind=OptimizerKind.SGD, momentum=0.9, nesterov=True),
    "adam": OptimizerSpec(kind=OptimizerKind.ADAM),
    "adamw": OptimizerSpec(kind=OptimizerKind.ADAM, weight_decay=0.01),
    "amsgrad": OptimizerSpec(kind=OptimizerKind.ADAM, amsgrad=True),
    "adagrad": OptimizerSpec(kind=OptimizerKind.ADAGRAD),
    "ftrl": OptimizerSpec(kind=OptimizerKind.FTRL, l1=0.01, l2=0.02, l2_shrinkage=0.03, beta=0.04),
}
INITIALIZERS = {
    "constant": InitializerSpec(kind=InitializerKind.CONSTANT, a=0.25, b=0.0),
    "uniform": InitializerSpec(kind=InitializerKind.UNIFORM, a=-0.05, b=0.05),
    "normal": InitializerSpec(kind=InitializerKind.NORMAL, a=0.5, b=2.0),
    "truncated_normal": InitializerSpec(kind=InitializerKind.TRUNCATED_NORMAL, a=0.5, b=2.0),
}
MAKERS: dict[str, Any] = {"native": native_table, "reference": ReferenceTable}
ADAM = OPTIMIZERS["adam"]
EXTREMES = np.array([0, -1, 1, 2**63 - 1, -(2**63), 2**32, -(2**32), 12345678901234], np.int64)


@pytest.fixture(params=sorted(MAKERS))
def make(request: pytest.FixtureRequest) -> Any:
    return MAKERS[request.param]


def ids_of(*ids: int) -> np.ndarray:
    return np.array(ids, np.int64)


def gradients_of(count: int, dim: int, seed: int = 0, dtype: Dtype = Dtype.FLOAT32) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, dim)).astype(dtype.value)


def test_every_int64_is_an_id_and_keeps_its_own_row(make: Any) -> None:
    table = make(TableSpec(name="t", dim=3), ADAM)
    values = gradients_of(len(EXTREMES), table.row_floats)
    table.insert(EXTREMES, values)
    order = np.random.default_rng(1).permutation(len(EXTREMES))
    np.testing.assert_array_equal(table.lookup(EXTREMES[order]), values[order, :3])
    assert len(table) == len(EXTREMES)


def test_a_row_begins_the_same_in_whatever_order_and_company_it_is_made(make: Any) -> None:
    spec = TableSpec(name="t", dim=5, seed=9)
    together = make(spec, ADAM).lookup(EXTREMES)
    alone = np.concatenate(
        [make(spec, ADAM).lookup(EXTREMES[i : i + 1]) for i in range(len(EXTREMES))]
    )
    np.testing.assert_array_equal(together, alone)
    assert not np.array_equal(
        together, make(TableSpec(name="t", dim=5, seed=10), ADAM).lookup(EXTREMES)
    )


@pytest.mark.parametrize("initializer", sorted(INITIALIZERS))
@pytest.mark.parametrize("dim", [1, 7, 16, 130])
@pytest.mark.parametrize("dtype", Dtype)
def test_initial_rows_are_equal_to_the_bit_in_both(
    initializer: Any, dim: int, dtype: Dtype
) -> None:
    spec = TableSpec(name="t", dim=dim, initializer=INITIALIZERS[initializer], seed=2**64 - 3)
    ids = np.concatenate([EXTREMES, np.arange(1000)])
    mine, theirs = (make(spec, ADAM, dtype).lookup(ids) for make in MAKERS.values())
    assert mine.dtype == theirs.dtype == dtype.value
    np.testing.assert_array_equal(mine, theirs)


def test_initial_rows_of_float64_are_those_of_float32_but_for_rounding(make: Any) -> None:
    for initializer in INITIALIZERS.values():
        spec = TableSpec(name="t", dim=5, initializer=initializer, seed=4)
        np.testing.assert_allclose(
            make(spec, ADAM, Dtype.FLOAT64).lookup(EXTREMES),
            make(spec, ADAM).lookup(EXTREMES),
            rtol=1e-6,
            atol=1e-7,
        )
    tenth = InitializerSpec(kind=InitializerKind.CONSTANT, a=0.1, b=0.0)
    spec = TableSpec(name="t", dim=2, initializer=tenth)
    # As Keras, which rounds a constant to float32 first.
    assert (make(spec, ADAM, Dtype.FLOAT64).lookup(EXTREMES) == float(np.float32(0.1))).all()


def test_initial_rows_have_the_moments_and_bounds_of_their_distribution(make: Any) -> None:
    def drawn(kind: str) -> np.ndarray:
        return (
            make(TableSpec(name="t", dim=64, initializer=INITIALIZERS[kind]), ADAM)
            .lookup(np.arange(3000))
            .astype(np.float64)
        )

    uniform, normal, truncated = drawn("uniform"), drawn("normal"), drawn("truncated_normal")
    assert -0.05 <= uniform.min() < -0.0499
    assert 0.0499 < uniform.max() <= 0.05
    assert abs(uniform.mean()) < 5e-4
    assert abs(uniform.std() - 0.1 / 12**0.5) < 2e-4
    assert abs(normal.mean() - 0.5) < 0.02
    assert abs(normal.std() - 2.0) < 0.02
    assert abs(np.mean(np.abs(normal - 0.5) < 4.0) - 0.9545) < 0.003
    assert (
        abs(truncated.std() - 2.0 * 0.8796) < 0.02
    )  # of a normal distribution cut at two deviations
    assert -3.5 <= truncated.min() < -3.4
    assert 4.4 < truncated.max() <= 4.5
    assert abs(np.corrcoef(normal[:, 0], normal[:, 1])[0, 1]) < 0.06


def test_peeking_makes_no_rows_and_reads_what_a_lookup_would(make: Any) -> None:
    table = make(TableSpec(name="t", dim=4, seed=3), ADAM)
    seen = table.peek(EXTREMES)
    assert len(table) == 0
    np.testing.assert_array_equal(seen, table.lookup(EXTREMES))


@pytest.mark.parametrize("optimizer", sorted(OPTIMIZERS))
@pytest.mark.parametrize("dim", [1, 8, 13, 16, 32, 64])
@pytest.mark.parametrize("dtype", Dtype)
def test_updates_are_equal_to_the_bit_in_both(optimizer: Any, dim: int, dtype: Dtype) -> None:
    spec = TableSpec(name="t", dim=dim, seed=1)
    native, reference = (make(spec, OPTIMIZERS[optimizer], dtype) for make in MAKERS.values())
    random = np.random.default_rng(dim)
    for step in range(1, 30):
        ids = random.choice(50, 20, replace=False).astype(np.int64)
        gradients = gradients_of(20, dim, step, dtype)
        for table in (native, reference):
            table.apply(ids, gradients, 0.01, step)
    for mine, theirs in zip(native.read(LIVE, 0, 100), reference.read(LIVE, 0, 100), strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "ftrl"])
def test_without_momentum_a_row_that_is_not_named_does_not_move(make: Any, optimizer: str) -> None:
    table = make(TableSpec(name="t", dim=4), OPTIMIZERS[optimizer])
    table.apply(ids_of(1, 2), gradients_of(2, 4), 0.1, 1)
    before = table.read(LIVE, 0, 2)[1]
    table.apply(ids_of(2), gradients_of(1, 4), 0.1, 2)
    after = table.read(LIVE, 0, 2)[1]
    np.testing.assert_array_equal(before[0], after[0])
    assert not np.array_equal(before[1], after[1])


@pytest.mark.parametrize("optimizer", ["momentum", "nesterov", "adam", "amsgrad"])
@pytest.mark.parametrize("idle", [1, 2, 30, 2000])
@pytest.mark.parametrize("busy", [1, 40])
def test_a_row_that_is_not_named_moves_as_with_gradients_of_zero(
    make: Any, optimizer: str, idle: int, busy: int
) -> None:
    named, unnamed = (
        make(TableSpec(name="t", dim=4), OPTIMIZERS[optimizer], Dtype.FLOAT64) for _ in range(2)
    )
    zeros = np.zeros((1, 4))
    for step in range(1, busy + 1):
        for table in (named, unnamed):
            table.apply(ids_of(7), gradients_of(1, 4, step, Dtype.FLOAT64), 0.1, step)
    start = named.lookup(ids_of(7))
    for step in range(busy + 1, busy + idle + 1):
        named.apply(ids_of(7), zeros, 0.1, step)
        unnamed.apply(ids_of(8), zeros, 0.1, step)
    unnamed.begin_view(0)
    expected = named.read(LIVE, 0, 1)[1]
    assert np.abs(expected[:, :4] - start).min() > 1e-3
    close = partial(np.testing.assert_allclose, rtol=3e-5, atol=1e-12)  # epsilon, a float32 rate
    close(unnamed.lookup(ids_of(7)), expected[:, :4])
    close(unnamed.peek(ids_of(7)), expected[:, :4])
    close(unnamed.read(LIVE, 0, 1)[1], expected)
    for table in (named, unnamed):
        table.apply(ids_of(7), gradients_of(1, 4, 0, Dtype.FLOAT64), 0.1, busy + idle + 1)
    close(unnamed.read(LIVE, 0, 1)[1], named.read(LIVE, 0, 1)[1])
    close(unnamed.read(0, 0, 1)[1], expected)


def test_a_row_moves_over_more_idle_steps_than_the_tables_of_powers_have(make: Any) -> None:
    momentum, idle = float(np.float32(0.999_999)), 2**20 + 1  # float32 as in Keras
    spec = OptimizerSpec(kind=OptimizerKind.SGD, momentum=momentum)
    table = make(TableSpec(name="t", dim=4), spec, Dtype.FLOAT64)
    start = table.lookup(ids_of(7))
    table.apply(ids_of(7), gradients_of(1, 4, 1, Dtype.FLOAT64), 0.1, 1)
    velocity = table.lookup(ids_of(7)) - start
    table.advance(idle + 1)
    steps = (1 - momentum ** (idle + 1)) / (1 - momentum)  # each moves momentum times the last one
    np.testing.assert_allclose(table.lookup(ids_of(7)), start + velocity * steps, rtol=1e-5)


def test_an_update_that_comes_after_a_later_one_leaves_no_step_to_make_up_for(make: Any) -> None:
    table = make(TableSpec(name="t", dim=2), OPTIMIZERS["momentum"])
    first, second = gradients_of(1, 2, 1), gradients_of(1, 2, 2)
    start = table.lookup(ids_of(1))
    table.apply(ids_of(1), first, 0.1, 11)
    table.apply(ids_of(1), second, 0.1, 10)
    velocity = -np.float32(0.1) * first
    expected = start + velocity + (np.float32(0.9) * velocity - np.float32(0.1) * second)
    np.testing.assert_allclose(table.lookup(ids_of(1)), expected, rtol=1e-5, atol=1e-7)


def test_rows_that_were_put_in_continue_at_the_first_rate_whatever_comes_later(make: Any) -> None:
    source, target = (make(TableSpec(name="t", dim=2), ADAM) for _ in range(2))
    source.apply(ids_of(1), gradients_of(1, 2), 0.1, 1)
    target.advance(1)
    target.insert(*source.read(LIVE, 0, 1))
    target.advance(2, 0.1)
    target.begin_view(0)
    frozen = target.peek(ids_of(1), 0)
    target.advance(3, 0.001)
    np.testing.assert_array_equal(target.peek(ids_of(1), 0), frozen)
    source.advance(3)
    np.testing.assert_allclose(target.lookup(ids_of(1)), source.lookup(ids_of(1)), rtol=1e-5)


def test_steps_that_name_no_row_of_a_table_count(make: Any) -> None:
    told, untold = (make(TableSpec(name="t", dim=2), OPTIMIZERS["momentum"]) for _ in range(2))
    for table in (told, untold):
        table.apply(ids_of(1), gradients_of(1, 2), 0.1, 1)
    told.advance(3)
    told.advance(2)
    untold.apply(ids_of(2), gradients_of(1, 2), 0.1, 3)
    np.testing.assert_array_equal(told.lookup(ids_of(1)), untold.lookup(ids_of(1)))


def test_rows_put_into_a_table_continue_from_its_step(make: Any) -> None:
    source, target = (make(TableSpec(name="t", dim=2), ADAM) for _ in range(2))
    source.apply(ids_of(1), gradients_of(1, 2), 0.1, 1)
    source.advance(5)
    target.advance(5)
    target.insert(*source.read(LIVE, 0, 1))
    for table in (source, target):
        table.apply(ids_of(2), gradients_of(1, 2), 0.1, 7)
    np.testing.assert_allclose(target.lookup(ids_of(1)), source.lookup(ids_of(1)), rtol=1e-6)


def test_a_rule_whose_movement_would_not_fade_leaves_rows_where_they_are(make: Any) -> None:
    spec = OptimizerSpec(kind=OptimizerKind.ADAM, beta_1=0.9, beta_2=0.8)
    table = make(TableSpec(name="t", dim=2), spec)
    table.apply(ids_of(1), gradients_of(1, 2), 0.1, 1)
    before = table.lookup(ids_of(1))
    table.advance(100)
    np.testing.assert_array_equal(table.lookup(ids_of(1)), before)


def test_bias_is_corrected_by_the_models_step_for_a_row_touched_for_the_first_time(
    make: Any,
) -> None:
    late, early = (
        make(TableSpec(name="t", dim=1, initializer=INITIALIZERS["constant"]), ADAM)
        for _ in range(2)
    )
    gradient = np.ones((1, 1), np.float32)
    early.apply(ids_of(1), gradient, 0.1, 1)
    late.apply(ids_of(1), gradient, 0.1, 1_000_000)
    assert early.lookup(ids_of(1))[0, 0] == pytest.approx(0.25 - 0.1, abs=1e-5)
    assert late.lookup(ids_of(1))[0, 0] == pytest.approx(0.25 - 0.1 * 0.1 / 0.001**0.5, abs=1e-4)


def test_a_view_stays_as_it_was_while_rows_change_and_come(make: Any) -> None:
    table = make(TableSpec(name="t", dim=2, seed=5), ADAM)
    table.apply(ids_of(1, 2, 3), gradients_of(3, 2), 0.1, 1)
    frozen_ids, frozen_values = table.read(LIVE, 0, 10)
    table.begin_view(4)
    table.apply(ids_of(3, 7), gradients_of(2, 2, 1), 0.1, 2)
    table.insert(ids_of(1), np.zeros((1, table.row_floats), np.float32))
    read_ids, read_values = table.read(4, 0, 10)
    np.testing.assert_array_equal(read_ids, frozen_ids)
    np.testing.assert_array_equal(read_values, frozen_values)
    np.testing.assert_array_equal(table.peek(ids_of(3, 1), 4), frozen_values[[2, 0], :2])
    fresh = make(TableSpec(name="t", dim=2, seed=5), ADAM)
    np.testing.assert_array_equal(table.peek(ids_of(7), 4), fresh.lookup(ids_of(7)))
    assert (table.view_rows(4), table.view_rows(LIVE)) == (3, 4)
    table.end_view(4)
    with pytest.raises(IndexError):
        table.read(4, 0, 1)


def test_rows_are_read_in_parts_in_the_order_they_were_made(make: Any) -> None:
    table = make(TableSpec(name="t", dim=2), ADAM)
    ids = np.random.default_rng(0).permutation(1000).astype(np.int64)
    values = table.lookup(ids)
    parts = [table.read(LIVE, first, 300) for first in range(0, 1300, 300)]
    np.testing.assert_array_equal(np.concatenate([part[0] for part in parts]), ids)
    np.testing.assert_array_equal(np.concatenate([part[1] for part in parts])[:, :2], values)


def test_what_was_read_can_be_put_into_another_table_bit_for_bit(make: Any) -> None:
    spec = TableSpec(name="t", dim=3)
    table, other = make(spec, OPTIMIZERS["ftrl"]), make(spec, OPTIMIZERS["ftrl"])
    table.apply(EXTREMES, gradients_of(len(EXTREMES), 3), 0.1, 1)
    other.insert(*table.read(LIVE, 0, 100))
    for one in (table, other):
        one.apply(EXTREMES[::-1].copy(), gradients_of(len(EXTREMES), 3, 2), 0.1, 2)
    for mine, theirs in zip(table.read(LIVE, 0, 100), other.read(LIVE, 0, 100), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_arrays_of_another_dtype_shape_or_layout_are_refused(make: Any) -> None:
    table = make(TableSpec(name="t", dim=4), ADAM)
    good = gradients_of(2, 4)
    for ids in (
        np.array([1, 2], np.int32),
        np.array([1.0]),
        np.arange(6, dtype=np.int64)[::2],
        np.zeros((2, 1), np.int64),
    ):
        with pytest.raises(TypeError):
            table.lookup(ids)
    for gradients in (good.astype(np.float64), good.T, good[0]):
        with pytest.raises((TypeError, ValueError)):
            table.apply(ids_of(1, 2), gradients, 0.1, 1)
    with pytest.raises(TypeError, match="float64"):
        make(TableSpec(name="t", dim=4), ADAM, Dtype.FLOAT64).apply(ids_of(1, 2), good, 0.1, 1)
    with pytest.raises(ValueError, match=r"\[2, 4\].*\[3, 4\]"):
        table.apply(ids_of(1, 2, 3), good, 0.1, 1)
    with pytest.raises(ValueError, match="expected"):
        table.insert(ids_of(1, 2), good)
    with pytest.raises(ValueError, match="first update"):
        table.apply(ids_of(1, 2), good, 0.1, 0)
    with pytest.raises(ValueError, match="expected"):
        make(TableSpec(name="t", dim=0), ADAM)
    assert len(table) == 0


def test_views_that_cannot_be_are_refused_by_number(make: Any) -> None:
    table = make(TableSpec(name="t", dim=1), ADAM)
    table.begin_view(0)
    for view in (0, 8, -1):
        with pytest.raises(ValueError, match=f"view {view}"):
            table.begin_view(view)
    with pytest.raises(IndexError, match="view 3"):
        table.peek(ids_of(1), 3)
    table.end_view(3)


def test_no_ids_are_fine(make: Any) -> None:
    table = make(TableSpec(name="t", dim=3), ADAM)
    none = np.empty(0, np.int64)
    table.apply(none, np.empty((0, 3), np.float32), 0.1, 1)
    assert table.lookup(none).shape == (0, 3)
    assert table.read(LIVE, 0, 5)[1].shape == (0, table.row_floats)


def test_threads_that_read_and_write_at_once_lose_no_update(make: Any) -> None:
    table = make(
        TableSpec(name="t", dim=4, initializer=INITIALIZERS["constant"]), OPTIMIZERS["sgd"]
    )
    ids, ones = np.arange(500, dtype=np.int64), np.ones((500, 4), np.float32)
    torn = []

    def work() -> None:
        for step in range(1, 21):
            table.apply(ids, ones, 0.25, step)
            rows = table.lookup(ids)
            torn.append(not (rows == rows[0, 0]).all())

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(torn)
    np.testing.assert_array_equal(
        table.lookup(ids), np.full((500, 4), 0.25 - 60 * 0.25, np.float32)
    )


some_ids = st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-20, 20), max_size=30)
operations = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["lookup", "apply", "insert"]), some_ids),
        st.tuples(st.sampled_from(["begin", "end"]), st.integers(0, 2)),
        st.tuples(st.just("advance"), st.sampled_from([0, 1, 100, 5000])),
    ),
    max_size=25,
)


def perform(table: Table, operation: str, argument: Any, step: int, dtype: Dtype) -> None:
    if operation in ("begin", "end"):
        table.end_view(argument)
        if operation == "begin":
            table.begin_view(argument)
        return
    if operation == "advance":
        # A server has the rate of each step. A table that learns its first rate after a view shows
        # the view's idle rows at that rate; the reference froze them without one.
        table.advance(step + argument, 0.05)
        return
    ids = np.array(argument, np.int64)
    unique = np.array(list(dict.fromkeys(argument)), np.int64)
    if operation == "lookup":
        table.lookup(ids)
    elif operation == "apply":
        table.apply(unique, gradients_of(len(unique), table.dim, step, dtype), 0.05, step)
    else:
        # Accumulators are never negative.
        table.insert(ids, np.abs(gradients_of(len(ids), table.row_floats, step, dtype)))


def everything(table: Table, ids: np.ndarray, views: list[int]) -> list[np.ndarray]:
    parts: list[np.ndarray] = [table.peek(ids)]
    for view in [LIVE, *views]:
        parts += [
            *table.read(view, 0, 10_000),
            table.peek(ids, view),
            np.array(table.view_rows(view)),
        ]
    return parts


@settings(max_examples=60, deadline=None)
@given(
    operations,
    st.sampled_from(sorted(OPTIMIZERS)),
    st.sampled_from(sorted(INITIALIZERS)),
    st.integers(1, 20),
    st.sampled_from(Dtype),
)
def test_any_sequence_of_operations_leaves_both_equal(
    sequence: Any, optimizer: Any, initializer: Any, dim: int, dtype: Dtype
) -> None:
    spec = TableSpec(name="t", dim=dim, initializer=INITIALIZERS[initializer], seed=dim)
    tables = [make(spec, OPTIMIZERS[optimizer], dtype) for make in MAKERS.values()]
    views: set[int] = set()
    seen = list(range(-3, 3))
    for step, (operation, argument) in enumerate(sequence, 1):
        for table in tables:
            perform(table, operation, argument, step, dtype)
        if operation == "begin":
            views.add(argument)
        elif operation == "end":
            views.discard(argument)
        elif operation != "advance":
            seen += argument
    ids = np.array(seen, np.int64)
    for mine, theirs in zip(
        *(everything(table, ids, sorted(views)) for table in tables), strict=True
    ):
        np.testing.assert_array_equal(mine, theirs)

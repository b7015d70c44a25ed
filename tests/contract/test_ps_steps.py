"""Synchronous steps on real servers: pushes wait, and the mean of those that are named is applied
once, on every server, to the same bits whoever pushed what and when.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from elasticdl.embedding.spec import (
    DenseSpec,
    Dtype,
    OptimizerKind,
    OptimizerSpec,
    ParametersSpec,
    TableSpec,
)
from elasticdl.errors import Refused
from elasticdl.job_flags import ModelSection
from elasticdl.model.module import ModelModule, load_module
from elasticdl.model.ps_model import PsModel
from elasticdl.model.step import CompiledStep
from elasticdl.rpc.parameters import DenseSquares, Floats, Int64s, Update
from elasticdl.rpc.ps_client import ServerPool
from elasticdl.shard import Applied, ShardId
from tests.contract.ps_stage import LIMIT_S, ZERO, Stage, as_ids, rich_spec

pytestmark = pytest.mark.contract

SPEC = ParametersSpec(
    optimizer=OptimizerSpec(kind=OptimizerKind.SGD),
    dense=(DenseSpec(path="w", shape=(6,)), DenseSpec(path="mean", shape=(3,), additive=True)),
    tables=(TableSpec(name="t", dim=2, initializer=ZERO),),
)
FLOATS = 9
Named = tuple[str, int, float]


class SteppedStage(Stage):
    """Servers of a job that trains in steps, with a client of each worker."""

    def __init__(
        self,
        servers: int,
        workers: int,
        spec: ParametersSpec = SPEC,
        values: Floats | None = None,
        turns: int = 0,
    ) -> None:
        """`turns` of a step; 0: one for each worker."""
        super().__init__(servers, turns=turns or workers)
        self.pools = [self.pool(f"worker-{index}") for index in range(workers)]
        if values is None:
            values = np.zeros(spec.trainable_size + spec.additive_size, spec.dtype.value)
        for pool in self.pools:
            pool.initialise(spec, values, timeout_s=LIMIT_S)

    def apply(self, number: int, *named: Named) -> list[int]:
        return [server.apply_step(number, list(named)) for server in self.servers]

    def dense(self) -> Floats:
        pulled = self.pools[0].pull([as_ids([])], timeout_s=LIMIT_S).dense
        assert pulled is not None
        return pulled

    def weights(self, ps_model: PsModel) -> dict[str, Floats]:
        """All weights by the path that Keras gives them."""
        tables = ps_model.parameters.tables
        every = [as_ids(list(range(ROWS))) for _ in tables]
        pulled = self.pools[0].pull(every, timeout_s=LIMIT_S)
        assert pulled.dense is not None
        found, begin = {}, 0
        for spec in ps_model.parameters.dense:
            found[spec.path] = pulled.dense[begin : begin + spec.size].reshape(spec.shape)
            begin += spec.size
        for rows in pulled.rows:
            found["words/embeddings"] = rows
        return found

    def rows(self, ids: Sequence[int]) -> Floats:
        return self.pools[0].pull([as_ids(ids)], timeout_s=LIMIT_S).rows[0]


@pytest.fixture(params=[1, 2, 3])
def stage(request: pytest.FixtureRequest) -> Iterator[SteppedStage]:
    made = SteppedStage(request.param, 3)
    yield made
    made.close()


def gradient(
    sequence: int,
    dense: float,
    ids: Sequence[int] = (),
    rows: float = 1.0,
    applied: Applied | None = None,
) -> Update:
    return Update(
        sequence=sequence,
        applied=applied or Applied(ShardId(7), 0, 10 * sequence),
        versions=(0,),
        learning_rate=1.0,
        dense=np.full(FLOATS, dense, np.float32),
        ids=(as_ids(ids),),
        gradients=(np.full((len(ids), 2), rows, np.float32),),
    )


def push(pool: ServerPool, update: Update, stage: Stage) -> None:
    versions = update.versions * len(stage.servers)
    pool.push(replace(update, versions=versions), timeout_s=LIMIT_S)


def test_a_push_changes_nothing_until_its_step_is_applied(stage: SteppedStage) -> None:
    push(stage.pools[0], gradient(1, 2.0, [5]), stage)
    push(stage.pools[1], gradient(1, 4.0, [5, 6]), stage)
    np.testing.assert_array_equal(stage.dense(), np.zeros(FLOATS))
    versions = stage.apply(1, ("worker-0", 1, 10.0), ("worker-1", 1, 10.0))
    assert versions == [1] * len(stage.servers)
    # The additive part moves by the mean of the differences.
    np.testing.assert_array_equal(stage.dense(), [-3.0] * 6 + [3.0] * 3)
    # Id 5 has both gradients, id 6 only one; an id that is in none does not move.
    np.testing.assert_array_equal(stage.rows([5, 6, 7]), [[-1, -1], [-0.5, -0.5], [0, 0]])


def test_the_mean_is_weighted_by_examples(stage: SteppedStage) -> None:
    push(stage.pools[0], gradient(1, 1.0), stage)
    push(stage.pools[1], gradient(1, 5.0), stage)
    stage.apply(1, ("worker-0", 1, 12.0), ("worker-1", 1, 4.0))
    np.testing.assert_array_equal(stage.dense()[:6], [-2.0] * 6)


def test_a_step_is_applied_once_however_often_it_is_ordered(stage: SteppedStage) -> None:
    push(stage.pools[0], gradient(1, 1.0), stage)
    for _ in range(3):
        assert set(stage.apply(1, ("worker-0", 1, 1.0))) == {1}
    np.testing.assert_array_equal(stage.dense()[:6], [-1.0] * 6)


def test_a_push_that_is_not_named_is_forgotten(stage: SteppedStage) -> None:
    push(stage.pools[0], gradient(1, 1.0), stage)
    push(stage.pools[1], gradient(1, 100.0), stage)
    stage.apply(1, ("worker-0", 1, 1.0))
    # Named by mistake in the next step: it was computed for the one before.
    stage.apply(2, ("worker-1", 1, 1.0))
    np.testing.assert_array_equal(stage.dense()[:6], [-1.0] * 6)
    assert stage.servers[0].version == 2


def test_several_pushes_of_one_worker_are_in_one_step(stage: SteppedStage) -> None:
    for sequence in (1, 2, 3):
        push(stage.pools[0], gradient(sequence, float(sequence)), stage)
    stage.apply(1, *(("worker-0", sequence, 1.0) for sequence in (3, 1, 2)))
    np.testing.assert_array_equal(stage.dense()[:6], [-2.0] * 6)
    known = stage.servers[0].fence("worker-0")
    assert known is not None and known[1:] == (3, 7, 0, 30)


def test_a_worker_that_pushes_without_turns_fills_no_memory(stage: SteppedStage) -> None:
    for sequence in range(1, 41):
        push(stage.pools[0], gradient(sequence, 1.0), stage)
    push(stage.pools[1], gradient(1, 2.0), stage)
    # The oldest ones are gone; others keep theirs.
    stage.apply(1, ("worker-0", 1, 1.0), ("worker-0", 40, 1.0), ("worker-1", 1, 1.0))
    np.testing.assert_array_equal(stage.dense()[:6], [-1.5] * 6)


def test_a_repeated_push_after_its_step_does_nothing(stage: SteppedStage) -> None:
    push(stage.pools[0], gradient(1, 1.0), stage)
    stage.apply(1, ("worker-0", 1, 1.0))
    push(stage.pools[0], gradient(1, 1.0), stage)
    stage.apply(2, ("worker-0", 1, 1.0))
    np.testing.assert_array_equal(stage.dense()[:6], [-1.0] * 6)


def test_a_fenced_worker_has_only_what_was_applied(stage: SteppedStage) -> None:
    push(stage.pools[0], gradient(1, 1.0), stage)
    stage.apply(1, ("worker-0", 1, 1.0))
    push(stage.pools[0], gradient(2, 1.0), stage)
    for server in stage.servers:
        known = server.fence("worker-0")
        assert known is not None and known[1] == 1
    with pytest.raises(Refused, match="fenced"):
        push(stage.pools[0], gradient(3, 1.0), stage)


def test_a_cut_between_two_steps_has_no_push_that_waits(stage: SteppedStage) -> None:
    push(stage.pools[0], gradient(1, 1.0), stage)
    stage.apply(1, ("worker-0", 1, 1.0))
    push(stage.pools[0], gradient(2, 1.0), stage)
    for facts in stage.cut(1):
        assert facts["version"] == 1
        assert {name: known[1] for name, known in facts["workers"].items()} == {"worker-0": 1}


def test_the_same_gradients_give_the_same_bits_in_any_order() -> None:
    """Whoever pushed what, and when: sums are in the order of the data."""
    spec, random_ = rich_spec(), np.random.default_rng(0)
    size = spec.trainable_size + spec.additive_size
    parts = [
        (
            Applied(ShardId(number % 3), 0, 10 * number + 10),
            random_.standard_normal(size).astype(np.float32),
            [as_ids(random_.permutation(20)[:8].tolist()) for _ in spec.tables],
            random_.integers(1, 50),
        )
        for number in range(6)
    ]
    seen = set()
    for seed in range(4):
        choose = random.Random(seed)
        with closing(SteppedStage(1 + seed % 2, 3, spec, turns=len(parts))) as stage:
            for number in range(1, 4):
                order = list(parts)
                choose.shuffle(order)
                sequences, named = [0, 0, 0], list[Named]()
                for applied, dense, ids, examples in order:
                    worker = choose.randrange(3)
                    sequences[worker] += 1
                    sequence = 10 * number + sequences[worker]
                    rows = [
                        np.full((len(one), table.dim), dense[0], np.float32)
                        for one, table in zip(ids, spec.tables, strict=True)
                    ]
                    versions = (0,) * len(stage.servers)
                    squares = tuple((np.array([0b1010], np.uint64), row[:2] ** 2) for row in rows)
                    flat = DenseSquares(((2, 9), (15, 21)), dense[:13] ** 2)
                    update = Update(
                        sequence, applied, versions, 0.1, dense, tuple(ids), tuple(rows)
                    )
                    stage.pools[worker].push(
                        replace(update, squares=squares, dense_squares=flat), timeout_s=LIMIT_S
                    )
                    named.append((f"worker-{worker}", sequence, float(examples)))
                choose.shuffle(named)
                stage.apply(number, *named)
            all_ids = [as_ids(list(range(20))) for _ in spec.tables]
            pulled = stage.pools[0].pull(all_ids, timeout_s=LIMIT_S)
            assert pulled.dense is not None
            seen.add(b"".join(one.tobytes() for one in (pulled.dense, *pulled.rows)))
    assert len(seen) == 1


def _adagrad(**table: Any) -> ParametersSpec:
    return ParametersSpec(
        optimizer=OptimizerSpec(kind=OptimizerKind.ADAGRAD, initial_accumulator_value=0.0),
        dense=(DenseSpec(path="w", shape=(6,)),),
        tables=(TableSpec(name="t", dim=2, initializer=ZERO, **table),),
    )


@pytest.mark.parametrize(
    ("whole", "expected"), [(False, 1 / math.sqrt(0.5)), (True, 1.0)], ids=["slices", "matrix"]
)
def test_an_id_of_two_gradients_has_two_squares_unless_keras_makes_them_one_matrix(
    whole: bool, expected: float
) -> None:
    with closing(SteppedStage(1, 2, _adagrad(whole=whole))) as stage:
        for pool in stage.pools:
            update = gradient(1, 1.0, [5])
            push(pool, replace(update, dense=np.ones(6, np.float32)), stage)
        stage.apply(1, ("worker-0", 1, 3.0), ("worker-1", 1, 3.0))
        # The mean of both gradients is 1, and each square counts with its share squared.
        np.testing.assert_allclose(stage.rows([5]), [[-expected] * 2], rtol=1e-6)
        np.testing.assert_allclose(stage.dense(), [-1.0] * 6, rtol=1e-6)


def test_a_step_whose_gradients_have_other_dense_squares_squares_their_mean() -> None:
    """Workers compute the same model, so this is no job of ours; it must not break the server."""
    spans = (DenseSquares(((0, 2),), np.full(2, 4, np.float32)), None)
    with closing(SteppedStage(1, 3, _adagrad())) as stage:
        for pool, squares in zip(stage.pools, spans, strict=False):
            update = replace(gradient(1, 1.0), dense=np.ones(6, np.float32))
            push(pool, replace(update, dense_squares=squares), stage)
        push(stage.pools[2], replace(gradient(1, 1.0), dense=None), stage)
        stage.apply(1, *((f"worker-{number}", 1, 1.0) for number in range(3)))
        moved = stage.dense()
        np.testing.assert_allclose(moved, [-1.0] * 6, rtol=1e-6)


def test_a_server_that_lost_its_pushes_leaves_them_out() -> None:
    with closing(SteppedStage(1, 2)) as stage:
        push(stage.pools[0], gradient(1, 1.0), stage)
        stage.apply(1, ("worker-0", 1, 1.0), ("worker-1", 9, 1.0))
        np.testing.assert_array_equal(stage.dense()[:6], [-1.0] * 6)


# The same as Keras

MODULE = """
import keras
import tensorflow as tf
from keras import layers

def custom_model(rows):
    ids = keras.Input((2,), dtype="int64", name="ids")
    x = keras.Input((3,), name="x")
    e = layers.Flatten()(layers.Embedding(rows, 4, name="words")(ids))
    h = layers.Dense(8, activation="tanh", name="hidden")(layers.Concatenate()([e, x]))
    return keras.Model({"ids": ids, "x": x}, layers.Dense(1, name="out")(h))

def loss(labels, predictions):
    return tf.square(labels - predictions[:, 0])

def optimizer(lr=0.1):
    return OPTIMIZER

def feed(dataset, mode, metadata): return dataset
"""
SLOTS, SIZE, STEPS = 4, 8, 12
ROWS = SLOTS * SIZE
"""Each full step names every row twice, within one minibatch or in two of them: rules for rows that
are not named differ a little from Keras (docs/reference/modules.md).
"""


def module_with(tmp_path: Path, optimizer: str) -> ModelModule:
    (tmp_path / "made.py").write_text(MODULE.replace("OPTIMIZER", optimizer))
    return load_module(ModelSection(model_zoo=str(tmp_path), model_def="made"))


Batch = tuple[Int64s, Floats, Floats]


def batches(dtype: Dtype) -> list[Batch]:
    """Minibatches of `SIZE` records in order; the last step has three, the last of them short."""
    found, random_ = list[Batch](), np.random.default_rng(1)
    for number in range(STEPS * SLOTS):
        if number % SLOTS == 0:
            every = random_.permutation(2 * ROWS).reshape(SLOTS, SIZE, 2) % ROWS
        x = random_.standard_normal((SIZE, 3)).astype(dtype.value)
        labels = random_.standard_normal(SIZE).astype(dtype.value)
        found.append((every[number % SLOTS], x, labels))
    ids, x, labels = found[-2]
    return [*found[:-2], (ids[:3], x[:3], labels[:3])]


@contextmanager
def float64() -> Iterator[None]:
    """Keras makes float64 models in the body."""
    # The policy, too: Keras takes it from `floatx` only once, for its first layer.
    policy = keras.config.dtype_policy()
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    try:
        yield
    finally:
        keras.config.set_floatx("float32")
        keras.config.set_dtype_policy(policy)


def trained_by_keras(
    module: ModelModule, start: dict[str, Floats], every: Sequence[Batch]
) -> dict[str, Floats]:
    """Plain Keras in float64, one batch of all records of a step at a time."""
    with float64():
        model = module.custom_model(rows=ROWS)
        for variable in model.trainable_variables:
            variable.assign(start[variable.path])
        model.compile(
            optimizer=module.optimizer(),
            loss=lambda labels, out: tf.square(labels - out),
            run_eagerly=True,
        )
        for begin in range(0, len(every), SLOTS):
            ids, x, labels = (
                np.concatenate(column) for column in zip(*every[begin : begin + SLOTS], strict=True)
            )
            model.train_on_batch(
                {"ids": ids, "x": x.astype(np.float64)}, labels.astype(np.float64)[:, None]
            )
        return {variable.path: np.asarray(variable) for variable in model.trainable_variables}


def trained_in_steps(
    module: ModelModule, every: Sequence[Batch], workers: int, servers: int, *, served: bool
) -> tuple[dict[str, Floats], dict[str, Floats]]:
    """Weights before and after steps that real servers apply, by the path that Keras gives them."""
    ps_model = PsModel.build(
        module, {"rows": ROWS}, threshold_bytes=0 if served else 1 << 30, seed=3, features=None
    )
    step = CompiledStep(ps_model, module)
    with closing(
        SteppedStage(servers, workers, ps_model.parameters, ps_model.dense(), SLOTS)
    ) as stage:
        start = stage.weights(ps_model)
        sequences = [0] * workers
        for number, begin in enumerate(range(0, len(every), SLOTS), 1):
            named = list[Named]()
            for slot, (ids, x, labels) in enumerate(every[begin : begin + SLOTS]):
                worker = slot % workers
                features = {"ids": tf.constant(ids), "x": tf.constant(x)}
                lookups = step.prepare(features, training=True)
                pulled = stage.pools[worker].pull(list(lookups.ids), timeout_s=LIMIT_S)
                outcome = step.train(features, tf.constant(labels), lookups, pulled)
                sequences[worker] += 1
                stage.pools[worker].push(
                    Update(
                        sequences[worker],
                        Applied(ShardId(slot), 0, number),
                        pulled.versions,
                        outcome.learning_rate,
                        outcome.dense,
                        lookups.ids,
                        outcome.gradients,
                        outcome.squares,
                        outcome.dense_squares,
                    ),
                    timeout_s=LIMIT_S,
                )
                named.append((f"worker-{worker}", sequences[worker], outcome.examples))
            stage.apply(number, *named)
        return start, stage.weights(ps_model)


def check_equal(
    start: dict[str, Floats],
    mine: dict[str, Floats],
    theirs: dict[str, Floats],
    rtol: float,
    atol: float,
) -> None:
    assert mine.keys() == theirs.keys()
    for path, values in theirs.items():
        np.testing.assert_allclose(mine[path], values, rtol=rtol, atol=atol, err_msg=path)
        assert np.abs(values - start[path]).max() > 1e-2, "nothing was learned"


# Each optimizer with each kind of variable; the numbers of workers and servers in turn.
@pytest.mark.parametrize(
    ("optimizer", "served", "workers", "servers"),
    [
        ("keras.optimizers.SGD(0.1)", False, 1, 2),
        ("keras.optimizers.SGD(0.1)", True, 4, 2),
        ("keras.optimizers.SGD(0.1, momentum=0.9)", False, 4, 2),
        ("keras.optimizers.SGD(0.1, momentum=0.9)", True, 2, 1),
        ("keras.optimizers.Adagrad(0.1)", False, 4, 2),
        ("keras.optimizers.Adagrad(0.1)", True, 4, 2),
    ],
)
def test_steps_equal_plain_keras_on_the_same_records(
    tmp_path: Path, optimizer: str, served: bool, workers: int, servers: int
) -> None:
    """Weights are float32 on servers, so 1e-6 is all that can be asked for."""
    every = batches(Dtype.FLOAT32)
    if served and "momentum" in optimizer:
        # Only full steps name every row.
        every = every[: len(every) // SLOTS * SLOTS]
    module = module_with(tmp_path, optimizer)
    start, mine = trained_in_steps(module, every, workers, servers, served=served)
    check_equal(start, mine, trained_by_keras(module, start, every), rtol=2e-6, atol=2e-7)


@pytest.mark.parametrize(
    ("served", "servers"), [(False, 1), (True, 2)], ids=["dense-1", "embedding-2"]
)
@pytest.mark.parametrize(
    "optimizer",
    [
        "keras.optimizers.SGD(0.1)",
        "keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True)",
        "keras.optimizers.Adam(0.03)",
        "keras.optimizers.Adagrad(0.1)",
        "keras.optimizers.Ftrl(0.5)",
    ],
)
def test_steps_of_a_float64_model_equal_plain_keras_to_nine_digits(
    tmp_path: Path, optimizer: str, served: bool, servers: int
) -> None:
    # Only full steps name every row, which rules with momentum need to be those of Keras.
    every = batches(Dtype.FLOAT64)[: (STEPS - 1) * SLOTS]
    module = module_with(tmp_path, optimizer)
    with float64():
        start, mine = trained_in_steps(module, every, 4, servers, served=served)
    assert {values.dtype for values in mine.values()} == {np.dtype(np.float64)}
    check_equal(start, mine, trained_by_keras(module, start, every), rtol=1e-9, atol=1e-12)

"""Where an id comes several times in a minibatch, servers take the sum of its squares, as Keras."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from elasticdl.embedding.spec import ParametersSpec
from elasticdl.job_choices import WirePrecision
from elasticdl.rpc.parameters import DenseSquares, Floats, Squares, Update
from elasticdl.shard import Applied, ShardId
from tests.contract.ps_stage import LIMIT_S, Stage, rich_spec
from tests.reference_optimizers import update
from tests.reference_table import ReferenceTable

pytestmark = pytest.mark.contract

SPEC = rich_spec()
IDS = 300
SPANS = ((2, 9), (9, 11), (20, 26))
"""With three servers, a slice ends within the first span, and one within the last."""


@pytest.fixture(params=[1, 3])
def stage(request: pytest.FixtureRequest) -> Iterator[Stage]:
    made = Stage(request.param)
    yield made
    made.close()


class Reference:
    """The same parameters in NumPy."""

    def __init__(self, spec: ParametersSpec) -> None:
        self.values = np.zeros((1 + spec.optimizer.slots, spec.trainable_size), np.float32)
        self.tables = [ReferenceTable(table, spec.optimizer) for table in spec.tables]
        self._optimizer = spec.optimizer

    def apply(self, pushed: Update) -> None:
        assert pushed.dense is not None and pushed.dense_squares is not None
        gradients = pushed.dense[: self.values.shape[1]]
        squares = gradients * gradients
        places = [np.arange(*span) for span in pushed.dense_squares.spans]
        squares[np.concatenate(places)] = pushed.dense_squares.sums
        rate, step = pushed.learning_rate, pushed.sequence
        update(self._optimizer, rate, step, self.values, gradients, squares)
        for table, ids, rows, given in zip(
            self.tables, pushed.ids, pushed.gradients, pushed.squares, strict=True
        ):
            table.apply(ids, rows, rate, step, given)


def normal(seed: int, *shape: int) -> Floats:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def squares_of(seed: int, ids: int, dim: int) -> Squares:
    """Squares of about a third of so many ids."""
    marked = np.random.default_rng(seed).random(-(-ids // 64) * 64) < 0.3
    marked[ids:] = False
    marks = np.packbits(marked, bitorder="little").view(np.uint64)
    return marks, np.abs(normal(seed, int(marked.sum()), dim))


def pushes(count: int, servers: int) -> Iterator[Update]:
    size = SPEC.trainable_size + SPEC.additive_size
    for step in range(1, count + 1):
        ids = np.random.default_rng(step).permutation(1000)[:IDS].astype(np.int64) - 500
        yield Update(
            sequence=step,
            applied=Applied(ShardId(0), 0, step),
            versions=(step - 1,) * servers,
            learning_rate=0.05,
            dense=normal(step, size),
            ids=(ids, ids[: step - 1]),
            gradients=(normal(step, IDS, 5), normal(step, step - 1, 1)),
            squares=(squares_of(step, IDS, 5), squares_of(step, step - 1, 1)),
            dense_squares=DenseSquares(SPANS, np.abs(normal(step, 15))),
        )


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "packed"])
def test_rules_take_the_squares_of_a_push(stage: Stage, packed: bool) -> None:
    pool, reference = stage.pool(), Reference(SPEC)
    pool.initialise(SPEC, np.zeros(37, np.float32), timeout_s=LIMIT_S)
    pool.pack(always=packed)
    for pushed in pushes(4, len(stage.servers)):
        pool.push(pushed, timeout_s=LIMIT_S)
        reference.apply(pushed)
    ids = np.arange(-500, 500, dtype=np.int64)
    pulled = pool.pull([ids, ids], timeout_s=LIMIT_S)
    assert pulled.dense is not None
    np.testing.assert_array_equal(pulled.dense[: SPEC.trainable_size], reference.values[0])
    for rows, table in zip(pulled.rows, reference.tables, strict=True):
        np.testing.assert_allclose(rows, table.peek(ids), rtol=1e-6, atol=1e-7)


def test_squares_may_be_rounded_with_their_gradients(stage: Stage) -> None:
    pools = stage.pool(), stage.pool("worker-1", precision=WirePrecision.BFLOAT16)
    whole, rough = Reference(SPEC), pools[1]
    rough.initialise(SPEC, np.zeros(37, np.float32), timeout_s=LIMIT_S)
    pools[0].initialise(SPEC, np.zeros(37, np.float32), timeout_s=LIMIT_S)
    (pushed,) = pushes(1, len(stage.servers))
    rough.push(pushed, timeout_s=LIMIT_S)
    whole.apply(pushed)
    pulled = pools[0].pull([pushed.ids[0], pushed.ids[1]], timeout_s=LIMIT_S)
    assert pulled.dense is not None
    # The first step of Adam is the sign of the gradient but for the squares that are given.
    np.testing.assert_allclose(
        pulled.dense[: SPEC.trainable_size], whole.values[0], rtol=0.01, atol=1e-6
    )
    np.testing.assert_allclose(
        pulled.rows[0], whole.tables[0].peek(pushed.ids[0]), rtol=0.01, atol=2e-3
    )


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"squares": (squares_of(1, IDS, 5),)}, "squares of 1 tables, the model has 2"),
        (
            {"squares": (squares_of(1, IDS - 64, 5), squares_of(1, 0, 1))},
            "do not fit its 300 ids",
        ),
        ({"squares": (squares_of(1, IDS, 4), squares_of(1, 0, 1))}, "do not fit its 300 ids"),
        ({"dense_squares": DenseSquares(((0, 27),), normal(1, 27))}, "within the trainable part"),
        ({"dense_squares": DenseSquares(((3, 5), (4, 6)), normal(1, 4))}, "in their order"),
        ({"dense_squares": DenseSquares(((3, 5),), normal(1, 3))}, "each of the 2 of its spans"),
        ({"dense": None}, "a dense gradient that is not there"),
    ],
)
def test_squares_that_do_not_fit_are_refused(
    stage: Stage, changed: dict[str, object], words: str
) -> None:
    pool = stage.pool()
    pool.initialise(SPEC, np.zeros(37, np.float32), timeout_s=LIMIT_S)
    (pushed,) = pushes(1, len(stage.servers))
    fields = {name: getattr(pushed, name) for name in Update.__slots__}
    with pytest.raises(ValueError, match=words):
        pool.push(Update(**{**fields, **changed}), timeout_s=LIMIT_S)
    assert {server.version for server in stage.servers} == {0}

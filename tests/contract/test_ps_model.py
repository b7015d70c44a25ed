"""Which layers are served, what is refused, and what a step does with ids."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from elasticdl.embedding.spec import Dtype, InitializerKind, OptimizerKind
from elasticdl.errors import UserError
from elasticdl.job_flags import ModelSection
from elasticdl.model.building import NeedsFeatures
from elasticdl.model.dry_run import check_callbacks
from elasticdl.model.module import ModelModule, load_module
from elasticdl.model.optimizers import refuse_two_schedules, schedule_of
from elasticdl.model.ps_model import PsModel
from elasticdl.model.step import CompiledStep, Lookups
from elasticdl.rpc.parameters import Floats, Pulled, aligned
from tests.reference_initializers import initial_weights

pytestmark = [
    pytest.mark.contract,
    # Keras 3.15 on NumPy 2.4, in `save_weights`: nothing of ours.
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
]

HEADER = """
import keras
import numpy as np
import tensorflow as tf
from keras import layers
from elasticdl.model.layers import Embedding as Chosen
from elasticdl.model import callbacks as ours
def feed(dataset, mode, metadata): return dataset
def loss(labels, predictions): return tf.square(labels - predictions)
"""
SGD = "keras.optimizers.SGD(0.5)"


def module_with(tmp_path: Path, body: str, optimizer: str = SGD) -> ModelModule:
    (tmp_path / "made.py").write_text(
        f"{HEADER}\ndef optimizer(lr=0.1): return {optimizer}\n{body}"
    )
    return load_module(ModelSection(model_zoo=str(tmp_path), model_def="made"))


def functional(
    embedding: str,
    inputs: str = 'keras.Input((2,), dtype="int64")',
    out: str = "layers.Dense(1)(layers.Flatten()(e))",
) -> str:
    return f"""
def custom_model():
    x = {inputs}
    e = {embedding}(x)
    return keras.Model(x, {out})
"""


def build(
    module: ModelModule, features: Any = None, threshold_bytes: int = 0, seed: int = 3
) -> PsModel:
    return PsModel.build(module, {}, threshold_bytes=threshold_bytes, seed=seed, features=features)


def pulled(ps_model: PsModel, lookups: Lookups, version: int = 0) -> Pulled:
    parameters = ps_model.parameters
    rows = tuple(
        initial_weights(one.initializer, one.seed, ids, one.dim, parameters.dtype)
        for one, ids in zip(parameters.tables, lookups.ids, strict=True)
    )
    return Pulled((version,), ps_model.dense(), rows)


def in_shared_memory(values: Pulled) -> Pulled:
    """These values plus their version, as arrays of the kind that a pull returns."""

    def shared(part: Floats) -> Floats:
        array = aligned(part.shape, part.dtype.name)
        np.add(part, part.dtype.type(values.version), out=array)
        array.flags.writeable = False
        return array

    assert values.dense is not None
    return replace(values, dense=shared(values.dense), rows=tuple(map(shared, values.rows)))


# Which layers


def test_layers_below_the_threshold_stay_dense(tmp_path: Path) -> None:
    module = module_with(tmp_path, functional("layers.Embedding(100, 4)"))
    assert [table.dim for table in build(module, threshold_bytes=1600).parameters.tables] == [4]
    dense = build(module, threshold_bytes=1601).parameters
    assert not dense.tables and dense.dense[0].shape == (100, 4)


def test_a_user_may_choose_where_rows_live(tmp_path: Path) -> None:
    assert not build(
        module_with(tmp_path, functional("Chosen(4, 100, served=False)"))
    ).parameters.tables
    chosen = build(
        module_with(tmp_path, functional("Chosen(4, 100, served=True)")), threshold_bytes=1 << 40
    )
    assert len(chosen.parameters.tables) == 1


def test_a_layer_that_is_given_a_matrix_keeps_it(tmp_path: Path) -> None:
    ps_model = build(
        module_with(
            tmp_path, functional("layers.Embedding(3, 1, weights=[np.array([[1.], [2.], [3.]])])")
        )
    )
    assert not ps_model.parameters.tables
    np.testing.assert_array_equal(ps_model.dense()[:3], [1, 2, 3])


def test_a_layer_that_is_given_a_matrix_later_keeps_it_too(tmp_path: Path) -> None:
    ps_model = build(
        module_with(
            tmp_path,
            """
def custom_model():
    x = keras.Input((2,), dtype="int64")
    both = [layers.Embedding(9, 1), layers.Embedding(3, 1)]
    model = keras.Sequential([x, *both, layers.Flatten()])
    model.layers[0].set_weights([np.ones((9, 1))])
    return model
""",
        )
    )
    assert [table.name for table in ps_model.parameters.tables] == ["sequential/embedding_1"]
    assert [one.shape for one in ps_model.parameters.dense] == [(9, 1)]


def test_a_layer_whose_weights_are_loaded_keeps_them(tmp_path: Path) -> None:
    import keras

    model = keras.Sequential(
        [keras.Input((2,), dtype="int64"), keras.layers.Embedding(9, 1), keras.layers.Flatten()]
    )
    model.layers[0].set_weights([np.ones((9, 1))])
    model.save_weights(tmp_path / "x.weights.h5")
    body = f"""
def custom_model():
    x = keras.Input((2,), dtype="int64")
    model = keras.Sequential([x, layers.Embedding(9, 1), layers.Flatten()])
    model.load_weights({str(tmp_path / "x.weights.h5")!r})
    return model
"""
    ps_model = build(module_with(tmp_path, body))
    assert not ps_model.parameters.tables
    np.testing.assert_array_equal(ps_model.dense(), np.ones(9))


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_mixed_precision_computes_in_half_and_keeps_weights_whole(
    tmp_path: Path, policy: str
) -> None:
    out = f"layers.Dense(1, dtype={policy!r})(layers.Flatten()(e))"
    module = module_with(
        tmp_path, functional(f"layers.Embedding(100, 4, dtype={policy!r})", out=out)
    )
    ps_model = build(module)
    step, features = CompiledStep(ps_model, module), tf.constant([[1, 2]], tf.int64)
    lookups = step.prepare(features, training=True)
    outcome = step.train(
        features, tf.ones((1, 1), policy.split("_")[1]), lookups, pulled(ps_model, lookups)
    )
    assert (
        outcome.dense.dtype == np.float32
        and outcome.gradients[0].any()
        and np.isfinite(outcome.loss)
    )


def test_one_float64_variable_makes_all_weights_float64_on_the_servers(tmp_path: Path) -> None:
    out = "layers.Dense(1, dtype='float64', name='out')(layers.Flatten()(e))"
    body = functional("layers.Embedding(100, 4, name='words')", out=out)
    module = module_with(tmp_path, body)
    ps_model = build(module)
    assert ps_model.parameters.dtype is Dtype.FLOAT64
    assert ps_model.dense().dtype == np.float64
    mixed = ps_model.mixed_dtypes()
    assert mixed is not None and "out/bias is float64" in mixed and "words is float32" in mixed
    step, features = CompiledStep(ps_model, module), tf.constant([[1, 2]], tf.int64)
    lookups = step.prepare(features, training=True)
    outcome = step.train(features, tf.ones((1, 1), tf.float64), lookups, pulled(ps_model, lookups))
    assert outcome.dense.dtype == outcome.gradients[0].dtype == np.float64
    assert outcome.gradients[0].any() and np.isfinite(outcome.loss)


def test_a_model_of_one_type_has_nothing_to_warn_of(tmp_path: Path) -> None:
    for dtype in Dtype:
        out = f"layers.Dense(1, dtype='{dtype}')(layers.Flatten()(e))"
        body = functional(f"layers.Embedding(100, 4, dtype='{dtype}')", out=out)
        # Python takes a file of the same size and second for one that it has compiled.
        (tmp_path / dtype).mkdir()
        ps_model = build(module_with(tmp_path / dtype, body))
        assert (ps_model.parameters.dtype, ps_model.mixed_dtypes()) == (dtype, None)


def test_a_float16_variable_is_refused_by_name(tmp_path: Path) -> None:
    out = "layers.Dense(1, dtype='float16', name='out')(layers.Flatten()(e))"
    with pytest.raises(UserError, match="'out/kernel' is float16, expected float32 or float64"):
        build(module_with(tmp_path, functional("layers.Embedding(100, 4)", out=out)))


def test_outputs_in_bfloat16_come_as_float32(tmp_path: Path) -> None:
    """NumPy has no such type."""
    module = module_with(
        tmp_path,
        functional(
            "layers.Embedding(5, 2)",
            out="layers.Dense(1, dtype='mixed_bfloat16')(layers.Flatten()(e))",
        ),
    )
    ps_model = build(module)
    step = CompiledStep(ps_model, module)
    features = tf.constant([[1, 2]], tf.int64)
    lookups = step.prepare(features)
    outputs = step.predict(features, lookups, pulled(ps_model, lookups))
    assert outputs.dtype == np.float32


CALLED = """
calls = []
class Model(keras.Model):
    def __init__(self):
        super().__init__()
        self.out = layers.Dense(1)
    def call(self, x, training=False):
        calls.append(training)
        return self.out(x) if training is not None else 1 / 0
def custom_model(): return Model()
"""


def test_a_model_without_tables_is_traced_once_for_training(tmp_path: Path) -> None:
    module = module_with(tmp_path, CALLED)
    features = tf.constant([[1.0, 2.0]])
    ps_model = build(module, features)
    calls = module.custom_model.__globals__["calls"]
    calls.clear()
    step = CompiledStep(ps_model, module)
    lookups = step.prepare(features, training=True)
    step.train(features, tf.constant([[1.0]]), lookups, pulled(ps_model, lookups))
    assert calls == [True]


def test_an_error_of_the_models_call_names_the_model_and_its_line(tmp_path: Path) -> None:
    module = module_with(tmp_path, CALLED.replace("training is not None", "not training"))
    features = tf.constant([[1.0, 2.0]])
    ps_model = build(module, features)
    step = CompiledStep(ps_model, module)
    with pytest.raises(
        UserError, match=r"made\.py:\d+: the model of .*made\.py raised ZeroDivisionError"
    ):
        lookups = step.prepare(features, training=True)
        step.train(features, tf.constant([[1.0]]), lookups, pulled(ps_model, lookups))


def test_a_loss_that_no_weight_has_a_part_in_is_refused(tmp_path: Path) -> None:
    module = module_with(tmp_path, functional("layers.Embedding(5, 2)"))
    wrong = replace(
        module, loss=lambda labels, predictions: tf.square(labels - tf.round(predictions))
    )
    ps_model = build(wrong)
    step = CompiledStep(ps_model, wrong)
    features = tf.constant([[1, 2]], tf.int64)
    lookups = step.prepare(features, training=True)
    with pytest.raises(UserError, match="does not depend on any trainable weight"):
        step.train(features, tf.constant([[1.0]]), lookups, pulled(ps_model, lookups))


def test_a_constraint_of_a_dense_weight_is_refused_by_name(tmp_path: Path) -> None:
    body = (
        "def custom_model(): return keras.Sequential([keras.Input((2,)), keras.layers.Dense(1,"
        " kernel_constraint='non_neg')])"
    )
    with pytest.raises(
        UserError,
        match="dense/kernel' has the constraint NonNeg, which parameter servers do not support",
    ):
        build(module_with(tmp_path, body))


@pytest.mark.parametrize(
    "callback", ["LearningRateScheduler(lambda epoch: 0.1)", "ReduceLROnPlateau()"]
)
def test_callbacks_that_set_the_rate_of_an_optimizer_are_refused_where_servers_apply_it(
    tmp_path: Path, callback: str
) -> None:
    body = f"def callbacks(): return [keras.callbacks.{callback}]"
    module = module_with(tmp_path, functional("layers.Embedding(5, 2)") + body)
    with pytest.raises(
        UserError,
        match=(
            rf"made\.py:\d+: keras\.callbacks\.{callback.partition('(')[0]} sets the learning rate"
        ),
    ):
        check_callbacks(module)
    assert check_callbacks(module, on_ring=True) == []


def test_keras_embeddings_outside_of_a_build_are_keras_own() -> None:
    import keras

    layer = keras.layers.Embedding(5, 2)
    assert layer(tf.constant([1, 4])).shape == (2, 2) and layer.embeddings.shape == (5, 2)


def subclassed(call: str) -> str:
    """A model with an embedding of 100 rows; `call` computes on `x`."""
    return f"""
class custom_model(keras.Model):
    def __init__(self):
        super().__init__()
        self.embedding = layers.Embedding(100, 4)
    def call(self, x):
        return {call}
"""


def test_a_subclassed_model_asks_for_features(tmp_path: Path) -> None:
    call = 'keras.ops.sum(self.embedding(x["ids"]), (1, 2))[:, None]'
    module = module_with(tmp_path, subclassed(call))
    with pytest.raises(NeedsFeatures, match=r"made\.py:\d+: custom_model has no inputs"):
        build(module)
    ps_model = build(module, {"ids": np.zeros((2, 3), np.int64)})
    assert [table.dim for table in ps_model.parameters.tables] == [4]
    assert ps_model.inputs["ids"].shape.as_list() == [None, 3]


def test_the_same_seed_builds_the_same_and_names_do_not_depend_on_what_was_built_before(
    tmp_path: Path,
) -> None:
    module = module_with(tmp_path, functional("layers.Embedding(100, 4)"))
    first, second, other = build(module), build(module), build(module, seed=4)
    assert first.parameters == second.parameters
    np.testing.assert_array_equal(first.dense(), second.dense())
    assert first.parameters.tables[0].seed != other.parameters.tables[0].seed
    assert not np.array_equal(first.dense(), other.dense())


def test_frozen_variables_are_not_sent_around_but_moving_averages_are(tmp_path: Path) -> None:
    out = "layers.BatchNormalization()(layers.Dense(3, trainable=False)(layers.Flatten()(e)))"
    ps_model = build(module_with(tmp_path, functional("layers.Embedding(100, 4)", out=out)))
    assert [(one.path.split("/")[-1], one.additive) for one in ps_model.parameters.dense] == [
        ("gamma", False),
        ("beta", False),
        ("moving_mean", True),
        ("moving_variance", True),
    ]


def test_the_flat_vector_goes_in_and_out(tmp_path: Path) -> None:
    ps_model = build(
        module_with(
            tmp_path,
            functional("layers.Embedding(100, 4)", out="layers.Dense(3)(layers.Flatten()(e))"),
        )
    )
    flat = np.arange(27, dtype=np.float32)
    ps_model.set_dense(flat)
    np.testing.assert_array_equal(ps_model.dense(), flat)


# Initializers


@pytest.mark.parametrize(
    ("keras_one", "kind", "a", "b"),
    [
        ("'uniform'", InitializerKind.UNIFORM, -0.05, 0.05),
        ("keras.initializers.RandomUniform(-1, 2)", InitializerKind.UNIFORM, -1, 2),
        ("keras.initializers.RandomNormal(1, 3)", InitializerKind.NORMAL, 1, 3),
        ("'truncated_normal'", InitializerKind.TRUNCATED_NORMAL, 0, 0.05),
        ("keras.initializers.Constant(7)", InitializerKind.CONSTANT, 7, 0),
        ("'zeros'", InitializerKind.CONSTANT, 0, 0),
        ("'ones'", InitializerKind.CONSTANT, 1, 0),
        ("'glorot_uniform'", InitializerKind.UNIFORM, -math.sqrt(6 / 104), math.sqrt(6 / 104)),
        (
            "'he_normal'",
            InitializerKind.TRUNCATED_NORMAL,
            0,
            math.sqrt(2 / 100) / 0.87962566103423978,
        ),
        ("'lecun_uniform'", InitializerKind.UNIFORM, -math.sqrt(3 / 100), math.sqrt(3 / 100)),
    ],
)
def test_initializers_are_followed(
    tmp_path: Path, keras_one: str, kind: InitializerKind, a: float, b: float
) -> None:
    ps_model = build(
        module_with(
            tmp_path, functional(f"layers.Embedding(100, 4, embeddings_initializer={keras_one})")
        )
    )
    found = ps_model.parameters.tables[0].initializer
    assert found.kind == kind and found.a == pytest.approx(a) and found.b == pytest.approx(b)


# Refused by name


@pytest.mark.parametrize(
    ("embedding", "words"),
    [
        (
            "layers.Embedding(100, 4, embeddings_constraint='non_neg', name='mine')",
            "'mine' has embeddings_constraint",
        ),
        ("layers.Embedding(100, 4, lora_rank=2, name='mine')", "'mine' has lora_rank"),
        (
            "layers.Embedding(100, 4, dtype='float16', name='mine')",
            "'mine' has a variable type other than float32",
        ),
        (
            "layers.Embedding(100, 4, embeddings_initializer='orthogonal', name='mine')",
            "'mine' uses initializer .*rthogonal",
        ),
        (
            "Chosen(4, embeddings_initializer='he_normal', name='mine')",
            "needs the size of the vocabulary",
        ),
        (
            "Chosen(4, 3, served=True, weights=[np.zeros((3, 4))], name='mine')",
            "'mine' receives weights",
        ),
    ],
)
def test_what_rows_cannot_do_is_refused_by_name(tmp_path: Path, embedding: str, words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        build(module_with(tmp_path, functional(embedding)))
    assert caught.value.hint


def test_using_the_matrix_directly_is_refused_by_name(tmp_path: Path) -> None:
    body = """
def custom_model():
    x = keras.Input((2,), dtype="int64")
    layer = layers.Embedding(100, 4, name="tied")
    return keras.Model(x, keras.ops.matmul(layer(x), keras.ops.transpose(layer.embeddings)))
"""
    with pytest.raises(UserError, match="matrix of embedding layer 'tied'"):
        build(module_with(tmp_path, body))


@pytest.mark.parametrize(
    ("optimizer", "words"),
    [
        ("keras.optimizers.RMSprop()", "RMSprop is not supported"),
        ("keras.optimizers.Adam(use_ema=True)", "Adam sets use_ema"),
        (
            "keras.optimizers.SGD(gradient_accumulation_steps=2)",
            "SGD sets gradient_accumulation_steps",
        ),
        ("keras.optimizers.Adam(loss_scale_factor=2.0)", "Adam sets loss_scale_factor"),
        ("type('Mine', (keras.optimizers.Adam,), {})()", "Mine is not supported"),
        (
            "keras.mixed_precision.LossScaleOptimizer(keras.optimizers.SGD())",
            "LossScaleOptimizer is not supported",
        ),
        ("'adam'", "returned str, expected a Keras optimizer"),
    ],
)
def test_optimizers_that_servers_cannot_follow_are_refused_by_name(
    tmp_path: Path, optimizer: str, words: str
) -> None:
    with pytest.raises(UserError, match=rf"made\.py:\d+: .*{words}"):
        build(module_with(tmp_path, functional("layers.Embedding(100, 4)"), optimizer))


def test_excluding_variables_from_weight_decay_is_refused(tmp_path: Path) -> None:
    module = module_with(
        tmp_path,
        functional("layers.Embedding(100, 4)")
        + """
def optimizer():
    made = keras.optimizers.AdamW()
    made.exclude_from_weight_decay(var_names=["bias"])
    return made
""",
    )
    with pytest.raises(UserError, match="AdamW sets exclude_from_weight_decay"):
        build(module)


@pytest.mark.parametrize(
    ("optimizer", "expected"),
    [
        (
            "keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True)",
            {"kind": OptimizerKind.SGD, "momentum": 0.9, "nesterov": True},
        ),
        (
            "keras.optimizers.Adam(beta_1=0.8, amsgrad=True)",
            {"kind": OptimizerKind.ADAM, "beta_1": 0.8, "amsgrad": True},
        ),
        (
            "keras.optimizers.AdamW(weight_decay=0.02)",
            {"kind": OptimizerKind.ADAM, "weight_decay": 0.02},
        ),
        (
            "keras.optimizers.Adagrad(epsilon=0.5)",
            {"kind": OptimizerKind.ADAGRAD, "epsilon": 0.5, "initial_accumulator_value": 0.1},
        ),
        (
            "keras.optimizers.Ftrl(l1_regularization_strength=0.3, beta=0.2)",
            {"kind": OptimizerKind.FTRL, "l1": 0.3, "beta": 0.2},
        ),
    ],
)
def test_optimizers_keep_their_constants(
    tmp_path: Path, optimizer: str, expected: dict[str, Any]
) -> None:
    found = build(
        module_with(tmp_path, functional("layers.Embedding(100, 4)"), optimizer)
    ).parameters.optimizer
    assert {name: getattr(found, name) for name in expected} == expected


def test_a_custom_training_step_is_refused(tmp_path: Path) -> None:
    body = """
class custom_model(keras.Model):
    def call(self, inputs): return inputs
    def train_step(self, data): return {}
"""
    with pytest.raises(UserError, match=r"made\.py:\d+: custom_model overrides train_step"):
        build(module_with(tmp_path, body))


def test_ids_that_depend_on_rows_are_refused_by_name(tmp_path: Path) -> None:
    body = """
def custom_model():
    x = keras.Input((2,), dtype="int64")
    first = layers.Embedding(100, 4, name="first")(x)
    best = keras.ops.argmax(first, -1)
    second = layers.Embedding(100, 4, name="second")(best)
    return keras.Model(x, layers.Dense(1)(layers.Flatten()(second)))
"""
    module = module_with(tmp_path, body)
    with pytest.raises(
        UserError, match="ids of embedding layer 'second' depend on the rows of 'first'"
    ):
        CompiledStep(build(module), module).prepare(tf.constant([[1, 2]], tf.int64))


def test_ids_that_depend_on_the_shape_of_rows_only_are_fine(tmp_path: Path) -> None:
    body = """
def custom_model():
    x = keras.Input((2,), dtype="int64")
    first = layers.Embedding(100, 4)(x)
    numbered = lambda e: tf.tile(tf.range(tf.shape(e)[1])[None], [tf.shape(e)[0], 1])
    places = layers.Lambda(numbered)(first)
    second = layers.Embedding(50, 4)(places)
    return keras.Model(x, layers.Dense(1)(layers.Flatten()(first + second)))
"""
    module = module_with(tmp_path, body)
    lookups = CompiledStep(build(module), module).prepare(tf.constant([[7, 9], [7, 7]], tf.int64))
    assert [ids.tolist() for ids in lookups.ids] == [[7, 9], [0, 1]]


def test_a_layer_called_in_a_loop_is_refused_by_name(tmp_path: Path) -> None:
    body = """
class custom_model(keras.Model):
    def __init__(self):
        super().__init__()
        self.embedding = layers.Embedding(100, 4, name="looped")
    def call(self, x):
        rows = tf.map_fn(self.embedding, x, fn_output_signature=tf.float32)
        return tf.reduce_sum(rows, (1, 2))[:, None]
"""
    module = module_with(tmp_path, body)
    features = tf.constant([[1, 2]], tf.int64)
    with pytest.raises(UserError, match="'looped' is called within a loop"):
        CompiledStep(build(module, features), module).prepare(features)


# Ids


def test_tables_asked_for_the_same_ids_share_positions(tmp_path: Path) -> None:
    body = """
def custom_model():
    text = keras.Input((2,), dtype="string")
    a = layers.Embedding(40, 4)(layers.Hashing(40)(text))
    b = layers.Embedding(40, 2)(layers.Hashing(40)(text))
    return keras.Model(text, layers.Dense(1)(layers.Flatten()(layers.Concatenate()([a, b]))))
"""
    module = module_with(tmp_path, body)
    lookups = CompiledStep(build(module), module).prepare(tf.constant([["a", "b"], ["a", "a"]]))
    assert lookups.positions[0] is lookups.positions[1] and lookups.ids[0] is lookups.ids[1]
    assert lookups.positions[0].tolist() == [[0, 1], [0, 0]]


def test_an_id_outside_of_the_vocabulary_is_named(tmp_path: Path) -> None:
    module = module_with(tmp_path, functional("layers.Embedding(100, 4, name='mine')"))
    step = CompiledStep(build(module), module)
    with pytest.raises(UserError, match=r"'mine' received id 100, expected 0\.\.99"):
        step.prepare(tf.constant([[1, 100]], tf.int64))
    assert step.prepare(tf.constant([[-1, 99]], tf.int64)).ids[0].tolist() == [99]  # as in Keras
    with pytest.raises(UserError, match="'mine' received id -1"):
        step.prepare(tf.constant([[-101, 5]], tf.int64))


def test_an_unbounded_vocabulary_takes_any_int64(tmp_path: Path) -> None:
    module = module_with(tmp_path, functional("Chosen(4)"))
    ps_model = build(module)
    step = CompiledStep(ps_model, module)
    features = tf.constant([[2**62, -5]], tf.int64)
    lookups = step.prepare(features)
    assert lookups.ids[0].tolist() == [2**62, -5]
    assert step.predict(features, lookups, pulled(ps_model, lookups)).shape == (1, 1)


@pytest.mark.parametrize(
    ("made", "words"),
    [
        ("tf.RaggedTensor.from_tensor(tf.reduce_sum(self.embedding(x), 1))", "a RaggedTensor"),
        ("tf.sparse.from_dense(tf.reduce_sum(self.embedding(x), 1))", "a SparseTensor"),
        ("(self.embedding(x), {})[1]", "no outputs"),
    ],
)
def test_outputs_that_are_not_dense_are_refused(tmp_path: Path, made: str, words: str) -> None:
    module = module_with(tmp_path, subclassed(made))
    features = tf.constant([[1, 2], [3, 4]], tf.int64)
    ps_model = build(module, features)
    step = CompiledStep(ps_model, module)
    lookups = step.prepare(features)
    with pytest.raises(UserError, match=f"custom_model returns {words}"):
        step.predict(features, lookups, pulled(ps_model, lookups))


def test_ragged_ids_are_looked_up(tmp_path: Path) -> None:
    call = "tf.reduce_sum(tf.reduce_sum(self.embedding(x), 1), 1, keepdims=True)"
    module = module_with(tmp_path, subclassed(call))
    features = tf.ragged.constant([[1, 2, 3], [3], []], dtype=tf.int64)
    ps_model = build(module, features)
    step = CompiledStep(ps_model, module)
    lookups = step.prepare(features, training=True)
    outcome = step.train(features, tf.zeros((3, 1)), lookups, pulled(ps_model, lookups))
    assert lookups.ids[0].tolist() == [1, 2, 3] and outcome.gradients[0].shape == (3, 4)


def test_padded_windows_of_other_widths_are_taken(tmp_path: Path) -> None:
    body = functional(
        "layers.Embedding(100, 4)",
        inputs='keras.Input((None,), dtype="int64")',
        out="keras.ops.sum(e, (1, 2))[:, None]",
    )
    module = module_with(tmp_path, body)
    ps_model = build(module)
    step = CompiledStep(ps_model, module)
    for width in (3, 5, 2, 4):
        features, labels = tf.ones((2, width), tf.int64), tf.zeros((2, 1))
        lookups = step.prepare(features, training=True)
        outcome = step.train(features, labels, lookups, pulled(ps_model, lookups))
        row = pulled(ps_model, lookups).rows[0][0].sum()
        assert outcome.loss == pytest.approx((width * row) ** 2, rel=1e-4)


# Steps


def test_the_learning_rate_is_that_of_the_pulled_version(tmp_path: Path) -> None:
    decay = (
        "keras.optimizers.SGD(keras.optimizers.schedules.PiecewiseConstantDecay([10], [0.5, 0.25]))"
    )
    for optimizer, extra in (
        (decay, ""),
        (
            SGD,
            (
                "def callbacks(): return [ours.LearningRateScheduler(lambda v: 0.5 if v <= 10 else"
                " 0.25)]"
            ),
        ),
    ):
        module = module_with(tmp_path, functional("layers.Embedding(100, 4)") + extra, optimizer)
        ps_model = build(module)
        step, features = CompiledStep(ps_model, module), tf.constant([[1, 2]], tf.int64)
        lookups = step.prepare(features, training=True)
        rates = [
            step.train(
                features, tf.zeros((1, 1)), lookups, pulled(ps_model, lookups, version)
            ).learning_rate
            for version in (0, 10, 11)
        ]
        assert rates == [0.5, 0.5, 0.25]


def test_of_two_schedulers_the_last_one_counts(tmp_path: Path) -> None:
    extra = (
        "def callbacks(): return [ours.LearningRateScheduler(lambda v: 0.5),"
        " ours.LearningRateScheduler(lambda v: 0.25)]"
    )
    module = module_with(tmp_path, functional("layers.Embedding(100, 4)") + extra)
    schedule = schedule_of(module)
    assert schedule is not None and schedule(0) == 0.25
    refuse_two_schedules(module, keras.optimizers.SGD(1.0))


def test_what_is_not_finite_is_named(tmp_path: Path) -> None:
    module = module_with(tmp_path, functional("layers.Embedding(100, 4, name='mine')"))
    ps_model = build(module)
    step, features = CompiledStep(ps_model, module), tf.constant([[1, 2]], tf.int64)
    lookups = step.prepare(features, training=True)
    weights = pulled(ps_model, lookups)
    assert step.train(features, tf.zeros((1, 1)), lookups, weights).nonfinite == ""
    assert (
        step.train(features, tf.constant([[np.nan]]), lookups, weights).nonfinite
        == "loss, dense/kernel, mine"
    )
    huge = Pulled((0,), weights.dense, (np.full((2, 4), 3e38, np.float32),))
    assert "dense/kernel" in step.train(features, tf.zeros((1, 1)), lookups, huge).nonfinite


def test_large_but_finite_gradients_are_not_called_infinite(tmp_path: Path) -> None:
    module = module_with(tmp_path, functional("layers.Embedding(100, 4)"))
    ps_model = build(module)
    step, features = CompiledStep(ps_model, module), tf.constant([[1, 2]], tf.int64)
    lookups = step.prepare(features, training=True)
    outcome = step.train(features, tf.constant([[1e18]]), lookups, pulled(ps_model, lookups))
    assert np.abs(outcome.gradients[0]).max() > 1e16 and outcome.nonfinite == ""


def test_dropout_differs_from_step_to_step(tmp_path: Path) -> None:
    out = "layers.Dense(1, use_bias=False)(layers.Dropout(0.5)(layers.Flatten()(e)))"
    module = module_with(tmp_path, functional("layers.Embedding(100, 32)", out=out))
    ps_model = build(module)
    step, features = CompiledStep(ps_model, module), tf.constant([[1, 2]], tf.int64)
    lookups = step.prepare(features, training=True)
    weights = pulled(ps_model, lookups)
    losses = {step.train(features, tf.ones((1, 1)), lookups, weights).loss for _ in range(5)}
    assert len(losses) == 5
    assert step.predict(features, lookups, weights) == step.predict(features, lookups, weights)


def test_a_regularizer_of_embeddings_applies_to_the_rows_of_the_batch(tmp_path: Path) -> None:
    body = functional(
        "layers.Embedding(100, 4, embeddings_regularizer=keras.regularizers.L2(0.25))",
        out="0.0 * keras.ops.sum(e, (1, 2))",
    )
    module = module_with(tmp_path, body)
    ps_model = build(module)
    step, features = CompiledStep(ps_model, module), tf.constant([[1, 2], [1, 1]], tf.int64)
    lookups = step.prepare(features, training=True)
    weights = pulled(ps_model, lookups)
    outcome = step.train(features, tf.zeros((2,)), lookups, weights)
    assert outcome.loss == pytest.approx(0.25 * np.square(weights.rows[0]).sum(), rel=1e-5)
    np.testing.assert_allclose(outcome.gradients[0], 0.5 * weights.rows[0], rtol=1e-5)


WRITES = """
def write(array):
    array[...] = 7.0
    return array
def penalty(weights):
    with tf.control_dependencies([tf.numpy_function(write, [weights], tf.float32)]):
        return 0.25 * tf.reduce_sum(tf.square(weights))
"""
ALONE = """
def custom_model():
    x = keras.Input((2000,))
    return keras.Model(x, layers.Dense(1, use_bias=False, kernel_regularizer={})(x))
"""
ROWS = functional(
    "layers.Embedding(2000, 4, embeddings_regularizer={})", out="0.0 * keras.ops.sum(e, (1, 2))"
)


@pytest.mark.parametrize("penalty", ["keras.regularizers.L2(0.25)", "penalty"])
@pytest.mark.parametrize("body", [ALONE, ROWS], ids=["one dense variable", "rows"])
def test_a_step_changes_neither_what_was_pulled_nor_what_earlier_steps_made(
    tmp_path: Path, body: str, penalty: str
) -> None:
    """Weights are large enough to share their memory with TensorFlow."""
    module = module_with(tmp_path, WRITES + body.format(penalty))
    ps_model = build(module)
    step = CompiledStep(ps_model, module)
    features = (
        tf.reshape(tf.range(2000, dtype=tf.int64), (1000, 2))
        if body is ROWS
        else tf.ones((2, 2000))
    )
    labels, made = tf.zeros((len(features), 1)), []
    for version in range(3):
        lookups = step.prepare(features, training=True)
        weights = in_shared_memory(pulled(ps_model, lookups, version))
        assert weights.dense is not None
        before = [part.copy() for part in (weights.dense, *weights.rows)]
        outcome = step.train(features, labels, lookups, weights)
        arrays = outcome.dense, *outcome.gradients
        made.append((arrays, [part.copy() for part in arrays]))
        for part, expected in zip((weights.dense, *weights.rows), before, strict=True):
            np.testing.assert_array_equal(part, expected)
        if body is ROWS and penalty != "penalty":
            np.testing.assert_allclose(outcome.gradients[0], 0.5 * before[1], rtol=1e-5)
    for arrays, copies in made:
        for part, expected in zip(arrays, copies, strict=True):
            np.testing.assert_array_equal(part, expected)


def test_a_frozen_table_gets_no_gradient(tmp_path: Path) -> None:
    module = module_with(tmp_path, functional("layers.Embedding(100, 4, trainable=False)"))
    ps_model = build(module)
    step, features = CompiledStep(ps_model, module), tf.constant([[1, 2]], tf.int64)
    lookups = step.prepare(features, training=True)
    outcome = step.train(features, tf.ones((1, 1)), lookups, pulled(ps_model, lookups))
    assert not outcome.gradients[0].any() and outcome.dense.any()


def test_errors_inside_the_users_call_name_the_line(tmp_path: Path) -> None:
    body = """
class custom_model(keras.Model):
    def __init__(self):
        super().__init__()
        self.embedding = layers.Embedding(100, 4)
    def call(self, x):
        return tf.reshape(self.embedding(x), [3, 5, 7, missing_name])
"""
    with pytest.raises(
        UserError, match=r"made\.py:\d+: custom_model raised NameError.*missing_name"
    ):
        build(module_with(tmp_path, body), tf.constant([[1, 2]], tf.int64))


def test_model_params_go_to_whoever_names_them(tmp_path: Path) -> None:
    module = module_with(
        tmp_path,
        functional("layers.Embedding(100, 4)").replace("custom_model()", "custom_model(units=1)"),
        "keras.optimizers.SGD(lr)",
    )
    ps_model = PsModel.build(module, {"lr": 0.7, "units": 3}, threshold_bytes=0, seed=0)
    assert float(ps_model.optimizer.learning_rate) == pytest.approx(0.7)
    with pytest.raises(
        UserError, match=r"--model-params other=1: neither custom_model \(.*made\.py"
    ):
        PsModel.build(module, {"other": 1}, threshold_bytes=0, seed=0)
    with pytest.raises(UserError) as caught:
        PsModel.build(module, {"unit": 1}, threshold_bytes=0, seed=0)
    assert caught.value.hint == "did you mean units?"


def test_a_model_whose_loss_keras_scales_is_refused(tmp_path: Path) -> None:
    import keras

    policy = keras.config.dtype_policy()
    try:
        keras.config.set_dtype_policy("mixed_float16")
        with pytest.raises(UserError, match=r"made\.py:\d+: .* mixed_float16") as caught:
            build(module_with(tmp_path, functional("layers.Embedding(100, 4)")))
    finally:
        keras.config.set_dtype_policy(policy)
    assert "mixed_bfloat16" in caught.value.hint

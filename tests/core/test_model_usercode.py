"""What is left of TensorFlow's messages."""

from __future__ import annotations

import ast
import runpy
from pathlib import Path

import pytest

from elasticdl import original_names
from elasticdl.model.usercode import described, short, summary
from tests.conftest import ROOT

pytestmark = pytest.mark.core

IN_FEED = """Graph execution error:

Detected at node StringToNumber defined at (most recent call last):
<stack traces unavailable>
Error in user-defined function passed to ParallelMapDatasetV2:1 transformation with iterator: \
SingleElementIterator::BatchV2::Map: StringToNumberOp could not correctly convert string: 12:x
\t [[{{node StringToNumber}}]]
\t [[DatasetToSingleElement]] [Op:__inference__records_by_dataset_33]"""

IN_STEP = """Graph execution error:

Detected at node sequential_1/dense_1/MatMul defined at (most recent call last):
  File "/usr/lib/python3.11/runpy.py", line 198, in _run_module_as_main

  File "/site-packages/keras/src/backend/tensorflow/numpy.py", line 485, in matmul
    return tf.matmul(x1, x2)

Matrix size-incompatible: In[0]: [3,4], In[1]: [5,3]
\t [[{{node sequential_1/dense_1/MatMul}}]] [Op:__inference_step_98]"""

SEVERAL = """Graph execution error:

Detected at node gather defined at (most recent call last):
<stack traces unavailable>
Detected at node gather defined at (most recent call last):
<stack traces unavailable>
2 root error(s) found.
  (0) INVALID_ARGUMENT:  indices[1] = 9 is not in [0, 5)
\t [[{{node gather}}]]
\t [[strided_slice/_4]]
  (1) INVALID_ARGUMENT:  indices[1] = 9 is not in [0, 5)
\t [[{{node gather}}]]
0 successful operations.
0 derived errors ignored. [Op:__inference_step_12]"""

EAGER = (
    "{{function_node __wrapped__StringToNumber_device_/job:localhost/replica:0}} StringToNumberOp"
    " could not [Op:StringToNumber]"
)


@pytest.mark.parametrize(
    ("message", "left"),
    [
        (IN_FEED, "StringToNumberOp could not correctly convert string: 12:x"),
        (IN_STEP, "Matrix size-incompatible: In[0]: [3,4], In[1]: [5,3]"),
        (SEVERAL, "indices[1] = 9 is not in [0, 5)"),
        (EAGER, "StringToNumberOp could not"),
        ("", ""),
        ("Graph execution error:\n\n", "Graph execution error:"),
        (
            "ValueError: no\nTraceback (most recent call last):\n  ^^^^^^^\n  ~~^~~\n",
            "ValueError: no",
        ),
        ("no such column: [Op: x] was never a thing", "no such column: [Op: x] was never a thing"),
        (
            "\x1b[1mthe user's words\x1b[0m\n\nArguments received by Dense.call():\n  • x",
            "the user's words\nArguments received by Dense.call():\n  • x",
        ),
        ("\n".join(map(str, range(20))), "\n".join([*map(str, range(12)), "..."])),
    ],
)
def test_only_the_words_of_the_operation_are_left(message: str, left: str) -> None:
    assert short(message) == left


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            ValueError(
                'in user code:\n\n    File "/zoo/m.py", line 5, in loss  *\n        f()\n\n   '
                " ValueError: no\n"
            ),
            "ValueError: no",
        ),
        (ValueError("ValueError"), "ValueError"),
        (ValueError(), "ValueError"),
        (KeyError("auc"), "KeyError: 'auc'"),
    ],
)
def test_the_kind_of_an_error_is_said_once(error: Exception, said: str) -> None:
    assert summary(error, "loss") == f"loss raised {said}"


@pytest.mark.parametrize(
    ("message", "advice"),
    [
        ("Table not initialized.", "make lookup tables once"),
        ("Cannot take the length of shape with unknown rank.", "set_shape or tf.ensure_shape"),
        (
            "Binding inputs failed due to: <tf.Tensor 'Const:0' shape=() dtype=int64> is out of"
            " scope and cannot be used here. Please see",
            "from an earlier call",
        ),
        (
            "A KerasTensor cannot be used as input to a TensorFlow function. A KerasTensor is",
            "import elasticdl.model.tensorflow_functions",
        ),
        (
            "module 'tensorflow.keras.layers' has no attribute 'DenseFeatures'",
            "from elasticdl.preprocessing import feature_column",
        ),
    ],
)
def test_a_message_that_names_no_cause_gets_advice(message: str, advice: str) -> None:
    assert advice in described(ValueError(message), "the model", "/zoo").hint


@pytest.mark.parametrize(
    ("line", "advice"),
    [
        (
            "from elasticdl.python.common.constants import Mode",
            "other names here: Mode: from elasticdl.model.mode import Mode",
        ),
        (
            "from elasticdl_preprocessing.layers.hashing import Hashing",
            "Hashing: from elasticdl.preprocessing import Hashing",
        ),
        ("import elasticdl.python.master", "see “Come from the original ElasticDL”"),
    ],
)
def test_an_import_of_the_original_names_the_new_one(
    line: str, advice: str, tmp_path: Path
) -> None:
    (tmp_path / "old.py").write_text(f"{line}\n")
    with pytest.raises(ModuleNotFoundError) as caught:
        runpy.run_path(str(tmp_path / "old.py"))
    error = described(caught.value, "the import of old", str(tmp_path))
    assert "old.py:1" in error.message
    assert advice in error.hint


@pytest.mark.parametrize("name", original_names.IMPORTS)
def test_what_is_named_instead_can_be_imported(name: str) -> None:
    """Ours: names of Keras are its own."""
    instead = original_names.IMPORTS[name].partition(",")[0]
    if instead.startswith("from elasticdl"):
        _, module, _, found = instead.split()
        path = ROOT / module.replace(".", "/")
        file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        tree = ast.parse(file.read_text())
        classes = {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
        imported = {
            name.asname or name.name
            for node in tree.body
            if isinstance(node, ast.ImportFrom)
            for name in node.names
        }
        assert found in classes | imported

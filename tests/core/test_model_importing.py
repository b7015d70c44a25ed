"""Keras without what hardly anybody uses of it, and with it for whoever does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.core
PROGRAM = """
import sys
from elasticdl.model.tensorflow_import import load_tensorflow
load_tensorflow()
import keras
import tensorflow as tf
def converted(x):
    return x + 1
tf.function(converted)(1)  # AutoGraph looks at the files of all modules.
before = "sklearn" in sys.modules
tf_keras = sys.modules["keras._tf_keras"].keras
found = keras.wrappers.SKLearnClassifier, tf_keras.wrappers.SKLearnRegressor
print(before, "sklearn" in sys.modules, *(one.__name__ for one in found))
"""


def test_scikit_learn_is_imported_with_keras_by_those_only_who_use_its_wrappers(
    tmp_path: Path,
) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "program.py")],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stdout.split() == [
        "False",
        "True",
        "SKLearnClassifier",
        "SKLearnRegressor",
    ], done.stdout

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
before = "sklearn" in sys.modules
tf_keras = sys.modules["keras._tf_keras"].keras
found = keras.wrappers.SKLearnClassifier, tf_keras.wrappers.SKLearnRegressor
print(before, "sklearn" in sys.modules, *(one.__name__ for one in found))
"""


def test_scikit_learn_is_imported_with_keras_by_those_only_who_use_its_wrappers() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
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

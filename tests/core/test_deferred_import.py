"""Packages without what hardly anybody uses of them, and with it for whoever does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.core
KERAS = """
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
KUBERNETES = """
import sys
from elasticdl.cluster.kubernetes import apiserver
before = "google.auth" in sys.modules
import kubernetes
import kubernetes.client.exceptions
found = kubernetes.client.V1Pod, kubernetes.config.load_kube_config, kubernetes.aio.watch.Watch
print(before, "google.auth" in sys.modules, *(one.__name__ for one in found))
"""
ROOT = Path(__file__).parents[2]


def printed(program: str, folder: Path) -> list[str]:
    """The words that a program prints."""
    (folder / "program.py").write_text(program)
    done = subprocess.run(
        [sys.executable, str(folder / "program.py")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return done.stdout.split()


def test_scikit_learn_is_imported_with_keras_by_those_only_who_use_its_wrappers(
    tmp_path: Path,
) -> None:
    words = ["False", "True", "SKLearnClassifier", "SKLearnRegressor"]
    assert printed(KERAS, tmp_path) == words


def test_commands_on_a_cluster_import_what_they_use_of_the_client_only(tmp_path: Path) -> None:
    words = ["False", "True", "V1Pod", "load_kube_config", "Watch"]
    assert printed(KUBERNETES, tmp_path) == words

"""Packages without what hardly anybody uses of them, and with it for whoever does."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from elasticdl.deferred_import import executed_at_first_use

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
TENSORFLOW = """
import sys
from elasticdl.model.tensorflow_import import load_tensorflow
load_tensorflow()
import tensorflow as tf
LATER = (
    "tensorflow.lite.python.lite",
    "tensorflow.python.framework.test_util",
    "tensorflow.python.tpu.tpu_embedding",
    "scipy",
)
print(*(name in sys.modules for name in LATER))
print(tf.compat.v1.global_variables.__name__)
print(*(name in sys.modules for name in LATER))
import requests.adapters
from tensorflow.compat.v1 import tpu
from tensorflow.compat.v2.nn import relu
from tensorflow.python.keras.models import training_v1
used = (
    tf.compat.v1.train.AdamOptimizer,
    tf.compat.v1.compat.v2.keras.Model,
    tf.distribute.experimental.PreemptionCheckpointHandler,
    tf.lite.TFLiteConverter,
    tf.test.TestCase,
    training_v1.Model,
    requests.get,
    tpu.experimental.embedding.TPUEmbedding,
    relu,
)
print(*(one.__name__ for one in used))
print(tf.lite.OpsSet.__name__, tf.distribute.get_strategy.__name__)
before = dict(vars(tf))
for name, module in list(sys.modules.items()):
    if name.startswith("tensorflow._api.v2."):
        dir(module)
print([name for name in before if getattr(tf, name) is not before[name]])
"""
KUBERNETES = """
import asyncio
import sys
from elasticdl.cluster.kubernetes import apiserver
async def connect(context):
    await (await apiserver.connect(context, KUBECONFIG)).close()
for context in ("token", "exec"):
    asyncio.run(connect(context))
before = "google.auth" in sys.modules
import kubernetes
import kubernetes.client.exceptions
found = kubernetes.client.V1Pod, kubernetes.config.load_kube_config, kubernetes.aio.watch.Watch
print(before, "google.auth" in sys.modules, *(one.__name__ for one in found))
"""
CREDENTIAL = {
    "apiVersion": "client.authentication.k8s.io/v1",
    "kind": "ExecCredential",
    "status": {"token": "made"},
}
PLUGIN = "import pathlib, sys; pathlib.Path(sys.argv[1]).touch(); print(sys.argv[2])"
ROOT = Path(__file__).parents[2]


def kubeconfig(called: Path) -> str:
    """With a user that has a token, and one that has a plugin, which makes the file `called`."""
    plugin = {
        "apiVersion": CREDENTIAL["apiVersion"],
        "command": sys.executable,
        "args": ["-c", PLUGIN, str(called), json.dumps(CREDENTIAL)],
    }
    users = {"token": {"token": "known"}, "exec": {"exec": plugin}}
    contexts = [{"name": name, "context": {"cluster": "one", "user": name}} for name in users]
    return json.dumps(
        {
            "clusters": [{"name": "one", "cluster": {"server": "http://127.0.0.1:1"}}],
            "users": [{"name": name, "user": user} for name, user in users.items()],
            "contexts": contexts,
            "current-context": "token",
        }
    )


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


def test_parts_of_tensorflow_are_imported_by_those_only_who_use_them(tmp_path: Path) -> None:
    words = ["False"] * 4 + ["global_variables"] + ["False"] * 4
    words += ["AdamOptimizer", "Model", "PreemptionCheckpointHandler", "TFLiteConverterV2"]
    words += ["TensorFlowTestCase", "Model", "get", "TPUEmbedding", "relu"]
    assert printed(TENSORFLOW, tmp_path) == [*words, "OpsSet", "get_strategy", "[]"]


def test_commands_on_a_cluster_import_what_they_use_of_the_client_only(tmp_path: Path) -> None:
    words = ["False", "True", "V1Pod", "load_kube_config", "Watch"]
    config, called = tmp_path / "config", tmp_path / "called"
    config.write_text(kubeconfig(called))
    assert printed(f"KUBECONFIG = {str(config)!r}\n{KUBERNETES}", tmp_path) == words
    assert called.exists()


def test_a_module_whose_execution_fails_is_executed_again_at_its_next_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = "half = 1\nimport imported_by_it\nwhole = imported_by_it.value\n"
    (tmp_path / "executed_twice.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    try:
        with executed_at_first_use(["executed_twice"]):
            module = importlib.import_module("executed_twice")
        for name in ("whole", "half"):
            with pytest.raises(ModuleNotFoundError, match="imported_by_it"):
                getattr(module, name)
        (tmp_path / "imported_by_it.py").write_text("value = 2\n")
        importlib.invalidate_caches()
        assert (module.whole, module.half) == (2, 1)
        assert "__getattr__" not in vars(module)
        assert module.__spec__ is not None
        assert module.__loader__ is module.__spec__.loader
        assert type(module.__loader__).__name__ == "SourceFileLoader"
    finally:
        for name in ("executed_twice", "imported_by_it"):
            sys.modules.pop(name, None)

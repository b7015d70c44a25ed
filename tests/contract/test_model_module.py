"""Model modules are found and judged before anything starts; errors name the user's file and
line.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from elasticdl.errors import UserError
from elasticdl.job_flags import ModelSection
from elasticdl.model.module import ModelModule, load_module

pytestmark = pytest.mark.contract

GOOD = """
import keras
def custom_model(): return 1
def other(): return 2
def loss(labels, predictions): return 0
def optimizer(): return None
def feed(dataset, mode, metadata): return dataset
"""


def load(zoo: Path, model_def: str = "made", **files: str) -> ModelModule:
    for name, text in files.items():
        path = zoo / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return load_module(ModelSection(model_zoo=str(zoo), model_def=model_def))


def test_a_module_and_the_name_of_its_model(tmp_path: Path) -> None:
    assert load(tmp_path, made=GOOD).custom_model() == 1
    assert load(tmp_path, "made.other").custom_model() == 2


def test_packages_with_and_without_init(tmp_path: Path) -> None:
    assert load(tmp_path, "bare.inner.made.other", bare__inner__made=GOOD).custom_model() == 2
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "__init__.py").write_text(GOOD)
    assert load(tmp_path, "full").custom_model() == 1


def test_modules_find_their_siblings(tmp_path: Path) -> None:
    module = load(
        tmp_path,
        "siblings.made",
        siblings__made=GOOD + "from siblings.sizes import SIZE\n",
        siblings__sizes="SIZE = 7\n",
    )
    assert module.custom_model() == 1


def test_two_zoos_may_have_modules_of_the_same_name(tmp_path: Path) -> None:
    first = load(tmp_path / "a", made=GOOD)
    second = load(tmp_path / "b", made=GOOD.replace("return 1", "return 3"))
    assert (first.custom_model(), second.custom_model()) == (1, 3)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import keras\ndef custom_model(:\n", r"made\.py:2: SyntaxError"),
        (
            "def f():\n    return 1 / 0\nf()\n",
            r"made\.py:2: importing made raised ZeroDivisionError",
        ),
        ("import sys\nsys.exit(3)\n", r"made\.py:2: importing made called exit\(3\)"),
        ("import no_such_package\n", r"made\.py:1: importing made raised ModuleNotFoundError"),
        (GOOD.replace("def loss", "def los"), r"made\.py:1: loss is missing"),
        (GOOD.replace("def custom_model", "def model"), r"made\.py:1: custom_model is missing"),
        (GOOD.replace("def feed", "def food"), r"made\.py:1: feed is missing"),
        (GOOD + "optimizer = 3\n", r"made\.py:8: optimizer is 3, expected a function"),
        (
            GOOD.replace("loss(labels, predictions)", "loss(labels)"),
            r"made\.py:5: loss\(labels\) does not take",
        ),
        (
            GOOD.replace("feed(dataset, mode, metadata)", "feed(dataset)"),
            r"made\.py:7: feed\(dataset\) does not take",
        ),
        (
            GOOD + "class PredictionOutputsProcessor: pass\n",
            r"made\.py:8: PredictionOutputsProcessor has no method process",
        ),
    ],
)
def test_what_is_wrong_is_said_with_its_place(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        load(tmp_path, made=text)


def test_a_function_that_is_missing_may_be_an_imported_one(tmp_path: Path) -> None:
    text = GOOD.replace("def loss(labels, predictions)", "def _old(labels, predictions)")
    with pytest.raises(UserError, match="loss is missing") as caught:
        load(tmp_path, made=f"from losses import mean_loss\n{text}", losses="def mean_loss(): ...")
    assert caught.value.hint.endswith("it has: mean_loss, custom_model, feed, optimizer, other")


def test_only_the_users_frames_are_shown(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        load(tmp_path, made="import json\ndef f():\n    return json.loads('{')\nf()\n")
    assert "made.py:3" in caught.value.hint and "json/" not in caught.value.hint


@pytest.mark.parametrize("name", ["json", "keras"])
def test_a_module_named_like_an_installed_one_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match="name of an installed module"):
        load(tmp_path, name, **{name.replace(".", "__"): GOOD})


def test_a_module_that_is_not_there_lists_those_that_are(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such module") as caught:
        load(tmp_path, "mnist", made=GOOD)
    assert caught.value.hint == "found: made"


@pytest.mark.parametrize("name", ["", "../made", "made.py.x.y", "a b"])
def test_names_that_are_none(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError):
        load(tmp_path, name, made=GOOD)


def test_a_zoo_that_is_no_directory(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a directory"):
        load_module(ModelSection(model_zoo=str(tmp_path / "nowhere"), model_def="made"))

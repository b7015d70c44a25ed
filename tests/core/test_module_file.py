"""A wrong --model-def."""

from __future__ import annotations

from pathlib import Path

import pytest

from elasticdl.errors import UserError
from elasticdl.job import JobSpec
from elasticdl.job_choices import Action
from elasticdl.model.module_file import module_file

pytestmark = pytest.mark.core


@pytest.mark.parametrize(
    ("wanted", "first"),
    [
        ("mnst", "mnist"),
        ("zebra.cn.custom_model", "zebra.cnn"),
        ("zebra_cnn", "zebra.cnn"),
        ("quite_another", "a00"),
    ],
)
def test_the_hint_for_a_wrong_module_begins_with_the_nearest_names(
    tmp_path: Path, wanted: str, first: str
) -> None:
    for name in (*(f"a{number:02}" for number in range(20)), "mnist", "zebra/cnn"):
        path = tmp_path / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.touch()
    flags = {"model_zoo": str(tmp_path), "model_def": wanted, "training_data": "a.csv"}
    with pytest.raises(UserError, match="no such module") as caught:
        module_file(JobSpec.from_flags(Action.TRAIN, flags).model)
    names = caught.value.hint.removeprefix("found: ").split(", ")
    assert names[0] == first
    assert len(names) == len(set(names)) == 12


def written(tmp_path: Path, text: str, wanted: str = "iris.custom_modle") -> JobSpec:
    (tmp_path / "iris.py").write_text(text)
    flags = {"model_zoo": str(tmp_path), "model_def": wanted, "training_data": "a.csv"}
    return JobSpec.from_flags(Action.TRAIN, flags)


MODULE = """
def custom_model(): ...
def _custom_modle(): ...
def feed(dataset, mode, metadata): ...
class Net:
    def custom_modle(self): ...
"""


def test_a_wrong_function_fails_before_the_import_and_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"iris\.py has no 'custom_modle'") as caught:
        module_file(written(tmp_path, MODULE).model)
    assert caught.value.hint == "it defines: custom_model, Net, feed"


@pytest.mark.parametrize(
    "more",
    [
        "if True:\n    def custom_modle(): ...",
        "custom_modle = custom_model",
        "from other import custom_modle",
        "from other import model as custom_modle",
        "from other import *",
        "from other import*",
        "from other import  *",
        "globals()['custom_modle'] = custom_model",
        "vars()['custom_modle'] = custom_model",
        "locals()['custom_modle'] = custom_model",
        "import other\n\nother.__dict__['custom_modle'] = custom_model",
        "match custom_model:\n    case custom_modle: ...",
        "match [custom_model]:\n    case [*custom_modle]: ...",
        "match {}:\n    case {**custom_modle}: ...",
        f"total = {' + '.join(['1'] * 1201)}",
        "def make():\n    global custom_modle",
        "def broken(:",
    ],
)
def test_a_function_that_the_module_may_have_is_left_to_the_import(
    tmp_path: Path, more: str
) -> None:
    file = module_file(written(tmp_path, f"{MODULE}\n{more}\n").model)
    assert (file.name, file.attribute) == ("iris", "custom_modle")

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
    assert caught.value.hint == "it has: custom_model, Net, feed"


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
        "def make(x=(custom_modle := custom_model)): ...",
        "globals ()['custom_modle'] = custom_model",
        "getattr(__builtins__, 'glo' + 'bals')()['custom_modle'] = custom_model",
        "import helpers\n\nhelpers.bind(__name__)",
        "from . import helpers",
        "from helpers import bind\n\nbind(__name__)",
        "import an_installed_package",
        "import re as a_sibling",
        "def broken(:",
    ],
)
def test_a_function_that_the_module_may_have_is_left_to_the_import(
    tmp_path: Path, more: str
) -> None:
    (tmp_path / "re.py").touch()
    file = module_file(written(tmp_path, f"{MODULE}\n{more}\n").model)
    assert (file.name, file.attribute) == ("iris", "custom_modle")
    assert not file.reads_files or "custom_modle" in more


def test_a_function_that_a_package_may_bind_is_left_to_the_import(tmp_path: Path) -> None:
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist/cnn.py").write_text(MODULE)
    (tmp_path / "mnist/__init__.py").write_text("from . import cnn\n\ncnn.custom_modle = 1\n")
    file = module_file(written(tmp_path, MODULE, "mnist.cnn.custom_modle").model)
    assert (file.name, file.attribute) == ("mnist.cnn", "custom_modle")


def test_what_needs_no_sibling_binds_no_other_name(tmp_path: Path) -> None:
    """The modules of most zoos: a mistyped function is refused before TensorFlow's import."""
    imports = "import os.path\n\nimport keras\nimport numpy as np\nimport tensorflow as tf\n"
    imports += "from elasticdl.model.layers import Embedding\nfrom keras.layers import Dense\n"
    says = '"""It has no globals()."""  # nor exec\n'
    with pytest.raises(UserError, match=r"iris\.py has no 'custom_modle'") as caught:
        module_file(written(tmp_path, says + imports + MODULE).model)
    assert caught.value.hint == "it has: custom_model, Net, feed, Dense, Embedding"


def test_an_imported_function_is_named(tmp_path: Path) -> None:
    text = "from keras import applications as nets\nfrom keras import Sequential as sequential\n"
    with pytest.raises(UserError) as caught:
        module_file(written(tmp_path, text, "iris.sequentail").model)
    assert caught.value.hint == "it has: sequential, nets"


@pytest.mark.parametrize(
    ("wanted", "message", "hint"),
    [
        ("iris.py", r"iris\.py has no 'py'", "give the module without .py: --model-def iris"),
        ("mnist/cnn.py", "is not a dotted name", "use dots: --model-def mnist.cnn"),
        ("mnist/cnn", "is not a dotted name", "use dots: --model-def mnist.cnn"),
        ("{zoo}/mnist/cnn.py", "is not a dotted name", "use dots: --model-def mnist.cnn"),
        ("{zoo}-link/mnist/cnn.py", "is not a dotted name", "use dots: --model-def mnist.cnn"),
        ("mnist/none.py", "is not a dotted name", "examples: `iris`, `mnist.cnn`"),
        ("../x.py", "is not a dotted name", "examples: `iris`, `mnist.cnn`"),
        ("x" * 300, "File name too long", "give --model-def as `iris` or `mnist.cnn`"),
        (
            "iris.Net.custom_modle",
            "iris is a module, and only one name may follow it",
            "use iris.Net, or bind Net.custom_modle to a name at the top of iris",
        ),
        (
            "mnist.cnn.Net.a.b",
            "mnist.cnn is a module, and only one name may follow it",
            "use mnist.cnn.Net, or bind Net.a.b to a name at the top of mnist.cnn",
        ),
    ],
)
def test_what_is_near_a_dotted_name_gets_its_hint(
    tmp_path: Path, wanted: str, message: str, hint: str
) -> None:
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist/cnn.py").write_text(MODULE)
    tmp_path.with_name(f"{tmp_path.name}-link").symlink_to(tmp_path)
    wanted = wanted.format(zoo=tmp_path)
    with pytest.raises(UserError, match=message) as caught:
        module_file(written(tmp_path, MODULE, wanted).model)
    assert caught.value.hint.startswith(hint)


def test_a_zoo_with_a_name_that_cannot_be_is_an_error_of_its_flag(tmp_path: Path) -> None:
    flags = {"model_zoo": str(tmp_path / ("x" * 300)), "model_def": "m", "training_data": "a.csv"}
    with pytest.raises(UserError, match="File name too long"):
        module_file(JobSpec.from_flags(Action.TRAIN, flags).model)


def test_modules_are_looked_for_in_a_bounded_number_of_folders(tmp_path: Path) -> None:
    """With `--model-zoo /` it would take minutes, and end with an error of /proc."""
    for name in ("near", ".venv/far", "python3.11/far", "__pycache__/far"):
        path = tmp_path / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.touch()
    for number in range(600):
        (tmp_path / f"a{number:03}").mkdir()
    (tmp_path / "a002" / "found.py").touch()
    (tmp_path / "a599" / "not_found.py").touch()
    flags = {"model_zoo": str(tmp_path), "model_def": "m", "training_data": "a.csv"}
    with pytest.raises(UserError, match="no such module") as caught:
        module_file(JobSpec.from_flags(Action.TRAIN, flags).model)
    assert caught.value.hint == "found: a002.found, near"

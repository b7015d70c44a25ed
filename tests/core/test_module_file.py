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

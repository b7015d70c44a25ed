"""An image of the core's state stands for all events before it."""

from __future__ import annotations

import json
import random
from pathlib import PurePath
from typing import Any

import pytest

from elasticdl.master.core.data.counts import EpochCount
from elasticdl.master.core.image import image_of, restore
from elasticdl.master.core.state import JobState
from tests.core.random_history import SPEC, Script, canonical

pytestmark = pytest.mark.core

CONSTANTS = {"spec": SPEC}


def copy_of(state: JobState) -> JobState:
    """Return another state from an image that went through JSON."""
    image = json.loads(json.dumps(image_of(state, CONSTANTS)))
    twin = JobState(SPEC)
    restore(twin, image, CONSTANTS)
    return twin


@pytest.mark.parametrize("seed", range(25))
def test_a_state_from_an_image_is_equal_and_decides_alike(seed: int) -> None:
    script, state = Script(random.Random(seed)), JobState(SPEC)
    twin = copy_of(state)
    for number in range(250):
        if number % 20 == 0:
            twin = copy_of(state)
            assert canonical(twin) == canonical(state)
        event = script.next()
        commands = state.handle(event)
        assert twin.handle(event) == commands
        script.heard(commands)


def test_an_image_leaves_out_what_a_value_is_made_with_anyway() -> None:
    name = "elasticdl.master.core.data.counts:EpochCount"
    required = {"epoch": 0, "expected": 10, "unfinished": 2}
    assert image_of(EpochCount(0, 10, 2), {}) == [[name, required]]
    (_, state), *_ = image_of(EpochCount(0, 10, 2, repeated=5, bad=0), {})
    assert state == required | {"repeated": 5}
    # Equal values of other types are not the same: JSON keeps them apart.
    (_, state), *_ = image_of(EpochCount(0, 10, 2, bad=False), {})
    assert state == required | {"bad": False}


def test_an_image_goes_into_the_objects_that_a_state_was_made_with() -> None:
    """Others refer to them: a second ledger of the same state would drift away from the first."""
    image, twin = image_of(JobState(SPEC), CONSTANTS), JobState(SPEC)
    before = {name: id(part) for name, part in vars(twin._parts).items()}
    restore(twin, image, CONSTANTS)
    assert {name: id(part) for name, part in vars(twin._parts).items()} == before


def test_an_image_without_a_field_that_has_no_default_is_refused() -> None:
    image = image_of(EpochCount(0, 10, 2), {})
    del image[0][1]["expected"]
    with pytest.raises(ValueError, match=r"EpochCount differs in \['expected'\]"):
        restore(EpochCount(0, 0, 0), image, {})


def test_a_field_that_an_image_leaves_out_gets_its_default() -> None:
    count = EpochCount(1, 2, 3, bad=4)
    restore(count, image_of(EpochCount(0, 10, 2, trained=7), {}), {})
    assert count == EpochCount(0, 10, 2, trained=7)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("unknown", 1, "unknown"),
        ("_context", ["object", 10**6], "not an image of this version"),
        ("_context", ["value", "os:system", {}], "unknown class"),
        ("_context", ["value", "elasticdl.master.core.state:os", {}], "unknown class"),
        ("_context", ["value", "nowhere:None", {}], "unknown class"),
        (
            "_context",
            ["value", "elasticdl.master.core.state:JobState", {}],  # It is not frozen.
            "is not what the image says",
        ),
    ],
)
def test_an_image_of_another_version_or_with_other_classes_is_refused(
    field: str, value: Any, message: str
) -> None:
    image = image_of(JobState(SPEC), CONSTANTS)
    image[0][1][field] = value
    with pytest.raises(ValueError, match=message):
        restore(JobState(SPEC), image, CONSTANTS)


def test_a_state_with_a_value_of_a_foreign_class_has_no_image() -> None:
    count: Any = EpochCount(0, 10, 2)
    count.trained = PurePath("a")
    with pytest.raises(TypeError, match="use plain values"):
        image_of(count, {})

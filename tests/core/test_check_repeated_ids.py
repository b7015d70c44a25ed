"""What `check` says of a minibatch that repeats ids."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from elasticdl.cli.verbs import check

pytestmark = pytest.mark.core


@pytest.mark.parametrize("kind", ["adam", "adagrad", "ftrl"])
def test_an_optimizer_that_squares_gradients_is_named(kind: str) -> None:
    text = check._about_repeated_ids({"optimizer": {"kind": kind}, "repeated_ids": True})
    assert f"before {kind} squares them" in text


@pytest.mark.parametrize(
    "model",
    [
        {},
        {"optimizer": None, "repeated_ids": True},
        {"optimizer": {"kind": "adam"}, "repeated_ids": False},
        {"optimizer": {"kind": "sgd"}, "repeated_ids": True},
    ],
)
def test_where_it_makes_no_difference_nothing_is_said(model: Mapping[str, Any]) -> None:
    assert check._about_repeated_ids(model) == ""

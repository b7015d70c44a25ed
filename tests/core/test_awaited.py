"""What a job waits for has one text everywhere, and the reference lists it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from elasticdl.history.awaited import Awaited, awaited_text

pytestmark = pytest.mark.core

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "files.md"


def test_everything_awaited_has_a_text_of_its_own() -> None:
    assert len({awaited_text(each) for each in Awaited}) == len(Awaited)


def test_a_value_of_another_version_is_its_own_text() -> None:
    assert awaited_text("quorum") == "quorum"


def test_the_reference_lists_everything_that_an_event_can_wait_for() -> None:
    (row,) = re.findall(r"^\| `wait` \|.*?`wait` \((.*?)\)", PAGE.read_text(), re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", row)) == set(Awaited) - {Awaited.MASTER}

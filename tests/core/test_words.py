"""How counts are said."""

from __future__ import annotations

import pytest

from elasticdl.words import amount

pytestmark = pytest.mark.core


@pytest.mark.parametrize(
    ("number", "said"),
    [(0, "0 records"), (1, "1 record"), (2, "2 records"), (1437, "1,437 records"), (1_000_000, "1,000,000 records")],
)
def test_one_is_said_without_an_s_and_many_with_commas(number, said):
    assert amount(number, "record") == said


def test_a_plural_of_its_own_is_said():
    assert (amount(1, "entry", "entries"), amount(2, "entry", "entries")) == ("1 entry", "2 entries")

"""Which of many things a tick looks at."""

from __future__ import annotations

import pytest

from elasticdl.master.core.tick_share import is_turn, share_of_tick, ticks_for_all

pytestmark = pytest.mark.core


def test_a_tick_looks_at_all_of_a_thousand_things_and_at_thousands_by_turns() -> None:
    few = list(range(1_000))
    assert all(share_of_tick(few, second) == few for second in range(3))
    assert is_turn(1_000, 7.3)
    many = list(range(9_500))
    for began_s in (0.0, 17.9):
        shares = [share_of_tick(many, began_s + tick) for tick in range(ticks_for_all(9_500))]
        assert max(map(len, shares)) <= 1_000
        assert sorted(one for share in shares for one in share) == many
        turns = [is_turn(9_500, began_s + tick) for tick in range(ticks_for_all(9_500))]
        assert turns.count(True) == 1
    assert share_of_tick([], 3.0) == []

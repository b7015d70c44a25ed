"""The state of a member becomes another's; one that has something to lose gets all of it or, where
the ring breaks, nothing.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

from elasticdl.worker.ring.base import RingBroken
from elasticdl.worker.ring.exchange import Exchange
from tests.contract.played_ring import PlayedRing

pytestmark = pytest.mark.contract

CHUNK_BYTES = 32
DTYPES = ("float32", "float64", "int64", "bool", "float16", "bfloat16", "uint32")


class Wire(PlayedRing):
    """A ring of two: what the one that gives sent is there when the other asks for it, as long as
    the ring holds.
    """

    def __init__(self) -> None:
        self.sent: dict[str, np.ndarray] = {}
        self.asked: list[str] = []
        self.breaks_at: int | None = None
        """Of the exchanges of one that takes, the one in which the ring breaks."""

    def met(self, name: str, mine: Any) -> Any:
        if len(mine):
            self.sent[name] = mine.numpy()
            return mine
        if len(self.asked) == self.breaks_at:
            raise ConnectionResetError("the peer is gone")
        self.asked.append(name)
        return self.sent[name]


def variables(first: int) -> list[keras.Variable]:
    """Of all kinds of types, most of them smaller than a chunk, one of them larger, one without a
    dimension.
    """
    made = []
    for dtype in DTYPES:
        for place, shape in enumerate([(), (3,), (2, 2), (5, 4)]):
            value = np.full(shape, first + place)
            if dtype == "bool":
                value = np.arange(first, first + value.size).reshape(shape) % 2
            made.append(keras.Variable(value, dtype=dtype, trainable=False))
    return made


def values(exchange: Exchange) -> list[bytes]:
    return [one.tobytes() for one in exchange.copied()]


def two_members() -> tuple[Wire, Exchange, Exchange]:
    """(wire, the one that gives, the one that takes)."""
    wire = Wire()
    giver, taker = (Exchange(wire, variables(first), chunk_bytes=CHUNK_BYTES) for first in (1, 40))
    assert values(giver) != values(taker)
    giver.hand_over(giving=True)
    assert len(wire.sent) > 8
    return wire, giver, taker


@pytest.mark.parametrize("whole", [False, True])
def test_the_one_that_takes_has_every_value_of_the_one_that_gives(whole: bool) -> None:
    wire, giver, taker = two_members()
    before = values(giver)
    taker.hand_over(giving=False, whole=whole)
    assert values(taker) == values(giver) == before
    assert sorted(wire.asked) == sorted(wire.sent)


def test_a_hand_over_that_breaks_at_any_place_leaves_the_receiver_as_it_was() -> None:
    """It may be the only one left, and what the master counts on: half of another's weights are
    nobody's.
    """
    wire, giver, taker = two_members()
    before = values(taker)
    for place in range(len(wire.sent)):
        wire.breaks_at, wire.asked = place, []
        with pytest.raises(RingBroken):
            taker.hand_over(giving=False, whole=True)
        assert values(taker) == before, f"the ring broke in exchange {place} of {len(wire.sent)}"
    wire.breaks_at, wire.asked = None, []
    taker.hand_over(giving=False, whole=True)
    assert values(taker) == values(giver)


def test_values_that_are_loaded_are_those_that_were_copied() -> None:
    _, giver, taker = two_members()
    taker.load(giver.copied())
    assert values(taker) == values(giver)

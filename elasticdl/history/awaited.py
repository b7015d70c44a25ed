"""What a job may wait for, and how messages name it."""

from __future__ import annotations

from enum import StrEnum
from typing import assert_never


class Awaited(StrEnum):
    """What a job waits for, in `details["wait"]`."""

    MASTER = "master"
    """No master runs: only a later diagnosis reports this wait."""
    PLACE = "place"
    SERVERS = "servers"
    WORK = "work"
    RING = "ring"
    STEP = "step"
    """Gradients of a synchronous step."""
    PUSHES = "pushes"
    """Pushes that workers make again for a server that lost them."""
    CODE = "code"
    """User code that takes long."""

    @property
    def text(self) -> str:
        """What follows "waiting for" in messages."""
        match self:
            case Awaited.MASTER:
                return "a master"
            case Awaited.PLACE:
                return "processes to be scheduled"
            case Awaited.SERVERS:
                return "parameter servers"
            case Awaited.WORK:
                return "work"
            case Awaited.RING:
                return "the ring"
            case Awaited.STEP:
                return "the gradients of a step"
            case Awaited.PUSHES:
                return "repeated pushes"
            case Awaited.CODE:
                return "user code"
            case _:
                assert_never(self)


def awaited_text(value: str) -> str:
    """Return the text for a recorded value; a value of another version is its own text."""
    try:
        return Awaited(value).text
    except ValueError:
        return value

"""What a job may wait for, and how messages name it."""

from __future__ import annotations

from enum import StrEnum
from typing import Self


class Awaited(StrEnum):
    """What a job waits for, in `details["wait"]`."""

    text: str
    """What follows "waiting for" in messages."""

    def __new__(cls, value: str, text: str = "") -> Self:
        member = str.__new__(cls, value)
        member._value_, member.text = value, text
        return member

    MASTER = "master", "a master"
    """No master runs: only a later diagnosis reports this wait."""
    PLACE = "place", "processes to be scheduled"
    SERVERS = "servers", "parameter servers"
    WORK = "work", "work"
    RING = "ring", "the ring"
    STEP = "step", "the gradients of a step"
    PUSHES = "pushes", "repeated pushes"
    """Pushes that workers make again for a server that lost them."""
    CODE = "code", "user code"
    """User code that takes long."""
    TRAIN_END = "train_end", "on_train_end of callbacks"
    """Of a job that is done."""


def awaited_text(value: str) -> str:
    """Return the text for a recorded value; a value of another version is its own text."""
    try:
        return Awaited(value).text
    except ValueError:
        return value

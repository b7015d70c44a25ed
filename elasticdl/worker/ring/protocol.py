"""The ring as the trainer sees it: what members reduce, gather and hand over among themselves.

A ring lives from `enter` to `leave`. Whatever goes wrong in between, on any member, is one
exception: `RingBroken`.
This module imports neither TensorFlow nor Horovod, so that a ring can be played without them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from elasticdl.errors import TransientError

Tensor: TypeAlias = Any
"""A TensorFlow tensor (the package has no types)."""


class RingBroken(TransientError):
    """A member is gone, or the ring could not be formed: leave it, and wait for the next one."""


@dataclass(frozen=True, slots=True)
class RingPlace:
    """Where this process stands in one generation.

    `rendezvous` is HOST:PORT/SCOPE, '' for a ring of one.
    """

    generation: int
    rank: int
    size: int
    rendezvous: str = ""


class Ring(Protocol):
    """One thread at a time, except that `reduced` and `gathered` are called while a function is
    traced.

    Every method after `enter` must be called by all members, in the same order; all raise
    RingBroken.
    """

    def enter(self, place: RingPlace) -> None:
        """Meet the other members; blocks until all are there, or the rendezvous is withdrawn."""

    def leave(self) -> None:
        """Close every connection; nothing if there is none. Never raises."""

    def reduced(self, name: str, tensor: Tensor) -> Tensor:
        """In a graph: the sum over all members, bit for bit the same on all."""

    def gathered(self, name: str, tensor: Tensor) -> Tensor:
        """In a graph: all members' rows in the order of their ranks."""

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Calls of compiled functions that reduce go in here: a broken ring raises RingBroken, all
        else is unchanged.
        """
        yield

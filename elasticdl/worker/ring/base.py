"""The ring as the trainer uses it: reductions, gathers and transfers among members.

A ring lives from `enter` to `leave`. Any failure in between, on any member, is one exception:
`RingBroken`. This module imports neither TensorFlow nor Horovod, so that a ring can be simulated
without them.
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
    """A member is gone, or the ring could not form: leave it, and wait for the next one."""


@dataclass(frozen=True, slots=True)
class RingMembership:
    """This process's membership in one generation.

    `rendezvous` is HOST:PORT/SCOPE, '' for a ring of one.
    """

    generation: int
    rank: int
    size: int
    rendezvous: str = ""


class Ring(Protocol):
    """A ring's operations; one thread at a time.

    An exception are `reduced` and `gathered`, which are called while a function is traced. All
    members must call every method after `enter`, in the same order; all raise RingBroken.
    """

    def enter(self, membership: RingMembership) -> None:
        """Meet the other members; blocks until all have come, or the rendezvous is withdrawn."""

    def leave(self) -> None:
        """Close all connections, if any. Never raises."""

    def reduced(self, name: str, tensor: Tensor) -> Tensor:
        """Return, in a graph, the sum over all members; it has the same bits on all."""

    def gathered(self, name: str, tensor: Tensor) -> Tensor:
        """Return, in a graph, all members' rows in the order of their ranks."""

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Wrap calls of compiled functions that reduce, so that a broken ring raises RingBroken.

        Other errors pass.
        """
        yield

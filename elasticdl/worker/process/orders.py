"""The thread that hears what the master wants of this worker."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import assert_never, final

from elasticdl.rpc.conversation import (
    Drain,
    Finish,
    Order,
    Revoke,
    RingDrop,
    RingGeneration,
    RingSave,
    Servers,
    TellState,
)
from elasticdl.worker.process.shutdown import Done, Draining, Shutdown

_log = logging.getLogger(__name__)


@final
class Orders:
    """`move` is told the servers' addresses, each time and before anything else.

    `ring` takes the orders of a ring. `tell_state` is called when the master wants the whole state.
    """

    def __init__(
        self,
        orders: Callable[[], Iterable[Order]],
        shutdown: Shutdown,
        *,
        move: Callable[[Sequence[str]], None],
        ring: Callable[[RingGeneration | RingSave | RingDrop], None],
        tell_state: Callable[[], None],
    ) -> None:
        self._orders = orders
        self._move = move
        self._shutdown = shutdown
        self._lock = threading.Lock()
        self._revoke: Callable[[int], None] | None = None
        self._revocation: int | None = None
        self._ring = ring
        self._tell_state = tell_state

    def start(self) -> None:
        """Begin to listen."""
        threading.Thread(target=self._run, name="orders", daemon=True).start()

    def revoke_by(self, revoke: Callable[[int], None]) -> None:
        """From now on the revocation that a revocation begins is passed on; so is one that came
        before there was anything to revoke.
        """
        with self._lock:
            self._revoke = revoke
            revocation, self._revocation = self._revocation, None
        if revocation is not None:
            revoke(revocation)

    def _run(self) -> None:
        try:
            for order in self._orders():
                self._follow(order)
                if self._shutdown:
                    return
        except Exception as error:  # noqa: BLE001 - the top of a thread: it ends the worker visibly
            self._shutdown.fail(error)

    def _follow(self, order: Order) -> None:
        match order:
            case Drain(reason):
                _log.info("the master asks this worker to go: %s", reason)
                self._shutdown.end(Draining(reason))
            case Revoke(reason, revocation):
                _log.info("leases are void: %s", reason)
                self._pass_on_revocation(revocation)
            case Servers(addresses):
                self._move(addresses)
            case RingGeneration() | RingSave() | RingDrop():
                self._ring(order)
            case TellState():
                self._tell_state()
            case Finish():
                self._shutdown.end(Done())
            case _:
                assert_never(order)

    def _pass_on_revocation(self, revocation: int) -> None:
        with self._lock:
            revoke = self._revoke
            self._revocation = revocation if revoke is None else None
        if revoke is not None:
            revoke(revocation)

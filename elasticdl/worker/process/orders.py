"""The thread that receives the master's orders."""

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
    """Follows the master's orders; `move` receives the servers' addresses, before anything else.

    `ring` handles orders of a ring. `tell_state` is called when the master requests the whole
    state.
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
        """Start the thread."""
        threading.Thread(target=self._run, name="orders", daemon=True).start()

    def revoke_by(self, revoke: Callable[[int], None]) -> None:
        """Send revocations there from now on, including one that came before."""
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
                _log.info("the master asks this worker to drain: %s", reason)
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

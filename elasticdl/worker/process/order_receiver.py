"""The thread that receives the master's orders."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from typing import assert_never, final

from elasticdl.errors import Refused
from elasticdl.rpc.conversation import (
    Drain,
    Finish,
    Load,
    Order,
    Restore,
    Revoke,
    RingDrop,
    RingGeneration,
    RingSave,
    Servers,
    Settled,
    TellState,
)
from elasticdl.worker.process.shutdown import Done, Draining, Failed, Shutdown

_log = logging.getLogger(__name__)


@final
class OrderReceiver:
    """Follows the master's orders; `move` receives the servers' addresses, before anything else.

    `revoke` voids leases, `ring` handles orders of a ring, and `tell_state` is called when the
    master requests the whole state.
    """

    def __init__(
        self,
        orders: Callable[[], Iterable[Order]],
        shutdown: Shutdown,
        *,
        move: Callable[[Servers], None],
        revoke: Callable[[int], None],
        ring: Callable[[RingGeneration | RingSave | RingDrop], None],
        tell_state: Callable[[], None],
        settled: Callable[[Settled], None] = lambda order: None,
    ) -> None:
        """`settled` hears what became of pushes in synchronous steps."""
        self._orders = orders
        self._move = move
        self._shutdown = shutdown
        self._revoke = revoke
        self._ring = ring
        self._tell_state = tell_state
        self._settled = settled

    def start(self) -> None:
        threading.Thread(target=self._run, name="orders", daemon=True).start()

    def _run(self) -> None:
        try:
            for order in self._orders():
                self._follow(order)
                # A worker that drains still waits for the outcome of its last gradients.
                if isinstance(self._shutdown.reason, Done | Failed):
                    return
        except Exception as error:  # noqa: BLE001 - the top of a thread: it ends the worker visibly
            # The master fences a worker that has returned its leases.
            if not (isinstance(error, Refused) and isinstance(self._shutdown.reason, Draining)):
                self._shutdown.fail(error)

    def _follow(self, order: Order) -> None:
        match order:
            case Drain(reason, grace_s):
                _log.info("the master asks this worker to drain within %g s: %s", grace_s, reason)
                self._shutdown.drain(reason, grace_s)
            case Revoke(reason, revocation):
                _log.info("leases are void: %s", reason)
                self._revoke(revocation)
            case Servers():
                self._move(order)
            case Load() | Restore():
                pass  # For servers only.
            case RingGeneration() | RingSave() | RingDrop():
                self._ring(order)
            case Settled():
                self._settled(order)
            case TellState():
                self._tell_state()
            case Finish():
                self._shutdown.end(Done())
            case _:
                assert_never(order)

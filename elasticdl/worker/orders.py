"""The thread that hears what the master wants of this worker."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import assert_never, final

from elasticdl.rpc.conversation import Drain, Finish, Order, Revoke, RingDrop, RingForm, RingSave, Servers
from elasticdl.worker.ending import Done, Draining, Ending

_log = logging.getLogger(__name__)


@final
class Orders:
    """`move` is told the servers' addresses, each time and before anything else."""

    def __init__(self, orders: Callable[[], Iterable[Order]], move: Callable[[Sequence[str]], None], ending: Ending) -> None:
        self._orders = orders
        self._move = move
        self._ending = ending
        self._lock = threading.Lock()
        self._revoke: Callable[[int], None] | None = None
        self._era: int | None = None
        self._ring: Callable[[RingForm | RingSave | RingDrop], None] = lambda _: None

    def ring_by(self, ring: Callable[[RingForm | RingSave | RingDrop], None]) -> None:
        """Orders of the ring go there. Call it before `start`."""
        self._ring = ring

    def start(self) -> None:
        """Begin to listen."""
        threading.Thread(target=self._run, name="orders", daemon=True).start()

    def revoke_by(self, revoke: Callable[[int], None]) -> None:
        """From now on the era that a revocation begins is passed on; so is one that came before there was anything to revoke."""
        with self._lock:
            self._revoke = revoke
            era, self._era = self._era, None
        if era is not None:
            revoke(era)

    def _run(self) -> None:
        try:
            for order in self._orders():
                self._follow(order)
                if self._ending:
                    return
        except Exception as error:  # noqa: BLE001 - the top of a thread: it ends the worker visibly
            self._ending.fail(error)

    def _follow(self, order: Order) -> None:
        match order:
            case Drain(reason):
                _log.info("the master asks this worker to go: %s", reason)
                self._ending.end(Draining(reason))
            case Revoke(reason, era):
                _log.info("leases are void: %s", reason)
                self._pass_on_revocation(era)
            case Servers(addresses):
                self._move(addresses)
            case RingForm() | RingSave() | RingDrop():
                self._ring(order)
            case Finish():
                self._ending.end(Done())
            case _:
                assert_never(order)

    def _pass_on_revocation(self, era: int) -> None:
        with self._lock:
            revoke = self._revoke
            self._era = era if revoke is None else None
        if revoke is not None:
            revoke(era)

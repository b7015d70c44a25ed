"""The thread that hears what the master wants of this worker."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import assert_never, final

from elasticdl.rpc.conversation import Drain, Finish, Order, Revoke, Servers
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
        self._revoke: Callable[[], None] | None = None
        self._revoked = False

    def start(self) -> None:
        """Begin to listen."""
        threading.Thread(target=self._run, name="orders", daemon=True).start()

    def revoke_by(self, revoke: Callable[[], None]) -> None:
        """From now on a revocation is passed on; one that came before there was anything to revoke from is, too."""
        with self._lock:
            self._revoke = revoke
            revoked, self._revoked = self._revoked, False
        if revoked:
            revoke()

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
            case Revoke(reason):
                _log.info("leases are void: %s", reason)
                self._pass_on_revocation()
            case Servers(addresses):
                self._move(addresses)
            case Finish():
                self._ending.end(Done())
            case _:
                assert_never(order)

    def _pass_on_revocation(self) -> None:
        with self._lock:
            revoke = self._revoke
            self._revoked = revoke is None
        if revoke is not None:
            revoke()

"""Limit the page's connections: those without the token make room for new ones."""

from __future__ import annotations

import asyncio
from typing import Final, Protocol, final


class _Connection(Protocol):
    transport: asyncio.Transport | None


@final
class ConnectionLimiter:
    """The page's connections; `most` in all.

    A connection is a stranger's until it has shown the token. Strangers get half of them. A new one
    replaces the oldest, so strangers that came early keep no other caller out.
    """

    def __init__(self, most: int) -> None:
        self._most_known: Final = max(1, most - most // 2)
        self._most_strangers: Final = max(1, most // 2)
        self._strangers: dict[_Connection, bool] = {}
        """By age; whether it has sent a request."""
        self._known: set[_Connection] = set()

    def enter(self, connection: _Connection) -> None:
        """Take a new connection; hang up on the oldest stranger if there are too many."""
        self._strangers[connection] = False
        if len(self._strangers) > self._most_strangers:
            self._hang_up(next(iter(self._strangers)))

    def leave(self, connection: _Connection) -> None:
        """Forget a connection that has ended."""
        self._strangers.pop(connection, None)
        self._known.discard(connection)

    def asked(self, connection: _Connection) -> None:
        """Note that a stranger sent a request."""
        if connection in self._strangers:
            self._strangers[connection] = True

    def showed_token(self, connection: _Connection) -> None:
        """Keep this connection for as long as its owner wants it; hang up if there are too many."""
        if self._strangers.pop(connection, None) is None:
            return
        self._known.add(connection)
        if len(self._known) > self._most_known:
            self._hang_up(connection)

    def expect_request(self, connection: _Connection) -> None:
        """Hang up on a stranger that has sent no request so far."""
        if self._strangers.get(connection) is False:
            self._hang_up(connection)

    def _hang_up(self, connection: _Connection) -> None:
        self.leave(connection)
        if connection.transport is not None:
            connection.transport.abort()

"""Ports that no other program gets before their master listens, or while it is away.

A reservation is a bound socket that does not listen, so that clients are refused at once. The
master's own socket may listen on the same port because both have SO_REUSEPORT. The system gives a
reserved port to no outgoing connection either.
"""

from __future__ import annotations

import socket
from typing import final


@final
class PortReservations:
    """The reserved ports of a job, by key."""

    def __init__(self) -> None:
        self._sockets: dict[str, socket.socket] = {}

    def reserve(self, key: str, host: str, port: int) -> int:
        """Return the port of this key; the first call reserves it. 0 selects any free port.

        Raises OSError if the port is taken.
        """
        if key not in self._sockets:
            self._sockets[key] = _reserved(host, port)
        return int(self._sockets[key].getsockname()[1])

    def close(self) -> None:
        """Give all ports back."""
        for sock in self._sockets.values():
            sock.close()
        self._sockets.clear()


def _reserved(host: str, port: int) -> socket.socket:
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        if port:
            _take(sock, host, port)
        else:
            sock.bind((host, 0))
        # Only now: a socket with this option would have shared the port with another job's.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    except OSError:
        sock.close()
        raise
    return sock


def _take(sock: socket.socket, host: str, port: int) -> None:
    """Bind to a port as a server does, although old connections to it may linger.

    SO_REUSEADDR alone would also accept a port that another job has reserved. To listen for a
    moment finds that out, and Linux keeps the port of a socket that stops listening.
    """
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind((host, port))
    sock.listen(1)
    sock.shutdown(socket.SHUT_RD)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)

"""A way to a server that can be cut and mended, as a cable can."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress


class Relay:
    """Listens on a port of its own and passes bytes on."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._open: list[socket.socket] = []
        self._lock = threading.Lock()
        self._cut = False
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def cut(self) -> None:
        """All connections break, new ones are closed at once."""
        with self._lock:
            self._cut = True
            for one in self._open:
                with suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
            self._open.clear()

    def mend(self) -> None:
        with self._lock:
            self._cut = False

    def close(self) -> None:
        self.cut()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(timeout=10)
            assert not thread.is_alive()

    def _accept(self) -> None:
        while True:
            try:
                here, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                if self._cut:
                    here.close()
                    continue
                there = socket.create_connection(("127.0.0.1", self._port))
                self._open += [here, there]
                for source, target in ((here, there), (there, here)):
                    self._threads.append(threading.Thread(target=_pass_on, args=(source, target)))
                    self._threads[-1].start()


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    for one in (source, target):
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
    source.close()

"""A master of a test's own, served to real clients from a thread."""

from __future__ import annotations

import asyncio
import ssl
import threading

from elasticdl.rpc.call_server import CallServer
from elasticdl.rpc.channel import Caller, Proof

LIMIT_S = 20.0


class ServedCalls:
    """Serves an object with a coroutine function for each call that a test needs."""

    def __init__(
        self, service: object, proof: Proof, context: ssl.SSLContext | None = None
    ) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._server = CallServer(proof, context)
        self._server.serve(service, self._check)
        starting = asyncio.run_coroutine_threadsafe(self._server.start("127.0.0.1", 0), self._loop)
        self.address = f"127.0.0.1:{starting.result(LIMIT_S)}"

    @staticmethod
    def _check(caller: Caller, method: str) -> str:
        return ""

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._server.close(), self._loop).result(LIMIT_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(LIMIT_S)
        self._loop.close()

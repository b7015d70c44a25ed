"""Calls to a master, from threads: a loop in a thread of its own makes them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import CancelledError, Future
from functools import partial
from queue import SimpleQueue
from typing import Any, Final, TypeVar, final

import grpc
from google.protobuf.message import Message

from elasticdl.rpc.call_client import CallClient
from elasticdl.rpc.call_frames import METHODS, Answer, CallFailed
from elasticdl.rpc.channel import Credentials

T = TypeVar("T")
_SLACK_S: Final = 5.0


@final
class ThreadedCalls:
    """The calls of `CallClient`, thread-safe. The thread starts with the first call."""

    def __init__(
        self, address: str, credentials: Credentials, authority: str | None, name: str
    ) -> None:
        self._client = CallClient(address, credentials, authority, name)
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

    def call(self, name: str, request: Message, *, term: int, timeout_s: float) -> Answer:
        """Call the method of that name. Blocks for at most `timeout_s`. Raises CallFailed."""
        work = self._client.call(METHODS[name], request, term=term, timeout_s=timeout_s)
        answer = self._run(work)
        try:
            return answer.result(timeout_s + _SLACK_S)
        except CancelledError:
            raise _closed() from None
        except TimeoutError:
            # `work` has its own limit, which holds only while the loop runs.
            answer.cancel()
            late = f"no answer within {timeout_s:.3g} s"
            raise CallFailed(grpc.StatusCode.DEADLINE_EXCEEDED, late) from None

    def stream(self, name: str, request: Message, *, term: int) -> Iterator[Answer]:
        """Yield the answers of a method that streams. Raises CallFailed."""
        came: SimpleQueue[Any] = SimpleQueue()
        reading = self._run(self._read(name, request, term, came.put))
        try:
            while (message := came.get()) is not None:
                if isinstance(message, CallFailed):
                    raise message
                yield message
        finally:
            reading.cancel()

    def close(self) -> None:
        """Close the connection, and end the thread. Calls in progress and later ones fail."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._stop, self._loop)

    async def _read(
        self, name: str, request: Message, term: int, put: Callable[[Any], None]
    ) -> None:
        try:
            async for message in self._client.stream(METHODS[name], request, term=term):
                put(message)
            put(None)
        except CallFailed as failed:
            put(failed)
        except asyncio.CancelledError:
            put(_closed())
            raise
        except Exception as error:  # noqa: BLE001 - the top of a call: its caller waits
            put(CallFailed(grpc.StatusCode.UNKNOWN, repr(error)))

    def _run(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        with self._lock:
            if self._closed:
                work.close()
                raise _closed()
            if self._loop is None:
                try:
                    self._loop = _started()
                except RuntimeError as error:
                    work.close()
                    raise CallFailed(grpc.StatusCode.UNAVAILABLE, str(error)) from None
            return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _stop(self, loop: asyncio.AbstractEventLoop) -> None:
        ending = loop.create_task(self._end())
        ending.add_done_callback(lambda _: loop.stop())

    async def _end(self) -> None:
        """Fail what is in progress."""
        await self._client.close()
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)


def _started() -> asyncio.AbstractEventLoop:
    """Return a loop that runs in a new thread. Raises RuntimeError if there can be no more."""
    loop = asyncio.new_event_loop()
    serve = partial(_serve, loop)
    try:
        threading.Thread(target=serve, name="calls to the master", daemon=True).start()
    except RuntimeError:
        loop.close()
        raise
    return loop


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    loop.run_forever()
    loop.close()


def _closed() -> CallFailed:
    return CallFailed(grpc.StatusCode.CANCELLED, "the connection was closed by this process")

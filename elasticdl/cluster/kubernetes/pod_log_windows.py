"""Pod logs by byte offset, which API servers lack: they return a log from its start, or last lines.

A log in use is followed from its beginning, and its newest part is kept here as long as it is used,
so that repeated reads cost nothing. Anything before that part is read again from the beginning.
Nodes keep some 10 MiB of a log.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import aclosing
from typing import Any, final

from elasticdl.cluster.base import LogPart, NoSuchLog
from elasticdl.cluster.kubernetes.apiserver import ApiAway, ApiRefused, ApiServer
from elasticdl.cluster.kubernetes.pod_spec import CONTAINER
from elasticdl.errors import ElasticDLError

_LOG = logging.getLogger(__name__)
MOST_WINDOWS = 8
WINDOW_BYTES = 1 << 20
LONGEST_LOG_BYTES = 256 << 20
"""Beyond this offset nothing is read again: only the newest part is available."""
_UNSEEN_S = 60.0
_QUIET_S = 0.25
"""After this silence the log has no more to deliver."""
_FIRST_S = 2.0
"""Time limit for the first bytes."""
_CATCH_UP_S = 8.0
_READ_S = 20.0


@final
class LogWindows:
    """Use it from one event loop."""

    def __init__(self, api: ApiServer) -> None:
        self._api = api
        self._windows: OrderedDict[str, _Window] = OrderedDict()

    async def read(self, pod: Mapping[str, Any], start: int, limit_bytes: int) -> LogPart:
        """See `Cluster.read_log`. Raises NoSuchLog if the pod is gone, and ElasticDLError."""
        window = self._window(pod)
        await window.catch_up()
        if not window.size_bytes and window.problem is not None:
            raise window.problem
        begin = min(start, window.size_bytes) if start >= 0 else max(0, window.size_bytes + start)
        if begin >= window.begin:
            return LogPart(begin, window.part(begin, limit_bytes), window.size_bytes)
        if begin + limit_bytes > LONGEST_LOG_BYTES:
            raise NoSuchLog(
                f"only the newest part of this log is available: from byte {window.begin} on"
            )
        return LogPart(
            begin,
            await self._read_anew(pod, begin, min(limit_bytes, window.size_bytes - begin)),
            window.size_bytes,
        )

    async def close(self) -> None:
        """Stop following all logs."""
        windows = list(self._windows.values())
        self._windows.clear()
        for window in windows:
            window.task.cancel()
        await asyncio.gather(*(window.task for window in windows), return_exceptions=True)

    def _window(self, pod: Mapping[str, Any]) -> _Window:
        uid = str(pod["metadata"]["uid"])
        window = self._windows.pop(uid, None)
        if window is None or window.broke:
            window = _Window(self._api, pod)
        self._windows[uid] = window
        window.seen_s = asyncio.get_running_loop().time()
        while len(self._windows) > MOST_WINDOWS:
            _, oldest = self._windows.popitem(last=False)
            oldest.task.cancel()
        return window

    async def _read_anew(self, pod: Mapping[str, Any], begin: int, size_bytes: int) -> bytes:
        query = {"container": CONTAINER, "limitBytes": str(begin + size_bytes)}
        skip, data = begin, bytearray()
        try:
            async with (
                asyncio.timeout(_READ_S),
                aclosing(self._api.chunks(log_address(pod), query, _READ_S)) as chunks,
            ):
                async for chunk in chunks:
                    data += chunk[skip:]
                    skip = max(0, skip - len(chunk))
        except (ElasticDLError, TimeoutError) as error:
            raise in_words(error, pod) from error
        return bytes(data[:size_bytes])


@final
class _Window:
    """The newest part of a log, from byte `begin` to `size_bytes`."""

    def __init__(self, api: ApiServer, pod: Mapping[str, Any]) -> None:
        self._api, self._pod = api, pod
        self._data = bytearray()
        self._clock = asyncio.get_running_loop().time
        self.size_bytes = 0
        self.seen_s = self._clock()
        self._heard_s = self.seen_s + _FIRST_S
        self.problem: Exception | None = None
        self.task = asyncio.get_running_loop().create_task(self._follow(), name="a followed log")

    @property
    def begin(self) -> int:
        """Offset of the first byte."""
        return self.size_bytes - len(self._data)

    @property
    def broke(self) -> bool:
        """Whether following stopped, although the log has not ended."""
        return self.task.done() and (self.task.cancelled() or self.problem is not None)

    def part(self, begin: int, limit_bytes: int) -> bytes:
        """Bytes of the window from an offset on."""
        at = begin - self.begin
        return bytes(self._data[at : at + limit_bytes])

    async def catch_up(self) -> None:
        """Wait until the window has the whole log, or for some seconds."""
        until_s = self._clock() + _CATCH_UP_S
        while not self.task.done() and self._clock() < until_s:
            quiet_s = self._clock() - self._heard_s
            if quiet_s >= _QUIET_S:
                return
            # The same limit before the first bytes: they mostly arrive at once.
            await asyncio.wait({self.task}, timeout=min(_QUIET_S, _QUIET_S - quiet_s))

    async def _follow(self) -> None:
        query = {"container": CONTAINER, "follow": "true"}
        try:
            async with aclosing(
                self._api.chunks(log_address(self._pod), query, _UNSEEN_S)
            ) as chunks:
                async for chunk in chunks:
                    self._take(chunk)
                    if self._clock() - self.seen_s > _UNSEEN_S:
                        raise ApiAway("the log is no longer in use")
        except ElasticDLError as error:
            self.problem = in_words(error, self._pod)

    def _take(self, chunk: bytes) -> None:
        self.size_bytes += len(chunk)
        self._heard_s = self._clock()
        self._data += chunk
        if len(self._data) > 2 * WINDOW_BYTES:
            del self._data[:-WINDOW_BYTES]


def log_address(pod: Mapping[str, Any]) -> str:
    """The path of a pod's log on the API server."""
    return f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}/log"


def in_words(error: Exception, pod: Mapping[str, Any]) -> Exception:
    """Map the error of a request for a log."""
    name = pod["metadata"]["name"]
    if isinstance(error, ApiRefused) and error.status.code in (400, 404):
        return NoSuchLog(
            f"pod {name} {'has no log yet' if error.status.code == 400 else 'no longer has a log'}:"
            f" {error.message}"
        )
    return (
        ApiAway(f"reading the log of pod {name} timed out")
        if isinstance(error, TimeoutError)
        else error
    )

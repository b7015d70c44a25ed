"""Archive the last part of every ended pod's log, since a node's logs go with the pod.

There is one file per process, with all incarnations in order, as for local processes. Nothing waits
for the archive, and what cannot be read or written is skipped.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Coroutine
from contextlib import aclosing
from datetime import UTC, datetime
from pathlib import Path
from typing import final

from elasticdl.cluster.base import ProcessName, Role
from elasticdl.cluster.kubernetes.apiserver import ApiServer
from elasticdl.cluster.kubernetes.pod_spec import CONTAINER
from elasticdl.cluster.kubernetes.pods import Pod, has_ended, observed, process_name, uid
from elasticdl.cluster.logs.log_files import log_path
from elasticdl.errors import ElasticDLError

_LOG = logging.getLogger(__name__)
KEPT_BYTES = 64 << 10
"""Bytes kept of each log."""
ALL_BYTES = 64 << 20
"""Bytes kept of all logs; beyond this, the archive removes the oldest files."""
AT_ONCE = 16
_LINES = 2000
_READ_LIMIT_S = 15.0
_LEAVE_LIMIT_S = 120.0
"""Time limit for a pod's termination: longer than any grace period in use."""


@final
class LogArchive:
    """Archives the logs of a namespace's pods. Use it from one event loop.

    `path` is the API path of the namespace's pods; `directory` need not exist yet.
    """

    def __init__(self, api: ApiServer, path: str, directory: Path) -> None:
        self._api, self._path, self._directory = api, path, directory
        self._tasks: set[asyncio.Task[None]] = set()
        self._begun: set[str] = set()
        self._turns, self._writing = asyncio.Semaphore(AT_ONCE), asyncio.Lock()
        self._bytes: int | None = None
        """Total size of the files; None before the first count."""

    def changed(self, pod: Pod) -> None:
        """Handle a pod's change.

        Follow the log of a terminating pod to its end, since the log vanishes with the pod.
        """
        leaving = "deletionTimestamp" in pod["metadata"] and observed(pod).running
        if uid(pod) in self._begun or not (leaving or has_ended(pod)):
            return
        self._begun.add(uid(pod))
        self._spawn(self._keep(pod, follow=not has_ended(pod)))

    def gone(self, pod: Pod) -> None:
        """Handle a deleted pod; a read in progress continues."""
        self._begun.discard(uid(pod))

    async def finish(self, limit_s: float) -> None:
        """Wait at most `limit_s` for reads in progress, and cancel the rest."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=limit_s)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _keep(self, pod: Pod, *, follow: bool) -> None:
        name = process_name(pod)
        try:
            async with self._turns:
                text = await self._last_part(pod, follow=follow)
            if text:
                async with self._writing:
                    await asyncio.to_thread(self._write, name, text)
        except (ElasticDLError, OSError) as error:
            # The pod's next change, if any, tries again.
            self._begun.discard(uid(pod))
            _LOG.info("cannot archive the log of %s: %s", name, error or "timed out")

    async def _last_part(self, pod: Pod, *, follow: bool) -> bytes:
        """Return what arrives in time. Raises ApiRefused or ApiAway only if nothing arrives."""
        limit_s = _LEAVE_LIMIT_S if follow else _READ_LIMIT_S
        query = {
            "container": CONTAINER,
            "tailLines": str(_LINES),
            **({"follow": "true"} if follow else {}),
        }
        text = b""
        try:
            async with (
                asyncio.timeout(limit_s),
                aclosing(
                    self._api.chunks(f"{self._path}/{pod['metadata']['name']}/log", query, limit_s)
                ) as chunks,
            ):
                async for chunk in chunks:
                    text = (text + chunk)[-KEPT_BYTES:]
        except (ElasticDLError, TimeoutError):
            if not text:
                raise
        return text if len(text) < KEPT_BYTES else text.partition(b"\n")[2] or text

    def _write(self, name: ProcessName, text: bytes) -> None:
        """Append to the file. Runs in a thread, since a volume may be slow. Raises OSError."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        title = f"=== {name}, the last {len(text):,} bytes of its log, kept {now} ===\n".encode()
        self._directory.mkdir(parents=True, exist_ok=True)
        file = os.open(
            log_path(self._directory, name),
            os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW,
            0o600,
        )
        try:
            written = os.write(file, title + text + (b"" if text.endswith(b"\n") else b"\n"))
        finally:
            os.close(file)
        before = self._bytes
        self._bytes = None if before is None else before + written
        if self._bytes is None or self._bytes > ALL_BYTES:
            self._bytes = self._make_room(log_path(self._directory, name))

    def _make_room(self, newest: Path) -> int:
        """Remove the oldest files until half of the room is free; returns the bytes left.

        Raises OSError.
        """
        files = sorted(
            ((path.stat(), path) for path in self._directory.glob("*.log")),
            key=lambda entry: entry[0].st_mtime_ns,
        )
        total = sum(facts.st_size for facts, _ in files)
        if total <= ALL_BYTES:
            return total
        for facts, path in files:
            if total <= ALL_BYTES // 2:
                break
            if path != newest and not path.name.startswith(Role.MASTER):
                path.unlink(missing_ok=True)
                total -= facts.st_size
        return total

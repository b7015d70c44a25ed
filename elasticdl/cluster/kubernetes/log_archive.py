"""Copy the logs of pods into files, since a node's logs go with the pod.

The files are those of local processes: one per process, with all incarnations in order. Nothing
waits for a copy, and what cannot be read or written is skipped.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import final

from elasticdl.cluster.base import Role
from elasticdl.cluster.kubernetes.apiserver import ApiServer
from elasticdl.cluster.kubernetes.pod_logs import followed
from elasticdl.cluster.kubernetes.pods import Pod, has_ended, observed, process_name, uid
from elasticdl.cluster.logs.log_files import log_path
from elasticdl.errors import ElasticDLError
from elasticdl.private_file import make_private, private, replace_atomically

_LOG = logging.getLogger(__name__)
_LINES = 2000
"""Last lines to copy of a log that was not followed from its beginning."""
_SILENCE_S = 300.0
"""Each follower that reads nothing for this long connects again."""


@final
@dataclass(frozen=True, slots=True)
class ArchiveLimits:
    """How much is copied."""

    most_followed: int = 500
    """Live pods to follow at once. The logs of others are copied when their pods end."""
    file_bytes: int = 4 << 20
    """Size of a file at which only the newest half of so much is kept."""
    all_bytes: int = 256 << 20
    """Size of all files; beyond this, the oldest are removed."""
    recount_bytes: int = 1 << 20
    """The size of all files is computed when so much was written."""


@final
class LogArchive:
    """Copies the logs of a job's pods. Use it from one event loop.

    `directory` need not exist yet.
    """

    def __init__(
        self, api: ApiServer, directory: Path, limits: ArchiveLimits = ArchiveLimits()
    ) -> None:
        self._api, self._directory, self._limits = api, directory, limits
        self._tasks: set[asyncio.Task[None]] = set()
        self._begun: set[str] = set()
        """Uids of the pods whose logs are copied or being copied."""
        self._failed: set[str] = set()
        """Uids of the pods of whose logs a part may have been copied."""
        self._since_s = time.time()
        self._writing = asyncio.Lock()
        self._uncounted_bytes = limits.recount_bytes

    def changed(self, pod: Pod) -> None:
        """Handle a pod's change: copy its log, from the time when it runs until it has ended."""
        running = observed(pod).running
        if uid(pod) in self._begun or not (running or has_ended(pod)):
            return
        ending = has_ended(pod) or "deletionTimestamp" in pod["metadata"]
        if not ending and len(self._tasks) >= self._limits.most_followed:
            return
        self._begun.add(uid(pod))
        task = asyncio.ensure_future(self._copy(pod))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def gone(self, pod: Pod) -> None:
        """Handle a deleted pod; a copy in progress continues."""
        self._begun.discard(uid(pod))
        self._failed.discard(uid(pod))

    async def finish(self, limit_s: float) -> None:
        """Wait at most `limit_s` for copies in progress, and cancel the rest."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=limit_s)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _copy(self, pod: Pod) -> None:
        name = process_name(pod)
        path = log_path(self._directory, name)
        copied = datetime.now(UTC).isoformat(timespec="milliseconds")
        header = f"=== {name}, copied from its pod since {copied} ===\n"
        try:
            since_s = await asyncio.to_thread(self._copied_until_s, path, uid(pod))
            texts = followed(self._api, pod, _LINES, since_s=since_s, silence_s=_SILENCE_S)
            async with aclosing(texts):
                async for text in texts:
                    async with self._writing:
                        await asyncio.to_thread(self._append, path, (header + text).encode())
                    header = ""
        except (ElasticDLError, OSError) as error:
            # The pod's next change, if any, tries again.
            self._begun.discard(uid(pod))
            self._failed.add(uid(pod))
            _LOG.info("cannot copy the log of %s: %s", name, error)

    def _copied_until_s(self, path: Path, identity: str) -> float | None:
        """Return the time of the last copied line if this pod's log may have been copied before.

        That is so after an error, and in a file from before this master. Raises OSError.
        """
        if not path.exists():
            return None
        modified_s = path.stat().st_mtime
        return modified_s if identity in self._failed or modified_s < self._since_s else None

    def _append(self, path: Path, data: bytes) -> None:
        """Append to a file, and drop what is too old. Raises OSError.

        Runs in a thread, since a volume may be slow.
        """
        make_private(self._directory)
        with open(path, "ab", opener=private) as log:
            log.write(data)
            size_bytes = log.tell()
        if size_bytes > self._limits.file_bytes:
            _keep_newest(path, self._limits.file_bytes // 2)
        self._uncounted_bytes += len(data)
        if self._uncounted_bytes > self._limits.recount_bytes:
            self._uncounted_bytes = 0
            self._make_room(path)

    def _make_room(self, newest: Path) -> None:
        """Remove the oldest files until half of the room is free. Raises OSError."""
        files = sorted(
            ((path.stat(), path) for path in self._directory.glob("*.log")),
            key=lambda entry: entry[0].st_mtime_ns,
        )
        total = sum(facts.st_size for facts, _ in files)
        if total <= self._limits.all_bytes:
            return
        for facts, path in files:
            if total <= self._limits.all_bytes // 2:
                break
            if path != newest and not path.name.startswith(Role.MASTER):
                path.unlink(missing_ok=True)
                total -= facts.st_size


def _keep_newest(path: Path, most_bytes: int) -> None:
    """Replace a log by its newest complete lines. Raises OSError."""
    with path.open("rb") as log:
        log.seek(-most_bytes, os.SEEK_END)
        rest = log.read().partition(b"\n")[2]
    replace_atomically(path, rest, durable=False)

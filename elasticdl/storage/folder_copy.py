"""Keeps the copy of a small folder of a job in an object store, while the job writes to it."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import final

from elasticdl.storage.address import below
from elasticdl.storage.attempts import STARTING
from elasticdl.storage.copy_thread import EVERY_S, CopyThread, Pace
from elasticdl.storage.store import store_of

_LOG = logging.getLogger(__name__)


@final
class FolderCopy:
    """Uploads the files below a folder that have grown. A thread of its own waits for the store."""

    def __init__(self, folder: Path, address: str, every_s: float = EVERY_S) -> None:
        self._folder, self._address, self._every_s = folder, address, every_s
        self._copied_bytes: dict[Path, int] = {}
        self._thread = CopyThread(self._copy, self._tell, Pace(every_s, every_s))

    def start(self) -> None:
        """Start to copy."""
        self._thread.start()

    def close(self) -> None:
        """Copy the last changes; waits at most 20 s for the store."""
        self._thread.close()

    def _tell(self, why: str) -> None:
        if why:
            message = "%s is not copied to %s: %s; trying again every %.0f s"
            _LOG.warning(message, self._folder, self._address, why, self._every_s)

    def _copy(self) -> None:
        for path in sorted(self._folder.rglob("*")):
            if not path.is_file():
                continue
            size_bytes = path.stat().st_size
            if self._copied_bytes.get(path) != size_bytes:
                name = path.relative_to(self._folder).as_posix()
                store_of(self._address, STARTING).upload(path, below(self._address, name), STARTING)
                self._copied_bytes[path] = size_bytes

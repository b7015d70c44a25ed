"""A thread that copies something to an object store from time to time, while a job writes it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import final

from elasticdl.errors import ElasticDLError
from elasticdl.storage.address import below
from elasticdl.storage.attempts import STARTING
from elasticdl.storage.store import store_of

_LOG = logging.getLogger(__name__)
EVERY_S = 30.0
"""A store has no appends: each time, the whole of a file that grew is written."""
_CLOSE_S = 20.0


@final
@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds between copies, until the first one, and without one until an error is reported."""

    every_s: float = EVERY_S
    first_s: float = EVERY_S
    patience_s: float = 0.0


@final
class CopyThread:
    """Calls `copy`, and continues after errors. A thread of its own waits for the store."""

    def __init__(
        self, copy: Callable[[], None], changed: Callable[[str], None], pace: Pace
    ) -> None:
        """`changed` is called in the thread: with an error that lasts, and with '' when a copy
        succeeds again after that.
        """
        self._copy, self._changed, self._pace = copy, changed, pace
        self._good_s = time.monotonic()
        self._error_reported = self._is_last = False
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="copies to a store", daemon=True)

    def start(self) -> None:
        """Start to copy."""
        self._thread.start()

    def close(self, *, last: bool = True) -> None:
        """End the thread; with `last` it copies once more. Waits at most 20 s for the store."""
        self._is_last = last
        self._closing.set()
        self._thread.join(_CLOSE_S)

    def _run(self) -> None:
        pause_s = self._pace.first_s
        while True:
            # Read before the last copy, so that it has what was written before `close`.
            closing = self._closing.wait(pause_s)
            pause_s = self._pace.every_s
            if closing and not self._is_last:
                return
            try:
                self._copy()
                self._succeeded()
            except (OSError, ElasticDLError) as error:
                self._failed(str(error))
            except Exception as error:  # noqa: BLE001 - the top of the thread, which goes on
                _LOG.exception("cannot copy")
                self._failed(repr(error))
            if closing:
                return

    def _succeeded(self) -> None:
        if self._error_reported:
            self._changed("")
        self._good_s, self._error_reported = time.monotonic(), False

    def _failed(self, why: str) -> None:
        _LOG.info("cannot copy: %s; trying again every %.0f s", why, self._pace.every_s)
        if not self._error_reported and time.monotonic() - self._good_s >= self._pace.patience_s:
            self._changed(why)
            self._error_reported = True


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

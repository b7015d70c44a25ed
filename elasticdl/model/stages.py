"""Report a model check's progress and result to the waiting process, as lines of JSON.

A thread reports the main thread's stack at intervals. It cannot do so while user code holds the
interpreter's lock. Then a signal makes `faulthandler` write the stack, which needs no lock.
(`dump_traceback_later` is unsafe here: it reads frames that change, and crashes.)
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from typing import TextIO, final

from elasticdl.formatting import STACKS_VARIABLE

_COUNT_EVERY_S = 1.0


@final
class Stages:
    """Writes to the channel, if there is one."""

    def __init__(self, channel: TextIO | None = None, mark: str = "") -> None:
        """`mark` begins each line."""
        self._channel, self._mark = channel, mark
        self._counted_s = self._moved_s = 0.0
        self._lock = threading.Lock()

    @classmethod
    def on(cls, channel: int, mark: str = "") -> Stages:
        """Write to this descriptor, and begin to report stacks. Call it from the main thread."""
        every_s = os.environ.pop(STACKS_VARIABLE, "15")
        faulthandler.register(signal.SIGUSR2, file=channel, all_threads=False)
        stages = cls(os.fdopen(channel, "w", encoding="utf-8"), mark)
        main = threading.main_thread().ident or 0
        threading.Thread(
            target=stages._report_stacks, args=(main, float(every_s)), name="stages", daemon=True
        ).start()
        return stages

    def begin(self, stage: str) -> None:
        """Report a new stage; `stage` completes the sentence "the check is ..."."""
        self._write({"stage": stage})

    def counted(self, done: int, files: int) -> None:
        """Report that `done` of `files` files are counted, at most once a second and at the end."""
        now_s = time.monotonic()
        if done < files and now_s - self._counted_s < _COUNT_EVERY_S:
            return
        self._counted_s = now_s
        self._write({"counted": done, "files": files})

    def moving(self) -> None:
        """Report that a long read continues, at most once a second. Threads may call it."""
        now_s = time.monotonic()
        if now_s - self._moved_s >= _COUNT_EVERY_S:
            self._moved_s = now_s
            self._write({"moving": True})

    def answer(self, result: object) -> None:
        """Report the result of the check, which has the key "ok"."""
        self._write(result)

    def _report_stacks(self, thread: int, every_s: float) -> None:
        while True:
            time.sleep(every_s)
            frames, frame = [], sys._current_frames().get(thread)
            while frame is not None:
                frames.append((frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
                frame = frame.f_back
            self._write({"stack": frames})

    def _write(self, value: object) -> None:
        if self._channel is not None:
            with self._lock, suppress(OSError):  # The reader is gone.
                self._channel.write(f"{self._mark}{json.dumps(value)}\n")
                self._channel.flush()

"""What the check of a model is at, for the process that waits for it: lines of JSON on a pipe.

A thread tells now and then where the main thread stands. It cannot while user code holds the
interpreter's lock: then a signal has
`faulthandler` write the stack, which needs no lock. (`dump_traceback_later` would: it reads frames
that change, and crashes.)
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

from elasticdl.formatting import PIPE_VARIABLE

_COUNT_EVERY_S = 1.0


@final
class Stages:
    """Writes to the pipe, if there is one."""

    def __init__(self, pipe: TextIO | None = None) -> None:
        self._pipe = pipe
        self._counted_s = 0.0
        self._lock = threading.Lock()

    @classmethod
    def of_environment(cls) -> Stages:
        """The pipe that the parent opened; without one nothing is written.

        Stacks begin to come. Call it from the main thread.
        """
        number, _, every_s = os.environ.pop(PIPE_VARIABLE, "").partition(":")
        if not number:
            return cls()
        os.set_inheritable(int(number), False)
        faulthandler.register(signal.SIGUSR2, file=int(number), all_threads=False)
        stages = cls(os.fdopen(int(number), "w", encoding="utf-8"))
        main = threading.main_thread().ident or 0
        threading.Thread(
            target=stages._tell_stacks, args=(main, float(every_s)), name="stages", daemon=True
        ).start()
        return stages

    def begin(self, stage: str) -> None:
        """From now on the check is at this, in words that go on after "the check is"."""
        self._write({"stage": stage})

    def counted(self, done: int, files: int) -> None:
        """So many files of those were counted; written once a second, and at the end."""
        now_s = time.monotonic()
        if done < files and now_s - self._counted_s < _COUNT_EVERY_S:
            return
        self._counted_s = now_s
        self._write({"counted": done, "files": files})

    def _tell_stacks(self, thread: int, every_s: float) -> None:
        while True:
            time.sleep(every_s)
            frames, frame = [], sys._current_frames().get(thread)
            while frame is not None:
                frames.append((frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
                frame = frame.f_back
            self._write({"stack": frames})

    def _write(self, value: dict[str, object]) -> None:
        if self._pipe is not None:
            with (
                self._lock,
                suppress(OSError),
            ):  # nobody reads any more: what the check finds is told otherwise
                self._pipe.write(json.dumps(value) + "\n")
                self._pipe.flush()

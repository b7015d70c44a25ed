"""Writes where this worker is when a call of native code holds the interpreter's lock.

No Python code runs then: no heartbeat, no answer to the master, no log record. A thread of C++
writes the stacks to the log. There the master finds the place of the user's code after it has
replaced the worker (`master/core/processes/causes.py`).
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
import time

from elasticdl.native import _native

BLOCKED_S = 5.0
"""Half of the silence after which the master gives a worker up."""
_ALIVE_S = 1.0
_SIGNAL = signal.SIGRTMAX - 1
"""A signal that nothing else is likely to use, as is the one before it."""


def watch_interpreter(user_code: str) -> None:
    """Begin to watch, in a thread. `user_code` is the folder of the user's code."""
    folder = os.path.abspath(user_code)
    watch = _native.InterpreterWatch(BLOCKED_S, sys.stderr.fileno(), _SIGNAL, folder)
    # Only the thread that gets the signal writes its frames: those of a running one would change.
    # Not `chain`: it would end a system call that hangs.
    faulthandler.register(_SIGNAL, file=watch.channel, all_threads=False)

    def run() -> None:
        while True:
            watch.alive([(thread.native_id or 0, thread.name) for thread in threading.enumerate()])
            time.sleep(_ALIVE_S)

    watch.alive([])
    watch.start()
    threading.Thread(target=run, name="interpreter", daemon=True).start()

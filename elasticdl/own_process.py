"""This process: its signals, its log, how many files it may open, and its end.

It imports nothing that starts threads.
"""

from __future__ import annotations

import logging
import os
import resource
import signal
import sys
import traceback
from typing import NoReturn

from elasticdl.errors import ElasticDLError

SIGNALS = (signal.SIGTERM, signal.SIGINT)


def hold_signals() -> None:
    """Block SIGTERM and SIGINT, so that only a thread that waits for them receives them.

    Call it before any thread starts: threads inherit it.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)


def log_to_stderr() -> None:
    """Log from level INFO on.

    Call it before TensorFlow's import, which adds a handler of its own otherwise.
    """
    logging.basicConfig(
        level=logging.INFO,
        format="%(asctime)s %(levelname).1s %(name)s: %(message)s",
        stream=sys.stderr,
    )


def raise_file_limit() -> None:
    """Raise the limit to what the system allows: each connection takes a file."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def log_error(log: logging.Logger, error: BaseException) -> None:
    """Log an error that ends the process, with a traceback only if it is not an ElasticDLError.

    The last line is what the master shows.
    """
    if isinstance(error, ElasticDLError):
        hint = f"; {error.hint}" if error.hint else ""
        log.error("%s: %s%s", type(error).__name__, error.message, hint)
    else:
        log.error("%s", "".join(traceback.format_exception(error)).rstrip())


def end_now(code: int) -> NoReturn:
    """End the process, without Python's shutdown, in which threads of libraries may crash."""
    logging.shutdown()
    # `os._exit` does not flush.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)

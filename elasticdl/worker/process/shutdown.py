"""Why this worker ends.

Any thread may set the reason; the first one stands, and it wakes every wait of the worker.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias, final

from elasticdl.errors import ElasticDLError, ExitCode, TransientError, UserError
from elasticdl.shard import Lease
from elasticdl.worker.process.thread_queue import Ended


class NonFinite(UserError):
    """NaN or infinity, again and again; another worker would get it, too."""


class CallbackFailed(UserError):
    """A callback of the module raised; the last records are not the cause."""


@dataclass(frozen=True, slots=True)
class Done:
    """The job is over, or has no more work."""

    def __str__(self) -> str:
        return "the job is done"


@dataclass(frozen=True, slots=True)
class Draining:
    """The worker was asked to end: unfinished leases go back."""

    reason: str

    def __str__(self) -> str:
        return f"draining: {self.reason}"


@dataclass(frozen=True, slots=True)
class Failed:
    """An error ended this worker while it worked on `lease`, if any."""

    error: BaseException
    lease: Lease | None = None

    def __str__(self) -> str:
        return f"failed: {type(self.error).__name__}"


Reason: TypeAlias = Done | Draining | Failed


@final
class Shutdown:
    """Thread-safe.

    `listen`ers are called once, from the thread that ends the worker, or at once if it has ended.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._reason: Reason | None = None
        self._listeners: list[Callable[[], None]] = []
        self._kill_at_s = math.inf
        self._at_once = False
        self.in_train_end = False
        """Whether the worker runs `on_train_end` of its callbacks."""

    @property
    def reason(self) -> Reason | None:
        """None while the worker runs."""
        return self._reason

    def __bool__(self) -> bool:
        return self._ended.is_set()

    def wait(self, timeout_s: float) -> bool:
        """Block until the worker ends, at most `timeout_s`; True if it ended."""
        return self._ended.wait(timeout_s)

    def end(self, reason: Reason) -> bool:
        """End the worker for this reason unless it has one; True if this one stands.

        A failure overrules `Done` and `Draining`, so that an error while winding down is not lost.
        """
        with self._lock:
            first = self._reason is None
            stands = first or (isinstance(reason, Failed) and not isinstance(self._reason, Failed))
            if stands:
                self._reason = reason
            # A second reason must not call them again.
            listeners = self._listeners if first else []
            self._ended.set()
        # Outside of the lock: a listener may read the reason or add listeners.
        for listener in listeners:
            listener()
        return stands

    def drain(self, reason: str, grace_s: float) -> None:
        """`end(Draining(reason))`; the process is killed after `grace_s`.

        Of several requests the earliest kill counts, as it does for the platforms.
        """
        with self._lock:
            self._kill_at_s = min(self._kill_at_s, time.monotonic() + grace_s)
            self._at_once = self._at_once or grace_s <= 0
        self.end(Draining(reason))

    @property
    def kill_at_s(self) -> float:
        """When this process is killed, by `time.monotonic`; infinite until it is asked to drain."""
        return self._kill_at_s

    @property
    def at_once(self) -> bool:
        """Whether a request to drain left no time at all."""
        return self._at_once

    def fail(self, error: BaseException, lease: Lease | None = None) -> bool:
        """`end(Failed(error, lease))`."""
        return self.end(Failed(error, lease))

    @contextmanager
    def failing_for(self, lease: Lease) -> Iterator[None]:
        """An error in the block ends the worker as a failure of this lease, then `Ended` is raised.

        Use it for the outermost calls of threads that run user code: even `sys.exit` in it must end
        the worker visibly.
        """
        try:
            yield
        except Ended:
            raise
        except BaseException as error:
            self.fail(error, lease)
            # The thread's own loop ends quietly; the reason carries the error.
            raise Ended from error

    def listen(self, listener: Callable[[], None]) -> None:
        """Call `listener` when the worker ends."""
        with self._lock:
            ended = self._ended.is_set()
            if not ended:
                self._listeners.append(listener)
        # Without the lock, and only if `end` can no longer call it.
        if ended:
            listener()


def exit_code(reason: Reason | None) -> ExitCode:
    """The process's exit code."""
    match reason:
        case Draining():
            return ExitCode.DRAINED
        case Failed(error):
            if isinstance(error, UserError):
                return ExitCode.USER_ERROR
            if isinstance(error, TransientError):
                # Other processes were unavailable: neither this process nor its work is the cause.
                return ExitCode.UNAVAILABLE
            return error.exit_code if isinstance(error, ElasticDLError) else ExitCode.JOB_FAILED
        case _:
            return ExitCode.DONE

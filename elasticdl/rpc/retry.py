"""Map gRPC's errors to ours, and retry calls that may succeed later within a deadline."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from threading import Event
from typing import TypeVar

import grpc

from elasticdl.errors import (
    ElasticDLError,
    MasterReplaced,
    PermanentError,
    Refused,
    TransientError,
    UserError,
)
from elasticdl.formatting import amount

T = TypeVar("T")

_REFUSALS = (
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.FAILED_PRECONDITION,
)
# A call that ended so may be made again. INTERNAL is what a connection torn in the middle of a
# message looks like.
PASSING = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.INTERNAL,
)
_FIRST_DELAY_S = 0.1
_LONGEST_DELAY_S = 1.0
# One attempt waits no longer than this for a connection, so that a half-open one is replaced.
_LONGEST_ATTEMPT_S = 15.0


def mapped(error: grpc.RpcError, what: str) -> ElasticDLError:
    """Our error for one of gRPC's.

    `what` names the call and the peer: "lease of worker-1 from 127.0.0.1:7".
    """
    code, details = error.code(), error.details() or ""
    message = f"{what}: {details}" if details else f"{what}: {code.name}"
    if code in _REFUSALS:
        return Refused(message)
    if code is grpc.StatusCode.ABORTED:
        return MasterReplaced(message)
    if code in PASSING:
        return TransientError(message)
    if code is grpc.StatusCode.INVALID_ARGUMENT:
        return UserError(message)
    if code is grpc.StatusCode.OUT_OF_RANGE:
        # The request is valid, but impossible in the job's present phase. `details` are for people.
        return PermanentError(details or message)
    return PermanentError(f"{message} ({code.name})")


def delay_s(attempt: int) -> float:
    """Back-off before attempt `attempt` (from 1), with jitter to spread the workers' retries."""
    return min(_LONGEST_DELAY_S, _FIRST_DELAY_S * 2.0 ** min(attempt - 1, 10)) * random.uniform(
        0.5, 1.0
    )


def retrying(
    call: Callable[[float], T],
    deadline_s: float,
    what: str,
    *,
    attempt_s: float = _LONGEST_ATTEMPT_S,
    closed: Event,
) -> T:
    """Call `call(timeout_s)` until it succeeds.

    Blocks for at most `deadline_s`; `closed` ends the wait early. Raises TransientError with the
    last error when the time is over, and any other error at once.
    """
    end_s = time.monotonic() + deadline_s
    attempt = 0
    while True:
        attempt += 1
        try:
            # At least 0.1 s: a deadline of 0 would fail without a try.
            return call(max(0.1, min(attempt_s, end_s - time.monotonic())))
        except grpc.RpcError as error:
            last = mapped(error, what)
            if not isinstance(last, TransientError):
                raise last from error
            wait_s = delay_s(attempt)
            if closed.is_set() or time.monotonic() + wait_s >= end_s:
                raise TransientError(
                    f"{last.message} (gave up after {amount(attempt, 'attempt')} in"
                    f" {deadline_s:g} s)"
                ) from error
            closed.wait(wait_s)

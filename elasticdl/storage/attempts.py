"""Repeat a call to an object store within a time limit, and describe its failure."""

from __future__ import annotations

import errno
import logging
import random
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar, final

from elasticdl.errors import TransientError, UserError

T = TypeVar("T")
_log = logging.getLogger(__name__)

_DENIED = re.compile(
    r"ACCESS_DENIED|INVALID_ACCESS_KEY|SIGNATURE_DOES_NOT_MATCH|EXPIRED_TOKEN|HTTP status 40[13]\b"
    r"|PERMISSION_DENIED|UNAUTHENTICATED|Authenti?cationFailed|AuthorizationFailure"
    r"|[Cc]redentials? (?:were )?not found|could not (?:create|load|find).*credentials",
    re.IGNORECASE,
)
_NO_BUCKET = re.compile(r"NO_SUCH_BUCKET|NoSuchBucket|ContainerNotFound|Bucket '.*' not found")
_ABSENT = re.compile(
    rf"{_NO_BUCKET.pattern}|NO_SUCH_KEY|NoSuchKey|BlobNotFound|RESOURCE_NOT_FOUND|HTTP status 404\b"
)
_REFUSED = re.compile(r"HTTP status (?:400|301|405)\b|INVALID_BUCKET_NAME|INVALID_PARAMETER")
# What a client of the store adds to its message, such as a signed request, may be a secret.
_SIGNED = re.compile(r"(?i)((?:signature|credential|token|sig|key)=)[^&\s'\"]+")

CREDENTIALS = (
    "give the processes credentials by the environment or a mounted file, such as"
    " AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_SHARED_CREDENTIALS_FILE, or"
    " GOOGLE_APPLICATION_CREDENTIALS"
)


class Absent(UserError):
    """There is no such object or bucket."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How long a call is repeated, and the pauses between its attempts, in seconds."""

    give_up_s: float = 90.0
    first_pause_s: float = 0.1
    longest_pause_s: float = 5.0


RUNNING = Limits()
"""Of a running job. Shorter than the 120 s after which a worker counts as hung."""
STARTING = Limits(give_up_s=15.0)
"""Before a job starts, while a user waits for the answer."""


@final
class Progress:
    """How far a long call has come, over all of its attempts."""

    def __init__(self) -> None:
        self._furthest = 0
        self.at_s = time.monotonic()
        """When it last came further than any attempt before."""

    def reached(self, at: int) -> None:
        """Count progress if no attempt has come as far."""
        if at > self._furthest:
            self._furthest, self.at_s = at, time.monotonic()


def attempt(
    address: str,
    verb: str,
    call: Callable[[], T],
    limits: Limits = RUNNING,
    progress: Progress | None = None,
) -> T:
    """Return what `call` returns; repeat it after OSError, with pauses that grow.

    `verb` says what fails, such as "read". The limit counts from the last `progress` that the call
    notes, or from the beginning. Raises Absent, UserError for what no repetition mends, and
    TransientError after the limit.
    """
    progress, pause_s = progress or Progress(), limits.first_pause_s
    while True:
        try:
            return call()
        except OSError as error:
            fatal = final_error(address, verb, error)
            if fatal is not None:
                raise fatal from error
            waited_s = time.monotonic() - progress.at_s
            if waited_s + pause_s > limits.give_up_s:
                raise TransientError(
                    f"{address}: cannot {verb}, tried for {waited_s:.0f} s: {reason(error)}",
                    hint="check the network, the endpoint and the state of the object store",
                ) from error
            _log.info("%s: cannot %s, trying again: %s", address, verb, reason(error))
            # With jitter: workers that failed together do not come back together.
            time.sleep(pause_s * random.uniform(0.5, 1.0))
            pause_s = min(2 * pause_s, limits.longest_pause_s)


def final_error(address: str, verb: str, error: OSError) -> UserError | None:
    """The error to raise if repetition is useless, else None."""
    text = str(error)
    if isinstance(error, FileNotFoundError) or _ABSENT.search(text):
        if _NO_BUCKET.search(text):
            return Absent(
                f"{address}: the bucket does not exist", hint="check its name, region and endpoint"
            )
        return Absent(f"{address} does not exist", hint="check the address")
    if isinstance(error, PermissionError) or _DENIED.search(text):
        return UserError(f"{address}: cannot {verb}: access denied", hint=CREDENTIALS)
    if isinstance(error, (IsADirectoryError, NotADirectoryError)) or _REFUSED.search(text):
        return UserError(f"{address}: cannot {verb}: {reason(error)}", hint="check the address")
    if error.errno == errno.ENOSYS:
        return UserError(f"{address}: cannot {verb}: {reason(error)}")
    return None


def reason(error: OSError) -> str:
    """The message of an error without what may be secret, in one line."""
    text = " ".join(str(error).split())
    return _SIGNED.sub(r"\1…", text)[:300]

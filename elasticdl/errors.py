"""The error hierarchy.

A foreign exception is mapped to it where it enters, with `from`.

    ElasticDLError
    ├── UserError        the user's input, model or data is wrong: never retried
    │   └── SpecError    the job's flags or YAML are wrong: exit code 2, before anything starts
    ├── TransientError   may go away by itself: retried after `retry_after_s`, within a budget
    │   └── MasterReplaced  another master runs the job: this process has to attach again
    └── PermanentError   will not go away: not retried
        ├── NoSuchJob    there is no such job, or it does not run
        ├── ClusterRefused  the cluster is unreachable or refuses the request: exit code 3
        ├── CannotRun    no process of this installation can do its part: the job ends at once
        ├── Refused      the peer refuses this process (fenced, replaced, wrong token)
        ├── MasterSuperseded  another master runs the job: this one leaves
        └── Corrupted    bytes on disk or wire are not what was written

A message says what happened, the value, what was expected and what to do next.
"""

from __future__ import annotations

from enum import IntEnum
from typing import assert_never


class ExitCode(IntEnum):
    """Exit codes of `elasticdl` and of its processes."""

    DONE = 0
    JOB_FAILED = 1
    USAGE = 2
    CLUSTER_REFUSED = 3
    NO_SUCH_JOB = 4
    STALLED = 5
    """The job made no progress, and no remedy helped."""
    # Only for worker and ps processes; the master reads them.
    USER_ERROR = 64
    FENCED = 65
    DRAINED = 66
    """From a master in a pod: it left as requested, and is to be started again."""
    SUPERSEDED = 67
    """From a master in a pod: another one runs the job."""
    FORCED = 68
    """From a worker that hung while it was to end, and ended itself by force."""
    UNAVAILABLE = 69
    """A dependency was unavailable for too long; the process is to be started again."""
    CANNOT_RUN = 70
    """No other process of the installation could do it either: it is not started again."""
    TIMED_OUT = 124
    INTERRUPTED = 130

    @property
    def is_final(self) -> bool:
        """Whether a master that exits with this code is not started again."""
        match self:
            case (
                ExitCode.DONE
                | ExitCode.JOB_FAILED
                | ExitCode.USAGE
                | ExitCode.CLUSTER_REFUSED
                | ExitCode.NO_SUCH_JOB
                | ExitCode.STALLED
                | ExitCode.TIMED_OUT
                | ExitCode.INTERRUPTED
            ):
                return True
            case (
                ExitCode.USER_ERROR
                | ExitCode.FENCED
                | ExitCode.DRAINED
                | ExitCode.SUPERSEDED
                | ExitCode.FORCED
                | ExitCode.UNAVAILABLE
                | ExitCode.CANNOT_RUN
            ):
                return False
            case _:
                assert_never(self)


class ElasticDLError(Exception):
    """Base of all errors. `hint` is the next thing to do, shown on a line of its own."""

    exit_code: ExitCode = ExitCode.JOB_FAILED

    def __init__(self, message: str, *, hint: str = "", exit_code: ExitCode | None = None) -> None:
        """`exit_code` is that of the class by default."""
        super().__init__(message)
        self.message = message
        self.hint = hint
        if exit_code is not None:
            self.exit_code = exit_code


class UserError(ElasticDLError):
    """The user's input, model or data is wrong. Never retried."""

    exit_code = ExitCode.USER_ERROR


class SpecError(UserError):
    """The job's flags or YAML are wrong."""

    exit_code = ExitCode.USAGE


class TransientError(ElasticDLError):
    """May go away by itself."""

    def __init__(
        self,
        message: str,
        *,
        hint: str = "",
        exit_code: ExitCode | None = None,
        retry_after_s: float = 0.5,
    ) -> None:
        super().__init__(message, hint=hint, exit_code=exit_code)
        self.retry_after_s = retry_after_s


class MasterReplaced(TransientError):
    """The call names an earlier term of the master; it works after another attach."""


class PermanentError(ElasticDLError):
    """Will not go away by itself."""


class CannotRun(PermanentError):
    """Something that a process needs is not installed, or not there: no other process has it."""

    exit_code = ExitCode.CANNOT_RUN


class Refused(PermanentError):
    """The peer refuses this process: it is fenced, replaced, or has a wrong token."""

    exit_code = ExitCode.FENCED


class MasterSuperseded(PermanentError):
    """Another master runs the job, or is about to: this one must not act any more."""

    exit_code = ExitCode.SUPERSEDED


class NoSuchJob(PermanentError):
    """There is no such job, or it does not run."""

    exit_code = ExitCode.NO_SUCH_JOB


class ClusterRefused(PermanentError):
    """The cluster is unreachable or refuses the request."""

    exit_code = ExitCode.CLUSTER_REFUSED


class Corrupted(PermanentError):
    """Bytes on disk or wire are not what was written."""

"""Why a process ended: derives one cause from the exit status, in words.

`budgets.py` says how many ends of each cause a job accepts. The platform's reasons known here come
from `cluster/kubernetes/pods.py` and `cluster/kubernetes/pod_tracker.py`, and from kubelets,
schedulers and controllers. An unknown reason is shown as it is.
"""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass
from enum import StrEnum

from elasticdl.cluster.base import STOPPED, ExitStatus
from elasticdl.errors import ExitCode


class Cause(StrEnum):
    """The one named cause why a process ended."""

    USER_ERROR = "user_error"
    OUT_OF_MEMORY = "out_of_memory"
    PREEMPTED = "preempted"
    """A pod of higher priority needed its place."""
    EVICTED = "evicted"
    """Evicted by request (its node is being emptied), or by a node that is short of a resource."""
    NOT_PLACED = "not_placed"
    """The scheduler chose a node for it and did not place it there."""
    NODE_DRAINED = "node_drained"
    """Its node was tainted or shut down, and ended it gracefully."""
    NODE_LOST = "node_lost"
    DELETED = "deleted"
    """Somebody other than the master deleted it."""
    IMAGE = "image_unavailable"
    START_ERROR = "start_error"
    """The image exists, but its program could not be started."""
    DRAINED = "drained"
    FENCED = "fenced"
    FINISHED = "finished"
    INFRASTRUCTURE = "infrastructure"
    SILENT = "silent"
    """Alive as far as known, but it sends nothing."""
    STRAGGLER = "straggler"
    """Far slower than the other workers, or without progress for much longer than usual."""
    HUNG = "hung"
    """The user's code in it does not return, or it did not end in time when it was asked to."""
    STALLED = "stalled"
    """The job stood still and waited for it."""
    STRANDED = "stranded"
    """It gave up waiting for the master or for servers that stayed away."""


ASKED = frozenset((Cause.DRAINED, Cause.FENCED, Cause.FINISHED))
"""Causes of ends that the master or the job itself asked for."""
PROBLEMS = frozenset(Cause) - {
    Cause.DRAINED,
    Cause.FENCED,
    Cause.FINISHED,
    Cause.PREEMPTED,
    Cause.EVICTED,
    Cause.NOT_PLACED,
    Cause.NODE_DRAINED,
}
"""Causes that somebody may want to act on."""
PLATFORM = frozenset(
    (
        Cause.OUT_OF_MEMORY,
        Cause.PREEMPTED,
        Cause.EVICTED,
        Cause.NOT_PLACED,
        Cause.NODE_DRAINED,
        Cause.NODE_LOST,
        Cause.DELETED,
    )
)
"""Causes that only the platform can report, perhaps long after the process was missed."""
MEMORY_WORDS = "out of memory"
"""Part of each sentence about an end by lack of memory."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A cause and its description.

    `blames_work`: what the process was working on may have killed it. `permanent`: every other
    process would end the same way. `frames`: where it was in the user's code, outermost first.
    """

    cause: Cause
    text: str
    blames_work: bool = False
    permanent: bool = False
    frames: tuple[str, ...] = ()


_DISRUPTIONS = {
    "PreemptionByScheduler": (
        Cause.PREEMPTED,
        "preempted by the scheduler for a pod of higher priority",
    ),
    "EvictionByEvictionAPI": (Cause.EVICTED, "evicted by request (a node is being emptied)"),
    "TerminationByKubelet": (
        Cause.EVICTED,
        "ended by its node, which lacks resources or is shutting down",
    ),
    "DeletionByTaintManager": (Cause.NODE_DRAINED, "its node was tainted"),
    "DeletionByPodGC": (Cause.NODE_LOST, "its node is gone"),
}
_REASONS = {
    "Preempted": (Cause.PREEMPTED, "preempted for a pod of higher priority"),
    "Preempting": (Cause.PREEMPTED, "preempted by its node for a critical pod"),
    "Evicted": (Cause.EVICTED, "evicted by its node"),
    "Terminated": (Cause.NODE_DRAINED, "its node was shut down"),
    "NodeShutdown": (Cause.NODE_DRAINED, "its node was shut down"),
    "Shutdown": (Cause.NODE_DRAINED, "its node was shut down"),
    "NodeLost": (Cause.NODE_LOST, "its node stopped answering"),
    "ContainerStatusUnknown": (Cause.NODE_LOST, "its node lost track of it"),
    "Deleted": (Cause.DELETED, "deleted by someone else"),
    "NotPlaced": (Cause.NOT_PLACED, ""),
    "ImagePullFailed": (Cause.IMAGE, ""),
    "StartError": (Cause.START_ERROR, "could not be started"),
    "ContainerCannotRun": (Cause.START_ERROR, "could not be started"),
}
_REJECTED = (
    "OutOf",
    "UnexpectedAdmissionError",
    "NodeAffinity",
    "NodePorts",
    "TopologyAffinityError",
    "UnexpectedPodsLimit",
)
"""Prefixes of the reasons with which a node rejects a pod that was placed on it."""
_TELLS_MORE = (Cause.EVICTED, Cause.NOT_PLACED, Cause.IMAGE, Cause.START_ERROR)
"""For these causes, `log_tail` begins with the platform's own words."""
_NO_NEWS = ("ContainerStatusUnknown", "Deleted")
"""Reasons that say nothing new if the master ended the process."""
_CRASH_SIGNALS = frozenset((signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE))
_OURS = (
    "elasticdl.errors.TransientError",
    "elasticdl.errors.PermanentError",
    "elasticdl.errors.Refused",
)


def verdict_of(
    status: ExitStatus,
    *,
    finished: bool = False,
    limit_bytes: int | None = None,
    worker: bool = True,
) -> Verdict:
    """Derive one cause from an exit status.

    `finished`: the process was told that there is no more work. `limit_bytes`: its memory limit, if
    known. `worker`: it is a worker and has work to give back.
    """
    # Before the exit code: the kernel's SIGKILL looks like any other kill.
    if status.reason == "OOMKilled":
        return Verdict(Cause.OUT_OF_MEMORY, _memory(status, limit_bytes), blames_work=True)
    by_platform = _by_platform(status)
    # The platform knows more than an exit code: an evicted pod may exit with any of them.
    if by_platform is not None:
        more = ""
        if status.exit_code == ExitCode.DRAINED and worker:
            more = "; it returned its shards first"
        elif status.exit_code == ExitCode.FORCED:
            more = f"; it {_forced(status)}"
        return Verdict(by_platform.cause, by_platform.text + more)
    if status.exit_code == ExitCode.DRAINED:
        return Verdict(Cause.DRAINED, "drained" if worker else "left gracefully")
    if status.exit_code is not None:
        return _by_exit_code(status, status.exit_code, finished)
    if status.asked:
        return Verdict(Cause.DRAINED, "ended on request")
    if status.signal is not None:
        crashed = status.signal in _CRASH_SIGNALS
        return Verdict(
            Cause.INFRASTRUCTURE,
            f"killed by {_signal_name(status.signal)}",
            blames_work=crashed,
        )
    if status.reason:
        return Verdict(
            Cause.INFRASTRUCTURE,
            f"{status.reason}: {status.log_tail.strip() or 'no details given'}",
        )
    return Verdict(Cause.NODE_LOST, "disappeared without an exit status")


def _memory(status: ExitStatus, limit_bytes: int | None) -> str:
    """Describe an end by lack of memory.

    A process killed at its limit had used all of it. Its last report is mentioned only if it was
    much lower.
    """
    peak = status.memory_peak_bytes
    if limit_bytes is None:
        return MEMORY_WORDS + (f"; its last report said {gibibytes(peak)}" if peak else "")
    before = (
        f" (its last report said {gibibytes(peak)})" if peak and peak < 0.95 * limit_bytes else ""
    )
    limit = gibibytes(limit_bytes)
    return f"{MEMORY_WORDS} at {limit.partition(' ')[0]} of {limit}{before}"


def gibibytes(size_bytes: int) -> str:
    """`1.5 GiB`, or `512 MiB` below 1 GiB."""
    return (
        f"{size_bytes / 2**30:.1f} GiB" if size_bytes >= 2**30 else f"{size_bytes / 2**20:.0f} MiB"
    )


def _by_platform(status: ExitStatus) -> Verdict | None:
    """The platform's reason for the exit; None if it gives none, or only confirms our request."""
    reported = (
        _REASONS.get(status.reason) if not (status.asked and status.reason in _NO_NEWS) else None
    )
    if status.reason.startswith(_REJECTED):
        reported = (Cause.EVICTED, f"rejected by its node ({status.reason})")
    if reported is not None and reported[0] in _TELLS_MORE:
        first_line = next(
            (line.strip() for line in status.log_tail.splitlines() if line.strip()), ""
        )
        return Verdict(
            reported[0],
            ": ".join(part for part in (reported[1], first_line) if part)
            or "its image cannot be pulled",
        )
    reported = reported or _disruption(status)
    return Verdict(*reported) if reported else None


def _disruption(status: ExitStatus) -> tuple[Cause, str] | None:
    for condition in status.conditions:
        kind, _, why = condition.partition(":")
        if kind == "DisruptionTarget":
            # A node that ended it gracefully also reported how it ended. A lost node is tainted
            # too, but reports nothing.
            if (
                why == "DeletionByTaintManager"
                and status.exit_code is None
                and status.signal is None
            ):
                return Cause.NODE_LOST, "its node is tainted and does not answer"
            return _DISRUPTIONS.get(why, (Cause.EVICTED, f"disrupted ({why or 'no reason given'})"))
    return None


def _by_exit_code(status: ExitStatus, code: int, finished: bool) -> Verdict:
    match code:
        case ExitCode.FENCED:
            return Verdict(Cause.FENCED, "exited because it had been replaced")
        case ExitCode.FORCED:
            return Verdict(Cause.HUNG, _forced(status))
        case ExitCode.UNAVAILABLE:
            return Verdict(Cause.STRANDED, f"stranded: {_last_line(status)}")
        case ExitCode.CANNOT_RUN:
            return Verdict(
                Cause.INFRASTRUCTURE, f"cannot run: {_last_line(status)}", permanent=True
            )
        case ExitCode.USER_ERROR:
            return Verdict(Cause.USER_ERROR, f"user error: {_last_line(status)}", blames_work=True)
    if finished and code == 0:
        return Verdict(Cause.FINISHED, "finished")
    if status.asked:
        return Verdict(Cause.DRAINED, "ended on request")
    if code == 0:
        return Verdict(
            Cause.INFRASTRUCTURE,
            "ended with exit code 0 although work is left",
            blames_work=True,
        )
    if "Traceback (most recent call last)" in status.log_tail and not _last_line(status).startswith(
        _OURS
    ):
        return Verdict(
            Cause.USER_ERROR,
            f"exit code {code} after an exception: {_last_line(status)}",
            blames_work=True,
        )
    # Shells and container runtimes report "signal n" as 128 + n.
    text = f"exit code {code}" + (f" ({_signal_name(code - 128)})" if 128 < code < 160 else "")
    # Somebody outside sent these two; other codes come from what the process was doing.
    killed = code in (128 + signal.SIGKILL, 128 + signal.SIGTERM)
    return Verdict(Cause.INFRASTRUCTURE, f"{text}: {_last_line(status)}", blames_work=not killed)


def _forced(status: ExitStatus) -> str:
    return f"ended by force: {_last_line(status)}"


def silence(status: ExitStatus) -> Verdict | None:
    """Return why a process that was given up for its silence was silent; None if unknown."""
    if STOPPED in status.conditions:
        return Verdict(Cause.SILENT, "no message: it was stopped (SIGSTOP)")
    return blocked(status)


_HOLDS = re.compile(
    r"thread .* has held the interpreter's lock for \d+ s(, in the user's code at:)?"
)
_HOLDS_AT = re.compile(r"  at (.*)")


def blocked(status: ExitStatus) -> Verdict | None:
    """Return where native code held the interpreter's lock until the end; None if it did not.

    `worker/native/interpreter_watch.cc` writes it. Whatever Python logs after that means that the
    lock was free again.
    """
    lines = status.log_tail.splitlines()
    at = next((i for i in reversed(range(len(lines))) if _HOLDS.fullmatch(lines[i])), None)
    if at is None or any(_OF_OUR_LOG.match(line.strip()) for line in lines[at:]):
        return None
    matches = (_HOLDS_AT.fullmatch(line) for line in lines[at + 1 :])
    frames = tuple(match[1] for match in matches if match is not None)
    place = f", at {frames[-1]}" if frames else ""
    text = f"hung: native code holds the interpreter's lock{place}"
    return Verdict(Cause.HUNG, text, blames_work=bool(frames), frames=frames)


_OF_OUR_LOG = re.compile(r"\d{4}-\d\d-\d\d [\d:,]+ ([A-Z]) \S+: (.*)")
"""Level and message of a line as the processes log it."""


def _last_line(status: ExitStatus) -> str:
    """The last error that the process logged, or else the last line that is not a log record.

    What it logged afterwards, such as that it leaves, is no cause.
    """
    last = ""
    for line in reversed(status.log_tail.splitlines()):
        record = _OF_OUR_LOG.match(line.strip())
        if record is None:
            last = last or line.strip()
        elif record[1] == "E":
            # The message of a traceback is at its end.
            return last if record[2].startswith("Traceback") and last else record[2]
    return last or _plain_last_line(status)


def _plain_last_line(status: ExitStatus) -> str:
    lines = [line.strip() for line in status.log_tail.splitlines() if line.strip()]
    return lines[-1] if lines else "it printed nothing"


def _signal_name(number: int) -> str:
    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"signal {number}"

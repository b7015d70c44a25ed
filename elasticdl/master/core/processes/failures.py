"""Why a process ended: one cause out of the facts, in words.

`budgets.py` says what each cause may cost.

The words of the platform that are known here are those that `cluster/kubernetes/pods.py` and
`cluster/kubernetes/pod_tracker.py` hand on, and those that a
kubelet, a scheduler and the controllers write. One that is not known is shown as it is.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass
from enum import StrEnum

from elasticdl.cluster.base import ExitFacts
from elasticdl.errors import ExitCode


class Cause(StrEnum):
    """The one named cause of an end."""

    USER_ERROR = "user_error"
    OUT_OF_MEMORY = "out_of_memory"
    PREEMPTED = "preempted"
    """Its place was wanted for a pod of higher priority."""
    EVICTED = "evicted"
    """Sent away: by request (a node is being emptied), or by a node that is short of something."""
    NODE_DRAINED = "node_drained"
    """Its node was tainted or shut down, and ended it in order."""
    NODE_LOST = "node_lost"
    DELETED = "deleted"
    """Somebody deleted it, and that was not us."""
    IMAGE = "image_unavailable"
    START_ERROR = "start_error"
    """The image is there, but its program could not be started."""
    DRAINED = "drained"
    FENCED = "fenced"
    FINISHED = "finished"
    INFRASTRUCTURE = "infrastructure"
    SILENT = "silent"
    """Alive for all that is known, but not heard of."""
    STRAGGLER = "straggler"
    """No progress with a shard for much longer than others need."""
    STALLED = "stalled"
    """The job stood still, and waited for it."""
    STRANDED = "stranded"
    """It gave up waiting for others: the master, or servers that stayed away."""


PROBLEMS = frozenset(Cause) - {
    Cause.DRAINED,
    Cause.FENCED,
    Cause.FINISHED,
    Cause.PREEMPTED,
    Cause.EVICTED,
    Cause.NODE_DRAINED,
}
"""Causes that somebody may want to do something about."""
PLATFORM = frozenset(
    (
        Cause.OUT_OF_MEMORY,
        Cause.PREEMPTED,
        Cause.EVICTED,
        Cause.NODE_DRAINED,
        Cause.NODE_LOST,
        Cause.DELETED,
    )
)
"""Causes that only the platform can tell, maybe long after a process was missed."""
MEMORY_WORDS = "out of memory"
"""In each sentence about such an end."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A cause and how to say it.

    `blames_work`: what the process was working on may have killed it.
    """

    cause: Cause
    text: str
    blames_work: bool = False


_DISRUPTIONS = {
    "PreemptionByScheduler": (
        Cause.PREEMPTED,
        "preempted by the scheduler for a pod of higher priority",
    ),
    "EvictionByEvictionAPI": (Cause.EVICTED, "evicted by request (a node is being emptied)"),
    "TerminationByKubelet": (
        Cause.EVICTED,
        "ended by its node, which is short of something or shutting down",
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
    "NodeLost": (Cause.NODE_LOST, "its node is gone: it did not answer any more"),
    "ContainerStatusUnknown": (Cause.NODE_LOST, "its node lost track of it"),
    "Deleted": (Cause.DELETED, "deleted by somebody"),
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
"""How reasons begin with which a node sends a pod away that was placed on it."""
_TELLS_MORE = (Cause.EVICTED, Cause.IMAGE, Cause.START_ERROR)
"""Of these, where a reason names them, `log_tail` begins with the platform's own words."""
_NO_NEWS = ("ContainerStatusUnknown", "Deleted")
"""Of a process that we ended ourselves."""
_CRASH_SIGNALS = frozenset((signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE))
_OURS = (
    "elasticdl.errors.TransientError",
    "elasticdl.errors.PermanentError",
    "elasticdl.errors.Refused",
)


def verdict(
    facts: ExitFacts, *, finished: bool = False, limit_bytes: int | None = None, worker: bool = True
) -> Verdict:
    """One cause out of the facts of an exit.

    `finished`: the process was told that there is no more work. `limit_bytes`: the memory that it
    might use, if that is known.
    `worker`: it is one, and has work to give back.
    """
    if facts.reason == "OOMKilled":
        return Verdict(Cause.OUT_OF_MEMORY, _memory(facts, limit_bytes), blames_work=True)
    told = _by_platform(facts)
    if told is not None:
        gave_back = (
            "; it gave its work back first"
            if facts.exit_code == ExitCode.DRAINED and worker
            else ""
        )
        return Verdict(told.cause, told.text + gave_back)
    if facts.exit_code == ExitCode.DRAINED:
        return Verdict(Cause.DRAINED, "gave its work back and left" if worker else "left in order")
    if facts.exit_code is not None:
        return _by_exit_code(facts, facts.exit_code, finished)
    if facts.asked:
        return Verdict(Cause.DRAINED, "ended as asked")
    if facts.signal is not None:
        crashed = facts.signal in _CRASH_SIGNALS
        return Verdict(
            Cause.INFRASTRUCTURE, f"killed by {_signal_name(facts.signal)}", blames_work=crashed
        )
    if facts.reason:
        return Verdict(
            Cause.INFRASTRUCTURE, f"{facts.reason}: {facts.log_tail.strip() or 'no more was told'}"
        )
    return Verdict(Cause.NODE_LOST, "gone, and nothing is known of its end")


def _memory(facts: ExitFacts, limit_bytes: int | None) -> str:
    """Whoever is killed at a limit was at it: what it told of itself before is only news where that
    was much less.
    """
    peak = facts.memory_peak_bytes
    if limit_bytes is None:
        return MEMORY_WORDS + (f"; it had {gibibytes(peak)} when last heard of" if peak else "")
    before = (
        f" ({gibibytes(peak)} when last heard of)" if peak and peak < 0.95 * limit_bytes else ""
    )
    limit = gibibytes(limit_bytes)
    return f"{MEMORY_WORDS} at {limit.partition(' ')[0]} of {limit}{before}"


def gibibytes(size_bytes: int) -> str:
    """`1.5 GiB`, or `512 MiB` where that says more."""
    return (
        f"{size_bytes / 2**30:.1f} GiB" if size_bytes >= 2**30 else f"{size_bytes / 2**20:.0f} MiB"
    )


def _by_platform(facts: ExitFacts) -> Verdict | None:
    """What the platform says of why it ended the process; None if it says nothing that we did not
    ask for.
    """
    found = _REASONS.get(facts.reason) if not (facts.asked and facts.reason in _NO_NEWS) else None
    if facts.reason.startswith(_REJECTED):
        found = (Cause.EVICTED, f"not taken by its node ({facts.reason})")
    if found is not None and found[0] in _TELLS_MORE:
        said = next((line.strip() for line in facts.log_tail.splitlines() if line.strip()), "")
        return Verdict(
            found[0],
            ": ".join(part for part in (found[1], said) if part) or "its image cannot be had",
        )
    found = found or _disruption(facts)
    return Verdict(*found) if found else None


def _disruption(facts: ExitFacts) -> tuple[Cause, str] | None:
    for condition in facts.conditions:
        kind, _, why = condition.partition(":")
        if kind == "DisruptionTarget":
            # Of a node that ended it in order the end is known; one that is lost is tainted, too,
            # and tells nothing.
            if why == "DeletionByTaintManager" and facts.exit_code is None and facts.signal is None:
                return Cause.NODE_LOST, "its node was tainted and does not answer"
            return _DISRUPTIONS.get(why, (Cause.EVICTED, f"disrupted ({why or 'no reason given'})"))
    return None


def _by_exit_code(facts: ExitFacts, code: int, finished: bool) -> Verdict:
    match code:
        case ExitCode.FENCED:
            return Verdict(Cause.FENCED, "was replaced, and left when it learned of that")
        case ExitCode.UNAVAILABLE:
            return Verdict(Cause.STRANDED, f"stranded: {_last_line(facts)}")
        case ExitCode.USER_ERROR:
            return Verdict(Cause.USER_ERROR, f"user error: {_last_line(facts)}", blames_work=True)
    if finished and code == 0:
        return Verdict(Cause.FINISHED, "finished")
    if facts.asked:
        return Verdict(Cause.DRAINED, "ended as asked")
    if code == 0:
        return Verdict(
            Cause.INFRASTRUCTURE,
            "ended with exit code 0 although there is work left",
            blames_work=True,
        )
    if "Traceback (most recent call last)" in facts.log_tail and not _last_line(facts).startswith(
        _OURS
    ):
        return Verdict(
            Cause.USER_ERROR,
            f"exit code {code} after an exception: {_last_line(facts)}",
            blames_work=True,
        )
    # 128 + n is how shells and container runtimes say "signal n".
    text = f"exit code {code}" + (f" ({_signal_name(code - 128)})" if 128 < code < 160 else "")
    killed = code in (128 + signal.SIGKILL, 128 + signal.SIGTERM)
    return Verdict(Cause.INFRASTRUCTURE, f"{text}: {_last_line(facts)}", blames_work=not killed)


def _last_line(facts: ExitFacts) -> str:
    lines = [line.strip() for line in facts.log_tail.splitlines() if line.strip()]
    return lines[-1] if lines else "it printed nothing"


def _signal_name(number: int) -> str:
    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"signal {number}"

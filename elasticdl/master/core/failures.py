"""Why a process ended: one cause out of the facts, and a budget for each cause.

Only what the user can mend ends a job: their own errors, their own memory limit. A crash that nobody explains ends it
only if it keeps coming back without one batch done in between. What a cluster does to processes never spends anything.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass
from enum import StrEnum

from elasticdl.cluster.base import ExitFacts
from elasticdl.errors import ExitCode

_OUT_OF_MEMORY_DEATHS = 3
_CRASHES_IN_A_ROW = 5
_KILLS_IN_A_ROW = 50
_BACK_OFF_S = (0.0, 0.0, 0.5, 1.0, 2.0, 5.0)


class Cause(StrEnum):
    """The one named cause of an end."""

    USER_ERROR = "user_error"
    OUT_OF_MEMORY = "out_of_memory"
    PREEMPTED = "preempted"
    EVICTED = "evicted"
    NODE_LOST = "node_lost"
    DRAINED = "drained"
    FENCED = "fenced"
    FINISHED = "finished"
    INFRASTRUCTURE = "infrastructure"
    SILENT = "silent"
    """Alive for all that is known, but not heard of."""
    STRAGGLER = "straggler"
    """No progress with a shard for much longer than others need."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A cause and how to say it. `blames_work`: what the process was working on may have killed it."""

    cause: Cause
    text: str
    blames_work: bool = False


_DISRUPTIONS = {
    "PreemptionByScheduler": (Cause.PREEMPTED, "preempted by the scheduler for a pod of higher priority"),
    "EvictionByEvictionAPI": (Cause.EVICTED, "evicted by request (a node is being emptied)"),
    "TerminationByKubelet": (Cause.EVICTED, "ended by its node (node pressure or shutdown)"),
    "DeletionByTaintManager": (Cause.NODE_LOST, "its node was tainted"),
    "DeletionByPodGC": (Cause.NODE_LOST, "its node is gone"),
}
_REASONS = {
    "OOMKilled": (Cause.OUT_OF_MEMORY, "killed for using more memory than its limit"),
    "Preempting": (Cause.PREEMPTED, "preempted for a pod of higher priority"),
    "Evicted": (Cause.EVICTED, "evicted by its node"),
    "NodeLost": (Cause.NODE_LOST, "its node is gone"),
    "NodeShutdown": (Cause.NODE_LOST, "its node was shut down"),
}
_CRASH_SIGNALS = frozenset((signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE))
_OURS = ("elasticdl.errors.TransientError", "elasticdl.errors.PermanentError", "elasticdl.errors.Refused")


def verdict(facts: ExitFacts, *, finished: bool = False) -> Verdict:
    """One cause out of the facts of an exit. `finished`: the process was told that there is no more work."""
    if facts.reason in _REASONS:
        cause, text = _REASONS[facts.reason]
        return Verdict(cause, text, blames_work=cause is Cause.OUT_OF_MEMORY)
    for condition in facts.conditions:
        kind, _, why = condition.partition(":")
        if kind == "DisruptionTarget":
            return Verdict(*_DISRUPTIONS.get(why, (Cause.EVICTED, f"disrupted ({why or 'no reason given'})")))
    if facts.exit_code is not None:
        return _by_exit_code(facts, facts.exit_code, finished)
    if facts.asked:
        return Verdict(Cause.DRAINED, "ended as asked")
    if facts.signal is not None:
        crashed = facts.signal in _CRASH_SIGNALS
        return Verdict(Cause.INFRASTRUCTURE, f"killed by {_signal_name(facts.signal)}", blames_work=crashed)
    return Verdict(Cause.NODE_LOST, "gone, and nothing is known of its end")


def _by_exit_code(facts: ExitFacts, code: int, finished: bool) -> Verdict:
    match code:
        case ExitCode.DRAINED:
            return Verdict(Cause.DRAINED, "drained: gave its work back and left")
        case ExitCode.FENCED:
            return Verdict(Cause.FENCED, "was replaced, and left when it learned of that")
        case ExitCode.USER_ERROR:
            return Verdict(Cause.USER_ERROR, f"user error: {_last_line(facts)}", blames_work=True)
    if finished and code == 0:
        return Verdict(Cause.FINISHED, "finished")
    if facts.asked:
        return Verdict(Cause.DRAINED, "ended as asked")
    if code == 0:
        return Verdict(Cause.INFRASTRUCTURE, "ended with exit code 0 although there is work left", blames_work=True)
    if "Traceback (most recent call last)" in facts.log_tail and not _last_line(facts).startswith(_OURS):
        return Verdict(Cause.USER_ERROR, f"exit code {code} after an exception: {_last_line(facts)}", blames_work=True)
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


@dataclass(slots=True)
class Budgets:
    """How often each cause happened, as far as it is limited. `in_a_row` counts since the last batch that was done."""

    max_user_errors: int
    user_errors: int = 0
    out_of_memory: int = 0
    crashes_in_a_row: int = 0
    kills_in_a_row: int = 0
    deaths_in_a_row: int = 0
    """Of any cause: for backing off only."""
    last_error: str = ""

    def progressed(self) -> None:
        """A batch was done: whatever crashes is not stopping the job."""
        self.crashes_in_a_row = 0
        self.kills_in_a_row = 0
        self.deaths_in_a_row = 0

    def user_error(self, error: str) -> str:
        """Count an error of the user's code outside of any shard. Returns why the job must end, or ''."""
        self.user_errors += 1
        self.last_error = error
        if self.user_errors <= self.max_user_errors:
            return ""
        return f"the user's code failed {self.user_errors} times (--max-relaunches {self.max_user_errors}): {error}"

    def died(self, who: str, told: Verdict, *, blamed_on_shard: bool) -> str:
        """Count an end of a process. Returns why the job must end, or ''."""
        self.deaths_in_a_row += 1
        match told.cause:
            case Cause.USER_ERROR:
                return "" if blamed_on_shard else self.user_error(f"{who}: {told.text}")
            case Cause.OUT_OF_MEMORY:
                self.out_of_memory += 1
                over = self.out_of_memory > _OUT_OF_MEMORY_DEATHS
                return f"{who} was {told.text}; this was the {self.out_of_memory}th time" if over else ""
            case Cause.INFRASTRUCTURE if told.blames_work or "SIGABRT" in told.text:
                self.crashes_in_a_row += 1
                over = self.crashes_in_a_row >= _CRASHES_IN_A_ROW
                return self._in_a_row(who, told, self.crashes_in_a_row) if over else ""
            case Cause.INFRASTRUCTURE | Cause.SILENT | Cause.STRAGGLER | Cause.FENCED:
                self.kills_in_a_row += 1
                over = self.kills_in_a_row >= _KILLS_IN_A_ROW
                return self._in_a_row(who, told, self.kills_in_a_row) if over else ""
            case _:
                return ""

    def back_off_s(self) -> float:
        """How long to wait before the next start: 0 at first, growing to 5 s while nothing gets done."""
        return _BACK_OFF_S[min(self.deaths_in_a_row, len(_BACK_OFF_S) - 1)]

    def _in_a_row(self, who: str, told: Verdict, times: int) -> str:
        return f"{times} processes died in a row without one batch done in between; the last, {who}: {told.text}"

"""Print what the time of a job's workers went to."""

from __future__ import annotations

from elasticdl.formatting import spoken
from elasticdl.job_status import Goodput, TimeSpent
from elasticdl.time_use import COMPUTE

_MOST_CAUSES = 5
_LEAST_SHARE = 0.01
"""Shorter causes are not listed."""
_SHORT_S = 120.0
"""Of all workers, such as two workers for a minute: below this the start and the end are a large
part of a job, and its shares say nothing about a longer one."""


def goodput_line(account: Goodput) -> str:
    """Return `61.2 % of 14 min of all workers; pull 20.1 %, start 9.0 %`, the longest first.

    Of a short job it says instead that much of it is start and end.
    """
    whole = f"{100 * account.share:.1f} % of {spoken(account.seconds)} of all workers"
    if account.seconds < _SHORT_S:
        return f"{whole}; the job is too short to judge by: much of it is start and end"
    rest = [
        f"{kind} {_share(seconds, account)}"
        for kind, seconds in account.by_kind().items()
        if kind != COMPUTE and seconds >= _LEAST_SHARE * account.seconds
    ]
    return "; ".join((whole, ", ".join(rest))) if rest else whole


def cause_lines(account: Goodput) -> list[str]:
    """Return a line for each of the longest causes that are not computing."""
    longest = [
        use
        for use in account.spent
        if use.kind != COMPUTE and use.seconds >= _LEAST_SHARE * account.seconds
    ]
    return [_cause(use, account) for use in longest[:_MOST_CAUSES]]


def _cause(use: TimeSpent, account: Goodput) -> str:
    most = f", {use.process} {spoken(use.process_s)} of it" if use.process and use.process_s else ""
    cause = use.cause.replace("_", " ")
    return f"{use.kind}, {cause}: {spoken(use.seconds)}, {_share(use.seconds, account)}{most}"


def _share(seconds: float, account: Goodput) -> str:
    return f"{100 * seconds / account.seconds:.1f} %"

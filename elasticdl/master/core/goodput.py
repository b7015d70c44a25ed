"""The share of the workers' time that went into the model, and what the rest went to."""

from __future__ import annotations

from elasticdl.job_choices import Action
from elasticdl.job_status import Goodput, TimeSpent
from elasticdl.master.core.data.ledger import Ledger
from elasticdl.master.core.processes.worker_times import WorkerTimes
from elasticdl.time_use import COMPUTE, TimeUse


def goodput(times: WorkerTimes, ledger: Ledger | None, action: Action) -> Goodput | None:
    """The account of all workers, as far as they have reported; None before the first report.

    What a job is for counts as computing, also if that is an evaluation. Records that this run
    trained, and that were then lost with the weights, took their share of the computing: it counts
    as repeated.
    """
    spent_s = {use: seconds for use, seconds in times.spent_s.items() if seconds > 0.0}
    whole_s = sum(spent_s.values())
    if not whole_s:
        return None
    vain_s = _vain_share(ledger) * spent_s.get(TimeUse.STEP, 0.0)
    if vain_s:
        spent_s[TimeUse.STEP.value] -= vain_s
        spent_s[TimeUse.LOST_RECORDS.value] = vain_s
    spent = sorted(spent_s.items(), key=lambda item: (-item[1], item[0]))
    rows = tuple(_row(times, use, seconds, action) for use, seconds in spent)
    useful_s = sum(row.seconds for row in rows if row.kind == COMPUTE)
    return Goodput(round(whole_s, 3), round(useful_s / whole_s, 4), rows)


def _row(times: WorkerTimes, use: str, seconds: float, action: Action) -> TimeSpent:
    kind, _, cause = use.partition(".")
    if action is Action.EVALUATE and kind == TimeUse.METRICS.kind:
        kind = COMPUTE
    name, most_s = times.most.get(use, (None, None))
    return TimeSpent(
        kind,
        cause,
        round(seconds, 3),
        None if name is None else str(name),
        None if most_s is None else round(most_s, 3),
    )


def _vain_share(ledger: Ledger | None) -> float:
    """The share of the records that this run computed for nothing, from 0 to 1."""
    if ledger is None:
        return 0.0
    vain = ledger.undone + ledger.partly_pushed
    computed = sum(ledger.done_by.values()) + ledger.partly_pushed
    return min(1.0, vain / computed) if computed > 0 else 0.0

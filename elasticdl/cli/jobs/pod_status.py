"""The status of a job on a cluster without its master, from its Job and pods."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any

from elasticdl.cluster.base import ProcessName, Role
from elasticdl.cluster.kubernetes.job_state import JobState, wall_s
from elasticdl.cluster.kubernetes.pods import exit_status, has_ended, observed, process_name
from elasticdl.cluster.kubernetes.termination_message import read_outcome
from elasticdl.cluster.priority_ladder import share_of
from elasticdl.job import JobSpec
from elasticdl.job_status import (
    ClusterShare,
    JobStatus,
    ProcessStatus,
    Receipt,
    RecordCounts,
    ScaleStatus,
    unknown_status,
)
from elasticdl.jobdir.outcome import Outcome
from elasticdl.master.core.processes.causes import Cause, verdict_of


def status_of_pods(state: JobState, message: str) -> JobStatus:
    """Return a status with `message`, what is known, and empty values for the rest."""
    waiting = (state.waits_for,) if state.waits_for else ()
    status = replace(unknown_status(message), processes=rows(state), waiting=waiting)
    spec, ended = state.spec, state.ended
    if spec is not None:
        workers = spec.cluster.num_workers
        scale = ScaleStatus(workers.low, workers.high, requested=0, observed=0)
        status = replace(status, action=str(spec.action), epochs=spec.data.num_epochs, scale=scale)
    if ended is None:
        return (
            status if spec is None else replace(status, cluster_share=_cluster_share(state, spec))
        )
    status = replace(status, phase="ended", metrics=dict(ended.metrics), loss=ended.loss)
    receipt = _receipt_of(ended)
    if receipt is None:
        return status
    records = RecordCounts(**asdict(receipt.total), resumed=0, undone=0)
    return replace(status, receipt=receipt, records=records, updates=receipt.updates)


def _cluster_share(state: JobState, spec: JobSpec) -> ClusterShare:
    live = [pod for pod in state.pods if not has_ended(pod)]
    workers = [pod for pod in live if process_name(pod).role is Role.WORKER]
    return share_of(spec, sum(bool(observed(pod).where) for pod in workers))


def _receipt_of(ended: Outcome) -> Receipt | None:
    """Return the receipt; a long one leaves only its total in the termination message."""
    short: dict[str, object] = {
        "epochs": (),
        "epochs_left_out": 0,
        "not_begun": {"epochs": 0, "records": 0},
        "repeated_at_least": False,
        "why_left": None,
        "counted": None,
    }
    with suppress(ValueError):
        return Receipt.from_json({**short, **ended.receipt})
    return None


def rows(state: JobState) -> tuple[ProcessStatus, ...]:
    """Return a row per pod, masters first.

    A live pod's state is `running`, since only a master knows whether it is ready.
    """
    return tuple(_row(state, name, pod) for name, pod in state.processes())


def _row(job: JobState, name: ProcessName, pod: Mapping[str, Any]) -> ProcessStatus:
    began_s = max(0.0, wall_s(pod["metadata"].get("creationTimestamp")) - job.created_wall_s)
    seen = observed(pod)
    state, cause, message = "ended", None, ""
    if not has_ended(pod):
        state, message = "running" if seen.running else "pending", seen.waiting_for
    elif (outcome := read_outcome(pod)) is not None:
        cause, message = str(Cause.FINISHED), outcome.message.partition("\n")[0]
    else:
        end = exit_status(pod, asked=False)
        verdict = verdict_of(end, finished=end.exit_code == 0)
        cause, message = str(verdict.cause), verdict.text
    return ProcessStatus(
        name=str(name),
        role=str(name.role),
        state=state,
        since_s=began_s,
        started_s=began_s,
        where=seen.where or None,
        cause=cause,
        message=message,
        shard=None,
        records=None,
        evaluated=None,
    )

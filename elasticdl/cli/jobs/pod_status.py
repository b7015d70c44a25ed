"""The status of a job on a cluster as far as its Job and its pods show it, without its master."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from elasticdl.cli.jobs.job import blank_status
from elasticdl.cluster.base import ProcessName
from elasticdl.cluster.kubernetes.job_facts import JobFacts, wall_s
from elasticdl.cluster.kubernetes.pods import exit_facts, has_ended, observed
from elasticdl.cluster.kubernetes.termination_message import read_outcome
from elasticdl.master.core.processes.failures import Cause, verdict
from elasticdl.master.core.status import ProcessStatus


def status_of_pods(facts: JobFacts, message: str) -> dict[str, Any]:
    """A status with `message`, what is known, and nothing for the rest."""
    known: dict[str, Any] = {
        "processes": rows(facts),
        "waiting": [facts.waits_for] if facts.waits_for else [],
    }
    spec, ended = facts.spec, facts.ended
    if spec is not None:
        workers = spec.cluster.num_workers
        scale = {"low": workers.low, "high": workers.high, "requested": 0, "observed": 0}
        known |= {"action": str(spec.action), "epochs": spec.data.num_epochs, "scale": scale}
    if ended is not None:
        receipt = {"epochs": [], "total": {}, **ended.receipt}
        counted = ("expected", "trained", "repeated", "bad", "lost", "left")
        counts = {key: receipt["total"].get(key, 0) for key in counted}
        known |= {
            "metrics": dict(ended.metrics),
            "loss": ended.loss,
            "phase": "ended",
            "receipt": receipt,
            "records": {**counts, "resumed": 0, "undone": 0, "records_per_s": 0.0},
        }
    return blank_status(message, **known)


def rows(facts: JobFacts) -> list[dict[str, Any]]:
    """A row each, the masters' first.

    `running` is all that is known of one that runs: whether it is ready, only a master knows.
    """
    return [asdict(_row(facts, name, pod)) for name, pod in facts.processes()]


def _row(facts: JobFacts, name: ProcessName, pod: Mapping[str, Any]) -> ProcessStatus:
    began_s = max(0.0, wall_s(pod["metadata"].get("creationTimestamp")) - facts.created_wall_s)
    seen = observed(pod)
    if not has_ended(pod):
        state = "running" if seen.running else "pending"
        return ProcessStatus(
            str(name), str(name.role), state, began_s, began_s, seen.where, message=seen.waiting_for
        )
    said = read_outcome(pod)
    if said is not None:
        message = said.message.partition("\n")[0]
        return ProcessStatus(
            str(name),
            str(name.role),
            "ended",
            began_s,
            began_s,
            seen.where,
            str(Cause.FINISHED),
            message,
        )
    end = exit_facts(pod, asked=False)
    told = verdict(end, finished=end.exit_code == 0)
    return ProcessStatus(
        str(name), str(name.role), "ended", began_s, began_s, seen.where, str(told.cause), told.text
    )

"""What a tracker shows of a job: its parameters at the beginning, its receipt at the end."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from elasticdl.job import JobSpec
from elasticdl.job_flags import FIELDS
from elasticdl.jobdir.outcome import Outcome
from elasticdl.kubernetes_flags import KubernetesSection
from elasticdl.tracking.choice import kind_and_uri
from elasticdl.tracking.metric_rows import flat
from elasticdl.tracking.tracker import Run, RunEnd

_LEFT_OUT = ("envs", "tracker", *KubernetesSection.model_fields)
"""What may hold what is nobody's business, or says nothing about the training."""


def run_of(spec: JobSpec, key: str, job_dir: Path) -> Run:
    """Return the run of a job."""
    _, uri = kind_and_uri(spec.checkpoint.tracker)
    return Run(key, spec.cluster.job_name, job_dir, params_of(spec), uri)


def params_of(spec: JobSpec) -> dict[str, str]:
    """Return the job's flags, without those of the cluster and the environment.

    Each of the module's own parameters has a name of its own: `model_params.lr`.
    """
    params = {"action": str(spec.action)}
    for name, value in spec.flags().items():
        if name in _LEFT_OUT or name not in FIELDS or value in ("", None):
            continue
        if isinstance(value, Mapping):
            params.update({f"{name}.{key}": _text(item) for key, item in value.items()})
        else:
            params[name] = _text(value)
    return params


def end_of(outcome: Outcome, version: int) -> RunEnd:
    """Return the end of a job's run: metrics and loss of the end, and the receipt's numbers."""
    receipt, goodput = outcome.receipt, outcome.receipt.get("goodput")
    summary = {
        **dict(flat(receipt.get("total"), "receipt")),
        **dict(flat(receipt.get("updates"), "receipt/updates")),
        **dict(flat(outcome.metrics, "final")),
        **dict(flat(outcome.loss, "final/loss")),
    }
    if isinstance(goodput, Mapping):
        summary.update(flat(goodput.get("share"), "receipt/goodput"))
    return RunEnd(outcome.exit_code, outcome.state, outcome.message, version, summary)


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)

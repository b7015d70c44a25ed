"""A run in MLflow, through its own client: a tracking server, Databricks or a local store."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, final

from elasticdl.tracking.tracker import MetricRow, Run, RunEnd

if TYPE_CHECKING:
    from mlflow import MlflowClient

EXPERIMENT = "elasticdl"
"""Default of MLFLOW_EXPERIMENT_NAME."""
KEY_TAG = "elasticdl.run"
_DEFAULTS = {
    # The client's own limits, 120 s and 7 repetitions, would outlast a job's end. We repeat, too.
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "5",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    # Nobody who sets a flag of ours asks for reports to MLflow's makers.
    "MLFLOW_DISABLE_TELEMETRY": "true",
}
_MOST_METRICS, _MOST_PARAMS, _MOST_CHARS = 1_000, 100, 500
"""Limits of one request, and of a value that old servers take."""
_FORBIDDEN = re.compile(r"[^\w\-. /:]")
_STATUS = {"done": "FINISHED", "stopped": "KILLED"}


@final
class MlflowRun:
    """See `Tracker`."""

    name = "MLflow"

    def __init__(self) -> None:
        self._client: MlflowClient | None = None
        self._run_id = ""

    def open(self, run: Run) -> str:
        for name, value in _DEFAULTS.items():
            os.environ.setdefault(name, value)
        from mlflow import MlflowClient

        client = self._client = MlflowClient(run.uri or None)
        experiment = _experiment(client)
        runs = client.search_runs([experiment], f"tags.`{KEY_TAG}` = '{run.key}'", max_results=1)
        if runs:
            self._run_id = runs[0].info.run_id
            client.update_run(self._run_id, "RUNNING")
            known: Mapping[str, str] = runs[0].data.params
        else:
            tags = {KEY_TAG: run.key, "elasticdl.job_dir": str(run.job_dir)}
            created = client.create_run(experiment, run_name=run.name, tags=tags)
            self._run_id, known = created.info.run_id, {}
        # A value cannot be changed later, so a resumed job keeps those that it began with.
        params = {_FORBIDDEN.sub("_", name): value for name, value in run.params.items()}
        self._log_params({name: value for name, value in params.items() if name not in known})
        return f"MLflow run {self._run_id} of experiment {experiment} at {client.tracking_uri}"

    def log(self, rows: Sequence[MetricRow]) -> bool:
        self._log_metrics(
            [(name, value, row) for row in rows for name, value in row.values.items()]
        )
        return True

    def leave(self) -> None:
        """See `Tracker`. The run keeps running."""

    def close(self, end: RunEnd) -> None:
        last = MetricRow(end.version, time.time(), end.summary)
        self._log_metrics([(name, value, last) for name, value in end.summary.items()])
        client = self._client
        assert client is not None
        client.set_tag(self._run_id, "elasticdl.outcome", end.message[:_MOST_CHARS])
        client.set_tag(self._run_id, "elasticdl.exit_code", str(end.exit_code))
        client.set_terminated(self._run_id, _STATUS.get(end.state, "FAILED"))

    def _log_metrics(self, metrics: Sequence[tuple[str, float, MetricRow]]) -> None:
        from mlflow.entities import Metric

        assert self._client is not None
        points = [
            Metric(_FORBIDDEN.sub("_", name), value, round(row.at * 1000), row.step)
            for name, value, row in metrics
        ]
        for begin in range(0, len(points), _MOST_METRICS):
            self._client.log_batch(self._run_id, points[begin : begin + _MOST_METRICS])

    def _log_params(self, params: Mapping[str, str]) -> None:
        from mlflow.entities import Param

        assert self._client is not None
        entries = [Param(name, value[:_MOST_CHARS]) for name, value in params.items()]
        for begin in range(0, len(entries), _MOST_PARAMS):
            self._client.log_batch(self._run_id, params=entries[begin : begin + _MOST_PARAMS])


def _experiment(client: MlflowClient) -> str:
    """Return the id of the experiment that the environment names, and create it if necessary."""
    if experiment_id := os.environ.get("MLFLOW_EXPERIMENT_ID"):
        return experiment_id
    name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or EXPERIMENT
    experiment = client.get_experiment_by_name(name)
    return str(
        experiment.experiment_id if experiment is not None else client.create_experiment(name)
    )

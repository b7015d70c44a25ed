"""A callback of a module that logs to a tracker by itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import pytest

from tests.core.test_worker_callback_files import Job, step, tell_round

pytestmark = [pytest.mark.core, pytest.mark.filterwarnings("ignore")]


class Logs(keras.callbacks.Callback):  # type: ignore[misc]
    """As people write it: each process that trains has a run."""

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        import mlflow

        mlflow.start_run(run_name="mine")
        mlflow.log_params({"weights": self.model.count_params()})

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        import mlflow

        mlflow.log_metric("loss", (logs or {})["loss"], step=batch)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        import mlflow

        mlflow.log_metrics({"val_auc": (logs or {})["val_auc"]}, step=epoch)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        import mlflow

        mlflow.end_run()


def test_its_run_has_what_the_worker_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file:{tmp_path}/store")
    worker = Job(tmp_path, Logs).worker(0)
    for loss in (0.5, 0.25):
        step(worker, 0, loss)
    tell_round(worker, 0, 0.75)
    worker.end()
    (run,) = (path.parent for path in (tmp_path / "store").glob("*/*/meta.yaml"))
    assert "status: 3" in (run / "meta.yaml").read_text(), "FINISHED"
    assert (run / "params/weights").read_text() == "2"

    def values(name: str) -> list[float]:
        lines = (run / "metrics" / name).read_text().splitlines()
        return [float(line.split()[1]) for line in lines]

    assert (values("loss"), values("val_auc")) == ([0.5, 0.25], [0.75])

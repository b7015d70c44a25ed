"""A run in Weights & Biases, online or offline, as its own environment variables say."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from elasticdl.tracking.tracker import MetricRow, Run, RunEnd

if TYPE_CHECKING:
    import wandb

PROJECT = "elasticdl"
"""Default of WANDB_PROJECT."""
STEP = "version"
"""The axis of all curves. W&B's own step must not decrease, but a version may."""
_INIT_S, _FINISH_S = 20.0, 20.0


@final
class WandbRun:
    """See `Tracker`."""

    name = "W&B"

    def __init__(self) -> None:
        self._run: wandb.Run | None = None

    def open(self, run: Run) -> str:
        # Nobody who sets a flag of ours asks for reports to W&B's makers.
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        import wandb

        # An argument would take precedence over the user's variable.
        chosen: dict[str, Any] = {
            argument: value
            for argument, variable, value in (
                ("project", "WANDB_PROJECT", PROJECT),
                ("name", "WANDB_NAME", run.name),
                ("id", "WANDB_RUN_ID", run.key),
                ("resume", "WANDB_RESUME", "allow"),
                ("dir", "WANDB_DIR", str(run.job_dir)),
            )
            if not os.environ.get(variable)
        }
        settings = wandb.Settings(
            # This process is not the training, so its output, program and load say nothing.
            console="off",
            disable_code=True,
            x_disable_stats=True,
            silent=True,
            init_timeout=float(os.environ.get("WANDB_INIT_TIMEOUT") or _INIT_S),
            finish_timeout=_FINISH_S,
            finish_timeout_raises=True,
        )
        if self._run is not None:
            # W&B's own process has died, or would refuse to open the run a second time.
            self._run = None
            wandb.teardown(exit_code=1)
        before = _folders(run)
        try:
            opened = self._run = wandb.init(**chosen, settings=settings)
            opened.config.update(dict(run.params), allow_val_change=True)
            opened.define_metric(STEP)
            opened.define_metric("*", step_metric=STEP)
        except Exception:
            self._run = None
            wandb.teardown(exit_code=1)
            for folder in _folders(run) - before:
                shutil.rmtree(folder, ignore_errors=True)
            raise
        return f"W&B run {opened.id}: {opened.url or opened.dir}"

    def log(self, rows: Sequence[MetricRow]) -> bool:
        """See `Tracker`. W&B's own process sends rows later, and writes them in large blocks."""
        assert self._run is not None
        for row in rows:
            self._run.log({**row.values, STEP: row.step})
        return False

    def leave(self) -> None:
        assert self._run is not None
        # W&B's word for a run that is to be resumed.
        self._run.mark_preempting()
        self._run.finish(exit_code=1)

    def close(self, end: RunEnd) -> None:
        run = self._run
        assert run is not None
        run.summary.update(
            {
                **end.summary,
                "exit_code": end.exit_code,
                "outcome": end.message,
                STEP: end.version,
            }
        )
        run.finish(exit_code=end.exit_code)


def _folders(run: Run) -> set[Path]:
    """Return the folders of a run in W&B's directory: each attempt to begin it makes one."""
    root = Path(os.environ.get("WANDB_DIR") or run.job_dir, "wandb")
    return set(root.glob(f"run-*-{os.environ.get('WANDB_RUN_ID') or run.key}"))

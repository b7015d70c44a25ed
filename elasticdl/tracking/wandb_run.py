"""A run in Weights & Biases, online or offline, as its own environment variables say."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, final

from elasticdl.errors import TransientError
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

    def __init__(self) -> None:
        self._run: wandb.Run | None = None

    def open(self, run: Run) -> str:
        """See `Tracker`."""
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
            init_timeout=_INIT_S,
            finish_timeout=_FINISH_S,
            finish_timeout_raises=True,
        )
        with _transient():
            opened = self._run = wandb.init(**chosen, settings=settings)
            opened.config.update(dict(run.params), allow_val_change=True)
            opened.define_metric(STEP)
            opened.define_metric("*", step_metric=STEP)
            return f"W&B run {opened.id}: {opened.url or opened.dir}"

    def log(self, rows: Sequence[MetricRow]) -> bool:
        """See `Tracker`. W&B's own process sends rows later, and writes them in large blocks."""
        assert self._run is not None
        with _transient():
            for row in rows:
                self._run.log({**row.values, STEP: row.step})
        return False

    def leave(self) -> None:
        """See `Tracker`."""
        assert self._run is not None
        with _transient():
            # W&B's word for a run that is to be resumed.
            self._run.mark_preempting()
            self._run.finish(exit_code=1)

    def close(self, end: RunEnd) -> None:
        """See `Tracker`."""
        run = self._run
        assert run is not None
        with _transient():
            run.summary.update(
                {
                    **end.summary,
                    "exit_code": end.exit_code,
                    "outcome": end.message,
                    STEP: end.version,
                }
            )
            run.finish(exit_code=end.exit_code)


@contextmanager
def _transient() -> Iterator[None]:
    """Turn W&B's errors into TransientError: all may go away when somebody mends them."""
    from wandb.errors import Error

    try:
        yield
    except (Error, OSError) as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise TransientError(f"W&B: {lines[0]}") from error

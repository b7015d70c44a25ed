"""Choose between asynchronous training and synchronous steps where the user does not.

With momentum, and in jobs of few steps, stale gradients cost more accuracy than anything that was
tried to compensate them; docs/explanation/staleness.md has the figures. In a job of somewhat more
steps no step misses an update of its own worker.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from elasticdl.formatting import amount
from elasticdl.job import JobSpec
from elasticdl.job_choices import Action
from elasticdl.job_flags import LEAST_PART
from elasticdl.model.optimizers import Optimizer, clips


@dataclass(frozen=True, slots=True)
class SyncChoice:
    """Whether a job trains in synchronous steps, and a sentence for people; '' if it is settled.

    `reason` says why in a few words, for a status; '' for a job without such a choice.
    `max_staleness` is None if the job's own holds.
    """

    sync: bool
    text: str = ""
    level: str = "info"
    reason: str = ""
    max_staleness: int | None = None

    def as_json(self) -> dict[str, Any]:
        """The fields by name."""
        return asdict(self)


FEW_STEPS = 600
"""Steps for each worker below which stale gradients cost accuracy whatever the optimizer.

Measured with Adam on the model zoo (docs/explanation/quality.md): two towers with 2 workers still
miss plain Keras after 1,175 steps, and DeepFM loses less than 0.001 of its AUC after 1,407. Late
gradients overshoot while a model learns fastest, and it needs more steps to recover.
"""
FEW_STEPS_OF_ROWS = 120
"""The same for models with embeddings whose rows live on the servers.

Few of the rows of a step are also in the steps that others take meanwhile. With 128 steps for each
worker, DeepFM with a million ids has an AUC 0.0009 lower than in synchronous steps if steps overlap
(see FEW_STEPS_TO_OVERLAP). With 118, DeepFM of the model zoo misses plain Keras (ADR 43).
"""
FEW_STEPS_TO_OVERLAP = 240
"""Steps for each of several workers below which no step misses an update of its own worker.

With 128 steps for each of two workers, each of 4096 records, that costs DeepFM 0.0006 of its AUC
and saves 13 % of the time. With 256 steps for each, of 512 records, it costs nothing.
"""
MOST_SHARING = 4
"""Workers by which the number of few steps grows. It bounds the time that synchronous steps may
cost where the user did not choose them: each takes some milliseconds more.
"""


def sync_choice(
    spec: JobSpec, optimizer: Optimizer, records: int, *, has_tables: bool
) -> SyncChoice:
    """Choose for a job with this Keras optimizer and as many training records.

    `has_tables`: whether servers hold embeddings by row.
    """
    training, workers = spec.training, spec.cluster.num_workers.high
    if spec.trains_on_ring or spec.action is not Action.TRAIN:
        return SyncChoice(sync=False)
    if training.sync is not None:
        return SyncChoice(training.sync, reason="--sync" if training.sync else "--no-sync")
    if training.max_staleness != "auto":
        return SyncChoice(False, reason=f"--max-staleness {training.max_staleness}")
    if workers == 1:
        return SyncChoice(False, reason="one worker")
    steps = -(-records // spec.data.minibatch_size) * spec.data.num_epochs
    few = FEW_STEPS_OF_ROWS if has_tables else FEW_STEPS
    obstacle = _obstacle(spec, optimizer)
    if momentum := getattr(optimizer, "momentum", 0.0):
        costs, reason = f"momentum {momentum:g} makes stale gradients costly", "momentum"
    elif steps < few * min(workers, MOST_SHARING):
        costs = f"a job of {amount(steps, 'step')} has no time to recover from stale gradients"
        reason = "few steps"
    elif steps < FEW_STEPS * workers:
        return _asynchronous(spec, steps, obstacle)
    else:
        return SyncChoice(False, reason=amount(steps, "step"))
    if obstacle:
        return SyncChoice(
            False,
            f"{costs}, but {obstacle}",
            "warning",
            _obstacle_in_short(spec),
            max_staleness=0 if momentum else _own_staleness(steps, workers),
        )
    return _synchronous(spec, costs, reason)


def _synchronous(spec: JobSpec, costs: str, reason: str) -> SyncChoice:
    workers, size = spec.cluster.num_workers.high, spec.data.minibatch_size
    in_steps = spec.replace(sync=True)
    parts, part = in_steps.gradients_per_step, in_steps.training_window
    rounded = "" if parts * part == size else f", {parts * part} records a step"
    text = (
        f"synchronous steps, since {costs}: workers share each minibatch of"
        f" {amount(size, 'record')} in {parts} parts of {part}{rounded}; --no-sync is faster, and"
        " may train worse"
    )
    if parts < workers:
        text += (
            f". Only {parts} of {workers} workers compute at a time: raise --minibatch-size to"
            " use more"
        )
    return SyncChoice(True, text, "info" if parts == workers else "warning", reason)


def _asynchronous(spec: JobSpec, steps: int, obstacle: str | None) -> SyncChoice:
    workers = spec.cluster.num_workers.high
    return SyncChoice(
        False,
        f"{amount(steps, 'step')} are few for {workers} workers: below"
        f" {FEW_STEPS * workers:,} stale gradients may cost accuracy;"
        f" {obstacle or '--sync avoids them, and takes longer'}",
        "warning",
        _obstacle_in_short(spec) if obstacle else amount(steps, "step"),
        max_staleness=_own_staleness(steps, workers),
    )


def _own_staleness(steps: int, workers: int) -> int | None:
    """0 in a job of too few steps to miss updates of its own worker; None: as the job says."""
    return 0 if steps < FEW_STEPS_TO_OVERLAP * workers else None


def _obstacle_in_short(spec: JobSpec) -> str:
    """The first words of `_obstacle`, of a job that has one."""
    return "small minibatches" if _is_too_small(spec) else "gradients are clipped"


def _is_too_small(spec: JobSpec) -> bool:
    return spec.data.minibatch_size < 2 * LEAST_PART


def _obstacle(spec: JobSpec, optimizer: Optimizer) -> str | None:
    """Why workers cannot share steps, and what to do about it; None if they can."""
    size = spec.data.minibatch_size
    if _is_too_small(spec):
        return (
            f"a minibatch of {amount(size, 'record')} is too small to share: --minibatch-size"
            f" {2 * LEAST_PART} or more lets workers share each step"
        )
    if clips(optimizer):
        return (
            "workers cannot share a step whose gradients are clipped: training may end worse than"
            " on one worker; a ring can do it (--distribution-strategy AllreduceStrategy)"
        )
    return None

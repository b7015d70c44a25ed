"""Choose between asynchronous training and synchronous steps where the user does not.

With momentum, stale gradients cost more accuracy than anything that was tried to compensate them;
docs/explanation/staleness.md has the figures.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from elasticdl.formatting import amount
from elasticdl.job import JobSpec
from elasticdl.job_choices import Action
from elasticdl.model.optimizers import Optimizer, clips


@dataclass(frozen=True, slots=True)
class SyncChoice:
    """Whether a job trains in synchronous steps, and a sentence for people; '' if it is settled."""

    sync: bool
    text: str = ""
    level: str = "info"

    def as_json(self) -> dict[str, Any]:
        """The fields by name."""
        return asdict(self)


FEW_STEPS = 600
"""Steps for each worker below which stale gradients cost accuracy whatever the optimizer.

Measured with Adam on the model zoo (docs/explanation/quality.md): two towers with 2 workers still
miss plain Keras after 1,175 steps, and DeepFM loses less than 0.001 of its AUC after 1,407. Late
gradients overshoot while a model learns fastest, and it needs more steps to recover.
"""


def sync_choice(spec: JobSpec, optimizer: Optimizer, records: int) -> SyncChoice:
    """Choose for a job with this Keras optimizer and as many training records."""
    training, workers = spec.training, spec.cluster.num_workers.high
    if training.sync is not None or spec.trains_on_ring or spec.action is not Action.TRAIN:
        return SyncChoice(spec.trains_in_steps)
    momentum = getattr(optimizer, "momentum", 0.0)
    if workers == 1 or training.max_staleness != "auto":
        return SyncChoice(sync=False)
    if not momentum:
        return _asynchronous(spec, records)
    steps = spec.replace(sync=True)
    parts, size = steps.gradients_per_step, spec.data.minibatch_size
    costs = f"momentum {momentum:g} makes stale gradients costly"
    if parts == 1:
        return SyncChoice(
            False,
            f"{costs}, but a minibatch of {amount(size, 'record')} is too small to share:"
            " --minibatch-size 16 or more lets workers share each step",
            "warning",
        )
    if clips(optimizer):
        return SyncChoice(
            False,
            f"{costs}, but workers cannot share a step whose gradients are clipped: training may"
            " end worse than on one worker; a ring can do it"
            " (--distribution-strategy AllreduceStrategy)",
            "warning",
        )
    text = (
        f"synchronous steps, since {costs}: each minibatch of {amount(size, 'record')} is shared in"
        f" {parts} parts; --no-sync trains asynchronously"
    )
    if parts < workers:
        text += (
            f". Only {parts} of {workers} workers compute at a time: raise --minibatch-size to"
            " use more"
        )
    return SyncChoice(True, text, "info" if parts == workers else "warning")


def _asynchronous(spec: JobSpec, records: int) -> SyncChoice:
    workers = spec.cluster.num_workers.high
    steps = -(-records // spec.data.minibatch_size) * spec.data.num_epochs
    if steps >= FEW_STEPS * workers:
        return SyncChoice(sync=False)
    return SyncChoice(
        False,
        f"{amount(steps, 'step')} are few for {workers} workers: until step"
        f" {FEW_STEPS * workers:,} or so stale gradients may cost accuracy; --sync avoids them",
        "warning",
    )

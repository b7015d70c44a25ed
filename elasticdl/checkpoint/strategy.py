"""Detect the strategy that made a checkpoint: it decides how the checkpoint is evaluated."""

from __future__ import annotations

from pathlib import Path

from elasticdl.addresses import is_address
from elasticdl.checkpoint import directories
from elasticdl.checkpoint.manifest import Manifest
from elasticdl.errors import ElasticDLError
from elasticdl.job import JobSpec
from elasticdl.job_choices import Action, Strategy


def strategy_of(manifest: Manifest) -> Strategy:
    """The strategy of the training job."""
    return Strategy.PARAMETER_SERVER if manifest.servers else Strategy.ALLREDUCE


def as_trained(spec: JobSpec) -> JobSpec:
    """The job with the strategy of the checkpoint that it evaluates or predicts from.

    A training job is unchanged, and so is a job whose checkpoint is not visible here.
    """
    place = spec.checkpoint.checkpoint_dir_for_init
    if spec.action is Action.TRAIN or not place:
        return spec
    manifest = _peek_copy(place) if is_address(place) else directories.peek(Path(place))
    return spec.with_strategy(strategy_of(manifest)) if manifest is not None else spec


def _peek_copy(address: str) -> Manifest | None:
    # It takes pyarrow, which a job without addresses does not need.
    from elasticdl.checkpoint import copies

    try:
        return copies.peek(address)
    except ElasticDLError:
        # The job's processes may have credentials that this one lacks. Their check says what is
        # wrong.
        return None

"""Detect the strategy that made a checkpoint: it decides how the checkpoint is evaluated."""

from __future__ import annotations

from pathlib import Path

from elasticdl.checkpoint import store
from elasticdl.checkpoint.manifest import Manifest
from elasticdl.job import JobSpec
from elasticdl.job_choices import Action, Strategy


def strategy_of(manifest: Manifest) -> Strategy:
    """The strategy of the training job."""
    return Strategy.PARAMETER_SERVER if manifest.servers else Strategy.ALLREDUCE


def as_trained(spec: JobSpec) -> JobSpec:
    """The job with the strategy of the checkpoint that it evaluates or predicts from.

    A training job is unchanged, and so is a job whose checkpoint is not visible here.
    """
    if spec.action is Action.TRAIN or not spec.checkpoint.checkpoint_dir_for_init:
        return spec
    manifest = store.peek(Path(spec.checkpoint.checkpoint_dir_for_init))
    return spec.with_strategy(strategy_of(manifest)) if manifest is not None else spec

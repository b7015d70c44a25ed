"""Who made a checkpoint decides how it is evaluated: with parameter servers that hold it, or with
workers that have all of it.
"""

from __future__ import annotations

from pathlib import Path

from elasticdl.checkpoint import store
from elasticdl.checkpoint.layout import Manifest
from elasticdl.job import Action, JobSpec, Strategy


def maker_of(manifest: Manifest) -> Strategy:
    """The strategy with which a job was trained."""
    return Strategy.PARAMETER_SERVER if manifest.servers else Strategy.ALLREDUCE


def as_trained(spec: JobSpec) -> JobSpec:
    """The job with the strategy of the checkpoint that it evaluates or predicts from, whatever its
    flags say.

    One that trains goes on as it was begun, so it stays as it is; so does one whose checkpoint is
    not (seen) here.
    """
    if spec.action is Action.TRAIN or not spec.checkpoint.checkpoint_dir_for_init:
        return spec
    manifest = store.peek(Path(spec.checkpoint.checkpoint_dir_for_init))
    return spec.made_by(maker_of(manifest)) if manifest is not None else spec

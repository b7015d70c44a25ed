"""How many parts a synchronous step has, and how many records each part."""

from __future__ import annotations

import pytest

from elasticdl.errors import SpecError
from elasticdl.job import JobSpec
from elasticdl.job_choices import Action, WirePrecision

pytestmark = pytest.mark.core


def job(**flags: object) -> JobSpec:
    needed = {"model_zoo": "z", "model_def": "m", "training_data": "t"}
    return JobSpec.from_flags(Action.TRAIN, needed | flags)


@pytest.mark.parametrize(
    ("workers", "minibatch", "parts", "window"),
    [
        ("1", 64, 1, 64),
        ("2", 64, 2, 32),
        ("4", 64, 4, 16),
        ("1:8", 64, 8, 8),
        ("3", 64, 3, 21),
        # No part has less than 8 records.
        ("16", 64, 8, 8),
        ("4", 15, 1, 15),
        ("4", 1, 1, 1),
    ],
)
def test_workers_share_a_minibatch_in_parts_of_at_least_8_records(
    workers: str, minibatch: int, parts: int, window: int
) -> None:
    spec = job(sync=True, num_workers=workers, minibatch_size=minibatch)
    assert (spec.gradients_per_step, spec.training_window) == (parts, window)


def test_backup_workers_have_no_part() -> None:
    spec = job(sync=True, num_workers=5, backup_workers=1, minibatch_size=64)
    assert (spec.gradients_per_step, spec.training_window) == (4, 16)


def test_a_given_number_of_parts_is_used_as_it_is() -> None:
    spec = job(sync=True, num_workers=2, grads_to_wait=16, minibatch_size=64)
    assert (spec.gradients_per_step, spec.training_window) == (16, 4)


def test_with_a_scaled_batch_each_gradient_has_a_minibatch() -> None:
    spec = job(sync=True, num_workers=16, minibatch_size=64, global_batch="scaled")
    assert (spec.gradients_per_step, spec.training_window) == (16, 64)


@pytest.mark.parametrize("flags", [{}, {"sync": False}])
def test_without_steps_each_gradient_has_a_minibatch(flags: dict[str, object]) -> None:
    spec = job(num_workers=4, minibatch_size=64, **flags)
    assert (spec.gradients_per_step, spec.training_window) == (0, 64)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"global_batch": "scaled"}, "--global-batch scaled requires a ring or --sync"),
        (
            {"sync": True, "global_batch": "scaled", "lr_scaling": "linear"},
            "--lr-scaling linear requires a ring",
        ),
        ({"virtual_workers": 4}, "--virtual-workers requires a ring"),
        (
            {"distribution_strategy": "AllreduceStrategy", "virtual_workers": 3},
            "--virtual-workers 3 with up to 4 workers",
        ),
        (
            {
                "distribution_strategy": "AllreduceStrategy",
                "virtual_workers": 4,
                "global_batch": "scaled",
            },
            "--virtual-workers with --global-batch scaled",
        ),
    ],
)
def test_what_only_other_jobs_have_is_refused(flags: dict[str, object], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        job(num_workers=4, **flags)


def test_only_asynchronous_workers_choose_the_precision_by_time() -> None:
    """Synchronous steps promise the same bits for the same records."""
    assert job(wire_precision="auto").wire_precision is WirePrecision.AUTO
    assert job(wire_precision="auto", sync=True).wire_precision is WirePrecision.FLOAT32
    assert job(wire_precision="bfloat16", sync=True).wire_precision is WirePrecision.BFLOAT16
    assert job().wire_precision is WirePrecision.FLOAT32

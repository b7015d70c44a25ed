"""The fuzzer of whole jobs draws every flag of `elasticdl train`, and only jobs that are none to
refuse.
"""

from __future__ import annotations

import pytest

from elasticdl.cli.verbs.train import train
from elasticdl.job import JobSpec
from elasticdl.job_choices import Action
from tests.fuzz_jobs.flags import DRAWN, EXCLUDED, MOST_STEPS, Place, Strategy, draw

pytestmark = pytest.mark.core

SEEDS = range(400)
BOTH = pytest.mark.parametrize("strategy", list(Strategy))


def test_every_flag_of_train_is_fuzzed_or_excluded_with_a_reason() -> None:
    offered = {parameter.name for parameter in train.params}
    assert offered == set(DRAWN) | set(EXCLUDED)
    assert not set(DRAWN) & set(EXCLUDED)
    assert all(EXCLUDED.values())


@BOTH
def test_every_flag_that_is_fuzzed_comes(strategy: Strategy) -> None:
    of_the_other = (
        {
            "max_staleness",
            "sync",
            "grads_to_wait",
            "backup_workers",
            "embedding_threshold_bytes",
            "max_nonfinite_steps",
        }
        if strategy is Strategy.RING
        else {"virtual_workers"}
    )
    come = {name for seed in SEEDS for name in draw(seed, strategy).flags}
    assert come == set(DRAWN) - of_the_other


@BOTH
def test_no_job_is_drawn_that_is_refused_and_none_that_takes_for_ever(strategy: Strategy) -> None:
    for seed in SEEDS:
        draft = draw(seed, strategy)
        flags = {
            name: f"/{value}" if isinstance(value, Place) else value
            for name, value in draft.flags.items()
        }
        flags |= {"status_port": 0}
        spec = JobSpec.from_flags(Action.TRAIN, flags)
        assert 1 <= draft.rows <= 10_000 and 1 <= spec.data.minibatch_size <= 300
        assert sum(draft.files) == draft.rows and min(draft.files) >= 1
        assert draft.steps <= 2 * MOST_STEPS


@BOTH
def test_a_seed_is_one_job(strategy: Strategy) -> None:
    assert draw(7, strategy).flags == draw(7, strategy).flags != draw(8, strategy).flags

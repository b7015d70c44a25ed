"""The fuzzer of whole jobs draws every flag of `elasticdl train`, and only jobs that are none to
refuse.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from elasticdl.cli.verbs.train import train
from elasticdl.job import JobSpec
from elasticdl.job_choices import Action
from tests.fuzz_jobs.chaos import Role
from tests.fuzz_jobs.command import Prepared
from tests.fuzz_jobs.flags import DRAWN, EXCLUDED, MOST_STEPS, Placeholder, Strategy, draw
from tests.fuzz_jobs.fuzzing import Plan
from tests.fuzz_jobs.running import Verdict

pytestmark = pytest.mark.core

SEEDS = range(400)
BOTH = pytest.mark.parametrize("strategy", list(Strategy))


def test_every_flag_of_train_is_fuzzed_or_excluded_with_a_reason() -> None:
    offered = {parameter.name for parameter in train.params}
    assert offered == set(DRAWN) | set(EXCLUDED)
    assert not set(DRAWN) & set(EXCLUDED)
    assert all(EXCLUDED.values())


def test_the_command_that_runs_a_job_again_has_what_its_seed_does_not_say(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    plan = Plan([Strategy.PS], iter(()), 1.0, kill_share=0.25, chaos=list(Role), sync=True)
    again = Verdict(Prepared(draw(7, Strategy.PS), folder, [], options=plan.options)).report()
    assert (
        "again: python -m tests.fuzz_jobs --strategy ps --seed 7 --jobs 1 --keep --sync"
        " --chaos master,ps,worker --kill 0.25\n"
    ) in again
    assert Plan([Strategy.PS], iter(()), 1.0).options == ""


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
            name: f"/{value}" if isinstance(value, Placeholder) else value
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

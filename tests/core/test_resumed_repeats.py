"""What a run trained beyond its last checkpoint is repeated by the one that goes on from there, and
counts as repeated.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from elasticdl.cli.views.result_output import summary
from elasticdl.jobdir.outcome import Outcome
from elasticdl.master.core.data.resuming import RunBefore, gone_on
from tests.core.conftest import Bench

pytestmark = pytest.mark.core


def known(job: Bench, **more: Any) -> RunBefore:
    return RunBefore(
        {row.epoch: (row.trained, row.repeated) for row in job.state.receipt().epochs},
        **more,
    )


def test_what_the_run_before_trained_beyond_the_checkpoint_counts_as_repeated(
    bench: type[Bench],
) -> None:
    job = bench(num_epochs=2)
    job.up()
    job.finish(0, job.lease())
    ledger = job.state.ledger_json()
    for _ in range(5):
        job.finish(0, job.lease())
    assert [row.trained for row in job.state.receipt().epochs] == [64, 32]
    ledger, again = gone_on(ledger, known(job))
    resumed = bench(num_epochs=2)
    resumed.start(ledger=ledger)
    resumed.attach(resumed.ps(0), resumed.worker(1))
    assert again == 48 + 32 and resumed.total["repeated"] == 48, (
        "those of an epoch count when it begins again"
    )
    resumed.train_all(1)
    assert (resumed.total["trained"], resumed.total["repeated"], resumed.total["left"]) == (
        128,
        80,
        0,
    )
    receipt = resumed.state.receipt()
    assert receipt.repeated_at_least
    assert "repeated at least 80" in summary(Outcome(0, "", "j", receipt=receipt.to_json()))[0]
    # A third run from the last word of the second repeats nothing more.
    assert gone_on(resumed.state.ledger_json(), known(resumed))[1] == 0
    third = bench(num_epochs=3)
    third.start(ledger=gone_on(resumed.state.ledger_json(), known(resumed))[0])
    assert third.total["repeated"] == 80 and third.state.receipt().repeated_at_least


def test_a_checkpoint_that_is_ahead_of_what_was_written_down_repeats_nothing(
    bench: type[Bench],
) -> None:
    job = bench()
    job.up()
    job.finish(0, job.lease())
    before = known(job)
    job.finish(0, job.lease())
    resumed = bench()
    resumed.start(ledger=gone_on(job.state.ledger_json(), before)[0])
    assert resumed.total["repeated"] == 0 and not resumed.state.receipt().repeated_at_least


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", json.dumps({"counts": [{"epoch": 0}]})])
def test_a_ledger_that_cannot_be_read_stays_as_it_is_for_whoever_says_so(text: str) -> None:
    assert gone_on(text, RunBefore({0: (5, 0)}, 9)) == (text, 0)


def test_what_is_known_to_be_repeated_in_an_epoch_to_come_outlives_a_second_loss_of_all_weights(
    bench: type[Bench],
) -> None:
    job = bench(num_epochs=2)
    job.up()
    ledger, _ = gone_on(job.state.ledger_json(), RunBefore({0: (64, 0), 1: (32, 0)}))
    first, second = bench(num_epochs=2), bench(num_epochs=2)
    first.start(ledger=ledger)
    second.start(ledger=job.state.ledger_json())
    lost, again = first.state._context.work, second.state._context.work
    again.replaces(lost, "ring")  # type: ignore[arg-type]
    assert again.repeated_before[1] == 32 and again.repeated_at_least


def test_of_a_run_that_was_killed_what_was_heard_of_last_counts_and_more_may_have_been(
    bench: type[Bench],
) -> None:
    job = bench(num_epochs=2)
    job.up()
    job.finish(0, job.lease())
    ledger = job.state.ledger_json()
    resumed, quiet = bench(num_epochs=2), bench(num_epochs=2)
    resumed.start(ledger=gone_on(ledger, known(job, trained=40, killed=True))[0])
    assert resumed.total["repeated"] == 40 - 16
    quiet.start(ledger=gone_on(ledger, known(job, killed=True))[0])
    assert quiet.total["repeated"] == 0 and quiet.state.receipt().repeated_at_least, "nobody knows"

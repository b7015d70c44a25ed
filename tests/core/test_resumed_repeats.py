"""What a run trained beyond its last checkpoint is repeated by the one that goes on from there, and
counts as repeated.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from elasticdl.cli.views.result_output import summary
from elasticdl.cluster.base import ProcessName, Role
from elasticdl.job_choices import Strategy
from elasticdl.job_status import UpdateCounts
from elasticdl.jobdir.layout import JobDirectory
from elasticdl.jobdir.outcome import Outcome
from elasticdl.master.core import events
from elasticdl.master.core.data.resuming import (
    RunBefore,
    begin_again,
    count_repeated,
    counts_of,
    repeated_at_least,
)
from elasticdl.master.core.data.sharding import ShardPlan, training_plan
from elasticdl.master.executor.run_before import run_before
from elasticdl.master.journal.files import Header
from elasticdl.master.journal.writer import JournalFile
from tests.core.conftest import TRAINING, Bench
from tests.present import present

pytestmark = pytest.mark.core


def known(job: Bench, **more: Any) -> RunBefore:
    return RunBefore(
        {row.epoch: (row.trained, row.repeated) for row in job.state.receipt().epochs}, **more
    )


def test_updates_of_the_run_before_beyond_the_checkpoint_are_repeated() -> None:
    job = Bench.running(num_epochs=2)
    job.finish(0, job.lease(), pushes=2)
    ledger = job.state.ledger_json()
    job.finish(0, job.lease(), pushes=9)
    for killed in (False, True):
        found, _ = count_repeated(ledger, known(job, updates=job.updates, killed=killed), 2)
        resumed = Bench(num_epochs=2)
        resumed.up(ledger=found, version=2)
        resumed.pushed(0, 3)
        assert resumed.updates == UpdateCounts(5, 0, 7, at_least=killed)


def test_what_the_run_before_trained_beyond_the_checkpoint_counts_as_repeated() -> None:
    job = Bench.running(num_epochs=2)
    job.finish(0, job.lease())
    ledger = job.state.ledger_json()
    for _ in range(5):
        job.finish(0, job.lease())
    assert [row.trained for row in job.state.receipt().epochs] == [64, 32]
    ledger, again = count_repeated(ledger, known(job), 2)
    resumed = Bench(num_epochs=2)
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
    assert count_repeated(resumed.state.ledger_json(), known(resumed), 2)[1] == 0
    third = Bench(num_epochs=3)
    third.start(ledger=count_repeated(resumed.state.ledger_json(), known(resumed), 3)[0])
    assert third.total["repeated"] == 80 and third.state.receipt().repeated_at_least


def test_a_checkpoint_that_is_ahead_of_what_was_written_down_repeats_nothing() -> None:
    job = Bench.running()
    job.finish(0, job.lease())
    before = known(job)
    job.finish(0, job.lease())
    resumed = Bench()
    resumed.start(ledger=count_repeated(job.state.ledger_json(), before, 1)[0])
    assert resumed.total["repeated"] == 0 and not resumed.state.receipt().repeated_at_least


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", json.dumps({"counts": [{"epoch": 0}]})])
def test_a_ledger_that_cannot_be_read_stays_as_it_is_for_whoever_says_so(text: str) -> None:
    assert count_repeated(text, RunBefore({0: (5, 0)}, 9), 1) == (text, 0)


def test_a_lower_bound_stays_one_when_the_job_is_resumed() -> None:
    """A ring lost all its members, and the run ended before it trained or saved more."""
    job = Bench.running()
    before = RunBefore({0: (0, 32)}, at_least=True)
    resumed = Bench()
    resumed.start(ledger=count_repeated(job.state.ledger_json(), before, 1)[0])
    assert resumed.state.receipt().repeated_at_least


def test_known_repeats_of_an_epoch_to_come_outlive_a_second_loss_of_all_weights() -> None:
    job = Bench.running(num_epochs=2)
    before = RunBefore({0: (64, 0), 1: (32, 0)})
    ledger, _ = count_repeated(job.state.ledger_json(), before, 2)
    first, second = Bench(num_epochs=2), Bench(num_epochs=2)
    first.start(ledger=ledger)
    second.start(ledger=job.state.ledger_json())
    lost, again = first.state._context.work, second.state._context.work
    present(again).replaces(present(lost), ProcessName(Role.WORKER, 0))
    assert present(again).repeated_before[1] == 32 and present(again).repeated_at_least


def test_of_a_run_that_was_killed_what_was_heard_of_last_counts_and_more_may_have_been() -> None:
    job = Bench.running(num_epochs=2)
    job.finish(0, job.lease())
    ledger = job.state.ledger_json()
    resumed, quiet = Bench(num_epochs=2), Bench(num_epochs=2)
    resumed.start(ledger=count_repeated(ledger, known(job, trained=40, killed=True), 2)[0])
    assert resumed.total["repeated"] == 40 - 16
    quiet.start(ledger=count_repeated(ledger, known(job, killed=True), 2)[0])
    assert quiet.total["repeated"] == 0 and quiet.state.receipt().repeated_at_least, "nobody knows"


def test_what_a_checkpoint_newer_than_the_last_status_has_is_not_repeated() -> None:
    """The status is seconds old; the checkpoint and the last loss have later epochs."""
    job = Bench.running(num_epochs=4)
    job.finish(0, job.lease())
    counts = known(job).counts
    for _ in range(10):
        job.finish(0, job.lease())
    ledger = job.state.ledger_json()
    for _ in range(2):
        job.finish(0, job.lease())
    trained = job.total["trained"]
    assert trained == 13 * 16
    ledger, again = count_repeated(ledger, RunBefore(counts, trained, killed=True), 4)
    resumed = Bench(num_epochs=4)
    resumed.start(ledger=ledger)
    resumed.attach(resumed.ps(0), resumed.worker(1))
    resumed.train_all(1)
    assert again == resumed.total["repeated"] == 2 * 16
    epochs = {row.epoch: row.repeated for row in resumed.state.receipt().epochs}
    assert epochs == {0: 0, 1: 0, 2: 16, 3: 16}


def test_no_epoch_repeats_more_records_than_it_has() -> None:
    job = Bench.running(num_epochs=2)
    job.finish(0, job.lease())
    before = RunBefore({}, 10**15, killed=True)
    ledger, again = count_repeated(job.state.ledger_json(), before, 2)
    assert again == 48 + 64
    assert counts_of(ledger) == {0: (16, 48), 1: (0, 64)}


def plan(job: Bench) -> ShardPlan:
    return training_plan(job.spec, TRAINING)


@pytest.mark.parametrize("strategy", list(Strategy))
def test_a_job_that_begins_again_without_a_checkpoint_counts_what_it_repeats(
    strategy: Strategy,
) -> None:
    job = Bench.running(num_epochs=2)
    for _ in range(6):
        job.finish(0, job.lease())
    before = replace(known(job), sources=TRAINING)
    again = Bench(
        num_epochs=2,
        num_workers=3,
        distribution_strategy=strategy,
        num_ps_pods=int(strategy is Strategy.PARAMETER_SERVER),
    )
    text, repeated = begin_again(plan(again), before)
    assert repeated == 96
    again.start(ledger=text, again=repeated, anew=True)
    assert again.said("no checkpoint yet: starting from the first record")
    assert again.said("training begins: 64 records")
    total = again.state.receipt().total
    assert (total.trained, total.left) == (0, 128)
    if strategy is Strategy.ALLREDUCE:
        return
    again.attach(again.ps(0), again.worker(0))
    again.train_all(0)
    assert (again.total["trained"], again.total["repeated"], again.total["left"]) == (128, 96, 0)
    assert again.state.receipt().repeated_at_least
    # A third one adds both runs, even if the second is known by its beginning alone.
    third = RunBefore({**counts_of(text)}, 32, killed=True, sources=TRAINING)
    assert counts_of(begin_again(plan(again), third)[0]) == {0: (0, 96), 1: (0, 32)}


def test_other_data_is_not_repeated() -> None:
    job = Bench(num_epochs=1)
    before = RunBefore({0: (48, 0)}, sources=(replace(TRAINING[0], records=999),))
    text, again = begin_again(plan(job), before)
    assert (again, counts_of(text)) == (0, {}) and repeated_at_least(text)
    text, _ = begin_again(plan(job), RunBefore({}, sources=TRAINING, at_least=True))
    assert repeated_at_least(text), "the run before repeated more than it knew"
    text, _ = begin_again(plan(job), RunBefore({}, sources=TRAINING))
    assert not repeated_at_least(text)


def test_a_run_that_was_killed_at_once_passes_on_what_the_run_before_it_repeats(
    tmp_path: Path,
) -> None:
    job = Bench.running(num_epochs=3)
    job.finish(0, job.lease())
    checkpoint = job.state.ledger_json()
    for _ in range(6):
        job.finish(0, job.lease())
    directory = JobDirectory(tmp_path)

    def status_of(bench: Bench) -> str:
        return json.dumps({"status": bench.state.status().to_json()})

    def started(ledger: str, at_s: float) -> None:
        journal = JournalFile(directory.journal, Header("run", 1))
        journal.append(events.MasterStarted(at_s))
        journal.append(events.JobStarted(at_s, TRAINING, (), (), ledger, 0))
        journal.close()

    def resume() -> tuple[str, int]:
        return count_repeated(checkpoint, run_before(directory), 3)

    started("", 0.0)
    job.tick(5.0)
    directory.newest.write_text(status_of(job))
    directory.metrics.write_text(json.dumps({"at_s": 5.5, "records": 8 * 16}) + "\n")
    ledger, again = resume()
    assert again == 7 * 16 and counts_of(ledger) == {0: (16, 48), 1: (0, 64)}
    started(ledger, 8.0)
    assert resume() == (ledger, 0), "a status of the run before that one is still there"
    directory.newest.unlink()
    assert resume() == (ledger, 0), "killed before it wrote a status"
    second = Bench(num_epochs=3)
    second.t = 9.0
    second.start(ledger=ledger)
    second.attach(second.ps(0), second.worker(1))
    second.finish(1, second.lease(1))
    directory.newest.write_text(status_of(second))
    ledger, again = resume()
    assert again == 16 and counts_of(ledger) == {0: (16, 64), 1: (0, 64)}

"""One cause out of an exit status, and what each cause may spend."""

from __future__ import annotations

import pytest

from elasticdl.cluster.base import ExitStatus
from elasticdl.master.core.processes.budgets import Budgets
from elasticdl.master.core.processes.causes import Cause, Verdict, verdict_of
from tests.present import present

pytestmark = pytest.mark.core

TRACEBACK = 'Traceback (most recent call last):\n  File "m.py", line 3\nValueError: no\n'


@pytest.mark.parametrize(
    ("status", "cause", "words", "blames_work"),
    [
        (ExitStatus(exit_code=64, log_tail=TRACEBACK), Cause.USER_ERROR, "ValueError: no", True),
        (ExitStatus(exit_code=1, log_tail=TRACEBACK), Cause.USER_ERROR, "ValueError: no", True),
        (
            ExitStatus(
                exit_code=1,
                log_tail=(
                    "Traceback (most recent call last):\nelasticdl.errors.TransientError: away"
                ),
            ),
            Cause.INFRASTRUCTURE,
            "away",
            True,
        ),
        (ExitStatus(exit_code=3, log_tail="bye"), Cause.INFRASTRUCTURE, "exit code 3: bye", True),
        (ExitStatus(exit_code=137, reason="OOMKilled"), Cause.OUT_OF_MEMORY, "memory", True),
        (ExitStatus(signal=9, reason="OOMKilled"), Cause.OUT_OF_MEMORY, "memory", True),
        (ExitStatus(exit_code=137), Cause.INFRASTRUCTURE, "SIGKILL", False),
        (ExitStatus(signal=9), Cause.INFRASTRUCTURE, "signal 9 (SIGKILL)", False),
        (ExitStatus(signal=6), Cause.INFRASTRUCTURE, "SIGABRT", False),
        (ExitStatus(signal=11), Cause.INFRASTRUCTURE, "SIGSEGV", True),
        (ExitStatus(signal=200), Cause.INFRASTRUCTURE, "signal 200", False),
        (ExitStatus(exit_code=66), Cause.DRAINED, "drained", False),
        (ExitStatus(exit_code=65), Cause.FENCED, "replaced", False),
        (
            ExitStatus(exit_code=69, log_tail="TransientError: pull: gave up after 600 s"),
            Cause.STRANDED,
            "gave up after 600 s",
            False,
        ),
        (ExitStatus(exit_code=0), Cause.INFRASTRUCTURE, "work is left", True),
        (ExitStatus(signal=15, asked=True), Cause.DRAINED, "on request", False),
        (ExitStatus(exit_code=0, asked=True), Cause.DRAINED, "on request", False),
        (ExitStatus(reason="NeverStarted", asked=True), Cause.DRAINED, "on request", False),
        (
            ExitStatus(exit_code=143, conditions=("DisruptionTarget:PreemptionByScheduler",)),
            Cause.PREEMPTED,
            "higher priority",
            False,
        ),
        (
            ExitStatus(
                signal=15, conditions=("Ready:False", "DisruptionTarget:EvictionByEvictionAPI")
            ),
            Cause.EVICTED,
            "evicted",
            False,
        ),
        (
            ExitStatus(conditions=("DisruptionTarget:DeletionByTaintManager",)),
            Cause.NODE_LOST,
            "tainted",
            False,
        ),
        (
            ExitStatus(conditions=("DisruptionTarget:SomethingNew",)),
            Cause.EVICTED,
            "SomethingNew",
            False,
        ),
        (ExitStatus(reason="Evicted"), Cause.EVICTED, "evicted", False),
        (ExitStatus(), Cause.NODE_LOST, "without an exit status", False),
    ],
)
def test_facts_of_an_exit_give_one_cause_in_words(
    status: ExitStatus, cause: Cause, words: str, blames_work: bool
) -> None:
    told = verdict_of(status)
    assert (told.cause, told.blames_work) == (cause, blames_work)
    assert words in told.text


def test_exit_code_0_is_the_end_of_whoever_was_told_that_there_is_no_more_work() -> None:
    assert verdict_of(ExitStatus(exit_code=0), finished=True).cause is Cause.FINISHED


@pytest.mark.parametrize("cause", [Cause.PREEMPTED, Cause.EVICTED, Cause.NODE_LOST, Cause.DRAINED])
def test_what_a_cluster_does_never_spends_a_budget(cause: Cause) -> None:
    budgets = Budgets(0)
    assert not any(
        budgets.died("worker-1", Verdict(cause, "x"), answered=False) for _ in range(1000)
    )


def test_user_errors_end_the_job_after_max_relaunches() -> None:
    budgets, told = Budgets(2), Verdict(Cause.USER_ERROR, "ValueError: no", blames_work=True)
    assert [bool(budgets.died("worker-1", told, answered=False)) for _ in range(3)] == [
        False,
        False,
        True,
    ]
    assert "ValueError: no" in present(budgets.user_error("worker-1: ValueError: no"))


def test_a_user_error_that_is_blamed_on_a_shard_spends_nothing_else() -> None:
    budgets, told = Budgets(0), Verdict(Cause.USER_ERROR, "x", blames_work=True)
    assert not budgets.died("worker-1", told, answered=True)


def test_the_fourth_death_out_of_memory_ends_the_job() -> None:
    budgets, told = Budgets(0), Verdict(Cause.OUT_OF_MEMORY, "killed for memory")
    assert [bool(budgets.died("w", told, answered=False)) for _ in range(4)] == [
        False,
        False,
        False,
        True,
    ]


def test_crashes_end_the_job_only_if_nothing_gets_done_between_them() -> None:
    budgets, told = Budgets(0), Verdict(Cause.INFRASTRUCTURE, "exit code 3: bye", blames_work=True)
    for _ in range(20):
        assert not budgets.died("w", told, answered=False)
        budgets.progressed()
    reasons = [budgets.died("w", told, answered=False) for _ in range(5)]
    assert [bool(reason) for reason in reasons] == [False] * 4 + [True]
    assert "exit code 3: bye" in present(reasons[-1])


def test_kills_from_outside_are_borne_much_longer_than_crashes() -> None:
    budgets, told = Budgets(0), verdict_of(ExitStatus(signal=9))
    assert not any(budgets.died("w", told, answered=False) for _ in range(30))


@pytest.mark.parametrize(
    "status", [ExitStatus(signal=9), ExitStatus(signal=11)], ids=["killed", "crashed"]
)
def test_what_takes_many_at_the_same_time_counts_once(status: ExitStatus) -> None:
    """A node with a hundred workers, a network that is away, a ring whose members abort
    together.
    """
    budgets, told = Budgets(0), verdict_of(status)
    assert not any(
        budgets.died(f"worker-{n}", told, answered=False, life=(0.0, 10.0 + n)) for n in range(100)
    )


def test_ends_that_follow_one_another_still_count_however_many_workers_there_are() -> None:
    budgets, told = Budgets(0), verdict_of(ExitStatus(signal=11))
    reasons = [
        bool(
            budgets.died(f"worker-{n}", told, answered=False, life=(10.0 * wave, 10.0 * wave + 9.0))
        )
        for wave in range(5)
        for n in range(4)
    ]
    assert reasons.index(True) == 4 * 4, "the first of the fifth wave"


def test_the_pause_before_a_start_grows_to_5_s_and_ends_with_progress() -> None:
    budgets, told = Budgets(0), verdict_of(ExitStatus(signal=9))
    pauses = []
    for _ in range(8):
        pauses.append(budgets.back_off_s())
        budgets.died("w", told, answered=False)
    assert pauses[0] == 0
    assert pauses == sorted(pauses)
    assert pauses[-1] == 5.0
    budgets.progressed()
    assert budgets.back_off_s() == 0

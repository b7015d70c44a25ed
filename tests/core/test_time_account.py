"""What a worker's time goes to: one use at any instant, so that all of them add up."""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticdl.clock import ManualClock
from elasticdl.errors import TransientError
from elasticdl.time_use import GAUGE_PREFIX, TimeUse, spent_in
from elasticdl.worker.pipeline.retry import ServerRetry
from elasticdl.worker.process.gauges import Gauges
from elasticdl.worker.process.shutdown import Shutdown
from elasticdl.worker.process.time_account import Stage, TimeAccount
from tests.core.worker_rig import LIMIT_S, Rig, ScriptedMaster, training

pytestmark = pytest.mark.core

USES = [None, *TimeUse]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(100.0)


@pytest.fixture
def account(clock: ManualClock) -> TimeAccount:
    return TimeAccount(clock)


def elsewhere(call: Callable[[], None]) -> None:
    """Call it from another thread."""
    thread = threading.Thread(target=call)
    thread.start()
    thread.join(LIMIT_S)
    assert not thread.is_alive()


def test_a_block_within_a_block_takes_its_time_from_it(
    account: TimeAccount, clock: ManualClock
) -> None:
    account.now(TimeUse.BETWEEN)
    with account.spending(TimeUse.CALLBACKS):
        clock.advance(1.0)
        with account.spending(TimeUse.STEP):
            clock.advance(4.0)
        clock.advance(2.0)
    clock.advance(0.5)
    assert account.spent_s() == {TimeUse.CALLBACKS: 3.0, TimeUse.STEP: 4.0, TimeUse.BETWEEN: 0.5}


def test_a_wait_goes_to_what_the_nearest_busy_stage_does(
    account: TimeAccount, clock: ManualClock
) -> None:
    """Pulling and reading at once count as pulling: the loop waits for the pull."""
    steps = [threading.Event() for _ in range(4)]

    def read() -> None:
        account.join(Stage.READ)
        with account.spending(TimeUse.READ):
            steps[0].set()
            assert steps[3].wait(LIMIT_S)

    def load() -> None:
        account.join(Stage.LOAD)
        assert steps[0].wait(LIMIT_S)
        with account.spending(TimeUse.PULL):
            steps[1].set()
            assert steps[2].wait(LIMIT_S)

    account.now(None)
    clock.advance(1.0)
    threads = [threading.Thread(target=one) for one in (read, load)]
    for thread in threads:
        thread.start()
    assert steps[1].wait(LIMIT_S)
    clock.advance(10.0)
    with account.spending(TimeUse.STEP):
        clock.advance(100.0)
    steps[2].set()
    threads[1].join(LIMIT_S)
    clock.advance(1000.0)
    steps[3].set()
    threads[0].join(LIMIT_S)
    clock.advance(1.0)
    assert account.spent_s() == {
        TimeUse.LEASE: 2.0,
        TimeUse.PULL: 10.0,
        TimeUse.STEP: 100.0,
        TimeUse.READ: 1000.0,
    }


def test_what_a_thread_does_that_is_no_stage_does_not_count(
    account: TimeAccount, clock: ManualClock
) -> None:
    def push() -> None:
        with account.spending(TimeUse.SERVERS_AWAY):
            clock.advance(3.0)
        account.now(TimeUse.EXPORT)

    account.now(TimeUse.STEP)
    elsewhere(push)
    assert account.spent_s() == {TimeUse.STEP: 3.0}


def test_a_call_that_fails_and_is_repeated_waits_for_absent_servers(clock: ManualClock) -> None:
    gauges, answers = Gauges(clock), [TransientError("away", retry_after_s=0.0), None]

    def attempt(timeout_s: float) -> str:
        clock.advance(2.0)
        if (error := answers.pop(0)) is not None:
            raise error
        return "pulled"

    gauges.times.now(TimeUse.BETWEEN)
    with gauges.timed("pull_ms", TimeUse.PULL):
        assert ServerRetry(Shutdown(), gauges, clock).call(attempt, "pull") == "pulled"
    assert gauges.times.spent_s() == {TimeUse.PULL: 2.0, TimeUse.SERVERS_AWAY: 2.0}


def test_time_moves_from_one_use_to_another_no_more_than_there_is(
    account: TimeAccount, clock: ManualClock
) -> None:
    with account.spending(TimeUse.STEP):
        clock.advance(3.0)
    account.move(2.0, TimeUse.STEP, TimeUse.MEMBERS)
    account.move(-1.0, TimeUse.STEP, TimeUse.MEMBERS)
    assert account.spent_s() == {TimeUse.STEP: 1.0, TimeUse.MEMBERS: 2.0}
    account.move(5.0, TimeUse.STEP, TimeUse.MEMBERS)
    assert account.spent_s() == {TimeUse.MEMBERS: 3.0}


@given(st.lists(st.tuples(st.sampled_from(USES), st.floats(0.0, 1e4), st.booleans()), max_size=30))
def test_all_uses_add_up_to_all_time(actions: list[tuple[TimeUse | None, float, bool]]) -> None:
    clock = ManualClock()
    account = TimeAccount(clock)

    def nested(left: list[tuple[TimeUse | None, float, bool]]) -> None:
        for index, (use, seconds, within) in enumerate(left):
            clock.advance(seconds)
            if within:
                with account.spending(use):
                    nested(left[index + 1 :])
                return
            account.now(use)

    nested(actions)
    clock.advance(1.0)
    assert math.isclose(sum(account.spent_s().values()), clock.now_s())


def test_a_workers_account_covers_its_loop_and_says_what_slows_it() -> None:
    """With the real stages of a worker, whose `feed` is slow."""

    def feed(window: object) -> tuple[object, None]:
        time.sleep(0.02)
        return window, None

    rig = Rig(ScriptedMaster([training(40, 0), training(40, 1)]), feed=feed)
    rig.gauges.times.begin()
    begin_s = time.monotonic()
    rig.run()
    ran_s = time.monotonic() - begin_s
    accounts = [spent_in(report.gauges) for report in rig.master.reports]
    spent_s = rig.gauges.times.spent_s()
    assert sum(spent_s.values()) == pytest.approx(ran_s, rel=0.005, abs=0.005)
    # A busy machine may start the threads late, which is time of the start.
    begun_s = {use: s for use, s in spent_s.items() if not use.value.startswith("start.")}
    assert max(begun_s, key=begun_s.__getitem__) is TimeUse.FEED
    # Reports round to milliseconds.
    assert 0.0 < sum(accounts[-1].values()) <= ran_s + 0.005
    for earlier, later in itertools.pairwise(accounts):
        assert all(later[use] >= seconds for use, seconds in earlier.items()), "it only grows"


def test_an_account_is_read_from_gauges_and_nothing_else_is() -> None:
    gauges = {
        "step_ms": 3.0,
        f"{GAUGE_PREFIX}compute.step": 2.5,
        f"{GAUGE_PREFIX}compute.magic": 2.5,
        f"{GAUGE_PREFIX}input.read": math.nan,
        f"{GAUGE_PREFIX}input.feed": -1.0,
        f"{GAUGE_PREFIX}pull.servers": math.inf,
    }
    assert spent_in(gauges) == {"compute.step": 2.5}

"""What a worker says of what it is at: what takes long, and its whole state when the master
asks.
"""

from __future__ import annotations

import threading

import pytest

from elasticdl.clock import ManualClock
from elasticdl.rpc.conversation import Activity, Finish, Report, RingReport, TellState
from elasticdl.shard import Applied, Lease, Shard, ShardId, Task
from elasticdl.stacks import stacks
from elasticdl.worker.pipeline.outbox import Advance, Outbox
from elasticdl.worker.pipeline.reporter import Reporter
from elasticdl.worker.pipeline.state_reports import StateReports
from elasticdl.worker.process.gauges import Gauges
from elasticdl.worker.process.hang_watch import HangWatch
from elasticdl.worker.process.order_receiver import OrderReceiver
from elasticdl.worker.process.shutdown import Shutdown
from tests.core.reports_only import ReportsOnly

pytestmark = pytest.mark.core

LIMIT_S = 10.0
LEASE = Lease(Task.TRAINING, Shard(ShardId(4), "t", 0, 100), attempt=2)


def test_what_takes_long_is_reported_and_what_does_not_is_not() -> None:
    clock = ManualClock()
    watch = HangWatch(clock)
    with watch.doing("feed"):
        clock.advance(4.9)
        assert watch.activity() is None
        clock.advance(90.1)
        assert watch.activity() == Activity("feed", 95.0)
    assert watch.activity() is None


def test_of_several_threads_the_slowest_is_told_but_none_that_only_waits_for_others() -> None:
    clock = ManualClock()
    watch = HangWatch(clock)
    begun, over = threading.Event(), threading.Event()

    def read() -> None:
        with watch.doing("reading a shard"):
            begun.set()
            over.wait(LIMIT_S)

    with watch.owing("a step", lambda: True):
        clock.advance(10)
        reader = threading.Thread(target=read, name="reader")
        reader.start()
        assert begun.wait(LIMIT_S)
        clock.advance(20)
        assert watch.activity() == Activity("reading a shard", 20.0)
        first = watch.stacks().splitlines()[0]
        assert first.startswith("reader is at ") and "threading.py" in first
        over.set()
        reader.join(LIMIT_S)
        assert watch.activity() is None


def test_stacks_begin_with_the_place_of_the_first_thread_and_are_bounded() -> None:
    text = stacks()
    assert text.splitlines()[0].startswith("MainThread is at ")
    assert "test_worker_state_reports.py" in text
    assert len(stacks(most_chars=200)) <= 202


def test_a_worker_asked_for_its_state_reports_every_lease_even_if_it_did_not_change() -> None:
    outbox, watch = Outbox(), HangWatch(ManualClock())
    outbox.hold(LEASE)
    outbox.advance(LEASE, Advance(30, version=7))
    assert len(outbox.take({}).progress) == 1
    assert outbox.take({}).progress == ()
    states = StateReports(outbox, watch)
    assert states.prepare() is None
    states.ask()
    assert outbox.urgent.is_set()
    state = states.prepare()
    report = states.complete(outbox.take({}), state)
    applied = Applied(ShardId(4), 2, 30)
    assert report.state is not None
    assert report.state.held == (applied,)
    assert "test_worker_state_reports.py" in report.state.stacks
    assert [progress.applied for progress in report.progress] == [applied]
    assert states.prepare() is None
    assert states.complete(outbox.take({}), None) == Report()


def test_leases_that_were_reported_as_held_are_reported_once_more_as_soon_as_they_are_not() -> None:
    """A revoked lease is held until the push under way is done; its master waits for that."""
    outbox = Outbox()
    states = StateReports(outbox, HangWatch(ManualClock()))
    outbox.hold(LEASE)
    outbox.forget(())
    assert states.prepare() is None and not outbox.urgent.is_set()
    states.ask()
    state = states.prepare()
    assert state is not None and len(state.held) == 1
    outbox.take({})
    outbox.forget((LEASE,))
    assert outbox.urgent.is_set()
    state = states.prepare()
    assert state is not None and state.held == ()
    outbox.take({})
    outbox.forget((LEASE,))
    assert states.prepare() is None and not outbox.urgent.is_set()


def test_an_order_of_the_master_brings_the_state_with_the_next_report() -> None:
    outbox, shutdown, asked = Outbox(), Shutdown(), threading.Event()
    reports: list[Report] = []

    class Master(ReportsOnly):
        def report(self, report: Report) -> None:
            reports.append(report)

    states = StateReports(outbox, HangWatch(ManualClock()))

    def tell_state() -> None:
        states.ask()
        asked.set()

    orders = OrderReceiver(
        lambda: iter((TellState(), Finish())),
        shutdown,
        move=lambda addresses: None,
        revoke=lambda revocation: None,
        ring=lambda order: None,
        tell_state=tell_state,
    )
    orders.start()
    assert asked.wait(LIMIT_S)
    reporter = Reporter(outbox, Gauges(ManualClock()), Master(), 3600.0, Shutdown(), states)
    reporter.start()
    assert reporter.flush(LIMIT_S)
    assert [report.state is not None for report in reports] == [True] + [False] * (len(reports) - 1)


def test_a_member_of_a_ring_reports_its_position_with_each_word() -> None:
    outbox = Outbox()
    assert outbox.take({}).ring is None
    outbox.say(RingReport(ready=True, entered=2), lambda: (944, 9, 400))
    assert outbox.take({}).ring == RingReport(
        ready=True, entered=2, version=944, number=9, offset=400
    )

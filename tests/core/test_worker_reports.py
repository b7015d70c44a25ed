"""What a worker tells its master: merged per lease, only what is true, and never lost."""

from __future__ import annotations

import logging
import threading

import pytest

from elasticdl.clock import ManualClock
from elasticdl.errors import ExitCode, PermanentError, Refused, SpecError, TransientError, UserError
from elasticdl.own_process import log_error
from elasticdl.rpc.conversation import Failure, Report, RingGeneration, Summary
from elasticdl.shard import Applied, Lease, Shard, ShardId, Task
from elasticdl.worker.pipeline.outbox import Advance, Contradiction, Outbox
from elasticdl.worker.pipeline.reporter import Reporter
from elasticdl.worker.pipeline.retry import ServerRetry
from elasticdl.worker.process.gauges import Gauges
from elasticdl.worker.process.shutdown import Done, Draining, Failed, Shutdown, exit_code
from elasticdl.worker.process.thread_queue import Ended, ThreadQueue
from elasticdl.worker.ring.generations import Generations
from tests.core.reports_only import ReportsOnly

pytestmark = pytest.mark.core

LIMIT_S = 10.0
LEASE = Lease(Task.TRAINING, Shard(ShardId(4), "s", 0, 100), 2, offset=10)


class Master(ReportsOnly):
    """Takes reports, after failing as often as told."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.reports: list[Report] = []
        self.came = threading.Semaphore(0)

    def report(self, report: Report) -> float | None:
        if self.failures:
            raise self.failures.pop(0)
        self.reports.append(report)
        self.came.release()
        return None


def test_progress_of_a_lease_is_merged() -> None:
    outbox = Outbox()
    outbox.hold(LEASE)
    outbox.advance(LEASE, Advance(20, version=5, loss=1.0, bad=1, bad_examples=("a",)))
    outbox.advance(LEASE, Advance(30, version=6, loss=3.0, bad=2, bad_examples=("b", "c", "d")))
    (progress,) = outbox.take({}).progress
    assert progress.applied == Applied(ShardId(4), 2, 30)
    assert (progress.version, progress.loss, progress.bad_records, progress.bad_examples) == (
        6,
        2.0,
        3,
        ("a", "b", "c"),
    )
    assert outbox.take({"x": 1.0}) == Report(gauges={"x": 1.0}), "it is told once"


def test_losses_are_those_since_the_last_report_and_bad_records_all_of_the_lease() -> None:
    outbox = Outbox()
    outbox.hold(LEASE)
    outbox.advance(LEASE, Advance(20, loss=1.0, bad=4))
    outbox.take({})
    outbox.advance(LEASE, Advance(30, done=True))
    (progress,) = outbox.take({}).progress
    assert (progress.loss, progress.bad_records, progress.done) == (None, 4, True)
    assert outbox.held() == ()


def test_bad_records_of_the_batch_to_come_are_reported_after_what_is_done_until_it_is_done() -> (
    None
):
    outbox = Outbox()
    outbox.hold(LEASE)
    outbox.advance(LEASE, Advance(20, bad=1))
    outbox.foretell_bad(LEASE, 2)

    def told() -> list[tuple[int, int]]:
        return [(one.applied.offset, one.bad_records) for one in outbox.take({}).progress]

    assert told() == [(20, 1), (20, 3)]
    assert told() == []
    outbox.tell_all()
    assert told() == [(20, 1), (20, 3)], "or the master would take it back"
    outbox.advance(LEASE, Advance(30, bad=2))
    assert told() == [(30, 3)]


def test_what_was_put_in_has_arrived_when_the_report_with_it_was_taken_in() -> None:
    outbox = Outbox()
    first = outbox.arrival()
    outbox.take({})
    later = outbox.arrival()
    assert not first.is_set()
    outbox.arrived()
    assert first.is_set() and not later.is_set()
    outbox.take({})
    outbox.arrived()
    assert later.is_set()


def test_servers_that_were_met_are_reported_once_and_a_full_log_with_each_push() -> None:
    outbox = Outbox()
    outbox.pushed(1, {"a": 0, "b": 0})
    outbox.pushed(2, {}, crowded=True)
    first = outbox.take({})
    assert (first.pushes, first.met, first.crowded) == (2, {"a": 0, "b": 0}, True)
    outbox.pushed(3, {}, crowded=True)
    outbox.met({"c": 2})
    assert outbox.urgent.is_set()
    second = outbox.take({})
    assert (second.pushes, second.met, second.crowded) == (3, {"c": 2}, True)
    assert not outbox.take({}).crowded, "a worker that pushes nothing needs no more room"
    # A checkpoint has made room meanwhile.
    outbox.pushed(4, {}, crowded=False)
    assert not outbox.take({}).crowded


def test_a_lease_that_was_given_back_is_reported_last_with_what_was_done_of_it() -> None:
    outbox = Outbox()
    outbox.hold(LEASE)
    outbox.advance(LEASE, Advance(20))
    outbox.give_back(outbox.held())
    outbox.advance(LEASE, Advance(30))
    (progress,) = outbox.take({}).progress
    assert progress.returned and progress.applied.offset == 20
    outbox.advance(LEASE, Advance(40))
    report = outbox.take({})
    assert report.progress == ()
    assert report.gauges == {"dropped_voided_lease": 2.0}, (
        "what is not told is counted, since the worker began"
    )


def test_an_untouched_lease_goes_back_at_its_offset_and_a_done_one_does_not() -> None:
    outbox = Outbox()
    other = Lease(Task.TRAINING, Shard(ShardId(5), "s", 0, 100), 0)
    outbox.hold(LEASE)
    outbox.hold(other)
    outbox.advance(other, Advance(100, done=True))
    outbox.give_back([LEASE, other])
    told = {
        progress.applied.shard: (progress.applied.offset, progress.returned)
        for progress in outbox.take({}).progress
    }
    assert told == {4: (10, True), 5: (100, False)}


def test_a_revoked_lease_is_reported_up_to_the_last_push_and_not_given_back() -> None:
    outbox = Outbox()
    outbox.hold(LEASE)
    outbox.advance(LEASE, Advance(20))
    outbox.forget([LEASE])
    (progress,) = outbox.take({}).progress
    assert progress.applied.offset == 20 and not progress.returned
    assert outbox.held() == ()


def test_a_forgotten_lease_can_be_held_again_and_loses_nothing_unreported() -> None:
    """A member of a ring that tells of its progress, does not, and does again."""
    outbox = Outbox()
    outbox.hold(LEASE)
    outbox.advance(LEASE, Advance(20, loss=1.0, bad=3))
    outbox.forget([LEASE])
    outbox.hold(LEASE)
    outbox.advance(LEASE, Advance(30, loss=3.0))
    (progress,) = outbox.take({}).progress
    assert (progress.applied.offset, progress.loss, progress.bad_records) == (30, 2.0, 3)
    outbox.forget([LEASE])
    outbox.take({})
    outbox.hold(LEASE)
    outbox.advance(LEASE, Advance(40))
    (progress,) = outbox.take({}).progress
    assert progress.applied.offset == 40


@pytest.mark.parametrize("reported", [True, False])
def test_what_a_worker_cannot_have_done_is_an_error_of_its_own(reported: bool) -> None:
    """Else its records would never be booked, and nobody would know why the job stands still."""
    outbox = Outbox()
    outbox.hold(LEASE)
    with pytest.raises(Contradiction, match="at 10 of 100 records"):
        outbox.advance(LEASE, Advance(101))
    with pytest.raises(Contradiction, match="at 10 of 100 records"):
        outbox.advance(LEASE, Advance(9))
    with pytest.raises(Contradiction, match="not held"):
        outbox.advance(Lease(LEASE.task, LEASE.shard, LEASE.attempt + 1), Advance(20))
    with pytest.raises(Contradiction, match="it is held"):
        outbox.hold(LEASE)
    outbox.advance(LEASE, Advance(100, done=True))
    if reported:
        outbox.take({})
    with pytest.raises(Contradiction, match="done"):
        outbox.advance(LEASE, Advance(100, done=True))
    assert (
        issubclass(Contradiction, PermanentError)
        and exit_code(Failed(Contradiction("x"))) is ExitCode.JOB_FAILED
    )


def test_of_leases_that_do_not_count_any_more_so_many_are_remembered_as_can_be_under_way() -> None:
    outbox = Outbox()
    leases = [
        Lease(Task.TRAINING, Shard(ShardId(number), "s", 0, 100), 0) for number in range(2000)
    ]
    for lease in leases:
        outbox.hold(lease)
    outbox.forget(leases)
    outbox.take({})
    outbox.advance(leases[-1], Advance(1))
    assert outbox.take({}).gauges == {"dropped_voided_lease": 1.0}
    assert len(outbox._closed) == 1000


def test_an_old_generation_of_the_ring_is_counted_whether_it_is_late_or_told_again() -> None:
    outbox = Outbox()
    generations = Generations(Shutdown(), ManualClock(), outbox.drop)
    for generation in (1, 3, 2, 3):
        generations.put(RingGeneration(generation, ("worker-0",), (), 1))
    assert generations.newest == 3
    assert outbox.take({}).gauges == {"dropped_stale_generation": 2.0}


def test_leases_without_a_shard_are_not_held() -> None:
    outbox = Outbox()
    outbox.hold(Lease(Task.EXPORT, None, 1))
    assert outbox.held() == ()


def test_everything_else_is_reported_once_in_one_report() -> None:
    outbox = Outbox()
    outbox.summarise(Summary(1, {"auc": 0.5}))
    outbox.fail(Failure(None, None, 0, "why"))
    outbox.exported("/there")
    outbox.ask_stop("enough")
    assert outbox.urgent.is_set()
    report = outbox.take({})
    assert (
        report.summaries[0].round,
        report.failures[0].error,
        report.exported,
        report.stop_asked,
    ) == (1, "why", "/there", "enough")
    assert outbox.take({}) == Report()


def test_a_done_lease_is_reported_at_once_and_heartbeats_continue() -> None:
    outbox, master = Outbox(), Master()
    reporter = Reporter(outbox, Gauges(ManualClock()), master, 0.05, Shutdown())
    reporter.start()
    assert master.came.acquire(timeout=LIMIT_S) and master.came.acquire(timeout=LIMIT_S)
    slow = Reporter(outbox, Gauges(ManualClock()), urgent := Master(), 3600.0, Shutdown())
    assert reporter.flush(LIMIT_S)
    outbox.urgent.clear()
    slow.start()
    outbox.hold(LEASE)
    outbox.advance(LEASE, Advance(100, done=True))
    assert urgent.came.acquire(timeout=LIMIT_S)
    assert urgent.reports[0].progress[0].done
    assert slow.flush(LIMIT_S)


def test_a_report_that_failed_is_sent_again_unchanged() -> None:
    outbox, master, shutdown = (
        Outbox(),
        Master(
            TransientError("away", retry_after_s=0.01), TransientError("away", retry_after_s=0.01)
        ),
        Shutdown(),
    )
    reporter = Reporter(outbox, Gauges(ManualClock()), master, 3600.0, shutdown)
    outbox.hold(LEASE)
    outbox.advance(LEASE, Advance(100, done=True))
    reporter.start()
    assert master.came.acquire(timeout=LIMIT_S)
    assert master.reports[0].progress[0].applied.offset == 100
    assert reporter.flush(LIMIT_S)
    assert not shutdown


def test_a_refused_report_ends_the_worker_as_fenced() -> None:
    shutdown = Shutdown()
    outbox = Outbox()
    reporter = Reporter(
        outbox, Gauges(ManualClock()), Master(Refused("replaced")), 3600.0, shutdown
    )
    outbox.urgent.set()
    reporter.start()
    assert shutdown.wait(LIMIT_S)
    assert exit_code(shutdown.reason) is ExitCode.FENCED


def test_a_drained_worker_that_is_fenced_by_its_own_last_report_still_counts_as_drained() -> None:
    shutdown = Shutdown()
    shutdown.end(Draining("SIGTERM"))
    reporter = Reporter(
        Outbox(), Gauges(ManualClock()), Master(Refused("fenced")), 3600.0, shutdown
    )
    assert reporter.flush(LIMIT_S)
    assert exit_code(shutdown.reason) is ExitCode.DRAINED


def test_flush_sends_what_was_put_in_before_it() -> None:
    outbox, master = Outbox(), Master()
    reporter = Reporter(outbox, Gauges(ManualClock()), master, 3600.0, Shutdown())
    outbox.hold(LEASE)
    outbox.give_back([LEASE])
    assert reporter.flush(LIMIT_S)
    assert master.reports[-1].progress[0].returned


def test_the_master_changes_the_period_of_reports_with_its_answer() -> None:
    class Busy(Master):
        def report(self, report: Report) -> float:
            super().report(report)
            return 0.01 if len(self.reports) < 3 else 3600.0

    outbox = Outbox()
    reporter = Reporter(outbox, Gauges(ManualClock()), master := Busy(), 3600.0, Shutdown())
    reporter.start()
    outbox.urgent.set()
    for _ in range(3):
        assert master.came.acquire(timeout=LIMIT_S)
    assert reporter.flush(LIMIT_S)
    assert len(master.reports) == 4, "the last one is that of `flush`"


def test_what_is_put_in_while_the_report_before_the_end_is_under_way_is_sent_as_well() -> None:
    begun, go = threading.Event(), threading.Event()

    class Slow(ReportsOnly):
        def __init__(self) -> None:
            self.reports: list[Report] = []

        def report(self, report: Report) -> None:
            self.reports.append(report)
            if len(self.reports) == 1:
                begun.set()
                assert go.wait(LIMIT_S)

    outbox = Outbox()
    reporter = Reporter(outbox, Gauges(ManualClock()), slow := Slow(), 3600.0, Shutdown())
    reporter.start()
    outbox.urgent.set()
    assert begun.wait(LIMIT_S)
    outbox.exported("the model")
    flushing = threading.Thread(target=reporter.flush, args=(LIMIT_S,))
    flushing.start()
    assert reporter._closing.wait(LIMIT_S)
    go.set()
    flushing.join(LIMIT_S)
    assert [report.exported for report in slow.reports] == ["", "the model"]


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        (Done(), ExitCode.DONE),
        (Draining("x"), ExitCode.DRAINED),
        (Failed(UserError("x")), ExitCode.USER_ERROR),
        (Failed(SpecError("x")), ExitCode.USER_ERROR),
        (Failed(Refused("x")), ExitCode.FENCED),
        (Failed(TransientError("x")), ExitCode.UNAVAILABLE),
        (Failed(ZeroDivisionError("x")), ExitCode.JOB_FAILED),
    ],
)
def test_exit_codes_say_why_a_worker_ended(
    reason: Done | Draining | Failed, code: ExitCode
) -> None:
    assert exit_code(reason) is code


def test_the_last_line_of_a_worker_says_what_happened_and_not_only_what_to_do(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The master shows that line as the cause of the end."""
    full = "cannot write /full/predictions.npz: No space left on device"
    log_error(logging.getLogger(__name__), PermanentError(full, hint="see --output"))
    last = caplog.text.strip().splitlines()[-1]
    assert "No space left on device" in last and "see --output" in last


def test_the_first_reason_to_end_stands_but_a_failure_overrules_a_peaceful_one() -> None:
    shutdown = Shutdown()
    heard: list[str] = []
    shutdown.listen(lambda: heard.append("a"))
    assert shutdown.end(Draining("SIGTERM"))
    assert not shutdown.end(Done())
    assert shutdown.fail(UserError("while draining"))
    assert not shutdown.fail(UserError("later"))
    assert isinstance(shutdown.reason, Failed) and shutdown.reason.error.args == ("while draining",)
    shutdown.listen(lambda: heard.append("b"))
    assert heard == ["a", "b"]


def test_a_finished_channel_gives_what_is_there_and_a_closed_one_does_not() -> None:
    handoff: ThreadQueue[int] = ThreadQueue(2)
    handoff.put(1)
    handoff.finish()
    assert handoff.get() == 1
    with pytest.raises(Ended):
        handoff.get()
    closed: ThreadQueue[int] = ThreadQueue(2)
    closed.put(1)
    closed.close()
    with pytest.raises(Ended):
        closed.get()
    with pytest.raises(Ended):
        closed.put(2)


def test_a_full_channel_makes_its_sender_wait() -> None:
    handoff: ThreadQueue[int] = ThreadQueue(1)
    handoff.put(1)
    sender = threading.Thread(target=handoff.put, args=(2,))
    sender.start()
    assert handoff.get() == 1
    assert handoff.get() == 2
    sender.join(LIMIT_S)
    assert not sender.is_alive()


def test_gauges_are_means_since_they_were_taken() -> None:
    clock = ManualClock()
    gauges = Gauges(clock)
    gauges.add("step_ms", 2.0)
    gauges.add("step_ms", 4.0)
    gauges.add("staleness", 1)
    gauges.add("staleness", 3)
    gauges.count_records(100)
    gauges.level("waiting_for_servers_s", 3.0)
    clock.advance(2.0)
    taken = gauges.take()
    assert (taken["step_ms"], taken["staleness_mean"], taken["staleness_max"]) == (3.0, 2.0, 3)
    assert (taken["records_per_s"], taken["waiting_for_servers_s"]) == (50.0, 3.0)
    assert taken["rss_bytes"] > 1 << 20
    gauges.level("waiting_for_servers_s", None)
    clock.advance(1.0)
    again = gauges.take()
    assert (
        "step_ms" not in again
        and "waiting_for_servers_s" not in again
        and again["records_per_s"] == 0
    )


def test_time_is_gauged_even_where_the_block_fails() -> None:
    clock = ManualClock()
    gauges = Gauges(clock)
    with pytest.raises(ZeroDivisionError), gauges.timed("pull_ms"):
        clock.advance(0.25)
        raise ZeroDivisionError
    assert gauges.take()["pull_ms"] == 250.0


def test_patience_ends_with_the_worker() -> None:
    shutdown = Shutdown()
    server_retry = ServerRetry(shutdown, Gauges(ManualClock()), ManualClock())

    def fail(timeout_s: float) -> None:
        shutdown.end(Draining("SIGTERM"))
        raise TransientError("away")

    with pytest.raises(Ended):
        server_retry.call(fail, "pull")


def test_bad_records_of_several_batches_to_come_are_reported_with_the_begin_of_each() -> None:
    """In a synchronous step a worker may push several batches before one of them counts."""
    outbox = Outbox()
    outbox.hold(LEASE)
    outbox.foretell_bad(LEASE, 2, begin=0)
    outbox.foretell_bad(LEASE, 1, begin=20)

    def told() -> list[tuple[int, int, bool]]:
        return [
            (one.applied.offset, one.bad_records, one.ahead) for one in outbox.take({}).progress
        ]

    assert told() == [(0, 2, True), (20, 3, True)]
    outbox.advance(LEASE, Advance(10, bad=2))
    assert told() == [(10, 2, False), (20, 3, True)]

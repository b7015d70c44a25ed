"""Turn a process's report into events of the core."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

from elasticdl.cluster.base import ProcessName
from elasticdl.master.core.events import (
    Event,
    ExportFinished,
    LeaseReturned,
    ProgressReported,
    PushesReported,
    RingReported,
    SnapshotCut,
    StartWentOn,
    StateReported,
    SummaryReported,
    TaskFailed,
    WorkerStopRequested,
)
from elasticdl.rpc.conversation import Progress, Report, State


def events_of(worker: ProcessName, report: Report, at_s: float) -> Iterator[Event]:
    """Return the events of a report, in the order that the core needs.

    Copies of weights precede the progress that is beyond them. Progress precedes failures, since
    completed work counts. The position on the ring comes last, after everything that the worker
    handed over there.
    """
    for part in report.starting:
        yield StartWentOn(at_s, worker, part)
    for cut in report.ring_cuts:
        yield SnapshotCut(at_s, cut.snapshot, cut.version, {})
    if report.met or report.crowded or (report.pushes and not report.progress):
        yield PushesReported(at_s, worker, report.pushes, dict(report.met), report.crowded)
    for progress in report.progress:
        yield _progressed(worker, progress, report.pushes, at_s)
        if progress.returned:
            yield LeaseReturned(at_s, worker, progress.applied)
    for summary in report.summaries:
        yield SummaryReported(
            at_s, worker, summary.round, dict(summary.values), summary.stop_training
        )
    for failure in report.failures:
        yield TaskFailed(
            at_s, worker, failure.task, failure.shard, failure.attempt, failure.error, failure.fatal
        )
    if report.exported:
        yield ExportFinished(at_s, worker, report.exported, report.export_problem)
    if report.stop_asked:
        yield WorkerStopRequested(at_s, worker, report.stop_asked)
    if (ring := report.ring) is not None:
        yield RingReported(at_s, worker, **asdict(ring))
    if report.state is not None:
        yield state_reported(worker, report.state, at_s)


def state_reported(name: ProcessName, state: State, at_s: float) -> StateReported:
    """Return the answer of a process to a request for its state."""
    return StateReported(at_s, name, state.held, state.stacks, state.doing, state.frames)


def _progressed(
    worker: ProcessName, progress: Progress, pushes: int, at_s: float
) -> ProgressReported:
    return ProgressReported(
        at_s,
        worker,
        progress.task,
        progress.applied,
        version=progress.version,
        loss=progress.loss,
        bad_records=progress.bad_records,
        bad_examples=progress.bad_examples,
        ahead=progress.ahead,
        done=progress.done,
        metrics=dict(progress.metrics),
        pushes=pushes,
    )

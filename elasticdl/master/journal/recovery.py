"""Brings back the state of a job from its journal."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from elasticdl.errors import Corrupted
from elasticdl.job import JobSpec
from elasticdl.master.core.command_buffer import ImpossibleTransition
from elasticdl.master.core.commands import Announce, Command, RecordMetrics
from elasticdl.master.core.events import Event, JobStarted, StopRequested
from elasticdl.master.core.job_context import Limits
from elasticdl.master.core.state import JobState
from elasticdl.master.journal import files
from elasticdl.master.journal.files import Image, Segment

_LOG = logging.getLogger(__name__)


@final
@dataclass(frozen=True, slots=True)
class Recovered:
    """A job as its last master left it.

    `at_s` is the time of the newest event, and `term` the term of the master that wrote it. `run`
    is the number of the journal's run. `records` are commands to record something for people, with
    their times, since the newest image of the state.
    """

    core: JobState
    at_s: float
    term: int
    run: int
    records: tuple[tuple[float, Command], ...] = ()

    def records_after(self, since_s: float) -> list[Command]:
        """Return the commands to record something that are newer than the newest record."""
        return [command for at_s, command in self.records if at_s > since_s]


def recover(directory: Path, run_name: str, spec: JobSpec, limits: Limits) -> Recovered | None:
    """Return the job of this launch; None if its journal cannot continue it, which is logged."""
    try:
        newest = files.segments(directory)[-1:]
        if not newest or files.header_of(newest[0].path).run != run_name:
            return None
        run = newest[0].run
        if files.gap_path(directory, run).exists():
            _LOG.warning("the journal in %s lacks events, since the disk was full", directory)
            return None
        return _replayed(directory, run, spec, limits)
    except (Corrupted, ImpossibleTransition, OSError) as error:
        _LOG.error("cannot continue with the journal in %s: %s", directory, error)
        return None


def _replayed(directory: Path, run: int, spec: JobSpec, limits: Limits) -> Recovered | None:
    of_run = [one for one in files.segments(directory) if one.run == run]
    core, events = _from_image(directory, of_run, spec, limits) or (
        JobState(spec, limits),
        _all_events(directory, of_run),
    )
    records: list[tuple[float, Command]] = []
    for event in events:
        records += [
            (event.at_s, one)
            for one in core.handle(event)
            if isinstance(one, Announce | RecordMetrics)
        ]
    if not core.begun:
        return None
    files.trim(of_run[-1].path)
    term = files.header_of(of_run[-1].path).term
    return Recovered(core, core.now_s, term, run, tuple(records))


def replay(directory: Path) -> Iterator[Event]:
    """Return the newest run's events in order; none if there is no journal.

    It is how a developer reads a journal, and how tests check that events restore the state. Raises
    Corrupted.
    """
    known = files.segments(directory)
    newest = max((one.run for one in known), default=0)
    yield from _all_events(directory, [one for one in known if one.run == newest])


def last_start(directory: Path) -> JobStarted | None:
    """Return how the newest run that began its job started; None if unknown.

    The event comes early in a run: only runs that did not get so far are read to their end. Raises
    OSError, Corrupted.
    """
    for one in sorted(files.segments(directory), key=lambda one: (-one.run, one.number)):
        for event in files.events_of(one.path, last=True) if one.number == 1 else ():
            if isinstance(event, JobStarted):
                return event
    return None


def last_stop(directory: Path, run_name: str) -> StopRequested | None:
    """Return the last request to stop in the newest run if it is of this launch; else None.

    Other lines may be damaged. Raises OSError, Corrupted.
    """
    known, stop = files.segments(directory), None
    if not known or files.header_of(known[-1].path).run != run_name:
        return None
    for one in (one for one in known if one.run == known[-1].run):
        for event in files.events_named(one.path, StopRequested.__name__):
            stop = event if isinstance(event, StopRequested) else stop
    return stop


def _all_events(directory: Path, of_run: Sequence[Segment]) -> Iterator[Event]:
    numbers = [one.number for one in of_run]
    if numbers != list(range(1, len(numbers) + 1)):
        raise Corrupted(
            f"{directory}: run {of_run[-1].run} has segments {numbers}, expected 1 to {numbers[-1]}"
        )
    yield from _events(of_run, 0)


def _events(of_run: Sequence[Segment], offset: int) -> Iterator[Event]:
    for one in of_run:
        yield from files.events_of(one.path, last=one is of_run[-1], offset=offset)
        offset = 0


def _from_image(
    directory: Path, of_run: Sequence[Segment], spec: JobSpec, limits: Limits
) -> tuple[JobState, Iterator[Event]] | None:
    """Return the newest readable image's state, and the events after it; None if there is none."""
    for image in reversed([one for one in files.images(directory) if one.run == of_run[-1].run]):
        later = [one for one in of_run if one.number >= image.segment]
        if later[:1] != [one for one in of_run if one.number == image.segment]:
            continue
        try:
            core = _read_image(directory, image, spec, limits)
        except (OSError, ValueError, Corrupted) as error:
            _LOG.warning("cannot use %s: %s", image.path, error)
            continue
        return core, _events(later, image.offset)
    return None


def _read_image(directory: Path, image: Image, spec: JobSpec, limits: Limits) -> JobState:
    start = files.start_path(directory, image.run)
    begun = files.event_in(start.read_bytes(), str(start))
    if not isinstance(begun, JobStarted):
        raise Corrupted(f"{start} has no JobStarted")
    code, plain = image.path.read_bytes().splitlines(keepends=True)
    told = files.parsed(code, str(image.path))
    if told != {"format": files.FORMAT, "code": files.code_fingerprint()}:
        raise ValueError("other code wrote it")
    return JobState.from_image(spec, limits, begun, files.parsed(plain, str(image.path)))

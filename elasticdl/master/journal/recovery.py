"""Brings back the state of a job from its journal."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar, final

from elasticdl.errors import Corrupted
from elasticdl.job import JobSpec
from elasticdl.master.core.command_buffer import ImpossibleTransition
from elasticdl.master.core.commands import Announce, Command, RecordMetrics
from elasticdl.master.core.events import Event, JobStarted, StopRequested
from elasticdl.master.core.job_context import Limits
from elasticdl.master.core.state import JobState
from elasticdl.master.journal import files
from elasticdl.master.journal.files import Extent, Image, Segment

_LOG = logging.getLogger(__name__)
T = TypeVar("T")


@final
@dataclass(frozen=True, slots=True)
class Recovered:
    """A job as its last master left it.

    `at_s` is the time of the newest event, and `term` the term of the master that wrote it. `run`
    is the number of the journal's run, and `end` what of it the state is made of. `records` are
    commands to record something for people, with their times, since the newest image of the state.
    """

    core: JobState
    at_s: float
    term: int
    run: int
    end: Extent
    records: tuple[tuple[float, Command], ...] = ()

    def records_after(self, since_s: float) -> list[Command]:
        """Return the commands to record something that are newer than the newest record."""
        return [command for at_s, command in self.records if at_s > since_s]


def claim(directory: Path, run_name: str, term: int) -> int:
    """Become the newest master of this launch; return the term, at least `term`.

    From now on no earlier master acts upon what it writes. Call it before `Recovery`. Raises
    OSError.
    """
    try:
        newest = _newest_of(directory, run_name)
        if newest is None:
            return term
        term = max(term, files.header_of(newest.path).term + 1)
    except Corrupted:
        return term
    files.term_path(directory, newest.run, term).touch(0o600)
    for earlier in files.terms(directory, newest.run):
        if earlier < term:
            files.term_path(directory, newest.run, earlier).unlink(missing_ok=True)
    return term


@final
class Recovery:
    """The job of a launch on its way back from its journal: an image, and the events after it.

    `found`: whether there is a journal that may continue the job; if not, that is logged.
    """

    def __init__(self, directory: Path, run_name: str, spec: JobSpec, limits: Limits) -> None:
        """Read the newest image. Blocks for up to a second with thousands of workers."""
        self._directory = directory
        self._records: list[tuple[float, Command]] = []
        self._core = JobState(spec, limits)
        self._parts: list[_SegmentPrefix] = []
        self._events: Iterator[Event] = iter(())
        self.found = self._attempted(lambda: self._begin(run_name, spec, limits)) or False

    def replay(self, limit_s: float = math.inf) -> bool:
        """Handle events for about so long. Return whether some are left."""
        return self._attempted(lambda: self._handle(limit_s)) or False

    def recovered(self) -> Recovered | None:
        """Return the job after all events; None if its journal cannot continue it."""
        return self._attempted(self._end) if self.found and self._core.begun else None

    def _attempted(self, work: Callable[[], T]) -> T | None:
        try:
            return work()
        except (Corrupted, ImpossibleTransition, OSError) as error:
            _LOG.error("cannot continue with the journal in %s: %s", self._directory, error)
            self.found = False
            return None

    def _begin(self, run_name: str, spec: JobSpec, limits: Limits) -> bool:
        directory, newest = self._directory, _newest_of(self._directory, run_name)
        if newest is None:
            return False
        if files.gap_path(directory, newest.run).exists():
            _LOG.warning("the journal in %s lacks events, since the disk was full", directory)
            return False
        self._parts = _parts(directory, newest.run)
        if (image := _from_image(directory, self._parts, spec, limits)) is not None:
            self._core, self._events = image
        else:
            self._events = _all_events(directory, self._parts)
        return True

    def _handle(self, limit_s: float) -> bool:
        end_s = time.monotonic() + limit_s
        for event in self._events:
            self._records += [
                (event.at_s, command)
                for command in self._core.handle(event)
                if isinstance(command, Announce | RecordMetrics)
            ]
            if time.monotonic() > end_s:
                return True
        return False

    def _end(self) -> Recovered:
        last = self._parts[-1]
        files.trim(last.segment.path, last.end)
        term = files.header_of(last.segment.path).term
        end = Extent(last.segment.number, last.end)
        core = self._core
        return Recovered(core, core.now_s, term, last.segment.run, end, tuple(self._records))


def _newest_of(directory: Path, run_name: str) -> Segment | None:
    """Return the newest segment, if this launch wrote it. Raises OSError, Corrupted."""
    newest = files.segments(directory)[-1:]
    return newest[0] if newest and files.header_of(newest[0].path).run == run_name else None


def replay(directory: Path) -> Iterator[Event]:
    """Return the newest run's events in order; none if there is no journal.

    It is how a developer reads a journal, and how tests check that events restore the state. Raises
    Corrupted.
    """
    newest = max((segment.run for segment in files.segments(directory)), default=0)
    if newest:
        yield from _all_events(directory, _parts(directory, newest))


def last_start(directory: Path) -> JobStarted | None:
    """Return how the newest run that began its job started; None if unknown.

    The event comes early in a run: only runs that did not get so far are read to their end. Raises
    OSError, Corrupted.
    """
    for segment in sorted(
        files.segments(directory), key=lambda segment: (-segment.run, segment.number)
    ):
        for event in files.events_of(segment.path, last=True) if segment.number == 1 else ():
            if isinstance(event, JobStarted):
                return event
    return None


def last_stop(directory: Path, run_name: str) -> StopRequested | None:
    """Return the last request to stop in the newest run if this launch wrote it; else None.

    Other lines may be damaged. Raises OSError, Corrupted.
    """
    newest, stop = _newest_of(directory, run_name), None
    if newest is None:
        return None
    for segment in (segment for segment in files.segments(directory) if segment.run == newest.run):
        for event in files.events_named(segment.path, StopRequested.__name__):
            stop = event if isinstance(event, StopRequested) else stop
    return stop


@final
@dataclass(frozen=True, slots=True)
class _SegmentPrefix:
    """A segment, up to where it counts."""

    segment: Segment
    end: int


def _parts(directory: Path, run: int) -> list[_SegmentPrefix]:
    """Return the segments of a run that count. Raises OSError, Corrupted."""
    parts: list[_SegmentPrefix] = []
    for segment in files.segments(directory):
        if segment.run != run:
            continue
        after = files.header_of(segment.path).after
        if after is not None:
            # An earlier master wrote the rest when it did not know yet that it was replaced.
            kept = [part for part in parts if part.segment.number <= after.segment]
            parts = [*kept[:-1], *(_SegmentPrefix(part.segment, after.bytes) for part in kept[-1:])]
        parts.append(_SegmentPrefix(segment, segment.path.stat().st_size))
    last = parts[-1].segment
    return [*parts[:-1], _SegmentPrefix(last, files.whole_bytes(last.path))]


def _all_events(directory: Path, parts: Sequence[_SegmentPrefix]) -> Iterator[Event]:
    numbers = [part.segment.number for part in parts]
    present = {
        segment.number
        for segment in files.segments(directory)
        if segment.run == parts[-1].segment.run
    }
    if present != set(range(1, numbers[-1] + 1)):
        raise Corrupted(
            f"{directory}: run {parts[-1].segment.run} has segments {sorted(present)}, expected 1"
            f" to {numbers[-1]}"
        )
    yield from _events(parts, 0)


def _events(parts: Sequence[_SegmentPrefix], offset: int) -> Iterator[Event]:
    for part in parts:
        last = part is parts[-1]
        yield from files.events_of(part.segment.path, last=last, offset=offset, end=part.end)
        offset = 0


def _from_image(
    directory: Path, parts: Sequence[_SegmentPrefix], spec: JobSpec, limits: Limits
) -> tuple[JobState, Iterator[Event]] | None:
    """Return the newest readable image's state, and the events after it; None if there is none."""
    ends = {part.segment.number: part.end for part in parts}
    run = parts[-1].segment.run
    for image in reversed([image for image in files.images(directory) if image.run == run]):
        # An earlier master may have made one of a state in which nobody acts.
        if image.offset > ends.get(image.segment, -1):
            continue
        try:
            core = _read_image(directory, image, spec, limits)
        except (OSError, ValueError, Corrupted) as error:
            _LOG.warning("cannot use %s: %s", image.path, error)
            continue
        later = [part for part in parts if part.segment.number >= image.segment]
        return core, _events(later, image.offset)
    return None


def _read_image(directory: Path, image: Image, spec: JobSpec, limits: Limits) -> JobState:
    start = files.start_path(directory, image.run)
    begun = files.event_in(start.read_bytes(), str(start))
    if not isinstance(begun, JobStarted):
        raise Corrupted(f"{start} has no JobStarted")
    code, _, plain = image.path.read_bytes().partition(b"\n")
    header = files.parsed(code, str(image.path))
    if header != {"format": files.FORMAT, "code": files.code_fingerprint()}:
        raise ValueError("other code wrote it")
    return JobState.from_image(spec, limits, begun, files.parsed(plain, str(image.path)))

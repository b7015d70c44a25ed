"""The job's events on disk: a line each, with a checksum, in segments.

A replay of the events restores the job's state.

The file `<directory>/run-0001-000001.jsonl` has the number of the run and of the run's segment. A
resumed job begins a new run in the same directory. A line is `<crc32 of the rest, 8 hex digits>
<event as JSON>`. docs/adr/0002 describes when a line is on disk.
"""

from __future__ import annotations

import json
import logging
import os
import re
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import final

from elasticdl.errors import Corrupted
from elasticdl.master.core.codec import event_of, event_plain
from elasticdl.master.core.events import Event, JobStarted, SnapshotSaved, StopRequested
from elasticdl.private_file import make_private

_LOG = logging.getLogger(__name__)
_NAME = re.compile(r"run-(\d{4,})-(\d{6,})\.jsonl")
_SEGMENT_BYTES = 64 << 20
_KEPT_BYTES = 1 << 30
"""Limit of all runs together, in whole segments, so that a long job does not fill the disk."""
_SYNC_EVERY_S = 0.25
_SYNCED = (JobStarted, SnapshotSaved, StopRequested)
"""Events that wait for the disk: they say where a job begins, and what it need not repeat."""


@final
class JournalFile:
    """A new run's journal. Use it from one thread.

    The constructor may raise OSError. If the disk fails later, the journal ends and the job
    continues, since it resumes from checkpoints.

    After `flush` the kernel has the events, so the end of this process does not lose them. A
    machine failure loses at most the events of `sync_every_s`.
    """

    def __init__(
        self,
        directory: Path,
        *,
        segment_bytes: int = _SEGMENT_BYTES,
        kept_bytes: int = _KEPT_BYTES,
        sync_every_s: float = _SYNC_EVERY_S,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        make_private(directory)
        self._directory = directory
        self._segment_bytes = segment_bytes
        self._kept_bytes = kept_bytes
        self._sync_every_s = sync_every_s
        self._now_s = now_s
        self._run = max((run for run, _, _ in _segments(directory)), default=0) + 1
        self._segment = 0
        self._waiting: list[bytes] = []
        self._dirty = self._urgent = False
        self._synced_s = now_s()
        self._over = False
        self._file = self._next_segment()

    def append(self, event: Event) -> None:
        """Add an event; it is safe after the next `flush`."""
        if self._over:
            return
        text = json.dumps(event_plain(event), separators=(",", ":")).encode()
        self._waiting.append(b"%08x %s\n" % (zlib.crc32(text), text))
        self._urgent = self._urgent or isinstance(event, _SYNCED)

    def flush(self) -> None:
        """Write all appended events to the kernel at once; wait for the disk if that is due."""
        try:
            self._flush()
        except OSError as error:
            # A journal with a gap would be worthless.
            self._over, self._dirty = True, False
            self._waiting.clear()
            _LOG.error(
                "cannot write the journal in %s; the job continues without it: %s",
                self._directory,
                error.strerror or error,
            )

    def _flush(self) -> None:
        if self._waiting:
            data, self._waiting = b"".join(self._waiting), []
            # One write for the whole batch: a crash can cut only the last line.
            _write(self._file, data)
            self._dirty = True
        if self._dirty and (self._urgent or self._now_s() - self._synced_s >= self._sync_every_s):
            self._sync()
        if not self._over and os.fstat(self._file).st_size >= self._segment_bytes:
            self._sync()
            # Open the next segment first: if that fails, the old one is still usable.
            full, self._file = self._file, self._next_segment()
            os.close(full)

    def close(self) -> None:
        """Flush, wait for the disk, and close the file."""
        self._urgent = True
        self.flush()
        os.close(self._file)

    def _sync(self) -> None:
        os.fsync(self._file)
        self._dirty = self._urgent = False
        self._synced_s = self._now_s()

    def _next_segment(self) -> int:
        self._segment += 1
        path = self._directory / f"run-{self._run:04d}-{self._segment:06d}.jsonl"
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
        # The directory entry must be as durable as the lines.
        directory = os.open(self._directory, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
        self._forget()
        return file

    def _forget(self) -> None:
        """Remove the oldest segments beyond the limit, those of earlier runs first."""
        left = self._kept_bytes
        for _, _, path in reversed(_segments(self._directory)):
            left -= path.stat().st_size
            if left < 0:
                path.unlink()


def replay(directory: Path) -> Iterator[Event]:
    """Return the newest run's events in order; none if there is no journal.

    No process of a job calls this, since a new master does not replay (ADR 2). It is how a
    developer reads a journal, and how tests check that events restore the state.

    A crash may leave a partial last line. It was never acted upon, so it is ignored. Any other
    invalid line raises Corrupted with file and line.
    """
    segments = _segments(directory)
    newest = max((run for run, _, _ in segments), default=0)
    paths = [path for run, _, path in segments if run == newest]
    numbers = [segment for run, segment, _ in segments if run == newest]
    if numbers != list(range(1, len(numbers) + 1)):
        raise Corrupted(
            f"{directory}: run {newest} has segments {numbers}, expected 1 to {max(numbers)}"
        )
    for path in paths:
        yield from _events(path, last=path == paths[-1])


def last_start(directory: Path) -> JobStarted | None:
    """Return how the newest run that began its job started; None if unknown.

    The event comes early in a run: only runs that did not get so far are read to their end. Raises
    OSError, Corrupted.
    """
    for _, segment, path in sorted(_segments(directory), key=lambda one: (-one[0], one[1])):
        for event in _events(path, last=True) if segment == 1 else ():
            if isinstance(event, JobStarted):
                return event
    return None


def _segments(directory: Path) -> list[tuple[int, int, Path]]:
    found = []
    for path in directory.iterdir() if directory.is_dir() else ():
        name = _NAME.fullmatch(path.name)
        if name:
            found.append((int(name[1]), int(name[2]), path))
    return sorted(found)


def _events(path: Path, *, last: bool) -> Iterator[Event]:
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.endswith(b"\n"):
                if last:
                    return
                raise Corrupted(
                    f"{path}:{number}: the line is truncated, but later segments follow"
                )
            yield _event(line, f"{path}:{number}")


def _event(line: bytes, where: str) -> Event:
    checksum, _, text = line.rstrip(b"\n").partition(b" ")
    if checksum != b"%08x" % zlib.crc32(text):
        raise Corrupted(
            f"{where}: the line is damaged: checksum {checksum[:8]!r}, expected"
            f" {zlib.crc32(text):08x}"
        )
    try:
        return event_of(json.loads(text))
    except ValueError as error:
        raise Corrupted(
            f"{where}: {error}", hint="check whether another version wrote this journal"
        ) from error


def _write(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]

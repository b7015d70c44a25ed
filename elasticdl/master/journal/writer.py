"""Writes the journal of one master. docs/adr/0002 describes when a line is on disk."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, final

from elasticdl.errors import MasterSuperseded
from elasticdl.master.core.events import Event, JobStarted, SnapshotSaved, StopRequested
from elasticdl.master.journal import files
from elasticdl.master.journal.files import Header
from elasticdl.master.journal.image_process import ImageProcess
from elasticdl.master.tenure import SoleMaster, Tenure
from elasticdl.private_file import make_private, replace_atomically, sync_entry

_LOG = logging.getLogger(__name__)
_SYNCED = (JobStarted, SnapshotSaved, StopRequested)
"""Events that wait for the disk: they say where a job begins, and what it need not repeat."""


@final
@dataclass(frozen=True, slots=True)
class JournalLimits:
    """Sizes and times of a journal.

    `kept_bytes` limits all runs together, in whole segments, so that a long job does not fill the
    disk. An image is due after `image_events`, which bounds the replay, and after `image_times` the
    time that the last image took, which bounds its share of the master's time. After one of
    `beside_bytes` a child process writes the next, and another is due after `beside_times` its
    CPU time, or after as long as it took if that is longer.

    With `sync_every_s` 0 each batch of events waits for the disk: the next master may run on
    another machine. With `math.inf` no event does: the next master reads no disk of this one.
    """

    segment_bytes: int = 64 << 20
    kept_bytes: int = 1 << 30
    sync_every_s: float = 0.25
    image_events: int = 2_500
    image_times: float = 100.0
    beside_bytes: int = 1 << 20
    beside_times: float = 5.0
    retry_s: float = 10.0
    """Time between attempts to continue on a disk that had failed."""


@final
class JournalFile:
    """The journal of a run. Use it from one thread.

    The constructor may raise OSError. If the disk fails later, the job continues without a journal,
    and the journal continues with an image of the state as soon as the disk takes one.

    After `flush` the kernel has the events, so the end of this process does not lose them. A
    machine failure loses at most the events of `sync_every_s` and of one sync, or of twice the time
    of a slow sync: one that had begun before an event does not count for it.

    Two masters may write at once, if one does not know that it was replaced. The later one says in
    its first segment from where it continues, so what the earlier one still writes does not count.
    """

    def __init__(
        self,
        directory: Path,
        header: Header,
        image: Callable[[], Any] = lambda: None,
        *,
        run: int | None = None,
        tenure: Tenure | None = None,
        limits: JournalLimits = JournalLimits(),
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`image` returns the state after all appended events; None: there is none yet.

        `run` is the number of a run to continue, after the extent in `header`; None begins another.
        `tenure`: see `flush`.
        """
        make_private(directory)
        self._directory = directory
        self._header = header
        self._image = image
        self._tenure = tenure or SoleMaster()
        self._limits = limits
        self._now_s = now_s
        known = files.segments(directory)
        self._run = run or max((segment.run for segment in known), default=0) + 1
        self._segment = max(
            (segment.number for segment in known if segment.run == self._run), default=0
        )
        self._waiting: list[bytes] = []
        self._dirty = self._urgent = self._unconfirmed = False
        self._syncer = ThreadPoolExecutor(1, "journal")
        self._syncing: Future[None] | None = None
        """A wait for the disk in a thread of its own, while the master goes on."""
        self._synced_s = self._failed_s = now_s()
        self._since_image, self._image_s, self._pause_s = 0, now_s(), 0.0
        self._writing: ImageProcess | None = None
        """Another process that writes an image."""
        self._failed_beside = False
        self._gap = False
        self._file = self._next_segment()

    @property
    def whole(self) -> bool:
        """Whether it has all events: another master can continue from it."""
        return not self._gap

    @property
    def needed(self) -> list[Path]:
        """The files from which a next master continues. Raises OSError."""
        return files.needed(self._directory, self._run)

    def append(self, event: Event) -> None:
        self._unconfirmed = True
        if isinstance(event, JobStarted):
            self._keep_start(event)
        if self._gap:
            return
        self._waiting.append(files.event_line(event))
        self._since_image += 1
        self._urgent = self._urgent or isinstance(event, _SYNCED)

    async def flush(self) -> None:
        """Write all appended events to the kernel at once; wait for the disk if that is due.

        Then wait until the tenure allows to act upon them. Raises MasterSuperseded.
        """
        await self._guarded(self._write)
        if self._unconfirmed:
            await self._tenure.confirm(self._is_newest)
            self._unconfirmed = False
        await self._guarded(self._maintain)

    async def aclose(self) -> None:
        """Do as `close`."""
        self.close()

    def close(self) -> None:
        """Write what is appended, wait for the disk, and close the file."""
        if not self._gap:
            try:
                self._write_lines()
                self._sync()
            except OSError as error:
                self._failed(error)
        # It may still use the file.
        self._syncer.shutdown()
        if self._writing is not None:
            self._writing.stop()
            self._forget_images()
            self._writing = None
        os.close(self._file)

    async def _guarded(self, work: Callable[[], Awaitable[None]]) -> None:
        if self._gap and self._now_s() - self._failed_s < self._limits.retry_s:
            return
        try:
            await work()
        except OSError as error:
            self._failed(error)

    async def _write(self) -> None:
        if self._gap:
            return
        self._write_lines()
        if self._syncing is not None and self._syncing.done():
            self._end_sync()
        overdue = self._now_s() - self._synced_s >= self._limits.sync_every_s
        if not self._dirty or not (self._urgent or overdue):
            return
        if not self._limits.sync_every_s:
            # Each batch: the loop has other work meanwhile.
            await asyncio.to_thread(self._sync)
        elif self._urgent:
            self._sync()
        elif self._syncing is None:
            # Nobody waits: a disk takes up to 40 ms, four times a second.
            self._syncing = self._syncer.submit(os.fsync, self._file)
            self._dirty, self._synced_s = False, self._now_s()

    def _write_lines(self) -> None:
        if self._waiting:
            data, self._waiting = b"".join(self._waiting), []
            # One write for the whole batch: a crash can cut only the last line.
            _write(self._file, data)
            self._dirty = True

    async def _maintain(self) -> None:
        """Continue after a gap, put an image, and begin another segment, where that is due."""
        if self._writing is not None:
            self._await_image(self._writing)
        if self._gap:
            self._continue()
        elif self._image_due():
            self._begin_image()
        if os.fstat(self._file).st_size >= self._limits.segment_bytes:
            self._sync()
            self._rotate()

    def _is_newest(self) -> bool:
        """Whether no later master had read the journal before this one's last write.

        False if that is unknown. Raises MasterSuperseded.
        """
        try:
            newest = max(files.terms(self._directory, self._run), default=0)
            later = any(segment.run > self._run for segment in files.segments(self._directory))
        except OSError:
            return False
        if later:
            raise MasterSuperseded("a later master started the job over")
        if newest > self._header.term:
            raise MasterSuperseded(f"the master of term {newest} continues the job")
        return not self._gap

    def _image_due(self) -> bool:
        return (
            self._writing is None
            and self._since_image >= self._limits.image_events
            and self._now_s() - self._image_s >= self._pause_s
        )

    def _rotate(self) -> None:
        # All of the segment before counts, and it is this master's.
        self._header = replace(self._header, after=None)
        # Open the next segment first: if that fails, the old one is still usable.
        full, self._file = self._file, self._next_segment()
        os.close(full)

    def _begin_image(self) -> None:
        """Write the state after all that is in the file, or have another process do that."""
        newest = files.images(self._directory)[-1:]
        large = any(image.path.stat().st_size >= self._limits.beside_bytes for image in newest)
        if not large or self._failed_beside:
            self._failed_beside = False
            self._put_image()
            return
        offset = os.fstat(self._file).st_size
        path = files.image_path(self._directory, self._run, self._segment, offset)
        files.code_fingerprint()  # Once for all children.
        try:
            self._writing = ImageProcess(partial(_write_image, path, self._image), self._now_s())
        except OSError as error:
            # The system allows no more processes. The disk is fine, so the journal has no gap.
            _LOG.warning("no process could begin to write an image of the job's state: %s", error)
            self._put_image()
        else:
            self._since_image = 0

    def _await_image(self, writing: ImageProcess) -> None:
        """See whether the other process has ended."""
        if (succeeded := writing.succeeded(self._now_s())) is None:
            return
        self._writing, self._image_s = None, self._now_s()
        # Not the time that it took, which is longer on a busy machine, where the next master needs
        # an image as recent as elsewhere. But a slow disk also has other work.
        took_s = self._image_s - writing.begun_s
        self._pause_s = max(took_s, self._limits.beside_times * writing.cpu_s)
        self._forget_images()
        if not succeeded:
            self._failed_beside = True
            _LOG.warning("a process could not write an image of the job's state")

    def _put_image(self) -> bool:
        """Write the state after all that is in the file. False if there is none yet."""
        self._since_image, begin_s = 0, self._now_s()
        offset = os.fstat(self._file).st_size
        path = files.image_path(self._directory, self._run, self._segment, offset)
        if not _write_image(path, self._image):
            return False
        self._image_s = self._now_s()
        large = path.stat().st_size >= self._limits.beside_bytes
        times = self._limits.beside_times if large else self._limits.image_times
        self._pause_s = times * (self._image_s - begin_s)
        self._forget_images()
        return True

    def _forget_images(self) -> None:
        """Remove all but the newest two, and what a process has left that was killed."""
        for older in files.images(self._directory)[:-2]:
            older.path.unlink(missing_ok=True)
        for half in self._directory.glob(".run-*.image.*"):
            half.unlink(missing_ok=True)

    def _keep_start(self, event: JobStarted) -> None:
        with suppress(OSError):  # Without it images cannot be read; the segments can.
            path = files.start_path(self._directory, self._run)
            replace_atomically(path, files.event_line(event))

    def _failed(self, error: OSError) -> None:
        if (syncing := self._syncing) is not None:
            # It may use the file.
            wait((syncing,))
            self._syncing = None
        # What follows a gap would be worthless.
        if not self._gap:
            _LOG.error(
                "cannot write the journal in %s; the job continues without it, and cannot be taken"
                " over by another master until it can be written again: %s",
                self._directory,
                error.strerror or error,
            )
        self._gap, self._dirty, self._failed_s = True, False, self._now_s()
        self._waiting.clear()
        mark = files.gap_path(self._directory, self._run)
        try:
            # Not in the journal of a later master.
            self._is_newest()
            mark.touch()
        except MasterSuperseded:
            return
        except OSError:
            # A full disk may refuse even that, but it never refuses to remove a file.
            with suppress(OSError):
                files.segment_path(self._directory, self._run, self._segment).unlink()

    def _continue(self) -> None:
        """Begin a segment with an image, which stands for the events that are missing."""
        self._rotate()
        if not self._put_image():
            raise OSError("the job has not begun, so there is no state to write")
        files.gap_path(self._directory, self._run).unlink(missing_ok=True)
        self._gap = False
        _LOG.warning("the journal in %s is written again", self._directory)

    def _end_sync(self) -> None:
        """Wait for the other thread, if it syncs the file. Raises OSError as that has."""
        syncing, self._syncing = self._syncing, None
        if syncing is not None:
            syncing.result()

    def _sync(self) -> None:
        self._end_sync()
        if math.isfinite(self._limits.sync_every_s):
            os.fsync(self._file)
        self._dirty = self._urgent = False
        self._synced_s = self._now_s()

    def _next_segment(self) -> int:
        while True:
            path = files.segment_path(self._directory, self._run, self._segment + 1)
            try:
                file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
                break
            except FileExistsError:
                # An earlier master may have begun one just now.
                if self._header.after is None:
                    raise
                self._segment += 1
        self._segment += 1
        try:
            _write(file, self._header.line())
            # The directory entry must be as durable as the lines.
            sync_entry(self._directory)
        except OSError:
            os.close(file)
            raise
        self._forget()
        return file

    def _forget(self) -> None:
        """Remove the oldest segments beyond the limit, those of earlier runs first."""
        left = self._limits.kept_bytes
        for segment in reversed(files.segments(self._directory)):
            left -= segment.path.stat().st_size
            if left < 0:
                segment.path.unlink()
            if segment.run < self._run:
                # Nobody continues an earlier run. The files of a later one belong to its master.
                files.start_path(self._directory, segment.run).unlink(missing_ok=True)
                files.gap_path(self._directory, segment.run).unlink(missing_ok=True)
                for term in files.terms(self._directory, segment.run):
                    files.term_path(self._directory, segment.run, term).unlink(missing_ok=True)


def _write_image(path: Path, image: Callable[[], Any]) -> bool:
    """Write an image of the present state. False if there is none yet."""
    if (plain := image()) is None:
        return False
    code = files.line({"format": files.FORMAT, "code": files.code_fingerprint()})
    # Not durable: after a crash of the machine the image before may have to do.
    replace_atomically(path, code + files.line(plain), durable=False)
    return True


def _write(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]

"""A journal whose directory ends with this master: other processes have copies in their memory.

The holders of copies are on record in a place that each next master can read. Two rules make any
holder on record as good as a disk:

- a batch of events is acted upon only when every holder on record has it;
- a process is on record only when it has a whole copy, and is taken off before a batch is acted
  upon that it lacks.

docs/adr/0036 describes both.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeAlias, final

from elasticdl.errors import ElasticDLError, MasterSuperseded
from elasticdl.master.core.events import Event
from elasticdl.master.journal import files
from elasticdl.master.journal.writer import JournalFile
from elasticdl.private_file import make_private, replace_atomically
from elasticdl.rpc.journal_copy import Change, Copy

_LOG = logging.getLogger(__name__)


@final
@dataclass(frozen=True, slots=True)
class CopyHolder:
    """A process that can have a copy, and its address for the master."""

    name: str
    address: str


class Holders(Protocol):
    """The processes that can have copies."""

    def attached(self) -> Sequence[CopyHolder]:
        """Return those that can be asked to have one now, the best first."""

    def lives(self, name: str) -> bool:
        """Whether a process has neither ended nor been given up."""


class HolderRecord(Protocol):
    """Which processes have whole copies of the journal, durable beyond this master."""

    def holders(self) -> tuple[CopyHolder, ...]:
        """Return the holders on record."""

    async def record(self, holders: Sequence[CopyHolder]) -> None:
        """Replace them; return when it is durable.

        Raises MasterSuperseded if another master acts, and ElasticDLError if it is not certain.
        """


class JournalCopy(Protocol):
    """The copy of one process. Calls raise ElasticDLError."""

    async def change(self, change: Change, *, timeout_s: float) -> None:
        """Change the copy; return when the process has done it."""

    async def read(self, *, timeout_s: float) -> Copy:
        """Return the copy. From now on the process refuses changes of earlier masters."""

    async def close(self) -> None:
        """Drop the connection."""


Connect: TypeAlias = Callable[[CopyHolder, int], JournalCopy]
"""(holder, term of the calling master) -> its copy. It does not wait for the connection."""


@final
@dataclass(frozen=True, slots=True)
class CopyPlace:
    """Where the copies are: the record of their holders, and how a master reaches these.

    `term` is this master's. Every master of a run has the same `key`. It seals the copies, because
    users' code can run in the holders.
    """

    record: HolderRecord
    connect: Connect
    term: int
    key: str = field(repr=False)

    def seal(self, digests: Mapping[str, str]) -> str:
        """Return the seal of files with these digests."""
        text = "\n".join(f"{name} {digests[name]}" for name in sorted(digests))
        return hmac.new(self.key.encode(), text.encode(), hashlib.sha256).hexdigest()

    def is_sealed(self, copy: Copy) -> bool:
        """Whether a copy is one that a master of this run wrote, whole."""
        digests = {name: _digest(data).hexdigest() for name, data in copy.files.items()}
        return hmac.compare_digest(self.seal(digests).encode(), copy.seal.encode())


def _digest(data: bytes) -> hashlib._Hash:
    return hashlib.sha256(data)


@dataclass(slots=True)
class _Known:
    """The first `bytes` of a file, and their digest."""

    bytes: int
    digest: hashlib._Hash


@final
@dataclass(frozen=True, slots=True)
class CopyLimits:
    """How many processes have a copy, and times in seconds.

    A holder that does not answer within `change_s` loses its copy. A process that could not take a
    copy is asked again after `again_s`. `record_again_s`: between attempts to reach the record.
    """

    holders: int = 2
    change_s: float = 5.0
    again_s: float = 30.0
    record_again_s: float = 0.5
    read_s: float = 15.0


@final
class CopiedJournal:
    """The journal of a run, with copies. Use it from one event loop.

    It is whole while at least one process has a copy. Without one the job continues, as with a full
    disk: a next master would have to begin it anew.
    """

    def __init__(
        self,
        journal: JournalFile,
        place: CopyPlace,
        processes: Holders,
        limits: CopyLimits = CopyLimits(),
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._journal, self._place, self._processes = journal, place, processes
        self._limits, self._now_s = limits, now_s
        self._known: dict[str, _Known] = {}
        """What every copy has of each file."""
        self._number = 0
        self._on_record = set(place.record.holders())
        self._copies: dict[CopyHolder, JournalCopy] = {}
        """Those that have everything. Between calls of `flush` they are the ones on record."""
        self._not_before_s: dict[CopyHolder, float] = {}

    @property
    def whole(self) -> bool:
        """Whether another master can continue from the copies."""
        return self._journal.whole and bool(self._copies)

    def append(self, event: Event) -> None:
        """Add an event; it is safe after the next `flush`."""
        self._journal.append(event)

    async def flush(self) -> None:
        """Return when every holder has all appended events, and this master may act upon them.

        Raises MasterSuperseded.
        """
        await self._journal.flush()
        if (change := self._change()) is not None:
            await self._send(change)
        await self._choose_holders()

    async def close(self) -> None:
        """Close the file and drop the connections. The copies stay, as of the last `flush`."""
        self._journal.close()
        for copy in self._copies.values():
            await copy.close()

    def _change(self) -> Change | None:
        """Return what the copies lack; None: nothing."""
        paths = {path.name: path for path in self._journal.needed}
        appended = {
            name: data
            for name, path in paths.items()
            if (data := self._rest(path)) or name not in self._known
        }
        removed = tuple(self._known.keys() - paths.keys())
        if not appended and not removed:
            return None
        for name in removed:
            del self._known[name]
        for name, data in appended.items():
            known = self._known.setdefault(name, _Known(0, _digest(b"")))
            known.bytes += len(data)
            known.digest.update(data)
        self._number += 1
        return Change(self._number, appended, self._seal(), removed)

    def _rest(self, path: Path) -> bytes:
        known = self._known.get(path.name)
        begin = known.bytes if known is not None else 0
        if path.stat().st_size <= begin:
            return b""
        with path.open("rb") as file:
            file.seek(begin)
            return file.read()

    def _seal(self) -> str:
        return self._place.seal({name: one.digest.hexdigest() for name, one in self._known.items()})

    def _whole(self) -> Change:
        """Return the change that makes from nothing what the copies have."""
        appended = {path.name: path.read_bytes() for path in self._journal.needed}
        return Change(self._number, appended, self._seal(), anew=True)

    async def _send(self, change: Change) -> None:
        """Send a change to all holders. Who does not confirm it has no copy any more."""
        current = tuple(self._copies.items())
        done = await asyncio.gather(*(self._changed(*one, change) for one in current))
        for (holder, copy), confirmed in zip(current, done, strict=True):
            if not confirmed:
                del self._copies[holder]
                await copy.close()

    async def _changed(self, holder: CopyHolder, copy: JournalCopy, change: Change) -> bool:
        try:
            await copy.change(change, timeout_s=self._limits.change_s)
        except ElasticDLError as error:
            _LOG.warning("%s has no copy of the journal: %s", holder.name, error.message)
            self._not_before_s[holder] = self._now_s() + self._limits.again_s
            return False
        return True

    async def _choose_holders(self) -> None:
        """Replace the holders that are gone or lack something, and put the present on record."""
        for holder in [one for one in self._copies if not self._processes.lives(one.name)]:
            await self._copies.pop(holder).close()
        # After a takeover those on record may not have attached again yet.
        kept = [one for one in self._on_record if self._processes.lives(one.name)]
        wanted = [
            one
            for one in dict.fromkeys((*kept, *self._processes.attached()))
            if one not in self._copies and self._may_ask(one)
        ]
        await self._add(wanted[: max(0, self._limits.holders - len(self._copies))])
        if self._copies.keys() != self._on_record:
            await self._put_on_record()

    def _may_ask(self, holder: CopyHolder) -> bool:
        return self._now_s() >= self._not_before_s.get(holder, 0.0)

    async def _add(self, holders: Iterable[CopyHolder]) -> None:
        """Give these processes a whole copy, if they take it."""
        for holder in holders:
            copy = self._place.connect(holder, self._place.term)
            if await self._changed(holder, copy, self._whole()):
                self._copies[holder] = copy
            else:
                await copy.close()

    async def _put_on_record(self) -> None:
        """Put the holders on record, and take all others off it.

        While the record cannot be reached, wait for it or for those on it that lack something: one
        of them may be all that a next master finds. Raises MasterSuperseded.
        """
        waits = False
        while True:
            try:
                await self._place.record.record(tuple(self._copies))
                break
            except MasterSuperseded:
                raise
            except ElasticDLError as error:
                if not (lacking := self._on_record - self._copies.keys()):
                    _LOG.info("cannot record another copy of the journal: %s", error.message)
                    await self._forget_others()
                    return
                if not waits:
                    _LOG.warning(
                        "waiting to record that %s lacks the newest part of the journal: %s",
                        " and ".join(sorted(one.name for one in lacking)),
                        error.message,
                    )
                waits = True
            await asyncio.sleep(self._limits.record_again_s)
            await self._add(lacking)
        self._tell(had=bool(self._on_record))
        self._on_record = set(self._copies)

    async def _forget_others(self) -> None:
        """Drop the copies that are not on record."""
        for holder in [one for one in self._copies if one not in self._on_record]:
            self._not_before_s[holder] = self._now_s() + self._limits.again_s
            await self._copies.pop(holder).close()

    def _tell(self, *, had: bool) -> None:
        if self._copies:
            names = " and ".join(one.name for one in self._copies)
            _LOG.info("%s has a copy of the journal", names)
        elif had:
            _LOG.warning(
                "no process has a copy of the journal: if this master ends now, the next one"
                " begins the job anew"
            )


async def fetch(
    place: CopyPlace, directory: Path, limits: CopyLimits = CopyLimits()
) -> float | None:
    """Write the copy of a holder on record into a journal's directory; return its age in s.

    Any of them has everything that a master has acted upon. It refuses earlier masters from now on,
    so they cannot act any more. None: there is no copy, which is logged. Raises OSError.
    """
    holders = place.record.holders()
    if not holders:
        _LOG.warning("no process had a copy of the journal when the master before ended")
        return None
    copy = await _first_read(holders, place, limits)
    if copy is None:
        named = " and ".join(f"{one.name} ({one.address})" for one in holders)
        _LOG.error("no copy of the journal can be read; on record: %s", named)
        return None
    make_private(directory)
    for name, data in copy.files.items():
        replace_atomically(directory / name, data, durable=False)
    return copy.age_s


async def _first_read(
    holders: Sequence[CopyHolder], place: CopyPlace, limits: CopyLimits
) -> Copy | None:
    reading = [asyncio.ensure_future(_read(one, place, limits)) for one in holders]
    try:
        for done in asyncio.as_completed(reading):
            if (copy := await done) is not None:
                return copy
        return None
    finally:
        for task in reading:
            task.cancel()
        await asyncio.gather(*reading, return_exceptions=True)


async def _read(holder: CopyHolder, place: CopyPlace, limits: CopyLimits) -> Copy | None:
    copy = place.connect(holder, place.term)
    try:
        found = await copy.read(timeout_s=limits.read_s)
    except ElasticDLError as error:
        _LOG.warning("cannot read the copy of the journal in %s: %s", holder.name, error.message)
        return None
    finally:
        await copy.close()
    if not found.number:
        _LOG.warning("%s has no copy of the journal any more", holder.name)
    elif not place.is_sealed(found) or not all(map(files.is_name, found.files)):
        _LOG.error("the copy of the journal in %s is damaged: its seal is wrong", holder.name)
    else:
        return found
    return None

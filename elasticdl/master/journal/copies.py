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
import math
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeAlias, final

from elasticdl.errors import ElasticDLError, MasterSuperseded, PermanentError
from elasticdl.master.core.events import Event
from elasticdl.master.journal.writer import JournalFile
from elasticdl.rpc.channel import MAX_MESSAGE_BYTES
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

    def node(self, name: str) -> str:
        """Return where a process runs; '' if that is not known."""


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
Running: TypeAlias = Callable[[], Awaitable[Collection[str]]]
"""It returns the names of the processes that run. Raises ElasticDLError if that is unknown."""


@final
@dataclass(frozen=True, slots=True)
class CopyPlace:
    """Where the copies are: the record of their holders, and how a master reaches these.

    `term` is this master's. Every master of a run has the same `key`. It seals the copies, because
    users' code can run in the holders.
    """

    record: HolderRecord
    connect: Connect
    running: Running
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
    """How many processes have a copy, its size in bytes, and times in seconds.

    A holder that does not answer within `change_s` loses its copy. After a process did not take a
    copy, or the record was not certain, nothing of that kind is tried for `again_s`.
    `record_again_s`: between attempts to reach the record. `told_again_s`: between log lines about
    it. A master tries for `fetch_s` to read the copy of a holder that runs.
    """

    holders: int = 2
    bytes: int = MAX_MESSAGE_BYTES - (1 << 20)
    """One message carries a whole copy."""
    change_s: float = 5.0
    again_s: float = 30.0
    record_again_s: float = 0.5
    told_again_s: float = 60.0
    read_s: float = 15.0
    fetch_s: float = 300.0


@final
class CopiedJournal:
    """The journal of a run, with copies. Use it from one event loop.

    It is whole while a process on record has a copy. Without one the job continues, as with a full
    disk: a next master would have to start it over.
    """

    def __init__(
        self,
        journal: JournalFile,
        place: CopyPlace,
        processes: Holders,
        limits: CopyLimits = CopyLimits(),
    ) -> None:
        self._journal, self._place, self._processes = journal, place, processes
        self._limits = limits
        self._known: dict[str, _Known] = {}
        """What every copy has of each file."""
        self._number = 0
        self._on_record = set(place.record.holders())
        """Those of the last write that succeeded."""
        self._perhaps_on_record = set(self._on_record)
        """The same, and those of later writes that failed: the record may have them."""
        self._copies: dict[CopyHolder, JournalCopy] = {}
        """Those that have everything. After `flush` all that may be on record are among them."""
        self._failed: set[CopyHolder] = set()
        self._not_before_s = 0.0
        self._is_large = False
        self._lost_s = math.inf
        """When the last copy was lost, until it is logged."""

    @property
    def whole(self) -> bool:
        """Whether another master can continue from the copies."""
        return self._journal.whole and bool(self._on_record)

    def append(self, event: Event) -> None:
        self._journal.append(event)

    async def flush(self) -> None:
        """Return when every holder has all appended events, and this master may act upon them.

        Raises MasterSuperseded.
        """
        await self._journal.flush()
        try:
            change = self._change()
        except OSError as error:
            await self._drop_all(f"cannot read the journal: {error.strerror or error}")
        else:
            if change is not None:
                await self._send(change)
        await self._choose_holders()
        # Not at once: at the end of a ring's job all its workers exit.
        if time.monotonic() - self._lost_s >= self._limits.again_s:
            self._lost_s = math.inf
            _LOG.warning(
                "no process has a copy of the journal: if this master ends now, the next one"
                " starts the job over"
            )

    async def aclose(self) -> None:
        """Close the file and drop the connections. The copies stay, as of the last `flush`."""
        self._journal.close()
        for copy in self._copies.values():
            await copy.close()

    def _change(self) -> Change | None:
        """Return what the copies lack; None: nothing. Raises OSError, and has changed nothing."""
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
        return self._place.seal(
            {name: file.digest.hexdigest() for name, file in self._known.items()}
        )

    def _whole(self) -> Change:
        """Return the change that makes a whole copy from nothing. Raises OSError."""
        appended = {path.name: path.read_bytes() for path in self._journal.needed}
        # The same as before, unless `_change` could not read the files.
        self._known = {name: _Known(len(data), _digest(data)) for name, data in appended.items()}
        return Change(self._number, appended, self._seal(), anew=True)

    async def _send(self, change: Change) -> None:
        """Send a change to all holders. Whoever does not confirm it no longer has a copy."""
        if too_large := self._too_large():
            await self._drop_all(too_large)
        current = tuple(self._copies.items())
        done = await asyncio.gather(*(self._continued(*entry, change) for entry in current))
        for (holder, copy), confirmed in zip(current, done, strict=True):
            if not confirmed:
                del self._copies[holder]
                await copy.close()

    def _too_large(self) -> str | None:
        """Say why no process can have a copy of this size; None if it can. Warns in time."""
        size, limit = sum(file.bytes for file in self._known.values()), self._limits.bytes
        text = f"a copy of the journal has {size:,} bytes, and can have {limit:,}"
        is_large, self._is_large = self._is_large, size > limit // 2
        if self._is_large and not is_large:
            _LOG.warning("%s; above that no process has a copy", text)
        return text if size > limit else None

    async def _drop_all(self, why: str) -> None:
        if self._copies:
            _LOG.warning("no process has a copy of the journal any longer: %s", why)
        for copy in self._copies.values():
            await copy.close()
        self._copies.clear()
        # An earlier change that arrives late must not replace a newer copy.
        self._number += 1
        self._pause()

    async def _continued(self, holder: CopyHolder, copy: JournalCopy, change: Change) -> bool:
        """Send a change, or after an error a whole copy in the time that is left."""
        end_s = time.monotonic() + self._limits.change_s
        try:
            try:
                await copy.change(change, timeout_s=self._limits.change_s)
            except ElasticDLError:
                left_s = end_s - time.monotonic()
                if left_s <= 0 or not self._processes.lives(holder.name):
                    raise
                await copy.change(self._whole(), timeout_s=left_s)
        except (ElasticDLError, OSError) as error:
            _LOG.warning("%s no longer has a copy of the journal: %s", holder.name, error)
            self._failed.add(holder)
            return False
        return True

    async def _choose_holders(self) -> None:
        """Replace the holders that are gone or lack something, and record the current ones."""
        for holder in [holder for holder in self._copies if not self._processes.lives(holder.name)]:
            await self._copies.pop(holder).close()
        wanted = self._wanted()
        while wanted and len(self._copies) < self._limits.holders:
            wanted.remove(holder := min(wanted, key=self._rank))
            if not await self._add(holder) and holder not in self._perhaps_on_record:
                # Others may fail as slowly, and the job waits meanwhile.
                self._pause()
                break
        await self._spread(wanted)
        is_exact = self._copies.keys() == self._on_record == self._perhaps_on_record
        lacking = self._perhaps_on_record - self._copies.keys()
        if lacking or not (is_exact or self._pauses()):
            await self._put_on_record()

    def _wanted(self) -> list[CopyHolder]:
        """Return those that may have a copy and have none."""
        attached = [] if self._pauses() else self._processes.attached()
        # After a takeover those on record may not have attached again yet.
        kept = [
            holder
            for holder in self._perhaps_on_record
            if self._processes.lives(holder.name) and holder not in self._failed
        ]
        self._failed = {holder for holder in self._failed if self._processes.lives(holder.name)}
        return [
            holder for holder in dict.fromkeys((*kept, *attached)) if holder not in self._copies
        ]

    def _rank(self, holder: CopyHolder) -> tuple[bool, bool, bool]:
        """Rank processes that may have a copy: the lowest is first."""
        return (
            holder not in self._perhaps_on_record,
            holder in self._failed,
            self._shares_node(holder),
        )

    def _shares_node(self, holder: CopyHolder) -> bool:
        """Whether another holder runs on the same node: both would be lost with it."""
        node = self._processes.node(holder.name)
        return bool(node) and any(
            self._processes.node(other.name) == node for other in self._copies if other != holder
        )

    async def _spread(self, others: Sequence[CopyHolder]) -> None:
        """Replace a holder that shares its node, if another process has a node without a copy."""
        doubled = next((holder for holder in self._copies if self._shares_node(holder)), None)
        if doubled is None or self._pauses():
            return
        # An earlier exchange may have been left with one more.
        if len(self._copies) <= self._limits.holders:
            better = min(others, key=self._rank, default=None)
            if better is None or better in self._failed or self._shares_node(better):
                return
            if not await self._add(better):
                self._pause()
                return
        await self._copies.pop(doubled).close()

    def _pauses(self) -> bool:
        return time.monotonic() < self._not_before_s

    def _pause(self) -> None:
        """Try nothing for a while that the job can do without: it waits for each attempt."""
        self._not_before_s = time.monotonic() + self._limits.again_s

    async def _add(self, holder: CopyHolder) -> bool:
        """Give a process a whole copy; return whether it has taken it."""
        copy = self._place.connect(holder, self._place.term)
        try:
            change = self._whole()
            if too_large := self._too_large():
                raise PermanentError(too_large)
            await copy.change(change, timeout_s=self._limits.change_s)
        except (ElasticDLError, OSError) as error:
            _LOG.warning("%s did not take a copy of the journal: %s", holder.name, error)
            self._failed.add(holder)
            await copy.close()
            return False
        self._failed.discard(holder)
        self._copies[holder] = copy
        return True

    async def _put_on_record(self) -> None:
        """Put the holders on record, and take all others off it.

        A write that fails may succeed later. Until one is confirmed, all that any of them named
        need everything: one of these may be all that a next master finds. While one lacks
        something, wait for the record or for it. Raises MasterSuperseded.
        """
        told_s = -math.inf
        while True:
            self._perhaps_on_record |= self._copies.keys()
            try:
                await self._place.record.record(tuple(self._copies))
                break
            except MasterSuperseded:
                raise
            except ElasticDLError as error:
                if not (lacking := self._perhaps_on_record - self._copies.keys()):
                    _LOG.info("unsure who is on record with a copy: %s", error.message)
                    self._pause()
                    return
                if time.monotonic() - told_s >= self._limits.told_again_s:
                    told_s = time.monotonic()
                    _LOG.warning(
                        "waiting to record that %s lacks the newest part of the journal: %s",
                        " and ".join(sorted(holder.name for holder in lacking)),
                        error.message,
                    )
            await asyncio.sleep(self._limits.record_again_s)
            for holder in lacking:
                await self._add(holder)
        self._note_holders(had=bool(self._on_record))
        self._on_record = set(self._copies)
        self._perhaps_on_record = set(self._copies)

    def _note_holders(self, *, had: bool) -> None:
        if self._copies:
            self._lost_s = math.inf
            names = " and ".join(holder.name for holder in self._copies)
            _LOG.info("copies of the journal: %s", names)
        elif had:
            self._lost_s = time.monotonic()

"""Which command runs the job at an address: `owner.json` there, with a heartbeat.

A store without conditional writes has no locks. A command that finds the heartbeat of another one
refuses the address. Of two that begin at the same time, the one that wrote first notices that after
its first write, or at its next heartbeat. It then copies nothing more while the other one is the
owner. The other one may be refused and remove its object. The first one then writes its own again,
if the copy is still of its files. "The same time" may be some seconds: a first write is repeated
for up to 15 s.
"""

from __future__ import annotations

import logging
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Self, final

from elasticdl.errors import ElasticDLError, SpecError, TransientError, UserError
from elasticdl.jobdir.small_object import read_object, write_object
from elasticdl.storage.address import below
from elasticdl.storage.attempts import STARTING, Limits
from elasticdl.storage.store import store_of

_LOG = logging.getLogger(__name__)
OWNER, INDEX = "owner.json", "index.json"


@final
@dataclass(frozen=True, slots=True)
class OwnerTimes:
    """Seconds. An owner without a heartbeat for `lost_s` has lost the address.

    `settle_s` is the time for a concurrent first write to show. `limits` are for the store's
    answers while a person waits for them.
    """

    beat_s: float = 10.0
    lost_s: float = 60.0
    settle_s: float = 1.0
    look_s: float = 2.0
    limits: Limits = STARTING


TIMES = OwnerTimes()


class AddressTaken(SpecError):
    """Another command runs the job at the address."""


class AddressLost(UserError):
    """Another command has taken the address over while this job ran."""


@final
@dataclass(frozen=True, slots=True)
class Owner:
    """`id` is new for each command, and begins with that of its working directory.

    `wall_s` is the owner's clock at its last heartbeat: for people only.
    """

    id: str
    host: str
    beat: int = 0
    wall_s: float = 0.0
    ended: bool = False

    @classmethod
    def from_json(cls, value: Mapping[str, Any] | None) -> Self | None:
        """Parse an object; None if it is none of an owner."""
        if value is None:
            return None
        try:
            beat, wall_s = int(value["beat"]), float(value["wall_s"])
            return cls(str(value["id"]), str(value["host"]), beat, wall_s, bool(value["ended"]))
        except (KeyError, TypeError, ValueError):
            return None

    @property
    def directory(self) -> str:
        """The id of the working directory."""
        return self.id.partition(".")[0]


def read_owner(address: str, limits: Limits = STARTING) -> Owner | None:
    """Return the owner of an address; None if it has none.

    Raises UserError, TransientError, Corrupted.
    """
    return Owner.from_json(read_object(below(address, OWNER), limits))


def require_ours(address: str, owner: str, limits: Limits = STARTING) -> None:
    """Raise AddressLost unless the command `owner` holds the address.

    Also raises UserError, TransientError, Corrupted.
    """
    now = read_owner(address, limits)
    if now is None:
        # The next heartbeat writes it again, unless the whole copy was removed.
        raise TransientError(f"nothing is copied to {address}: its {OWNER} was removed")
    if now.id != owner:
        taken = f"a job on {now.host} has taken it"
        raise AddressLost(f"nothing more is copied to {address}: {taken}")


@final
class OwnedAddress:
    """Holds an address. A thread writes the heartbeat until `release`."""

    def __init__(self, address: str, owner: Owner, times: OwnerTimes = TIMES) -> None:
        """Use `take`."""
        self._address, self._owner, self._times = address, owner, times
        self._released = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    @property
    def id(self) -> str:
        """The id of the owner."""
        return self._owner.id

    @classmethod
    def take(
        cls,
        address: str,
        directory: str,
        say: Callable[[str], None],
        times: OwnerTimes = TIMES,
        *,
        ended: str = "",
    ) -> Self:
        """Take an address for the working directory with this id.

        `ended` is the id of a directory that the caller has locked: an owner from there has
        ended, however it did. Waits up to `lost_s` for a heartbeat of another one that has not said
        so. Raises AddressTaken if there is one, UserError, TransientError, Corrupted.
        """
        before = read_owner(address, times.limits)
        if before is not None and not before.ended and before.directory != ended:
            say(
                f"a job on {before.host} may still use {address}: waiting {times.lost_s:g} s for"
                " its heartbeat"
            )
            _refuse_if_alive(address, before, times)
        owner = Owner(f"{directory}.{secrets.token_hex(8)}", socket.gethostname())
        taken = cls(address, owner, times)
        taken._write()
        time.sleep(times.settle_s)
        now = read_owner(address)
        if now is None or now.id != owner.id:
            raise _taken(address, now)
        taken._thread.start()
        return taken

    def release(self, *, forget: bool) -> None:
        """Say that the owner has ended; `forget` removes the object.

        Raises UserError, TransientError, Corrupted.
        """
        self._released.set()
        self._thread.join(STARTING.give_up_s)
        now = read_owner(self._address)
        if now is None or now.id != self.id:
            return
        if forget:
            store_of(self._address).remove(below(self._address, OWNER), STARTING)
        else:
            self._owner = replace(self._owner, ended=True)
            self._write()

    def _beat(self) -> None:
        while not self._released.wait(self._times.beat_s):
            try:
                # Another owner may be a command that is refused and removes its object.
                self.beat()
            except ElasticDLError as error:
                _LOG.info("no heartbeat at %s: %s", self._address, error)

    def beat(self) -> bool:
        """Write a heartbeat, unless another command has the address; return False then.

        Raises UserError, TransientError, Corrupted.
        """
        now = read_owner(self._address)
        if now is not None and now.id != self.id:
            return False
        if (now is not None or self._files_are_ours()) and not self._released.is_set():
            self._owner = replace(self._owner, beat=self._owner.beat + 1)
            self._write()
        return True

    def _files_are_ours(self) -> bool:
        """Whether the copy at the address belongs to our directory.

        Then no other command can begin there.

        A command that began at the same time may have replaced our object, found our files, and
        removed its object when it was refused.
        """
        index = read_object(below(self._address, INDEX), STARTING)
        return index is not None and index.get("writer") == self._owner.directory

    def _write(self) -> None:
        self._owner = replace(self._owner, wall_s=round(time.time(), 3))
        write_object(below(self._address, OWNER), asdict(self._owner), STARTING)


def _refuse_if_alive(address: str, before: Owner, times: OwnerTimes) -> None:
    end_s = time.monotonic() + times.lost_s
    while time.monotonic() < end_s:
        time.sleep(times.look_s)
        now = read_owner(address)
        if now is None or now.ended:
            return
        if (now.id, now.beat) != (before.id, before.beat):
            raise _taken(address, now)


def _taken(address: str, owner: Owner | None) -> AddressTaken:
    where = f" on {owner.host}" if owner is not None else ""
    return AddressTaken(
        f"another command runs the job in {address}{where}",
        hint=f"look at it with `elasticdl status --job-dir {address}`, or use another --job-dir",
    )

"""Where a job whose --job-dir is an address works on this machine.

| file below the user's cache | content |
|---|---|
| `jobs/NAME-HASH/job/` | the job's directory |
| `jobs/NAME-HASH/job-2/` | one that had to make way for a newer copy in the store |
| `jobs/NAME-HASH/state.json` | the id of this directory, who may copy it, and what is copied |
"""

from __future__ import annotations

import hashlib
import re
import secrets
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self, final

from elasticdl.addresses import is_address
from elasticdl.data.index_cache import root
from elasticdl.jobdir.layout import JobDirectory, read_json, write_json
from elasticdl.storage.address import parse


@final
@dataclass(frozen=True, slots=True)
class CopyState:
    """What this machine knows of the copy in the store.

    `machine` is the one that the id is for: a shared or cloned cache gets another id elsewhere.
    `writer` and `index` are the writer and the id of the index that the directory continues; ''
    for none. `files` has size in bytes and modification time in nanoseconds of each copied file, as
    it was then. `owner` is the id with which a command holds the address.
    """

    id: str
    machine: str
    owner: str = ""
    writer: str = ""
    index: str = ""
    files: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self | None:
        """Parse a file; None if it is missing or damaged."""
        try:
            files = {str(key): (int(a), int(b)) for key, (a, b) in value["files"].items()}
            identity, machine = str(value["id"]), str(value["machine"])
            owner, writer, index = (str(value[key]) for key in ("owner", "writer", "index"))
            return cls(identity, machine, owner, writer, index, files)
        except (KeyError, TypeError, ValueError, AttributeError):
            return None


@final
@dataclass(frozen=True, slots=True)
class WorkingDirectory:
    """The folder for one address; `path` need not exist."""

    address: str
    path: Path

    @classmethod
    def of(cls, address: str) -> Self:
        """Return the folder for an address, below ELASTICDL_CACHE_DIR or the user's cache."""
        parts = parse(address)
        name = re.sub(r"[^A-Za-z0-9_.-]+", "-", parts.name).strip(".-")[:40] or "job"
        digest = hashlib.blake2b(str(parts).encode(), digest_size=6).hexdigest()
        return cls(str(parts), (root() / "jobs" / f"{name}-{digest}").absolute())

    @property
    def job(self) -> JobDirectory:
        return JobDirectory(self.path / "job")

    def state(self) -> CopyState:
        """Return what `keep` has written on this machine; elsewhere, and without it, a new id."""
        known, here = CopyState.from_json(read_json(self.path / "state.json")), _machine()
        if known is not None and known.machine == here:
            return known
        new = CopyState(secrets.token_hex(8), here)
        return new if known is None else replace(known, id=new.id, machine=here)

    def keep(self, state: CopyState) -> None:
        """Save the state. Raises OSError."""
        write_json(self.path / "state.json", asdict(state))


def _machine() -> str:
    """Return the name of this machine, with an id of this boot: clones boot on their own."""
    boot = ""
    with suppress(OSError):  # not Linux
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{socket.gethostname()} {boot}"


def directory_of(job_dir: str) -> JobDirectory:
    """Return the directory of a settled --job-dir; for an address, that on this machine."""
    return WorkingDirectory.of(job_dir).job if is_address(job_dir) else JobDirectory(Path(job_dir))

"""master.json: where a job's master listens, for as long as it runs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, final

from elasticdl.jobdir.layout import JobDirectory, read_json, write_json
from elasticdl.jobdir.process_liveness import lives


@final
@dataclass(frozen=True, slots=True)
class MasterAddress:
    """A master's process and ports."""

    address: str
    """host:port of its RPCs."""
    page: str
    """`http://host:port/` of its status page; '' if it has none."""
    pid: int
    term: int
    token: str = ""
    """'' in a pod: there it stays in its Secret, as a volume may be seen by many."""

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> MasterAddress:
        """What a file has; what is not as it should be is 0 or ''."""
        text = {key: str(value.get(key) or "") for key in ("address", "page", "token")}
        pid, term = (
            found if isinstance(found, int) else 0 for found in map(value.get, ("pid", "term"))
        )
        return cls(pid=pid, term=term, **text)

    def runs(self, directory: JobDirectory) -> bool:
        """Whether its process still is the master of that job.

        After a restart of the machine another process may have its number. The cluster looks after
        one in a pod, whose number says nothing here.
        """
        if not self.token:
            return True
        if not lives(self.pid):
            return False
        try:
            environment = Path(f"/proc/{self.pid}/environ").read_bytes().split(b"\0")
        except OSError:
            return True  # Another user's, or a system that does not show it.
        name, path = b"ELASTICDL_JOB_DIR=", os.path.realpath(directory.path)
        places = (
            os.fsdecode(one.removeprefix(name)) for one in environment if one.startswith(name)
        )
        return any(os.path.realpath(place) == path for place in places)


def write_master(directory: JobDirectory, master: MasterAddress) -> None:
    """Raises OSError."""
    write_json(directory.master, asdict(master), mode=0o600)


def read_master(directory: JobDirectory) -> MasterAddress | None:
    """None if there is no master, or if its file cannot be read whole."""
    found = read_json(directory.master)
    return MasterAddress.from_json(found) if found else None

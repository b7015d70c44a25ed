"""master.json: the address of a running master."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, final

from elasticdl.jobdir.layout import JobDirectory, read_json, write_json
from elasticdl.jobdir.process_liveness import runs_job
from elasticdl.tokens import MOST_TERM


@final
@dataclass(frozen=True, slots=True)
class MasterAddress:
    """A master's process and ports."""

    address: str
    """host:port of the RPC server."""
    page: str
    """`http://host:port/` of the status page; '' if there is none."""
    pid: int
    term: int
    token: str = ""
    """'' in a pod: its token stays in the Secret, since many users may be able to read a volume."""
    authority: str = ""
    """The certificate, as PEM, that verifies the master; '' without TLS, and in a pod."""

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> MasterAddress:
        """Parse a file; invalid fields become 0 or ''."""
        text = {key: str(value.get(key) or "") for key in ("address", "page", "token", "authority")}
        pid, term = (
            number if isinstance(number, int) and 0 <= number < MOST_TERM else 0
            for number in map(value.get, ("pid", "term"))
        )
        return cls(pid=pid, term=term, **text)

    def runs(self, directory: JobDirectory) -> bool:
        """Return whether the process is still the master of this job.

        A pid in a pod says nothing here; the cluster watches that master.
        """
        return not self.token or runs_job(self.pid, directory.path)


def write_master(directory: JobDirectory, master: MasterAddress) -> None:
    """Write the address. Raises OSError."""
    write_json(directory.master, asdict(master))


def read_master(directory: JobDirectory) -> MasterAddress | None:
    """Return the address; None if there is no master or its file is incomplete."""
    value = read_json(directory.master)
    return MasterAddress.from_json(value) if value else None

"""supervisor.json: the process that keeps a local job alive over its masters."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import final

from elasticdl.jobdir.layout import JobDirectory, read_json, write_json
from elasticdl.jobdir.process_liveness import runs_job


@final
@dataclass(frozen=True, slots=True)
class SupervisorFile:
    """A job's supervisor. It is gone when the job's master has recorded an outcome."""

    pid: int
    exit_code: int | None = None
    """How the job ended if no master recorded that; None: unknown, or it has not ended."""
    message: str = ""

    def runs(self, directory: JobDirectory) -> bool:
        """Whether the process is still the supervisor of this job."""
        return runs_job(self.pid, directory.path)


def write_supervisor(directory: JobDirectory, supervisor: SupervisorFile) -> None:
    """Write the file. Raises OSError."""
    write_json(directory.supervisor, asdict(supervisor))


def read_supervisor(directory: JobDirectory) -> SupervisorFile | None:
    """Return the supervisor; None if there is none, or its file is damaged."""
    value = read_json(directory.supervisor)
    pid, code = value.get("pid"), value.get("exit_code")
    if not isinstance(pid, int):
        return None
    return SupervisorFile(
        pid, code if isinstance(code, int) else None, str(value.get("message") or "")
    )

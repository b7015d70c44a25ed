"""What a job leaves in its directory.

Written so that a reader sees all of a file or nothing, and no full disk ends a job.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

JOBS = Path("jobs")
"""Parent of the directories of jobs on this machine without --job-dir, below the current
directory.
"""


@dataclass(frozen=True, slots=True)
class JobDirectory:
    """The names of what is in a job's directory."""

    path: Path

    @property
    def spec(self) -> Path:
        """JobSpec, JSON."""
        return self.path / "job.json"

    @property
    def yaml(self) -> Path:
        """The flags of the job, for `elasticdl train -f`; only for its owner."""
        return self.path / "job.yaml"

    @property
    def check(self) -> Path:
        """Who checks model and data before there is a job; see `check_file`."""
        return self.path / "check.json"

    @property
    def kubernetes(self) -> Path:
        """The namespace, name and uid of the Job on a cluster that the directory belongs to."""
        return self.path / "kubernetes.json"

    @property
    def scale(self) -> Path:
        """The range of workers that the job was scaled to, JSON; see `scale_override`."""
        return self.path / "scale.json"

    @property
    def preflight(self) -> Path:
        """What the preflight found, JSON."""
        return self.path / "preflight.json"

    @property
    def master(self) -> Path:
        """Where the master listens, readable by the owner only; gone when it has ended; see
        `master_address`.
        """
        return self.path / "master.json"

    @property
    def journal(self) -> Path:
        """Directory of the journal."""
        return self.path / "journal"

    @property
    def logs(self) -> Path:
        """Directory of the logs, one a process."""
        return self.path / "logs"

    @property
    def master_log(self) -> Path:
        """The log of the master."""
        return self.logs / "master-0.log"

    @property
    def dashboard(self) -> Path:
        """A page that leads a browser to the status page, readable by the owner only."""
        return self.path / "dashboard.html"

    @property
    def events(self) -> Path:
        """One JSON object a line: what was announced. Bounded: see history.thinning."""
        return self.path / "events.jsonl"

    @property
    def metrics(self) -> Path:
        """One JSON object a line: values of evaluation rounds, training losses. Bounded as well."""
        return self.path / "metrics.jsonl"

    @property
    def series(self) -> Path:
        """The curves of the job, JSON."""
        return self.path / "series.json"

    @property
    def report(self) -> Path:
        """The status page as it stood at the end, in one file."""
        return self.path / "report.html"

    @property
    def receipt(self) -> Path:
        """Records expected, trained, repeated, lost."""
        return self.path / "receipt.json"

    @property
    def status(self) -> Path:
        """How the job ended, as `outcome.Outcome` has it, with the last "status"."""
        return self.path / "status.json"

    @property
    def newest(self) -> Path:
        """The status as it was some seconds ago, while the job runs: {"status": …}; see
        last_status.
        """
        return self.path / "newest.json"

    @property
    def checkpoints(self) -> Path:
        """Directory of the checkpoints."""
        return self.path / "checkpoints"


def write_whole(path: Path, text: str, *, mode: int = 0o644) -> None:
    """Replace a file: temporary name, fsync, rename. Raises OSError."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(
            os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "w", encoding="utf-8"
        ) as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, value: Mapping[str, Any], *, mode: int = 0o644) -> None:
    """Replace a file by one JSON object. Raises OSError."""
    write_whole(path, json.dumps(value, indent=2) + "\n", mode=mode)


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object of a file; empty if there is none or it is not whole."""
    with suppress(OSError, ValueError, RecursionError):
        found = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None
        if isinstance(found, dict):
            return found
    return {}


def part_of(value: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """An object within a JSON object; empty if there is none."""
    part = value.get(name)
    return part if isinstance(part, Mapping) else {}

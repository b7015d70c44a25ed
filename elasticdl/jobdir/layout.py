"""Names and formats of the files in a job's directory.

Only the owner can read them. Writes are atomic, so readers see complete files. A full disk never
fails a job.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elasticdl.private_file import replace_atomically

JOBS = Path("jobs")
"""Parent of local job directories without --job-dir, below the current directory."""


@dataclass(frozen=True, slots=True)
class JobDirectory:
    """Paths of the files in a job's directory."""

    path: Path

    @property
    def spec(self) -> Path:
        """The JobSpec, JSON."""
        return self.path / "job.json"

    @property
    def yaml(self) -> Path:
        """The job's flags, for `elasticdl train -f`."""
        return self.path / "job.yaml"

    @property
    def kubernetes(self) -> Path:
        """Namespace, name and uid of the Kubernetes Job that owns the directory."""
        return self.path / "kubernetes.json"

    @property
    def scale(self) -> Path:
        """The range of workers that a user scaled the job to, JSON; see `scale_override`."""
        return self.path / "scale.json"

    @property
    def preflight(self) -> Path:
        """The result of the preflight, JSON; missing until that has passed."""
        return self.path / "preflight.json"

    @property
    def master(self) -> Path:
        """The running master's address; see `master_address`."""
        return self.path / "master.json"

    @property
    def supervisor(self) -> Path:
        """The process that starts the job's masters; see `supervisor_file`. Local jobs only."""
        return self.path / "supervisor.json"

    @property
    def journal(self) -> Path:
        """Directory of the journal."""
        return self.path / "journal"

    @property
    def initial(self) -> Path:
        """Directory of the checkpoint that was fetched from --checkpoint-dir-for-init."""
        return self.path / "initial-checkpoint"

    @property
    def tensorboard(self) -> Path:
        """Directory of the curves whose copies are at --tensorboard-log-dir in an object store."""
        return self.path / "tensorboard"

    @property
    def logs(self) -> Path:
        """Directory of the logs, one per process."""
        return self.path / "logs"

    @property
    def master_log(self) -> Path:
        """The master's log."""
        return self.logs / "master-0.log"

    @property
    def dashboard(self) -> Path:
        """A page that redirects a browser to the status page."""
        return self.path / "dashboard.html"

    @property
    def events(self) -> Path:
        """The job's events, one JSON object per line. Bounded: see `history.compaction`."""
        return self.path / "events.jsonl"

    @property
    def metrics(self) -> Path:
        """Evaluation results and training losses, one JSON object per line. Bounded."""
        return self.path / "metrics.jsonl"

    @property
    def series(self) -> Path:
        """The job's curves, JSON."""
        return self.path / "series.json"

    @property
    def tracker(self) -> Path:
        """The key of the job's run in its experiment tracker, and what that has, JSON."""
        return self.path / "tracker.json"

    @property
    def traces(self) -> Path:
        """The same for the job's OpenTelemetry trace."""
        return self.path / "traces.json"

    @property
    def report(self) -> Path:
        """The final status page, in one file."""
        return self.path / "report.html"

    @property
    def receipt(self) -> Path:
        """The receipt: records expected, trained, repeated and lost."""
        return self.path / "receipt.json"

    @property
    def status(self) -> Path:
        """How the job ended, as in `outcome.Outcome`, with the last "status"."""
        return self.path / "status.json"

    @property
    def newest(self) -> Path:
        """A recent status of the running job, as {"status": …}; see `last_status`."""
        return self.path / "newest.json"

    @property
    def checkpoints(self) -> Path:
        """Directory of the checkpoints."""
        return self.path / "checkpoints"


def write_atomically(path: Path, text: str) -> None:
    """Replace a file durably; only its owner can read it. Raises OSError."""
    replace_atomically(path, text.encode())


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Replace a file by one JSON object, as `write_atomically`. Raises OSError."""
    write_atomically(path, json.dumps(value, indent=2) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """Return a file's JSON object; empty if it is missing or incomplete."""
    with suppress(OSError, ValueError, RecursionError):
        value = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None
        if isinstance(value, dict):
            return value
    return {}


def part_of(value: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return an object inside a JSON object; empty if there is none."""
    part = value.get(name)
    return part if isinstance(part, Mapping) else {}

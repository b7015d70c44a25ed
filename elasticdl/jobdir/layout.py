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
from typing import Any, final

from elasticdl.private_file import replace_atomically

JOBS = Path("jobs")
"""Parent of local job directories without --job-dir, below the current directory."""


@final
class _Entry:
    """A path of this name in a job's directory."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, directory: JobDirectory, _: type[JobDirectory]) -> Path:
        return directory.path / self.name


@dataclass(frozen=True, slots=True)
class JobDirectory:
    """Paths of the files in a job's directory."""

    path: Path
    spec = _Entry("job.json")
    """The JobSpec, JSON."""
    yaml = _Entry("job.yaml")
    """The job's flags, for `elasticdl train -f`."""
    kubernetes = _Entry("kubernetes.json")
    """Namespace, name and uid of the Kubernetes Job that owns the directory."""
    scale = _Entry("scale.json")
    """The range of workers that a user scaled the job to, JSON; see `scale_override`."""
    preflight = _Entry("preflight.json")
    """The result of the preflight, JSON; missing until that has passed."""
    master = _Entry("master.json")
    """The running master's address; see `master_address`."""
    supervisor = _Entry("supervisor.json")
    """The process that starts the job's masters; see `supervisor_file`. Local jobs only."""
    journal = _Entry("journal")
    """Directory of the journal."""
    initial = _Entry("initial-checkpoint")
    """Directory of the checkpoint that was fetched from --checkpoint-dir-for-init."""
    tensorboard = _Entry("tensorboard")
    """Directory of the curves whose copies are at --tensorboard-log-dir in an object store."""
    logs = _Entry("logs")
    """Directory of the logs, one per process."""
    master_log = _Entry("logs/master-0.log")
    """The master's log."""
    dashboard = _Entry("dashboard.html")
    """A page that redirects a browser to the status page."""
    events = _Entry("events.jsonl")
    """The job's events, one JSON object per line. Bounded: see `history.compaction`."""
    metrics = _Entry("metrics.jsonl")
    """Evaluation results and training losses, one JSON object per line. Bounded."""
    series = _Entry("series.json")
    """The job's curves, JSON."""
    tracker = _Entry("tracker.json")
    """The key of the job's run in its experiment tracker, and what that has, JSON."""
    traces = _Entry("traces.json")
    """The same for the job's OpenTelemetry trace."""
    report = _Entry("report.html")
    """The final status page, in one file."""
    receipt = _Entry("receipt.json")
    """The receipt: records expected, trained, repeated and lost."""
    status = _Entry("status.json")
    """How the job ended, as in `outcome.Outcome`, with the last "status"."""
    newest = _Entry("newest.json")
    """A recent status of the running job, as {"status": …}; see `last_status`."""
    checkpoints = _Entry("checkpoints")
    """Directory of the checkpoints."""


def names_in_job_directory() -> frozenset[str]:
    """The names of all files and folders that a job keeps in its directory."""
    entries = (entry for entry in vars(JobDirectory).values() if isinstance(entry, _Entry))
    return frozenset(entry.name.partition("/")[0] for entry in entries)


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

"""The job of a launch as its journal brings it back, at once."""

from __future__ import annotations

from pathlib import Path

from elasticdl.job import JobSpec
from elasticdl.master.core.job_context import Limits
from elasticdl.master.journal.recovery import Recovered, Recovery


def recover(directory: Path, run_name: str, spec: JobSpec) -> Recovered | None:
    """Return the job; None if its journal cannot continue it, which is logged."""
    recovery = Recovery(directory, run_name, spec, Limits())
    recovery.replay()
    return recovery.recovered()

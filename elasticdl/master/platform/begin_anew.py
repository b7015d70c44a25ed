"""Starts a local job over if a killed master's journal cannot continue it.

That costs the work since the newest checkpoint, but not the job.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import final

from elasticdl.checkpoint.layout import has_checkpoint
from elasticdl.errors import Corrupted, PermanentError
from elasticdl.job import JobSpec
from elasticdl.job_choices import Action
from elasticdl.jobdir.layout import JobDirectory, write_atomically
from elasticdl.jobdir.scale_override import as_scaled
from elasticdl.jobdir.spec_files import read_spec
from elasticdl.master.journal.recovery import last_stop


@final
@dataclass(frozen=True, slots=True)
class BeginAnew:
    """What a master that starts the job over has to say, and why the job was stopped, if it was.

    `had_begun`: it had processes.
    """

    had_begun: bool = False
    warnings: tuple[str, ...] = ()
    stopped_for: str = ""


def begin_anew(directory: JobDirectory, run_name: str) -> BeginAnew:
    """Have this master resume the job, if it had begun. `run_name` is that of the journal's run.

    Raises UserError if the job is not readable, PermanentError if it cannot be written.
    """
    if not directory.preflight.exists():
        return BeginAnew(stopped_for=_stopped_for(directory, run_name))
    spec, scaled = as_scaled(read_spec(directory), directory, anew=False)
    how = _how(spec, directory)
    if spec.action is Action.TRAIN:
        spec = spec.replace(resume=True)
    try:
        write_atomically(directory.spec, spec.model_dump_json(indent=2) + "\n")
    except OSError as error:
        raise PermanentError(
            f"cannot write {directory.spec}: {error.strerror or error}", hint="free disk space"
        ) from error
    warnings = (f"the master restarted: the job {how}", *([scaled] if scaled else ()))
    return BeginAnew(True, warnings, _stopped_for(directory, run_name))


def _how(spec: JobSpec, directory: JobDirectory) -> str:
    if spec.action is Action.TRAIN and has_checkpoint(directory.checkpoints):
        return "resumes from its newest checkpoint"
    if spec.checkpoint.resume and spec.checkpoint_copies:
        # It may not be fetched yet, and the store may not answer now.
        return f"resumes from its newest checkpoint, if {spec.checkpoint_copies} has one"
    return "starts over: it has no checkpoint"


def _stopped_for(directory: JobDirectory, run_name: str) -> str:
    with suppress(OSError, Corrupted):
        if (stop := last_stop(directory.journal, run_name)) is not None:
            return stop.reason
    return ""

"""The directory of a job, as a master in a pod opens it, or starts the job in it over.

`begin_anew.py` does the latter for a local job.
"""

from __future__ import annotations

import json
from pathlib import Path

from elasticdl.checkpoint.layout import has_checkpoint
from elasticdl.checkpoint.strategy import as_trained
from elasticdl.cluster.kubernetes.plans import Owner
from elasticdl.errors import ElasticDLError, ExitCode, SpecError, TransientError
from elasticdl.job import JobSpec
from elasticdl.job_choices import Action
from elasticdl.jobdir.layout import JobDirectory, write_atomically, write_json
from elasticdl.jobdir.output_folder import refuse_output
from elasticdl.jobdir.resumable import refuse_resume
from elasticdl.jobdir.scale_override import as_scaled, forget_scale_unless
from elasticdl.private_file import make_private


def open_directory(
    spec: JobSpec, owner: Owner, *, replaces: bool
) -> tuple[JobDirectory, tuple[str, ...]]:
    """Create the job's directory, or take it over from the previous master; return warnings.

    Raises SpecError for a directory that holds another job or is not usable, and for an --output
    that is in use. One that an earlier master has used is usable: then it raises TransientError
    with the exit code of a master that is started again.
    """
    directory = JobDirectory(Path(spec.cluster.job_dir))
    claim = directory.kubernetes
    try:
        make_private(directory.path)
        ours = _uid(claim) == owner.uid
        if replaces and ours and directory.spec.exists():
            # As the master before left it: its journal belongs to that job.
            return directory, ()
        if directory.spec.exists() and not ours and not spec.checkpoint.resume:
            raise SpecError(
                f"{directory.path} already contains a job",
                hint="continue it with --resume, or choose another --job-dir",
            )
        # The copies may be all that is left of the job: they are looked at later.
        if spec.checkpoint.resume and not spec.checkpoint.checkpoint_dir and not (ours or replaces):
            refuse_resume(directory)
        if not replaces:
            refuse_output(spec)
        if not ours:
            # The previous run's preflight is outdated: data and model may have changed.
            directory.preflight.unlink(missing_ok=True)
            directory.status.unlink(missing_ok=True)
        write_json(claim, {"namespace": owner.namespace, "job": owner.job, "uid": owner.uid})
        spec, scaled = as_scaled(
            spec,
            directory,
            anew=spec.workers_anew and not ours,
            servers_anew=spec.servers_anew and not ours,
        )
        forget_scale_unless(spec, directory)
        _write_spec(spec, directory)
    except OSError as error:
        raise (_away if replaces else _unusable)(directory.path, error) from error
    return directory, ((scaled,) if scaled else ())


def begin_anew(spec: JobSpec, directory: JobDirectory, *, lost: bool) -> tuple[str, ...]:
    """Have the job begin again from its newest checkpoint; return warnings.

    Without a checkpoint it starts over, and the receipt counts what was trained before. `lost`: it
    had processes. A master that ended before that has lost nothing. Raises TransientError as
    `open_directory`.
    """
    try:
        spec, scaled = as_scaled(spec, directory, anew=False)
        forget_scale_unless(spec, directory)
        resumable = spec.action is Action.TRAIN and spec.keeps_checkpoints
        _write_spec(spec.replace(resume=True) if resumable else spec, directory)
    except OSError as error:
        raise _away(directory.path, error) from error
    loss = _loss(spec, directory) if lost or directory.preflight.exists() else ()
    return (*loss, *((scaled,) if scaled else ()))


def _write_spec(spec: JobSpec, directory: JobDirectory) -> None:
    write_atomically(directory.spec, as_trained(spec).model_dump_json(indent=2) + "\n")


def _uid(claim: Path) -> str:
    """Return the uid of the directory's job; '' if it has none. Raises OSError."""
    try:
        return str(json.loads(claim.read_text(encoding="utf-8"))["uid"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return ""


def _loss(spec: JobSpec, directory: JobDirectory) -> tuple[str, ...]:
    lost = "the state of the previous master is lost"
    if spec.action is Action.TRAIN and spec.checkpoints_at:
        at = spec.checkpoints_at
        return (f"{lost}: the job resumes from its newest checkpoint in {at}, if there is one",)
    if spec.action is Action.TRAIN and has_checkpoint(directory.checkpoints):
        return (f"{lost}: the job resumes from its newest checkpoint",)
    if spec.checkpoint.resume and spec.checkpoint_copies and spec.keeps_checkpoints:
        # It may not be fetched yet, and the store may not answer now.
        there = spec.checkpoint_copies
        return (f"{lost}: the job resumes from its newest checkpoint, if {there} has one",)
    why = (
        f"{directory.checkpoints} has no checkpoint"
        if spec.action is Action.TRAIN
        else "this kind of job has no checkpoints"
    )
    hint = (
        ""
        if spec.kubernetes.keeps(spec.cluster.job_dir)
        else "; set --checkpoint-dir, or --volume and --job-dir to make jobs resumable"
    )
    return (f"{lost}, and {why}: the job starts over{hint}",)


def _unusable(path: Path, error: OSError) -> ElasticDLError:
    return SpecError(
        f"--job-dir {path} cannot be used in the master's pod: {error.strerror or error}",
        hint=(
            "set it to a writable path on a --volume (see --fs-group, --run-as-user), or omit it"
        ),
    )


def _away(path: Path, error: OSError) -> ElasticDLError:
    return TransientError(
        f"--job-dir {path} cannot be used in the master's pod now: {error.strerror or error}",
        hint="the cluster will restart the master; check the disk or the volume",
        exit_code=ExitCode.UNAVAILABLE,
    )

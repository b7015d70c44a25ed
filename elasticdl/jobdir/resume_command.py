"""The command to type after an unfinished job: --resume, or a new job for what cannot resume.

Without a checkpoint, --resume starts over in the same directory.

The master, the command line, the page and report.html all use this module, so that they agree.
"""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elasticdl.addresses import is_address
from elasticdl.checkpoint.layout import has_checkpoint, incomplete_checkpoint
from elasticdl.job_name import next_name
from elasticdl.jobdir.layout import JobDirectory
from elasticdl.jobdir.output_folder import names_in
from elasticdl.jobdir.scale_override import read_scale_override
from elasticdl.jobdir.working_directory import directory_of
from elasticdl.storage.address import below

if TYPE_CHECKING:
    from elasticdl.job import JobSpec

TRAIN, PREDICT = "train", "predict"


def resume_command(job_json: Mapping[str, Any], directory: JobDirectory) -> str:
    """Return the next step, with a command to paste.

    `job_json` is the job's job.json; it may be empty if the file is missing.
    """
    kept = has_checkpoint(directory.checkpoints) or _in_store(job_json)
    return _words(job_json, directory, kept=kept)


def after_a_stop(spec: JobSpec, directory: JobDirectory) -> str:
    """Return the next step for a running job that the user is about to stop.

    The stop takes a checkpoint if the job keeps any.
    """
    kept = spec.keeps_checkpoints or has_checkpoint(directory.checkpoints)
    return _words(spec.model_dump(mode="json"), directory, kept=kept)


def _in_store(job_json: Mapping[str, Any]) -> bool:
    """Whether a job has its checkpoints at an address alone. It may have none yet."""
    if not (job_json.get("kubernetes") or {}).get("image_name"):
        return False
    # The imports take a while, and few jobs are on a cluster.
    from pydantic import ValidationError

    from elasticdl.job import JobSpec

    try:
        return bool(JobSpec.model_validate(job_json).checkpoints_at)
    except ValidationError:
        # Of another release: a command that resumes nothing is better than one that starts over.
        return bool((job_json.get("checkpoint") or {}).get("checkpoint_dir"))


def _action(job_json: Mapping[str, Any]) -> str:
    return str(job_json.get("action") or TRAIN)


def _words(job_json: Mapping[str, Any], directory: JobDirectory, *, kept: bool) -> str:
    """`kept`: whether a checkpoint exists."""
    action = _action(job_json)
    trains = action == TRAIN
    text = "resume with: " if trains and kept else "start over with: "
    if trains and not kept:
        text = "start over, since no checkpoint exists, with: "
    # Over a damaged checkpoint --resume refuses to start.
    begins = bool(job_json) and incomplete_checkpoint(directory.checkpoints) is None
    if (job_json.get("kubernetes") or {}).get("image_name"):
        begins = begins and bool(job_json.get("resume_command"))
        return text + _submitted(job_json, directory, resumes=trains and (kept or begins))
    return text + _local(action, job_json, directory.path, resumes=trains and (kept or begins))


def _submitted(job_json: Mapping[str, Any], directory: JobDirectory, *, resumes: bool) -> str:
    """Return the saved command of a job on a cluster.

    It uses the numbers of workers and servers that the job was scaled to.
    """
    command = str(job_json.get("resume_command" if resumes else "restart_command") or "")
    if not command:
        return "the command that it was submitted with" + (" and --resume" if resumes else "")
    for flag in ("num_workers", "num_ps_pods"):
        scaled = read_scale_override(directory, flag) if resumes else ""
        command += f" --{flag.replace('_', '-')} {shlex.quote(scaled)}" if scaled else ""
    return command


def _local(action: str, job_json: Mapping[str, Any], path: Path, *, resumes: bool) -> str:
    cluster = job_json.get("cluster") or {}
    # job.yaml already names the place, unless somebody moved the directory.
    job_dir = str(cluster.get("job_dir") or "")
    here = job_dir.rstrip("/") if is_address(job_dir) else str(path)
    yaml = below(here, "job.yaml") if is_address(job_dir) else str(JobDirectory(path).yaml)
    command = [*_program(), action, "-f", yaml]
    if resumes:
        moved = [] if is_address(job_dir) or job_dir == here else ["--job-dir", here]
        return shlex.join([*command, *moved, "--resume"])
    name, place = str(cluster.get("job_name") or Path(here).name), here
    # Of an address, only what ran there on this machine is known without asking the store.
    while place == here or directory_of(place).path.exists():
        name, place = next_name(name), next_name(place)
    return shlex.join(
        [*command, "--job-name", name, "--job-dir", place, *_new_output(action, job_json)]
    )


def _new_output(action: str, job_json: Mapping[str, Any]) -> list[str]:
    """Return a new output folder for predictions if one exists: two jobs must not mix theirs."""
    asked_output = output = str((job_json.get("checkpoint") or {}).get("output") or "")
    if action != PREDICT or not asked_output:
        return []
    with suppress(OSError):
        while names_in(Path(output)):
            output = next_name(output)
    return [] if output == asked_output else ["--output", output]


def _program() -> list[str]:
    """Return how this shell calls `elasticdl`."""
    if shutil.which("elasticdl"):
        return ["elasticdl"]
    beside = Path(sys.executable).with_name("elasticdl")
    return [str(beside)] if beside.exists() else [sys.executable, "-m", "elasticdl.cli.main"]

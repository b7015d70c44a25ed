"""The commands that submit a cluster job once more, to resume it or to start it again. Pure.

They are made at submission and travel with the job, since its flags cannot be read back once its
Job is gone. A local job needs none: its job.yaml is kept.
"""

from __future__ import annotations

import json
import shlex
from typing import Any

from elasticdl.job import JobSpec
from elasticdl.job_choices import Action
from elasticdl.job_flags import is_used
from elasticdl.job_name import next_name
from elasticdl.job_problems import flag_of

_LONGEST = 900
"""A longer command would be cut in a termination message, and half a command is useless."""


def with_commands(spec: JobSpec) -> JobSpec:
    """The same job with its `resume_command` and `restart_command`."""
    return spec.replace(resume_command=_resume(spec), restart_command=_restart(spec))


def _resume(spec: JobSpec) -> str:
    """'' for a job without checkpoints.

    Its own Job may still hold its name, so the command has the next name.
    """
    if spec.action is not Action.TRAIN or not spec.keeps_checkpoints:
        return ""
    return (
        _command(spec, resume=True)
        or "the command that it was submitted with, another --job-name and --resume"
    )


def _restart(spec: JobSpec) -> str:
    """The command with another name, and with other directories for files that outlive the job."""
    own: dict[str, Any] = {"job_dir": None}
    if spec.kubernetes.keeps(spec.cluster.job_dir):
        own["job_dir"] = next_name(spec.cluster.job_dir)
    if spec.checkpoint.checkpoint_dir:
        own["checkpoint_dir"] = next_name(spec.checkpoint.checkpoint_dir)
    if spec.action is Action.PREDICT and spec.checkpoint.output:
        own["output"] = _beside(spec)
    return (
        _command(spec, **own)
        or "the command that it was submitted with, another --job-name, --job-dir"
    )


def _beside(spec: JobSpec) -> str:
    output = spec.checkpoint.output
    beside = next_name(output)
    return (
        beside
        if spec.kubernetes.keeps(beside)
        else f"{output.rstrip('/')}/{next_name(spec.cluster.job_name)}"
    )


def _command(spec: JobSpec, **own: Any) -> str:  # noqa: ANN401 - values of flags
    """'' if it is too long. `own` are flags that differ from the job's; None omits one."""
    flags = (
        spec.flags(defaults=False)
        | {"resume": None, "job_name": next_name(spec.cluster.job_name)}
        | own
    )
    parts = ["elasticdl", str(spec.action)]
    for name, value in flags.items():
        if value is None or not is_used(name, spec.action):
            continue
        parts.append(flag_of(name) if value is not False else f"--no-{flag_of(name)[2:]}")
        if not isinstance(value, bool):
            parts.append(
                value
                if isinstance(value, str)
                else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
            )
    command = shlex.join(parts)
    return command if len(command) <= _LONGEST else ""

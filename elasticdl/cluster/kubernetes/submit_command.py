"""The commands that submit a job of a cluster once more: to go on with it, or to begin it afresh.

Pure.

They are made when the job is submitted and travel with it: its flags cannot be read back when its
Job is gone. A job on
this machine needs none, its job.yaml is kept.
"""

from __future__ import annotations

import json
import shlex
from typing import Any

from elasticdl.job import Action, JobSpec, is_used
from elasticdl.job_name import next_name
from elasticdl.job_problems import flag_of

_LONGEST = 900
"""More would be cut where a pod's last words are kept, and half a command is none."""


def with_commands(spec: JobSpec) -> JobSpec:
    """The same job with its `resume_command` and `restart_command`."""
    return spec.replace(resume_command=_resume(spec), restart_command=_restart(spec))


def _resume(spec: JobSpec) -> str:
    """'' for a job that makes no checkpoints.

    Its name may be taken by its own Job for a while: it gets the next.
    """
    if spec.action is not Action.TRAIN or not spec.keeps_checkpoints:
        return ""
    return (
        _command(spec, resume=True)
        or "the command that it was submitted with, another --job-name and --resume"
    )


def _restart(spec: JobSpec) -> str:
    """Under another name, and where its files outlive it, in other directories: those of two jobs
    are not mixed.
    """
    own: dict[str, Any] = {"job_dir": None}
    if spec.kubernetes.keeps(spec.cluster.job_dir):
        own["job_dir"] = next_name(spec.cluster.job_dir)
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
    """'' if it is too long. `own`: flags that differ from the job's, None for one to leave out."""
    flags = (
        spec.flags(defaults=False)
        | {"resume": None, "job_name": next_name(spec.cluster.job_name)}
        | own
    )
    words = ["elasticdl", str(spec.action)]
    for name, value in flags.items():
        if value is None or not is_used(name, spec.action):
            continue
        words.append(flag_of(name))
        if value is not True:
            words.append(
                value
                if isinstance(value, str)
                else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
            )
    command = shlex.join(words)
    return command if len(command) <= _LONGEST else ""

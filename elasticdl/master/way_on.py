"""The next command to type after a job that is not done: on from its newest checkpoint, or afresh.

Whoever tells people of such an end (the master, the command line, the page, report.html) says it by this, so that there is one answer.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elasticdl.errors import ExitCode
from elasticdl.master.files import JobDirectory
from elasticdl.master.output import names_in

if TYPE_CHECKING:
    from elasticdl.job import JobSpec
    from elasticdl.master.core.commands import FinishJob

TRAIN, PREDICT = "train", "predict"
_LONGEST_NAME = 52
_WORD = re.compile(r"[A-Za-z_/.:][\w/.:@-]*", re.ASCII)
_NO_WORDS = ("true", "false", "nan", "inf", "infinity")
_LONGEST_COMMAND = 900
"""More would be cut where a pod's last words are kept, and half a command is none."""


def has_checkpoint(location: Path) -> bool:
    """Whether a directory is, or holds, a checkpoint that was completed. Whether it is whole is seen when it is read."""
    return (location / "manifest.json").exists() or any(location.glob("version-*/manifest.json"))


def way_on(told: Mapping[str, Any], directory: JobDirectory) -> str:
    """What to do next, with a command that can be pasted. `told` is the job's job.json; it may be empty where that is gone."""
    return _words(told, directory, resumes=_action(told) == TRAIN and has_checkpoint(directory.checkpoints))


def after_a_stop(spec: JobSpec, directory: JobDirectory) -> str:
    """The same, while the job goes on, for whoever is about to stop it: it takes a checkpoint then, where it keeps any."""
    kept = spec.keeps_checkpoints or has_checkpoint(directory.checkpoints)
    return _words(spec.model_dump(mode="json"), directory, resumes=spec.action == TRAIN and kept)


def _action(told: Mapping[str, Any]) -> str:
    return str(told.get("action") or TRAIN)


def _words(told: Mapping[str, Any], directory: JobDirectory, *, resumes: bool) -> str:
    action = _action(told)
    words = "go on with: " if resumes else "begin afresh with: "
    if action == TRAIN and not resumes:
        words = f"no checkpoint was made: {words}"
    if (told.get("kubernetes") or {}).get("image_name"):
        return words + submitting(told, resumes=resumes)
    return words + _local(action, told, directory.path, resumes=resumes)


def with_way_on(finish: FinishJob, told: Mapping[str, Any], directory: JobDirectory) -> FinishJob:
    """The end of a job with what to do next; that of a job that is done, or was wrong from the start, as it is."""
    if finish.exit_code in (ExitCode.DONE, ExitCode.USAGE, ExitCode.DRAINED):
        return finish
    on = way_on(told, directory)
    return replace(finish, hint=f"{finish.hint}; then {on}" if finish.hint else on)


def submitting(told: Mapping[str, Any], *, resumes: bool) -> str:
    """The command that submits a job of a cluster once more. Its name may be taken by its own Job for a while: it gets the next one."""
    from elasticdl.job import UNHEEDED, Action, JobSpec

    try:
        spec = JobSpec.model_validate(dict(told))
    except ValueError:
        return "the command that it was submitted with" + (" and --resume" if resumes else "")
    heeded = {name: value for name, value in spec.told().items() if name not in UNHEEDED[spec.action]}
    flags = {**heeded, "job_name": next_name(spec.cluster.job_name)}
    flags.pop("resume", None)
    if resumes:
        flags["resume"] = True
    elif spec.kubernetes.keeps(spec.cluster.job_dir):
        flags["job_dir"] = next_name(spec.cluster.job_dir)
    else:
        flags.pop("job_dir", None)
    if spec.action is Action.PREDICT and spec.checkpoint.output:
        flags["output"] = _beside(spec, flags["job_name"])
    command = shlex.join(["elasticdl", str(spec.action), *_typed(flags)])
    if len(command) > _LONGEST_COMMAND or not _means(command, spec, flags):
        anew = "" if resumes else ", --job-dir"
        return f"the command that it was submitted with, another --job-name{anew}" + (" and --resume" if resumes else "")
    return command


def _beside(spec: JobSpec, name: str) -> str:
    """Another place for predictions: what was made of them is where the job said, and is not mixed with those of the next."""
    output = spec.checkpoint.output
    beside = next_name(output)
    return beside if spec.kubernetes.keeps(beside) else f"{output.rstrip('/')}/{name}"


def next_name(name: str) -> str:
    """`ads-2` after `ads`, `ads-3` after `ads-2`. A date at the end is none of these numbers."""
    found = re.fullmatch(r"(.*)-(\d{1,3})", name)
    stem, number = (found[1], int(found[2]) + 1) if found else (name, 2)
    if "/" in name:
        return f"{stem}-{number}"
    return f"{stem[: _LONGEST_NAME - len(str(number)) - 1].rstrip('-')}-{number}"


def _local(action: str, told: Mapping[str, Any], path: Path, *, resumes: bool) -> str:
    cluster = told.get("cluster") or {}
    command = [*_program(), action, "-f", str(path / "job.yaml")]
    if resumes:
        # Where it is said in job.yaml already, unless somebody moved it.
        moved = [] if cluster.get("job_dir") == str(path) else ["--job-dir", str(path)]
        return shlex.join([*command, *moved, "--resume"])
    name, place = str(cluster.get("job_name") or path.name), path
    while place.exists() or place == path:
        name, place = next_name(name), Path(next_name(str(place)))
    return shlex.join([*command, "--job-name", name, "--job-dir", str(place), *_new_output(action, told)])


def _new_output(action: str, told: Mapping[str, Any]) -> list[str]:
    """For predictions, where some were made: those of two jobs are not mixed."""
    said = output = str((told.get("checkpoint") or {}).get("output") or "")
    if action != PREDICT or not said or "://" in said:
        return []
    with suppress(OSError):
        while names_in(Path(output)):
            output = next_name(output)
    return [] if output == said else ["--output", output]


def _program() -> list[str]:
    """How this shell calls `elasticdl`."""
    if shutil.which("elasticdl"):
        return ["elasticdl"]
    beside = Path(sys.executable).with_name("elasticdl")
    return [str(beside)] if beside.exists() else [sys.executable, "-m", "elasticdl.cli.main"]


def _typed(flags: Mapping[str, Any]) -> Iterator[str]:
    for name, value in flags.items():
        flag = name.replace("_", "-")
        if value is True:
            yield f"--{flag}"
        elif name == "volume":
            for mount in value:
                yield from ("--volume", _mount(mount))
        else:
            yield from (f"--{flag}", _text(name, value))


def _text(name: str, value: object) -> str:
    if name in ("tolerations", "affinity"):
        return json.dumps(value, separators=(",", ":"))
    if isinstance(value, Mapping):
        separator = ";" if name in ("model_params", "data_reader_params", "envs") else ","
        return separator.join(f"{key}={_scalar(item) if separator == ';' else item}" for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return ",".join(map(str, value))
    return str(value)


def _scalar(value: object) -> str:
    """Quoted where it would be read as something else than text."""
    is_plain = not isinstance(value, str) or (_WORD.fullmatch(value) and value.lower() not in _NO_WORDS)
    return str(value) if is_plain else f"'{value}'"


def _mount(mount: Mapping[str, Any]) -> str:
    given = {key: value for key, value in mount.items() if value}
    if "source" in given:
        return json.dumps(given, separators=(",", ":"))
    return ",".join(f"{key}={'true' if value is True else value}" for key, value in given.items())


def _means(command: str, spec: JobSpec, flags: Mapping[str, Any]) -> bool:
    """Whether it says what it should, when it is typed: texts with `;` or `,` in odd places cannot be flags."""
    from elasticdl.errors import SpecError

    try:
        return type(spec).from_flags(spec.action, _read(shlex.split(command)[2:])).told() == flags
    except SpecError:
        return False


def _read(words: Iterable[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    name = ""
    for word in words:
        if not name:
            name = word.removeprefix("--")
            if name == "resume":
                found[name], name = True, ""
            continue
        found[name] = [*found.get(name, []), word] if name == "volume" else word
        name = ""
    return found

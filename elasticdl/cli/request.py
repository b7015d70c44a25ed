"""A user's request and `settle`, the one function that turns it into a `JobSpec`.

Flags override the file, and the file overrides defaults. The command line (`options.py`), a YAML
file and the Python API (`api.py`) all make a `Request`. Nothing reads a flag after `settle`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from glob import has_magic
from pathlib import Path
from typing import Any, final

from elasticdl.addresses import is_address, path_or_address
from elasticdl.cli.views.console import tell
from elasticdl.data.sql_address import is_duckdb, is_sqlite, parse_sql, parse_sqlite
from elasticdl.errors import SpecError, UserError
from elasticdl.flag import DATA, DIRECTORY, PLACE, Value, mark
from elasticdl.job import JobSpec
from elasticdl.job_choices import Action
from elasticdl.job_flags import FIELDS, refuse_unknown, refuse_unused
from elasticdl.job_name import directory_in_pod, generated_name
from elasticdl.job_problems import clipped
from elasticdl.jobdir.address_flags import digest_of, flags_at
from elasticdl.jobdir.layout import JOBS, JobDirectory
from elasticdl.jobdir.resumable import WHICH_JOB
from elasticdl.jobdir.scale_override import as_user_scaled
from elasticdl.value_checks import refuse_empty

_FLAG = re.compile(r"--([a-z-]+)")
_MORE_VARIABLES = re.compile(r",\w+=")
"""Pairs after a comma, as the original ElasticDL took them."""


@final
@dataclass(frozen=True, slots=True)
class Request:
    """One submission as the user typed it.

    `flags` maps names, in kebab or snake case, to values; `file` is a YAML file with more, or the
    address of one.
    """

    action: Action
    flags: Mapping[str, Any]
    file: str = ""


def settle(request: Request, say: Callable[[str], None] = tell) -> JobSpec:
    """Return the job to submit: validated, with a name, a directory and absolute paths.

    Calls `say` with what the user did not ask for and should know. Creates no files. Raises
    SpecError.
    """
    spec = validated(request)
    for name, value in spec.cluster.envs.items():
        if _MORE_VARIABLES.search(value):
            say(f"--envs: {name} is {value!r}; a semicolon begins another variable")
    return _on_cluster(spec) if spec.on_kubernetes else _on_this_machine(spec, say)


def validated(request: Request) -> JobSpec:
    """Return the validated job without a generated name or directory. Raises SpecError."""
    keys, data = _keys_of(request.file) if request.file else ({}, b"")
    flags = {name.replace("-", "_"): value for name, value in request.flags.items()}
    refuse_unused(request.action, flags)
    refuse_empty(flags)
    if not request.file and "model_def" not in flags and (yaml := _flags_of_resumed(flags)):
        raise SpecError(
            "--resume does not read the job's flags",
            hint=f"they are in {yaml}: add -f {yaml}",
        )
    try:
        spec = JobSpec.from_flags(request.action, {**keys, **flags})
    except SpecError as error:
        named = _FLAG.search(error.message)
        name = named[1].replace("-", "_") if named else ""
        if name not in keys or name in flags:
            raise
        from elasticdl.yaml_documents import line_of

        where = f"{request.file}:{line_of(name, data)}"
        raise SpecError(f"{where}: {error.message}", hint=error.hint) from error
    place = spec.cluster.job_dir
    of_the_job = is_address(place) and request.file == flags_at(place)
    return spec.replace(
        workers_anew="num_workers" in flags,
        servers_anew="num_ps_pods" in flags,
        flags_digest=digest_of(data) if of_the_job else "",
    )


def _flags_of_resumed(flags: Mapping[str, Any]) -> str | None:
    """The file with the flags of the job that is to be resumed, if one is known."""
    name, place = flags.get("job_name"), flags.get("job_dir")
    if not flags.get("resume") or not (name or place):
        return None
    if is_address(str(place)):
        return flags_at(str(place))
    yaml = JobDirectory(Path(place) if place else JOBS / str(name)).yaml
    return str(yaml) if yaml.exists() else None


def _keys_of(file: str) -> tuple[dict[str, Any], bytes]:
    """Return what is in a file of flags, and its bytes."""
    from elasticdl.yaml_documents import parse_yaml

    try:
        path_or_address(file)
    except ValueError as error:
        raise SpecError(f"-f: {error}") from error
    if is_address(file):
        from elasticdl.storage.attempts import STARTING, Absent
        from elasticdl.storage.store import store_of

        try:
            data = store_of(file, STARTING).read(file, STARTING)
        except Absent as error:
            raise SpecError(f"-f: {error.message}", hint=error.hint) from error
    else:
        try:
            data = Path(file).read_bytes()
        except OSError as error:
            raise SpecError(
                f"cannot read {clipped(file)}: {error.strerror}",
                hint="-f takes the path of a YAML file",
            ) from error
    content = parse_yaml(data, file)
    try:
        refuse_unknown(map(str, content))
    except SpecError as error:
        raise SpecError(f"{file}: {error.message}", hint=error.hint) from error
    keys: dict[str, Any] = {}
    for key, value in content.items():
        name = str(key).replace("-", "_")
        if name in keys:
            raise SpecError(f"{file}: duplicate key {key!r}", hint="`-` and `_` mean the same")
        keys[name] = value
    return keys, data


def _on_this_machine(spec: JobSpec, say: Callable[[str], None]) -> JobSpec:
    cluster, kept = spec.cluster, spec.checkpoint
    if kept.resume and not (cluster.job_name or cluster.job_dir):
        raise SpecError("--resume does not say which job to resume", hint=WHICH_JOB)
    name = cluster.job_name or generated_name(spec.model.model_def)
    spec = spec.replace(
        job_name=name,
        job_dir=cluster.job_dir or str(JOBS / name),
        generated_name=not (cluster.job_name or cluster.job_dir),
    )
    spec = spec.replace(**_absolute_paths(spec))
    # What a job at an address was scaled to is known when its files are here.
    if kept.resume and not is_address(spec.cluster.job_dir):
        directory = JobDirectory(Path(spec.cluster.job_dir))
        spec = as_user_scaled(spec, directory, say)
    if kept.checkpoint_dir_for_init:
        from elasticdl.checkpoint.strategy import as_trained

        spec = as_trained(spec)
    return spec


def _on_cluster(spec: JobSpec) -> JobSpec:
    """Keep paths as they are: they are paths in the pods."""
    name = spec.cluster.job_name or generated_name(spec.model.model_def)
    directory = spec.cluster.job_dir or directory_in_pod(name)
    return spec.replace(job_name=name, job_dir=directory, generated_name=not spec.cluster.job_name)


def _absolute_paths(spec: JobSpec) -> dict[str, str]:
    """Return the absolute form of each flag that is a path, by name."""
    flags = spec.flags(defaults=False)
    return {
        name: _ABSOLUTE[value](flags[name])
        for name in flags
        if (value := mark(FIELDS[name], Value)) in _ABSOLUTE
    }


def _absolute(path: str) -> str:
    return os.path.abspath(os.path.expanduser(path))


def _absolute_data(origin: str) -> str:
    """Make paths and globs absolute.

    Keep addresses, and what only custom_data_reader knows, such as a table.
    """
    # Addresses of another form may be those of the module's own reader; `require` refuses others.
    with suppress(UserError):
        if is_sqlite(origin):
            return str(parse_sqlite(origin).absolute())
        if is_duckdb(origin):
            return str(parse_sql(origin).absolute())
    if is_address(origin):
        return origin
    root = origin
    while has_magic(root):
        root = os.path.dirname(root)
    looks_like_path = os.path.exists(os.path.expanduser(root or "."))
    return _absolute(origin) if looks_like_path else origin


_ABSOLUTE: Mapping[Value | None, Callable[[str], str]] = {
    DIRECTORY: _absolute,
    PLACE: lambda place: place if is_address(place) else _absolute(place),
    DATA: _absolute_data,
}

"""The flags of a job, made from the sections of `JobSpec`: a field there is a flag here, with its help and default."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, final

import click

from elasticdl.cli.finding import directories
from elasticdl.cli.offered import context_names, namespace_names
from elasticdl.errors import SpecError
from elasticdl.job import NEEDED, SECTIONS, UNHEEDED, Action, JobSpec, refuse_unheeded, refuse_unknown

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

F = TypeVar("F", bound=Callable[..., Any])
TITLES = {
    "model": "Model",
    "data": "Data",
    "training": "Training",
    "checkpoint": "Checkpoints and output",
    "cluster": "Processes",
    "kubernetes": "On a Kubernetes cluster",
}
_DIRECTORIES = {"model_zoo", "checkpoint_dir_for_init", "output", "job_dir", "tensorboard_log_dir"}
_OFFERED = {"kube_context": context_names, "namespace": namespace_names}
_PATHS = {"training_data", "validation_data", "prediction_data", *_DIRECTORIES}
_PAIRS = {"model_params", "data_reader_params", "envs"}
_LISTS = {"volume"}
_METAVARS = {
    **dict.fromkeys(("tolerations", "affinity"), "JSON"),
    **dict.fromkeys(
        (f"{role}_resource_{kind}" for role in ("master", "worker", "ps") for kind in ("request", "limit")), "KEY=VALUE,…"
    ),
    "node_selector": "KEY=VALUE,…",
    "volume": "VOLUME",
    "num_workers": "N|MIN:MAX",
    "model_def": "MODULE",
    "image_name": "IMAGE",
    "image_pull_secrets": "NAME,…",
    "oom_memory_limit": "QUANTITY",
    **dict.fromkeys(("job_name", "kube_context", "namespace", "service_account"), "NAME"),
    **dict.fromkeys((f"{role}_pod_priority" for role in ("master", "worker", "ps")), "NAME"),
}


def flag(name: str) -> str:
    """`--num-workers` for `num_workers`."""
    return "--" + name.replace("_", "-")


_TAKEN_FROM_CHECKPOINT = {"distribution_strategy"}


def job_options(action: Action | None = None) -> Callable[[F], F]:
    """Add a flag for every field of a job, or for those that one action heeds.

    A flag that was not given is None (or empty): see `given_flags`.
    """

    def with_options(command: F) -> F:
        for name, field in reversed(list(_fields())):
            command = _option(name, field, action)(command)
        return command

    return with_options


def _refusal(name: str, action: Action) -> Callable[[click.Context, click.Parameter, Any], Any]:
    def refuse(_context: click.Context, _parameter: click.Parameter, value: Any) -> Any:  # noqa: ANN401 - click's own
        if value is not None:
            refuse_unheeded(action, (name,))
        return value

    return refuse


def given_flags(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Those flags that were typed."""
    given = {name: value for name, value in parameters.items() if value is not None and value != ()}
    return {name: ";".join(value) if name in _PAIRS else value for name, value in given.items()}


def spec_from(action: Action, file: Path | None, parameters: Mapping[str, Any]) -> JobSpec:
    """The job of a YAML file and of flags, which win. Raises SpecError."""
    keys = _from_file(file) if file is not None else {}
    given = given_flags(parameters)
    refuse_unheeded(action, given)
    return JobSpec.from_flags(action, {**keys, **given}, workers_anew="num_workers" in given)


def _from_file(file: Path) -> dict[str, Any]:
    from elasticdl.cli.yaml_documents import read_yaml

    found = read_yaml(file)
    try:
        refuse_unknown(map(str, found))
    except SpecError as error:
        raise SpecError(f"{file}: {error.message}", hint=error.hint) from error
    keys: dict[str, Any] = {}
    for key, value in found.items():
        name = str(key).replace("-", "_")
        if name in keys:
            raise SpecError(f"{file}: the key {key!r} is there twice", hint="`-` and `_` mean the same")
        keys[name] = value
    return keys


def _fields() -> Iterator[tuple[str, FieldInfo]]:
    for section in SECTIONS.values():
        yield from section.model_fields.items()


def _option(name: str, field: FieldInfo, action: Action | None) -> Callable[[F], F]:
    if action is not None and name in UNHEEDED[action]:
        names = f"{flag(name)}/--no-{flag(name)[2:]}" if field.annotation is bool else flag(name)
        return click.option(names, name, default=None, hidden=True, callback=_refusal(name, action))
    hidden = action in (Action.EVALUATE, Action.PREDICT) and name in _TAKEN_FROM_CHECKPOINT
    text = field.description or ""
    default = field.get_default(call_default_factory=True)
    if field.annotation is bool:
        return click.option(f"{flag(name)}/--no-{flag(name)[2:]}", name, default=None, help=text)
    if isinstance(default, StrEnum):
        return click.option(
            flag(name),
            name,
            type=click.Choice([str(one) for one in type(default)]),
            help=_with_default(text, default),
            hidden=hidden,
        )
    if name in _PAIRS:
        return click.option(flag(name), name, multiple=True, metavar="KEY=VALUE", help=text)
    if name in _LISTS:
        return click.option(flag(name), name, multiple=True, metavar=_METAVARS[name], help=text)
    kind = click.Path(path_type=str) if name in _PATHS else None
    offered = directories if name in _DIRECTORIES else _OFFERED.get(name)
    metavar = "PATH" if name in _PATHS else None
    required = " [required]" if field.is_required() or (action is not None and name in NEEDED[action]) else ""
    return click.option(
        flag(name),
        name,
        type=kind,
        shell_complete=offered,
        metavar=metavar or _METAVARS.get(name) or _metavar(name, field),
        help=_with_default(text, default) + required,
    )


def _metavar(name: str, field: FieldInfo) -> str:
    """With its unit, where it has one."""
    for unit in ("seconds", "bytes"):
        if name.endswith(f"_{unit}"):
            return unit.upper()
    return "N" if field.annotation is int else "TEXT"


def _with_default(text: str, default: object) -> str:
    shown = isinstance(default, (int, float, str)) or str(default).isdigit()
    return f"{text} [{default}]" if shown and default != "" else text


@final
class JobCommand(click.Command):
    """A command whose help groups the flags as `JobSpec` does."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        records = {parameter.name: parameter.get_help_record(ctx) for parameter in self.get_params(ctx)}
        grouped = {TITLES[section]: list(model.model_fields) for section, model in SECTIONS.items()}
        known = {name for names in grouped.values() for name in names}
        for title, names in {**grouped, "This command": [name for name in records if name not in known]}.items():
            found = [record for name in names if (record := records.get(name)) is not None]
            if found:
                with formatter.section(title):
                    formatter.write_dl(found)


FILE_OPTION = click.option(
    "-f",
    "--file",
    "file",
    type=click.Path(path_type=Path),
    metavar="YAML",
    help="Take the flags that are not given from this file.",
)
FLAG_SETTINGS: dict[str, Any] = {
    "token_normalize_func": lambda token: token.replace("_", "-"),
    "help_option_names": ["-h", "--help"],
}

"""A job's command-line flags, generated from the fields of `JobSpec`.

`job_flags.py` and `kubernetes_flags.py` declare those fields: a new flag goes there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeVar, final

import click

from elasticdl.cli.completion_sources import context_names, namespace_names
from elasticdl.cli.job_argument import directories
from elasticdl.cli.request import Request
from elasticdl.flag import Offer, Value, mark
from elasticdl.job_choices import Action
from elasticdl.job_flags import FIELDS, SECTIONS, is_needed, is_used
from elasticdl.job_problems import empty, flag_of
from elasticdl.original_names import FLAGS, VALUES

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
_OFFERED = {
    Offer.DIRECTORIES: directories,
    Offer.CONTEXTS: context_names,
    Offer.NAMESPACES: namespace_names,
}
_TAKEN_FROM_CHECKPOINT = "distribution_strategy"


def job_options(action: Action | None = None) -> Callable[[F], F]:
    """Add a flag for each field of `JobSpec`, or for those that `action` uses.

    A flag that is not given is None or empty: see `request_of`.
    """

    def with_options(command: F) -> F:
        for name, field in reversed(list(FIELDS.items())):
            command = _option(name, field, action)(command)
        return command

    return with_options


def request_of(action: Action, file: str | None, parameters: Mapping[str, Any]) -> Request:
    """Return the request with only the flags that were given. Raises SpecError for `-f ''`."""
    if file is not None and not file.strip():
        raise empty("file")
    given = {name: value for name, value in parameters.items() if value is not None and value != ()}
    return Request(action, given, file or "")


def _option(name: str, field: FieldInfo, action: Action | None) -> Callable[[F], F]:
    is_switch = field.annotation in (bool, bool | None)
    names = f"{flag_of(name)}/--no-{flag_of(name)[2:]}" if is_switch else flag_of(name)
    if action is not None and not is_used(name, action):
        return click.option(names, name, default=None, hidden=True)  # `settle` refuses it
    if is_switch:
        return click.option(names, name, default=None, help=field.description)
    default = field.get_default(call_default_factory=True)
    value = mark(field, Value) or Value(_unit(name, field))
    choices = list(map(str, type(default))) if isinstance(default, StrEnum) else []
    required = is_needed(name, action) if action is not None else field.is_required()
    return click.option(
        names,
        name,
        type=click.Choice(choices) if choices else click.Path() if value.name == "PATH" else None,
        multiple=value.repeats,
        shell_complete=value.offer and _OFFERED[value.offer],
        metavar=None if choices else value.name,
        help=_with_default(field.description or "", default) + (" [required]" if required else ""),
        hidden=name == _TAKEN_FROM_CHECKPOINT and action in (Action.EVALUATE, Action.PREDICT),
    )


def _unit(name: str, field: FieldInfo) -> str:
    """Return the placeholder for a value in the help."""
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

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            instead = FLAGS.get(error.option_name.lstrip("-").replace("-", "_"))
            if instead is None:
                raise
            text = f"this ElasticDL has no {error.option_name}: {instead}"
            raise click.UsageError(text, error.ctx) from None
        except click.BadParameter as error:
            name = error.param.name if error.param is not None else None
            value = re.match("'([^']*)' is not one of", error.message)
            instead = VALUES.get((name, value[1])) if name and value else None
            if instead is None:
                raise
            text = f"{error.message.rstrip('.')}: {instead}"
            raise click.BadParameter(text, error.ctx, error.param) from None

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        records = {
            parameter.name: parameter.get_help_record(ctx) for parameter in self.get_params(ctx)
        }
        grouped = {TITLES[section]: list(model.model_fields) for section, model in SECTIONS.items()}
        known = {name for names in grouped.values() for name in names}
        for title, names in {
            **grouped,
            "This command": [name for name in records if name not in known],
        }.items():
            rows = [record for name in names if (record := records.get(name)) is not None]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


FILE_OPTION = click.option(
    "-f",
    "--file",
    "file",
    type=click.Path(),
    metavar="YAML",
    help="Read missing options from this file, or from the object at an address.",
)

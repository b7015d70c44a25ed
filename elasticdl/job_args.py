"""A job's flags as the `args` of a container, as on the command line of `elasticdl`.

`["train", "--model-def=deepfm", "--num-workers=2:20", "--resume"]`. `--name value` in two parts and
underscores in names are read, too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Annotated, Any

from pydantic import TypeAdapter, ValidationError

from elasticdl.errors import SpecError
from elasticdl.flag import Value, mark
from elasticdl.job_choices import Action
from elasticdl.job_flags import FIELDS, refuse_unknown, refuse_unused
from elasticdl.job_problems import flag_of
from elasticdl.value_checks import refuse_empty

_SEPARATORS = (",", ";")


def as_args(action: Action, flags: Mapping[str, Any]) -> tuple[str, ...]:
    """The inverse of `read_args`. `flags` are plain values by name in snake case, without None."""
    return (str(action), *(_written(name, value) for name, value in flags.items()))


def _written(name: str, value: object) -> str:
    if isinstance(value, bool):
        return flag_of(name) if value else f"--no-{flag_of(name)[2:]}"
    return f"{flag_of(name)}={_text(name, value)}"


def _text(name: str, value: object) -> str:
    """`cpu=2,memory=4Gi` if that means the same as the exact text, JSON."""
    if isinstance(value, str):
        return value
    parts: list[str] = []
    if isinstance(value, Mapping) and not any(isinstance(item, Mapping) for item in value.values()):
        parts = [
            f"{key}={json.dumps(item) if item is True or item is False else item}"
            for key, item in value.items()
        ]
    elif isinstance(value, Sequence) and all(isinstance(item, str) for item in value):
        parts = list(value)
    read = _reader(name).validate_python
    for text in (separator.join(parts) for separator in _SEPARATORS if parts):
        try:
            if read(text) == read(value):
                return text
        except ValidationError:
            continue
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


@cache
def _reader(name: str) -> TypeAdapter[Any]:
    field = FIELDS[name]
    annotated: Any = Annotated[(field.annotation, *field.metadata)]
    return TypeAdapter(annotated)


def read_args(args: Sequence[str]) -> tuple[Action, dict[str, Any]]:
    """The action, and the flags as `JobSpec.from_flags` takes them, by name in snake case.

    Raises SpecError for what is no flag of the action, for a flag without its value, and for a
    second value of a flag that has one.
    """
    known = ", ".join(Action)
    if not args:
        raise SpecError(
            "there are no args", hint=f"the first is one of {known}, and flags follow it"
        )
    if args[0] not in list(Action):
        raise SpecError(f"the first of the args is {args[0]!r}", hint=f"expected one of {known}")
    action = Action(args[0])
    flags: dict[str, Any] = {}
    for name, value in _pairs(args[1:]):
        repeats = (value_of := mark(FIELDS[name], Value)) is not None and value_of.repeats
        if name in flags and not repeats:
            raise SpecError(f"{flag_of(name)} is given twice")
        flags[name] = (*flags.get(name, ()), value) if repeats else value
    refuse_unused(action, flags)
    refuse_empty(flags)
    return action, flags


def _pairs(args: Sequence[str]) -> Iterator[tuple[str, Any]]:
    left = iter(args)
    for arg in left:
        flag, sign, value = arg.partition("=")
        if not flag.startswith("--"):
            raise SpecError(f"unexpected argument {arg!r}", hint="flags begin with --")
        name, is_on = _named(flag)
        if _is_switch(name):
            if sign:
                raise SpecError(f"{flag} takes no value, got {value!r}")
            yield name, is_on
        elif sign:
            yield name, value
        elif (following := next(left, None)) is None:
            raise SpecError(f"{flag} has no value", hint=f"write {flag}=VALUE")
        else:
            yield name, following


def _named(flag: str) -> tuple[str, bool]:
    """The field, and False for the `--no-` of a switch."""
    name = flag[2:].replace("-", "_")
    positive = name.removeprefix("no_")
    if name not in FIELDS and positive in FIELDS and _is_switch(positive):
        return positive, False
    try:
        refuse_unknown([name])
    except SpecError as error:
        raise SpecError(f"unknown flag {flag}", hint=error.hint) from error
    return name, True


def _is_switch(name: str) -> bool:
    return FIELDS[name].annotation in (bool, bool | None)

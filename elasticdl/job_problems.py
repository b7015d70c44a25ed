"""Describe what is wrong with the flags of a job: the flag, its value, and what it expects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from elasticdl.errors import SpecError
from elasticdl.flag import MAX_COUNT

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError
    from pydantic.fields import FieldInfo

_SORTS = {
    "tuple_type": "a list",
    "list_type": "a list",
    "dict_type": "keys and values",
    "mapping_type": "keys and values",
    "model_type": "keys and values",
    "string_type": "text",
    "bool_parsing": "true or false",
    "bool_type": "true or false",
}
_MOST_CHARACTERS = 500
_NUMBERS = ("int_", "float_", "greater_than", "less_than", "finite_number")


def missing(names: Sequence[str], action: str) -> SpecError:
    """The error for missing flags that an action requires."""
    flags = [flag_of(name) for name in names]
    listed = ", ".join(flags[:-1]) + (" and " if flags[1:] else "") + flags[-1]
    return SpecError(
        f"{listed} {'are' if flags[1:] else 'is'} missing",
        hint=(
            f"give {'them' if flags[1:] else 'it'} as a flag or in the file of -f; run"
            f" `elasticdl {action} --help` for options"
        ),
    )


def empty(name: str) -> SpecError:
    """The error for a text that is empty."""
    return SpecError(f"{flag_of(name)} is empty", hint="give it a value, or leave it out")


def flag_of(name: str) -> str:
    """`--num-workers` for `num_workers`."""
    return "--" + name.replace("_", "-")


def not_a_number(field: FieldInfo, name: str, value: object) -> SpecError:
    """The error for a value of another type; Python takes True for 1."""
    return SpecError(f"{flag_of(name)}: expected {_number(field)}, got {value!r}")


def clipped(message: str) -> str:
    """A message without the middle of a very long value."""
    if len(message) <= _MOST_CHARACTERS:
        return message
    return f"{message[: _MOST_CHARACTERS - 100]} … {message[-90:]}"


def problem_of(
    error: ValidationError,
    sections: Mapping[str, type[BaseModel]],
    action: str,
    also: Sequence[str],
) -> SpecError:
    """The error for all missing flags, with those of `also`, or else for the first invalid one."""
    problems = [(_names(problem["loc"], sections), problem) for problem in error.errors()]
    lacking = [
        names[0] for names, problem in problems if problem["type"] == "missing" and len(names) == 1
    ]
    if lacking:
        return missing([*lacking, *also], action)
    names, problem = problems[0]
    field = _field(names[0], sections) if names else None
    return SpecError(clipped(_message(names, dict(problem), field)))


def _names(where: Sequence[int | str], sections: Mapping[str, object]) -> list[str]:
    return [str(part) for part in where if str(part) not in sections]


def _field(name: str, sections: Mapping[str, type[BaseModel]]) -> FieldInfo | None:
    return next(
        (model.model_fields[name] for model in sections.values() if name in model.model_fields),
        None,
    )


def _message(names: Sequence[str], problem: Mapping[str, Any], field: FieldInfo | None) -> str:
    flag, kind = flag_of(names[0] if names else "job"), str(problem["type"])
    got = f"got {problem['input']!r}"
    ranges = {"num_workers": "whole numbers of at least 1", "num_ps_pods": "whole numbers"}
    if names and names[0] in ranges and kind != "value_error":
        return f"{flag}: expected N or MIN:MAX, {ranges[names[0]]}, {got}"
    if kind == "missing":
        return f"{flag}: {names[-1]} is missing"
    if kind == "value_error":
        return f"{flag}: {problem['ctx']['error']}"
    if kind == "extra_forbidden":
        return f"{flag}: unknown key {names[-1]!r}"
    if kind == "enum":
        return f"{flag}: expected one of {problem['ctx']['expected']}, {got}"
    if kind.startswith(_NUMBERS) and field is not None and field.annotation in (int, float):
        return f"{flag}: expected {_number(field, kind)}, {got}"
    return (
        f"{flag}: expected {_SORTS[kind]}, {got}"
        if kind in _SORTS
        else f"{flag}: {problem['msg']}, {got}"
    )


def _number(field: FieldInfo, kind: str = "") -> str:
    """`a whole number of at least 1`, `a number of seconds of at least 0`."""
    text = "a whole number" if field.annotation is int else "a number of seconds"
    for bound in field.metadata:
        for name, relation in (("ge", "of at least"), ("le", "and at most"), ("lt", "and below")):
            limit = getattr(bound, name, None)
            # The bounds that only mistyped numbers exceed are no help for other mistakes.
            if limit is not None and (limit < MAX_COUNT or kind.startswith("less_than")):
                text += f" {relation} {limit}"
    return text

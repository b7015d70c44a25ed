"""Describe what is wrong with the flags of a job: the flag, its value, and what it expects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from elasticdl.errors import SpecError

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


def flag_of(name: str) -> str:
    """`--num-workers` for `num_workers`."""
    return "--" + name.replace("_", "-")


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
    return SpecError(_message(names, dict(problem), _field(names[0], sections) if names else None))


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
    if kind == "missing":
        return f"{flag}: {names[-1]} is missing"
    if kind == "value_error":
        return f"{flag}: {problem['ctx']['error']}"
    if kind == "extra_forbidden":
        return f"{flag}: unknown key {names[-1]!r}"
    if kind == "enum":
        return f"{flag}: expected one of {problem['ctx']['expected']}, {got}"
    if names[:1] == ["num_workers"]:
        return f"{flag}: expected N or MIN:MAX, whole numbers of at least 1, {got}"
    if kind.startswith(_NUMBERS) and field is not None and field.annotation in (int, float):
        return f"{flag}: expected {_number(field)}, {got}"
    return (
        f"{flag}: expected {_SORTS[kind]}, {got}"
        if kind in _SORTS
        else f"{flag}: {problem['msg']}, {got}"
    )


def _number(field: FieldInfo) -> str:
    """`a whole number of at least 1`, `a number of seconds of at least 0`."""
    text = "a whole number" if field.annotation is int else "a number of seconds"
    for bound in field.metadata:
        for name, relation in (("ge", "of at least"), ("le", "and at most"), ("lt", "and below")):
            if getattr(bound, name, None) is not None:
                text += f" {relation} {getattr(bound, name)}"
    return text

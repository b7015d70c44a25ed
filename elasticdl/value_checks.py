"""Refuse values that no flag can have, before they are parsed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from elasticdl.errors import SpecError
from elasticdl.flag import DATA, LONGEST_TEXT
from elasticdl.job_flags import FIELDS
from elasticdl.job_problems import empty, flag_of, not_a_number
from elasticdl.json_values import refuse_deep

LONGEST_DATA = 1 << 16
"""Of what a module's own reader may take, such as a query: Linux has no longer arguments than 128
KiB."""


def refuse_empty(flags: Mapping[str, object]) -> None:
    """Raise SpecError for the first text, by name in snake case, that is empty.

    A shell passes one for a variable that is not set, and the default is rarely what was meant.
    """
    for name, value in flags.items():
        is_text = name in FIELDS and FIELDS[name].annotation is str
        if is_text and isinstance(value, str) and not value.strip():
            raise empty(name)


def refuse_odd(flags: Mapping[str, object]) -> None:
    """Raise SpecError for the first value that no job could have, whatever its flag.

    Such as a text that is too long, or has a character that no path can have.
    """
    for name, value in flags.items():
        try:
            refuse_deep(value)
        except ValueError as error:
            raise SpecError(f"{flag_of(name)}: {error}") from error
        if isinstance(value, bool) and FIELDS[name].annotation in (int, float):
            raise not_a_number(FIELDS[name], name, value)
        is_text = FIELDS[name].annotation is str
        most = LONGEST_DATA if DATA in FIELDS[name].metadata else LONGEST_TEXT
        if isinstance(value, str) and is_text and len(value) > most:
            raise SpecError(
                f"{flag_of(name)} has {len(value):,} characters, expected at most {most:,}"
            )
        for text in _texts(value):
            if "\0" in text and (is_text or name == "envs"):
                raise SpecError(f"{flag_of(name)}: NUL characters are not supported")
            try:
                text.encode()
            except UnicodeEncodeError as error:
                raise SpecError(
                    f"{flag_of(name)} is not text in UTF-8",
                    hint="names and paths of a job are UTF-8: rename the file or directory",
                ) from error


def _texts(value: object) -> Iterator[str]:
    """All texts in a value, also keys."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from _texts([*value.keys(), *value.values()])
    elif isinstance(value, (list, tuple)):
        for entry in value:
            yield from _texts(entry)

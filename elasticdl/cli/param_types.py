"""Parameter types for paths and numbers with units, whose errors name what is expected."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, Any, final

import click

from elasticdl.addresses import local_path
from elasticdl.errors import SpecError
from elasticdl.flag import LONGEST_TEXT, MAX_COUNT

if TYPE_CHECKING:
    _Typed = click.ParamType[Any]
else:
    _Typed = click.ParamType  # some versions take no type parameter


@final
class Text(_Typed):
    """A name, path or address of any job."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:  # noqa: ANN401 - click's own
        text = str(value)
        if len(text) > LONGEST_TEXT:
            self.fail(f"{len(text):,} characters, expected at most {LONGEST_TEXT:,}.", param, ctx)
        return text


TEXT = Text()


@final
class LocalPath(click.Path):
    """A path of a command's own; an address such as `s3://…` is refused."""

    def convert(
        self,
        value: Any,  # noqa: ANN401 - click's own
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> Any:  # noqa: ANN401 - click's own
        if not os.fspath(value).strip():
            self.fail("the path is empty.", param, ctx)
        TEXT.convert(value, param, ctx)
        try:
            local_path(os.fspath(value))
        except ValueError as error:
            self.fail(f"{error}.", param, ctx)
        return super().convert(value, param, ctx)


@final
class Seconds(_Typed):
    """A number of seconds."""

    name = "seconds"

    def __init__(self, at_least: float = 0.0) -> None:
        self._at_least = at_least

    def convert(
        self,
        value: Any,  # noqa: ANN401 - click's own
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> float:
        try:
            seconds = float(value)
        except ValueError:
            seconds = math.nan
        if not (math.isfinite(seconds) and seconds >= self._at_least):
            self.fail(
                f"expected a number of seconds of at least {self._at_least:g}, such as 300, got"
                f" {value!r}.",
                param,
                ctx,
            )
        if seconds > MAX_COUNT:
            self.fail(f"expected at most {MAX_COUNT} seconds, got {value!r}.", param, ctx)
        return seconds


@final
class Lines(_Typed):
    """A number of lines; 0 means all."""

    name = "lines"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:  # noqa: ANN401 - click's own
        text = str(value)
        if not _is_number(text):
            self.fail(f"expected a whole number of lines, or 0 for all, got {value!r}.", param, ctx)
        return int(text)


def worker_range(low: object, high: object = None) -> tuple[int, int]:
    """Validate a range of workers. `high` defaults to `low`. Raises SpecError."""
    from elasticdl.flag_values import MAX_WORKERS  # slow import: not for every `--help`

    most = low if high is None else high
    for bound in (low, most):
        if not isinstance(bound, int) or isinstance(bound, bool):
            raise _invalid_range(f"{bound!r}")
    assert isinstance(low, int) and isinstance(most, int)
    if not 1 <= low <= most <= MAX_WORKERS:
        raise _invalid_range(f"{low}" if high is None else f"{low}:{most}")
    return low, most


def server_number(number: object) -> int:
    """Validate a number of parameter servers. Raises SpecError."""
    from elasticdl.flag_values import MAX_SERVERS  # slow import: not for every `--help`

    if not isinstance(number, int) or isinstance(number, bool) or not 1 <= number <= MAX_SERVERS:
        hint = f"use a number from 1 to {MAX_SERVERS}"
        raise SpecError(f"invalid number of parameter servers: {number!r}", hint=hint)
    return number


def typed_server_number(text: str) -> int:
    """Parse a number of parameter servers. Raises SpecError."""
    stripped = text.strip()
    if _is_number(stripped):
        return server_number(int(stripped))
    hint = "use one number: --autoscale chooses in the range that the job was started with"
    raise SpecError(f"invalid number of parameter servers: {text!r}", hint=hint)


def typed_range(text: str) -> tuple[int, int]:
    """Parse `N` or `MIN:MAX`. Raises SpecError."""
    low, colon, high = text.strip().partition(":")
    numbers = (low, high) if colon else (low,)
    if not all(map(_is_number, numbers)):
        raise _invalid_range(repr(text))
    return worker_range(*map(int, numbers))


def _is_number(text: str) -> bool:
    """Whether it is a number of at most 18 digits: Python refuses to convert very long ones."""
    return text.isascii() and text.isdigit() and len(text) <= 18


def _invalid_range(got: str) -> SpecError:
    from elasticdl.flag_values import MAX_WORKERS

    hint = f"use N or MIN:MAX with 1 <= MIN <= MAX <= {MAX_WORKERS}, for example 1:3"
    return SpecError(f"invalid range of workers: {got}", hint=hint)

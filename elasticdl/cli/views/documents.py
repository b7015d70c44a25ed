"""Data as JSON or YAML, for programs: always whole and valid, whatever is in it and wherever it
goes.
"""

from __future__ import annotations

import codecs
import json
import math
import re
import sys
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

_LONE = re.compile("[\ud800-\udfff]")
"""Half a character, as in the name of a file that is no UTF-8: no program could read it back."""


class Format(StrEnum):
    """How data is printed."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


def render(value: object, form: Format) -> str:
    """JSON or YAML, ending with a newline.

    What is no number (NaN) is null, half a character the sign for one that is missing.
    """
    if form is Format.YAML:
        from elasticdl.cli.views.yaml_documents import as_yaml

        return as_yaml(_clean(value), ascii_only=not _takes_utf8())
    return as_json(value, indent=2)


def as_json(value: object, indent: int | None = None) -> str:
    """The same as one JSON value; without `indent` on one line."""
    return (
        json.dumps(_clean(value), indent=indent, ensure_ascii=not _takes_utf8(), allow_nan=False)
        + "\n"
    )


def _clean(value: object) -> Any:  # noqa: ANN401 - plain data
    match value:
        case str():
            return _LONE.sub("\N{REPLACEMENT CHARACTER}", str(value))
        case float():
            return value if math.isfinite(value) else None
        case Mapping():
            return {_clean(key): _clean(item) for key, item in value.items()}
        case list() | tuple():
            return [_clean(item) for item in value]
        case _:
            return value


def _takes_utf8() -> bool:
    """Whether stdout does; whatever it takes, it takes ASCII."""
    try:
        return codecs.lookup(sys.stdout.encoding or "ascii").name == "utf-8"
    except (LookupError, AttributeError):
        return False

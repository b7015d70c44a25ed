"""Data as JSON or YAML for programs: always complete and valid."""

from __future__ import annotations

import codecs
import json
import sys
from enum import StrEnum

from elasticdl.formatting import finite


class Format(StrEnum):
    """An output format."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


def render(value: object, form: Format) -> str:
    """Return JSON or YAML that ends with a newline.

    NaN becomes null, and a lone surrogate becomes the replacement character. Characters that are
    not printable are escaped.
    """
    if form is Format.YAML:
        from elasticdl.yaml_documents import as_yaml

        text = as_yaml(finite(value), ascii_only=not _takes_utf8())
        return text if _is_shown(text) else as_yaml(finite(value), ascii_only=True)
    return as_json(value, indent=2)


def as_json(value: object, indent: int | None = None) -> str:
    """Return the same as one JSON value; on one line without `indent`."""
    text = json.dumps(finite(value), indent=indent, ensure_ascii=not _takes_utf8(), allow_nan=False)
    if not _is_shown(text):
        # Only strings have such characters: line breaks outside of them are the only others.
        text = "".join(
            char if char.isprintable() or char == "\n" else json.dumps(char)[1:-1] for char in text
        )
    return text + "\n"


def _is_shown(text: str) -> bool:
    """Return whether a document has no characters that a terminal obeys, such as C1 and bidi."""
    return text.replace("\n", "").isprintable()


def _takes_utf8() -> bool:
    """Return whether stdout takes UTF-8; every encoding takes ASCII."""
    try:
        return codecs.lookup(sys.stdout.encoding or "ascii").name == "utf-8"
    except (LookupError, AttributeError):
        return False

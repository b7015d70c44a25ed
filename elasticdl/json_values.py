"""Values of flags that have parts, as JSON or as a file has them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Set
from typing import Any

_MOST_DEPTH = 32
_TOO_DEEP = f"nested deeper than {_MOST_DEPTH}"


def is_json(value: object) -> bool:
    """Whether it is text with a JSON object or list, accepted for any structured value."""
    return isinstance(value, str) and value.lstrip()[:1] in ("{", "[")


def parse_json(value: object) -> object:
    """Parse JSON text, as on the command line; return anything else as it is."""
    if not isinstance(value, str):
        return value
    try:
        parsed = json.loads(value) if value.strip() else None
    except RecursionError as error:
        raise ValueError(_TOO_DEEP) from error
    except ValueError as error:
        raise ValueError(f"expected JSON, got {value!r} ({error})") from error
    refuse_deep(parsed)
    return parsed


def refuse_deep(value: object) -> None:
    """Raise ValueError for lists and mappings within so many others that none can be meant."""
    inner = [value]
    for _ in range(_MOST_DEPTH):
        inner = [
            part
            for outer in inner
            if isinstance(outer, (Mapping, list, tuple))
            for part in (outer.values() if isinstance(outer, Mapping) else outer)
        ]
    if inner:
        raise ValueError(_TOO_DEEP)


def as_texts(values: Mapping[Any, Any]) -> dict[str, str]:
    """Values as text, and `true` as people type it. Raises ValueError for None and collections."""
    for key, value in values.items():
        if value is None or isinstance(value, (Mapping, Set, list, tuple)):
            raise ValueError(f"{key}: expected text or a number, got {value!r}")
    return {
        str(key): json.dumps(value) if isinstance(value, bool) else str(value)
        for key, value in values.items()
    }

"""JSON objects in a store that others may replace at any moment."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

from elasticdl.errors import Corrupted
from elasticdl.storage.attempts import Absent, Limits
from elasticdl.storage.store import store_of

_TRIES, _PAUSE_S = 4, 0.2


def read_object(address: str, limits: Limits) -> dict[str, Any] | None:
    """Return the JSON object at an address; None if there is none, or no such bucket.

    Raises Corrupted, UserError, TransientError.
    """
    for left in reversed(range(_TRIES)):
        try:
            # Size and content come from two requests: an object that grew between them is cut off.
            value = json.loads(store_of(address, limits).read(address, limits))
        except Absent:
            return None
        except (ValueError, RecursionError) as error:
            if not left:
                raise Corrupted(f"{address} is damaged: {error}") from error
            time.sleep(_PAUSE_S)
            continue
        if isinstance(value, dict):
            return value
        raise Corrupted(f"{address} is damaged: it is no JSON object")
    raise AssertionError("the last try raises")


def write_object(address: str, value: Mapping[str, Any], limits: Limits) -> None:
    """Write a JSON object. Raises UserError, TransientError."""
    store_of(address, limits).write(address, json.dumps(value, indent=2).encode(), limits)

"""JSON documents with one or a few places changed."""

from __future__ import annotations

import copy
import random
from typing import Any

ODD: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 3, 7, 255, 2**16, 2**16 + 1, 2**28, 2**28 + 1, 2**30,
    2**31 - 1, 2**31, 2**32, 2**40, 2**53 + 1, 2**61, 2**62, 2**63 - 1, 2**63, 2**64 - 1, 2**64,
    10**30, -(2**31), -(2**63), -(2**63) - 1, 0.5, -0.0, 1e39, 1e308, "", "0", "x" * 5000, "../x",
    "\0", "\ud7ff", [], {}, [0], [0, 0], [2**40, 2**40], [1] * 70, {"": 0}, "float32", "O", "V0",
    "U9999999", "adam", "normal",
)  # fmt: skip


def mutated(document: Any, choose: random.Random) -> Any:
    """A copy with one to three places replaced, repeated or removed."""
    made = copy.deepcopy(document)
    for _ in range(choose.randint(1, 3)):
        holder, key = choose.choice(list(_places(made)) or [(None, None)])
        if holder is None:
            return made
        match choose.randrange(4):
            case 0:
                del holder[key]
            case 1 if isinstance(holder, list):
                holder.insert(key, copy.deepcopy(choose.choice(holder)))
            case _:
                holder[key] = copy.deepcopy(choose.choice(ODD))
    return made


def _places(document: Any) -> Any:
    keys = (
        list(document)
        if isinstance(document, dict)
        else range(len(document))
        if isinstance(document, list)
        else ()
    )
    for key in keys:
        yield document, key
        yield from _places(document[key])

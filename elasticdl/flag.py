"""Limits of all flags, and metadata of a flag's declaration besides its type, default and help.

It is part of the field's annotation. The declarations are in `job_flags.py` and
`kubernetes_flags.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, TypeVar, final

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

T = TypeVar("T")

INT64_END = 2**63
"""What counts records, steps or bytes is below: protobuf and C++ have it in an int64."""
LONGEST_TEXT = 4096
"""Characters of a name, path or address: Linux has no longer paths."""
MAX_COUNT = 2**31 - 1
"""Most of anything else, also seconds (68 years): Kubernetes has it in an int32."""


class Offer(StrEnum):
    """Values that shell completion offers."""

    DIRECTORIES = "directories"
    CONTEXTS = "contexts"
    NAMESPACES = "namespaces"


@final
@dataclass(frozen=True, slots=True)
class Value:
    """The placeholder of the value in help and completion; `repeats` allows several."""

    name: str
    offer: Offer | None = None
    repeats: bool = False


DIRECTORY = Value("PATH", Offer.DIRECTORIES)
"""A path, absolute in a settled job; an address such as `s3://…` is refused."""
PLACE = Value("PATH|ADDRESS", Offer.DIRECTORIES)
"""A path, absolute in a settled job, or the address of a folder in an object store."""
DATA = Value("PATH")
"""A path, an address, a pattern of either, or what the module's own reader accepts."""


@final
@dataclass(frozen=True, slots=True)
class UsedBy:
    """The only actions that use the flag; other actions do not accept it."""

    actions: tuple[str, ...]


@final
@dataclass(frozen=True, slots=True)
class NeededBy:
    """The actions that require the flag."""

    actions: tuple[str, ...]


@final
@dataclass(frozen=True, slots=True)
class UnusedOnRing:
    """Why the flag has no effect on training on a ring."""

    why: str


def mark(field: FieldInfo, kind: type[T]) -> T | None:
    """The metadata of this kind in a field's declaration, if any."""
    return next((entry for entry in field.metadata if isinstance(entry, kind)), None)

"""What the declaration of a flag says beside its type, default, limits and help, as metadata of the
field's annotation.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, TypeVar, final

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

T = TypeVar("T")


class Offer(StrEnum):
    """What a shell offers as a value."""

    DIRECTORIES = "directories"
    CONTEXTS = "contexts"
    NAMESPACES = "namespaces"


@final
@dataclass(frozen=True, slots=True)
class Value:
    """What help and completion call the value; one that `repeats` may be given several times."""

    name: str
    offer: Offer | None = None
    repeats: bool = False


DIRECTORY = Value("PATH", Offer.DIRECTORIES)
"""A path, absolute in a settled job, or an address."""
DATA = Value("PATH")
"""The same, a pattern, or what the module's own reader takes."""


@final
@dataclass(frozen=True, slots=True)
class UsedBy:
    """The only actions to which the flag makes a difference.

    It is no flag of another action's verb.
    """

    actions: tuple[str, ...]


@final
@dataclass(frozen=True, slots=True)
class NeededBy:
    """The actions that cannot do without it."""

    actions: tuple[str, ...]


@final
@dataclass(frozen=True, slots=True)
class UnusedOnRing:
    """Why the flag makes no difference to training on a ring."""

    why: str


def mark(field: FieldInfo, kind: type[T]) -> T | None:
    """That part of a field's declaration, if it has one."""
    return next((one for one in field.metadata if isinstance(one, kind)), None)

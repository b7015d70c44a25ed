"""Metadata of a flag's declaration, besides its type, default, limits and help.

It is part of the field's annotation. The declarations are in `job_flags.py` and
`kubernetes_flags.py`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, TypeVar, final

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

T = TypeVar("T")


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

_PASSWORD = re.compile(r"https?://[^/@]*@|[a-z][a-z0-9+.-]*://[^/@]*:[^/@]*@", re.IGNORECASE)
"""In a web address even a name alone may be a token. In `abfss://container@account` it is none."""
_SIGNED = re.compile(
    r"[?&][^=&]*(?:signature|credential|password|secret|token|sig|key)[^=&]*=", re.IGNORECASE
)


_REPLACES = re.compile(r"(s3a?|gs|gcs|abfss?)://", re.IGNORECASE)
_ONE_SLASH = re.compile(r"(s3a?|gs|gcs|abfss?|hdfs):/(?!/)(.*)", re.IGNORECASE | re.DOTALL)
"""An address of an object store without its second slash."""


def refuse_one_slash(text: str) -> None:
    """Raise ValueError for `s3:/bucket/x`, which would be taken as the path `./s3:/bucket/x`."""
    if match := _ONE_SLASH.match(text):
        scheme = match[1].lower()
        meant = f"{scheme}://{match[2]}"
        if shows_secret(meant):
            meant = f"{scheme}://BUCKET/KEY"
        elif scheme == "hdfs":
            # Hadoop's `hdfs:/user/x` names no host: the path is at the default name node.
            meant = f"hdfs:///{match[2]}"
        raise ValueError(f"an address has two slashes after its scheme: did you mean {meant}?")


def is_address(text: str) -> bool:
    """Whether a text is an address such as `s3://bucket/key`, and not a path."""
    return re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", text) is not None


def replaces_at_once(address: str) -> bool:
    """Whether an object at an address is replaced in one request: readers see the old or the new.

    HDFS and fsspec truncate the old one first.
    """
    return _REPLACES.match(address) is not None


def shows_secret(address: str) -> bool:
    """Whether an address contains a password, a key or a signature."""
    return bool(_PASSWORD.match(address) or _SIGNED.search(address))


def local_path(text: str) -> str:
    """Return a path as it is.

    Raises ValueError for an address: `s3://b/x` would be taken as `./s3:/b/x`.
    """
    refuse_one_slash(text)
    if is_address(text):
        raise ValueError(
            f"{text!r} is an address, but only paths are supported;"
            " mount the storage and name its path"
        )
    return text


def path_or_address(text: str) -> str:
    """Return a path or an address as it is.

    Raises ValueError for an address that only one process knows, or that contains a secret: the
    job's files and logs would show it.
    """
    refuse_one_slash(text)
    if is_address(text):
        if shows_secret(text):
            raise ValueError(
                "the address contains a password, key or signature; give credentials by the"
                " environment or a mounted file"
            )
        if text.lower().startswith("memory://"):
            raise ValueError(
                f"{text!r} is memory of one process, which no other process of the job can read"
            )
    return text


def only_address(text: str) -> str:
    """Return an address, or '', as it is. Raises ValueError for a path."""
    if text and not is_address(text):
        raise ValueError(
            f"{text!r} is a path, but an address such as s3://bucket/key is expected; checkpoints"
            " on disk are in --job-dir"
        )
    return text


def place_of_job(text: str) -> str:
    """Return a path, or an address of a folder, as it is. Raises ValueError."""
    inside = text.partition("://")[2].strip("/")
    if is_address(text) and (not inside or "//" in inside):
        raise ValueError(
            f"{text!r} has an empty part, but an address such as s3://bucket/jobs/name is expected"
        )
    return text


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

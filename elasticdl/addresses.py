"""Addresses of objects in stores: which text is one, and what it may contain.

`SCHEMES` is the table of what pyarrow opens itself; `storage` opens all other addresses by fsspec.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import final


@final
@dataclass(frozen=True, slots=True)
class Scheme:
    """`system` is the scheme by which pyarrow knows it.

    `replaces`: one request replaces an object, so readers see the old or the new one.
    """

    system: str
    replaces: bool = True


SCHEMES: Mapping[str, Scheme] = {
    "s3": Scheme("s3"),
    "s3a": Scheme("s3"),
    "gs": Scheme("gs"),
    "gcs": Scheme("gs"),
    "abfs": Scheme("abfs"),
    "abfss": Scheme("abfss"),
    # It truncates the old object first, as fsspec does.
    "hdfs": Scheme("hdfs", replaces=False),
}
_ONE_SLASH = re.compile(rf"({'|'.join(SCHEMES)}):/(?!/)(.*)", re.IGNORECASE | re.DOTALL)
"""An address of an object store without its second slash."""
_PASSWORD = re.compile(r"https?://[^/@]*@|[a-z][a-z0-9+.-]*://[^/@]*:[^/@]*@", re.IGNORECASE)
"""In a web address even a name alone may be a token. In `abfss://container@account` it is none."""
_SIGNED = re.compile(
    r"[?&][^=&]*(?:signature|credential|password|secret|token|sig|key)[^=&]*=", re.IGNORECASE
)


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
    """Whether an object there is replaced in one request: readers see the old or the new."""
    scheme, mark, _ = address.partition("://")
    entry = SCHEMES.get(scheme.lower()) if mark else None
    return entry is not None and entry.replaces


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

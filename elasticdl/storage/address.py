"""Addresses of objects: their parts, and which ones are refused."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import final

_PARTS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/]*)/*(.*)", re.DOTALL)


@final
@dataclass(frozen=True, slots=True)
class Address:
    """`scheme://host/key`; `key` has no leading or trailing slash.

    `host` is a bucket, `container@account…`, or the host and port of a name node.
    """

    scheme: str
    host: str
    key: str

    @property
    def root(self) -> str:
        """The address without its key."""
        return f"{self.scheme}://{self.host}"

    @property
    def name(self) -> str:
        """The last part of the key."""
        return self.key.rpartition("/")[2]

    def __str__(self) -> str:
        return f"{self.root}/{self.key}"


def parse(text: str) -> Address:
    """The parts of an address. Raises ValueError if it is none."""
    match = _PARTS.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not an address such as s3://bucket/key")
    return Address(match[1].lower(), match[2], match[3].rstrip("/"))


def below(address: str, *names: str) -> str:
    """The address of what has these names below another one."""
    return "/".join((address.rstrip("/"), *names))

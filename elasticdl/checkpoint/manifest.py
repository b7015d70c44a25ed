"""The manifest of a checkpoint: its version, its files and the data ledger. Pure."""

from __future__ import annotations

import re

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from elasticdl.embedding.spec import ParametersSpec
from elasticdl.errors import Corrupted

FORMAT = 1
_LINK = re.compile(r"^link-\d+-")


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


def checksum_of(crc: int) -> str:
    """The text of a CRC-32C: `crc32c:` and 8 hex digits."""
    return f"crc32c:{crc:08x}"


class PartFile(_Frozen):
    """One server's file: its name, its size and its checksum (`crc32c:` and 8 hex digits)."""

    name: str = Field(pattern=r"^[A-Za-z0-9._-]+$")
    bytes: int = Field(ge=0)
    checksum: str = Field(pattern=r"^crc32c:[0-9a-f]{8}$")


MOST_DELTAS = 16
MOST_SHARE = 1.0
"""A chain ends after so many deltas, or once they have this share of the base's bytes.

So a restore reads at most about three times the bytes of a full checkpoint.
"""


class Link(_Frozen):
    """An earlier checkpoint of a chain. Its `files` are in the directory under these names."""

    version: int = Field(ge=0, le=2**62)
    files: tuple[PartFile, ...]

    @property
    def bytes(self) -> int:
        """Size of its parts."""
        return sum(file.bytes for file in self.files)


class Manifest(_Frozen):
    """One cut of all state. `ledger` is the data ledger as JSON, written by the master's core.

    `files` are what this checkpoint wrote. A delta has in `links` the checkpoints before it, the
    full one first: rows that are not in its own files are as the last link that has them says.
    """

    format: int = FORMAT
    version: int = Field(ge=0, le=2**62)
    servers: int = Field(ge=0, le=2**31)
    """Servers that wrote it.

    0: a ring, which has its whole state in one file and no `parameters`.
    """
    parameters: ParametersSpec | None
    files: tuple[PartFile, ...]
    links: tuple[Link, ...] = ()
    rows: int = Field(default=0, ge=0)
    ledger: str = ""
    wall_s: float = 0.0

    @property
    def bytes(self) -> int:
        """Size of what this checkpoint wrote."""
        return sum(file.bytes for file in self.files)

    @property
    def chain(self) -> tuple[Link, ...]:
        """All checkpoints that it consists of, the full one first; the last is this one."""
        return (*self.links, Link(version=self.version, files=self.files))

    @property
    def all_files(self) -> tuple[PartFile, ...]:
        """The files of the whole chain."""
        return tuple(file for link in self.chain for file in link.files)

    def as_json(self) -> str:
        """The text of the manifest's file."""
        # Releases before deltas read the manifest of a full checkpoint.
        return self.model_dump_json(indent=1, exclude=None if self.links else {"links"})

    @property
    def chain_ends(self) -> bool:
        """Whether the next checkpoint should be a full one."""
        base, *deltas = self.chain
        too_much = sum(link.bytes for link in deltas) >= MOST_SHARE * base.bytes
        return len(deltas) >= MOST_DELTAS or bool(deltas and too_much)

    @property
    def as_base(self) -> tuple[Link, ...]:
        """The links that a delta of this checkpoint has; none for a ring's checkpoint."""
        if self.parameters is None:
            return ()
        number = len(self.links)
        renamed = (
            file.model_copy(update={"name": link_name(number, file.name)}) for file in self.files
        )
        return (*self.links, Link(version=self.version, files=tuple(renamed)))


def link_name(number: int, name: str) -> str:
    """The name that a file of link `number` has in the directories of later checkpoints."""
    return f"link-{number}-{name}"


def name_when_written(name: str) -> str:
    """The name that a file had in the directory of the checkpoint that wrote it."""
    return _LINK.sub("", name)


def parse_manifest(text: str, where: str) -> Manifest:
    """Parse a manifest. Raises Corrupted that names `where` and the first problem."""
    try:
        manifest = Manifest.model_validate_json(text)
    except ValidationError as error:
        raise corrupted(f"{where}: manifest", error) from error
    if manifest.format != FORMAT:
        raise Corrupted(
            f"{where}: the format is {manifest.format}, this version reads format {FORMAT}"
        )
    return manifest


def corrupted(where: str, error: ValidationError) -> Corrupted:
    """The error of a file whose JSON, at `where`, is wrong: it names the first problem."""
    problem = error.errors()[0]
    place = ".".join(map(str, problem["loc"]))
    return Corrupted(": ".join(filter(None, [where, place, problem["msg"]])))

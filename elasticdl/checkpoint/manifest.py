"""The manifest of a checkpoint: its version, its files and the data ledger. Pure."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from elasticdl.embedding.spec import ParametersSpec
from elasticdl.errors import Corrupted

FORMAT = 1


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class PartFile(_Frozen):
    """One server's file: its name, its size and its checksum (`crc32c:` and 8 hex digits)."""

    name: str = Field(pattern=r"^[A-Za-z0-9._-]+$")
    bytes: int = Field(ge=0)
    checksum: str = Field(pattern=r"^crc32c:[0-9a-f]{8}$")


class Manifest(_Frozen):
    """One cut of all state. `ledger` is the data ledger as JSON, written by the master's core."""

    format: int = FORMAT
    version: int = Field(ge=0, le=2**62)
    servers: int = Field(ge=0, le=2**31)
    """Servers that wrote it.

    0: a ring, which has its whole state in one file and no `parameters`.
    """
    parameters: ParametersSpec | None
    files: tuple[PartFile, ...]
    rows: int = Field(default=0, ge=0)
    ledger: str = ""
    wall_s: float = 0.0

    @property
    def bytes(self) -> int:
        """Size of all parts."""
        return sum(file.bytes for file in self.files)


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

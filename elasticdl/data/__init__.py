"""Records: where they are, how they form shards, how a shard is read.

It does not import TensorFlow.

`base.Reader` is the protocol. `formats.open_reader` makes a Reader from a path,
`custom.open_custom_reader` from the user's own reader.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from elasticdl.data.base import Block, Metadata, Reader, Records
    from elasticdl.data.custom import open_custom_reader
    from elasticdl.data.formats import open_reader

__all__ = ["Block", "Metadata", "Reader", "Records", "open_custom_reader", "open_reader"]

_HOMES = {"open_custom_reader": "custom", "open_reader": "formats"}


def __getattr__(name: str) -> object:
    """Import on first use: the master lists files, and needs neither NumPy nor any reader."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES.get(name, 'base')}"), name)

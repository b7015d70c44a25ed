"""Records: where they are, how they form shards, how a shard is read.

It does not import TensorFlow.

`base.Reader` is the protocol. `formats.open_reader` makes a Reader from a path,
`custom.open_custom_reader` from the user's own reader.
"""

from elasticdl.data.base import Block, Metadata, Reader, Records
from elasticdl.data.custom import open_custom_reader
from elasticdl.data.formats import open_reader

__all__ = ["Block", "Metadata", "Reader", "Records", "open_custom_reader", "open_reader"]

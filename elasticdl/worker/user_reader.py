"""A reader that a user wrote, behind a border: what it raises names the user's file and line."""

from __future__ import annotations

from collections.abc import Iterator
from typing import final

from elasticdl.data.base import Block, Metadata, Reader
from elasticdl.model.usercode import user_code
from elasticdl.shard import Shard, Source


@final
class UserReader:
    """A `Reader` around another one. Raises UserError for anything that the inner one raises."""

    def __init__(self, inner: Reader, zoo: str) -> None:
        self._inner = inner
        self._zoo = zoo

    @property
    def metadata(self) -> Metadata:
        """See `Reader`."""
        with user_code("the reader's metadata", self._zoo):
            return self._inner.metadata

    def sources(self) -> tuple[Source, ...]:
        """See `Reader`."""
        with user_code("the reader's sources", self._zoo):
            return self._inner.sources()

    def read(self, shard: Shard) -> Iterator[Block]:
        """See `Reader`."""
        with user_code("reading a shard", self._zoo):
            yield from self._inner.read(shard)

    def close(self) -> None:
        """See `Reader`."""
        with user_code("closing the reader", self._zoo):
            self._inner.close()

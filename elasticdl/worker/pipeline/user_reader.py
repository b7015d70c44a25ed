"""A user's reader whose errors name the user's file and line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import final

from elasticdl.data.base import Block, Metadata, Reader
from elasticdl.data.custom import AdaptedReader
from elasticdl.data.files import DataChanged
from elasticdl.data.places import place_of
from elasticdl.formatting import amount
from elasticdl.model.usercode import user_code
from elasticdl.shard import Shard, Source, same_data


@final
class UserReader:
    """A `Reader` around another one; raises UserError for anything that the inner one raises.

    Once, before anything is read, it compares the sources with those `counted` before the job, if
    they have fingerprints or if that costs no pass over the data.
    """

    def __init__(self, inner: Reader, zoo: str, counted: Sequence[Source] = ()) -> None:
        self._inner = inner
        self._zoo = zoo
        cheap = isinstance(inner, AdaptedReader) or any(source.fingerprint for source in counted)
        # Training and validation data may have tables of the same name in two databases.
        self._counted = tuple(counted) if cheap else ()

    @property
    def metadata(self) -> Metadata:
        with user_code("the reader's metadata", self._zoo):
            return self._inner.metadata

    def sources(self) -> tuple[Source, ...]:
        with user_code("the reader's sources", self._zoo):
            return self._inner.sources()

    def read(self, shard: Shard) -> Iterator[Block]:
        self._compare()
        with user_code("reading a shard", self._zoo):
            yield from self._inner.read(shard)

    def place(self, source: str, number: int) -> str:
        """Where a record is, for people."""
        with user_code("the reader's place", self._zoo):
            return place_of(self._inner, source, number)

    def close(self) -> None:
        with user_code("closing the reader", self._zoo):
            self._inner.close()

    def _compare(self) -> None:
        counted, self._counted = self._counted, ()
        for now in self.sources() if counted else ():
            then = [source for source in counted if source.name == now.name]
            if then and not any(same_data(now, source_then) for source_then in then):
                raise DataChanged(
                    f"the data changed since its records were counted: {now.name} had"
                    f" {' or '.join(map(_facts, then))}, now {_facts(now)}",
                    hint="do not change the data while a job runs",
                )


def _facts(source: Source) -> str:
    return amount(source.records, "record") + (
        f" (fingerprint {source.fingerprint})" if source.fingerprint else ""
    )

"""A Reader over files of one format; each file is a source."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeAlias, final

from elasticdl.data.base import Block, Metadata
from elasticdl.data.files import DataChanged, DataFile, check_as_counted, with_digest
from elasticdl.data.origins import look_at_all
from elasticdl.errors import UserError
from elasticdl.formatting import amount
from elasticdl.shard import Shard, Source

FILES_AT_ONCE = 32
"""Of small files, each of which takes about as long as a thread costs."""

Counting: TypeAlias = Callable[[int, int], None]
"""Receives (files counted, files in all)."""


class FileFormat(Protocol):
    """How records are stored in one file.

    Threads may call `metadata` and `count` concurrently for different files.
    """

    def metadata(self, file: DataFile) -> Metadata:
        """Names and types of the columns of this file."""

    def count(self, file: DataFile) -> int:
        """Number of records in the file, including bad ones.

        Raises UserError if the file is incomplete.
        """

    def bad(self, file: DataFile) -> tuple[int, tuple[str, ...]]:
        """(bad records known before they are read, descriptions of up to three of them)."""

    def blocks(self, file: DataFile, begin: int, end: int) -> Iterator[Block]:
        """Records [begin, end), which must exist."""

    def place(self, file: DataFile, number: int) -> str:
        """Where a record is, for people, with line or offset if the format has them."""


@final
class FileReader:
    """Reader over `paths`, all of one format. It inspects a file once, at its first use.

    Raises DataChanged for a file that changed since its records were `counted`.
    """

    def __init__(
        self,
        paths: Sequence[str],
        form: FileFormat,
        *,
        max_bad_records: int = 0,
        counted: Mapping[str, Source] | None = None,
        counting: Counting = lambda done, files: None,
        files_at_once: int = FILES_AT_ONCE,
    ) -> None:
        """`sources` calls `counting` with the number of counted files, and of all files.

        It does so after each `files_at_once`, which one thread counts.
        """
        self._paths = dict.fromkeys(paths)
        self._first = paths[0]
        self._format = form
        self._max_bad_records = max_bad_records
        self._counted = counted or {}
        self._counting = counting
        self._files_at_once = files_at_once
        self._files: dict[str, DataFile] = {}
        self._metadata: Metadata | None = None

    @property
    def metadata(self) -> Metadata:
        """Names and dtypes of the columns, from the first file."""
        if self._metadata is None:
            self._metadata = self._format.metadata(self._file(self._first))
        return self._metadata

    def sources(self) -> tuple[Source, ...]:
        """One source for each file.

        Raises:
            UserError: a file is missing, empty or broken, the files have different columns, or more
                than `max_bad_records` records are already known to be bad.
        """
        if all(path in self._counted for path in self._paths):
            # The check has counted them; `read` compares each file when it opens it.
            return tuple(self._counted[path] for path in self._paths)
        files = self._look_at(list(self._paths))
        digested = with_digest(files)
        self._metadata = self.metadata  # the threads below compare with it
        parts = [
            slice(begin, begin + self._files_at_once)
            for begin in range(0, len(files), self._files_at_once)
        ]
        counted: list[Source] = []
        with ThreadPoolExecutor(min(8, len(parts), os.cpu_count() or 1)) as pool:
            for batch in pool.map(
                self._count, (files[part] for part in parts), (digested[part] for part in parts)
            ):
                counted += batch
                self._counting(len(counted), len(files))
        self._check_bad(files)
        return tuple(counted)

    def _count(self, files: Sequence[DataFile], digested: Sequence[bool]) -> list[Source]:
        sources = []
        for file, digest in zip(files, digested, strict=True):
            self._check_columns(file)
            count = self._format.count(file)
            if count == 0:
                raise UserError(
                    f"{file.path} has no records", hint="remove it, or write records into it"
                )
            sources.append(
                Source(file.path, count, file.full_fingerprint() if digest else file.fingerprint)
            )
        return sources

    def read(self, shard: Shard) -> Iterator[Block]:
        if shard.source not in self._paths:
            raise DataChanged(
                f"source {shard.source} is no longer in the data",
                hint="keep all files in place while a job runs",
            )
        file = self._file(shard.source)
        file.check_unchanged()
        records = self._format.count(file)
        if not 0 <= shard.begin <= shard.end <= records:
            raise DataChanged(
                f"{file.path} changed: it has {amount(records, 'record')}, but a shard has records"
                f" {shard.begin} to {shard.end}"
            )
        for block in self._format.blocks(file, shard.begin, shard.end):
            file.check_unchanged()
            yield block

    def place(self, source: str, number: int) -> str:
        """Where a record of a source is, for people."""
        return self._format.place(self._file(source), number)

    def close(self) -> None:
        """Do nothing: no file stays open between reads."""

    def _file(self, path: str) -> DataFile:
        return self._look_at([path])[0]

    def _look_at(self, paths: Sequence[str]) -> list[DataFile]:
        unseen = [path for path in paths if path not in self._files]
        for path, file in zip(unseen, look_at_all(unseen), strict=True):
            if path in self._counted:
                check_as_counted([file], self._counted[path])
            self._files[path] = file
        return [self._files[path] for path in paths]

    def _check_columns(self, file: DataFile) -> None:
        mine = self._format.metadata(file)
        if mine != self.metadata:
            raise UserError(
                f"{file.path} has other columns than {self._first}: {_described(mine)}, expected"
                f" {_described(self.metadata)}",
                hint="give all files of a data set the same columns in the same order",
            )

    def _check_bad(self, files: Sequence[DataFile]) -> None:
        bad_by_file = [self._format.bad(file) for file in files]
        total = sum(count for count, _ in bad_by_file)
        if total > self._max_bad_records:
            first = next(examples[0] for count, examples in bad_by_file if count)
            raise UserError(
                f"{first}\n{amount(total, 'bad record')} in the data, at most"
                f" {self._max_bad_records} allowed",
                hint="correct the data, or skip such records with --max-bad-records",
            )


def _described(metadata: Metadata) -> str:
    names = metadata.column_names
    return (
        ", ".join(f"{name} {metadata.column_dtypes.get(name, '')}".strip() for name in names)
        or "no names"
    )

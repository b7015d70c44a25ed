"""Tables and views of SQLite databases: records are columns; see `arrow_values` for their types.

Records are numbered in the order of a key, so a shard is a range of keys. A block is one query that
begins at a known key: SQLite finds it in its index, and reads no row of other shards.

The database is opened as immutable: nothing is locked, and no file is made beside it. So a database
with a journal of a writer is refused, and a file that changes is an error, as in other formats.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any, final
from urllib.parse import quote

import pyarrow as pa

from elasticdl.data.arrow_tables import block_of, chosen_columns, metadata_of_schema
from elasticdl.data.base import Block, Metadata
from elasticdl.data.files import (
    DataChanged,
    check_as_counted,
    check_within,
    fingerprints,
    look_at_path,
)
from elasticdl.data.record_index import BLOCK_RECORDS
from elasticdl.data.sql_address import SqliteAddress
from elasticdl.data.table_keys import (
    TableKeys,
    TableParams,
    fences_query,
    quoted,
    without_gaps,
)
from elasticdl.errors import UserError
from elasticdl.formatting import amount
from elasticdl.shard import Shard, Source

_ROWID = "_rowid_"
_BY_STORAGE: dict[bytes, pa.DataType] = {b"integer": pa.int64(), b"real": pa.float64()}


@final
class SqliteReader:
    """Reader of one table, by the rowid without a key; see Reader.

    Raises DataChanged if it is not as it was `counted`.
    """

    def __init__(
        self,
        address: SqliteAddress,
        params: TableParams,
        counted: Mapping[str, Source] | None = None,
    ) -> None:
        self._path = address.path
        self._file = look_at_path(address.path)
        self._refuse_writers()
        with self._opened() as database:
            self._table = address.table or self._only_table(database)
            self._name = str(SqliteAddress(address.path, self._table))
            schema = self._schema(database, params)
        self._columns = chosen_columns(schema, params.columns, self._name)
        self._schema_chosen = pa.schema([schema.field(name) for name in self._columns])
        self._key = quoted(params.key) if params.key else _ROWID
        self._fill_null = params.fill_null
        self._keys: TableKeys | None = None
        self._source = (counted or {}).get(self._name)
        if self._source is not None:
            check_as_counted([self._file], self._source)

    @property
    def metadata(self) -> Metadata:
        return metadata_of_schema(self._schema_chosen, self._columns, {}, self._name)

    def sources(self) -> tuple[Source, ...]:
        """The table with its number of records. Raises UserError if keys are missing or repeat."""
        if self._source is None:
            records = self._count()
            self._source = Source(self._name, records, "+".join(fingerprints([self._file])))
        return (self._source,)

    def read(self, shard: Shard) -> Iterator[Block]:
        (source,) = self.sources()
        check_within(source, shard)
        self._file.check_unchanged()
        keys = self._known_keys(source.records)
        with self._opened() as database:
            begin = shard.begin
            while begin < shard.end:
                key, skip = keys.at(begin)
                count = min(BLOCK_RECORDS - skip, shard.end - begin)
                rows = self._rows(database, key, skip, count)
                self._file.check_unchanged()
                if len(rows) != count:
                    raise DataChanged(
                        f"{self._name} changed: it has {amount(len(rows), 'record')} from record"
                        f" {begin} on, expected {count}"
                    )
                yield self._block(rows, begin)
                begin += count

    def place(self, source: str, number: int) -> str:
        """The key of a record."""
        key, skip = self._known_keys(self.sources()[0].records).at(number)
        with self._opened() as database:
            ((value,),) = database.execute(
                f"SELECT {self._key} {self._after_key} LIMIT 1 OFFSET ?", (key, skip)
            )
        shown = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
        return f"{self._name}: {'rowid' if self._key == _ROWID else self._key} {shown}"

    def close(self) -> None:
        """Do nothing: the database stays open within a shard only."""

    @property
    def _after_key(self) -> str:
        return f"FROM {quoted(self._table)} WHERE {self._key} >= ? ORDER BY {self._key}"

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        """Raises UserError for what SQLite refuses within the block."""
        try:
            with closing(
                sqlite3.connect(
                    f"file:{quote(os.path.abspath(self._path))}?mode=ro&immutable=1",
                    uri=True,
                    check_same_thread=False,
                )
            ) as database:
                # Text may not be UTF-8, which concerns the record and not the reader.
                database.text_factory = bytes
                yield database
        except sqlite3.Error as error:
            raise UserError(
                f"{self._path}: SQLite refuses it: {error}",
                hint="check the file with: sqlite3 FILE 'PRAGMA integrity_check'",
            ) from error

    def _refuse_writers(self) -> None:
        for journal in (f"{self._path}-wal", f"{self._path}-journal"):
            if os.path.exists(journal) and os.path.getsize(journal):
                raise UserError(
                    f"{journal} has changes that are not in the database yet",
                    hint="end the program that writes it, or open and close it with sqlite3",
                )

    def _only_table(self, database: sqlite3.Connection) -> str:
        names = [
            name.decode()
            for (name,) in database.execute(
                "SELECT name FROM sqlite_master WHERE type IN ('table', 'view')"
                " AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' ORDER BY name"
            )
        ]
        if len(names) != 1:
            raise UserError(
                f"{self._path} has {amount(len(names), 'table')}: {', '.join(names) or 'none'}",
                hint=f"name one: sqlite:///{self._path}?table=NAME",
            )
        return str(names[0])

    def _schema(self, database: sqlite3.Connection, params: TableParams) -> pa.Schema:
        """The columns that are asked for, or all, with their types."""
        table = quoted(self._table)
        declared = {
            name.decode(): kind.decode().upper()
            for _, name, kind, *_ in database.execute(f"PRAGMA table_info({table})")
        }
        if not declared:
            raise UserError(f"{self._path} has no table or view {self._table!r}")
        # SQLite takes an unknown name in quotes for a text.
        for name in (*params.columns, *filter(None, [params.key])):
            if name not in declared:
                raise UserError(
                    f"{self._name} has no column {name!r}; available: {', '.join(declared)}"
                )
        names = params.columns or tuple(declared)
        row = database.execute(
            f"SELECT {', '.join(f'typeof({quoted(name)})' for name in names)} FROM {table} LIMIT 1"
        ).fetchone() or [b"null"] * len(names)
        return pa.schema(
            [
                (name, self._arrow_type(name, declared[name], storage))
                for name, storage in zip(names, row, strict=True)
            ]
        )

    def _arrow_type(self, name: str, declared: str, storage: bytes) -> pa.DataType:
        """Apply SQLite's rules of affinity; use the first value if a declaration says little."""
        if "INT" in declared or "BOOL" in declared:
            return pa.int64()
        if any(part in declared for part in ("CHAR", "CLOB", "TEXT", "BLOB")):
            return pa.large_binary()
        if any(part in declared for part in ("REAL", "FLOA", "DOUB", "NUM", "DEC")):
            return pa.float64()
        if storage == b"null":
            raise UserError(
                f"{self._name}: column {name!r} is declared as {declared or 'nothing'}, and its"
                " first value is null, so its type is unknown",
                hint="name the other columns with columns=a,b in --data-reader-params",
            )
        return _BY_STORAGE.get(storage, pa.large_binary())

    def _count(self) -> int:
        with self._opened() as database:
            table = quoted(self._table)
            # Some builds of SQLite give views a rowid of null.
            if self._one(database, f"SELECT {self._key} FROM {table} LIMIT 1") == (None,):
                raise self._unordered()
            (records,) = self._one(database, f"SELECT COUNT(*) FROM {table}")
            if self._key != _ROWID:
                (distinct,) = self._one(
                    database, f"SELECT COUNT(DISTINCT {self._key}) FROM {table}"
                )
                if distinct != records:
                    raise UserError(
                        f"{self._name}: key {self._key} is null or not unique:"
                        f" {amount(distinct, 'value')} in {amount(records, 'record')}",
                        hint="name a column that is different in each record with key=NAME",
                    )
        if records == 0:
            raise UserError(f"{self._name} has no records")
        return int(records)

    def _one(self, database: sqlite3.Connection, query: str) -> Any:  # noqa: ANN401 - SQL's values
        try:
            return database.execute(query).fetchone()
        except sqlite3.OperationalError as error:
            if _ROWID not in str(error):
                raise
            raise self._unordered() from error

    def _unordered(self) -> UserError:
        return UserError(
            f"{self._name} is a view or a table without rowid, or its key is null",
            hint='name a unique column that orders it: --data-reader-params "key=NAME"',
        )

    def _known_keys(self, records: int) -> TableKeys:
        if self._keys is None:
            table = quoted(self._table)
            with self._opened() as database:
                # Keys go back into queries, where bytes would be a BLOB.
                database.text_factory = str
                first, last = self._one(
                    database, f"SELECT MIN({self._key}), MAX({self._key}) FROM {table}"
                )
                if without_gaps(first, last, records):
                    self._keys = TableKeys(records, first, None)
                else:
                    query = fences_query(self._key, table)
                    fences = [key for (key,) in database.execute(query)]
                    self._keys = TableKeys(records, first, fences)
        return self._keys

    def _rows(
        self,
        database: sqlite3.Connection,
        key: Any,  # noqa: ANN401 - SQL's values
        skip: int,
        count: int,
    ) -> list[tuple[Any, ...]]:
        names = ", ".join(map(quoted, self._columns))
        return database.execute(
            f"SELECT {names} {self._after_key} LIMIT ? OFFSET ?", (key, count, skip)
        ).fetchall()

    def _block(self, rows: list[tuple[Any, ...]], first: int) -> Block:
        fields = list(self._schema_chosen)
        wrong: dict[int, str] = {}
        for field, values in zip(fields, zip(*rows, strict=True), strict=True):
            if _array(values, field.type) is None:
                for row, value in enumerate(values):
                    if row not in wrong and _array((value,), field.type) is None:
                        wrong[row] = f"column {field.name!r} has {value!r}, expected {field.type}"
        good = [row for row in range(len(rows)) if row not in wrong]
        table = pa.table(
            [
                _array([rows[row][number] for row in good], field.type)
                for number, field in enumerate(fields)
            ],
            schema=self._schema_chosen,
        )
        block = block_of(
            table, {}, self._fill_null, lambda row: self.place(self._name, first + good[row])
        )
        examples = [
            f"{self.place(self._name, first + row)}: {why}" for row, why in list(wrong.items())[:3]
        ]
        return Block(
            block.records, len(rows), block.bad + len(wrong), (*examples, *block.bad_examples)[:3]
        )


def _array(values: Sequence[Any], kind: pa.DataType) -> pa.Array[Any] | None:
    """The values as an array; None if one has another type."""
    if kind == pa.float64():
        # Large integers, which Arrow would not round.
        values = [float(value) if isinstance(value, int) else value for value in values]
    try:
        return pa.array(values, kind)
    except (pa.ArrowException, TypeError, OverflowError):
        return None

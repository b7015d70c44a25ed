"""Tables and views of databases with an ADBC driver; see `arrow_values` for the types of columns.

Records are numbered in the order of a unique key, so a shard is a range of keys. A block is one
query that begins at a known key. No more is in memory: some drivers hold the whole result of a
query.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from importlib.util import find_spec
from typing import Any, TypeAlias, TypeVar, final

import pyarrow as pa

from elasticdl.data.arrow_tables import block_of, chosen_columns, metadata_of_schema
from elasticdl.data.arrow_values import is_list
from elasticdl.data.base import Block, Metadata
from elasticdl.data.files import DataChanged, check_within
from elasticdl.data.record_index import BLOCK_RECORDS
from elasticdl.data.sql_address import DUCKDB, POSTGRESQL, SqlAddress, with_deadlines
from elasticdl.data.table_keys import (
    KeyRange,
    TableKeys,
    TableParams,
    fences_query,
    quoted,
    without_gaps,
)
from elasticdl.errors import TransientError, UserError
from elasticdl.formatting import amount
from elasticdl.shard import Shard, Source
from elasticdl.storage.attempts import RUNNING, STARTING, attempt

T = TypeVar("T")
Connection: TypeAlias = Any
"""A connection of `adbc_driver_manager.dbapi`, which has no types."""

_PACKAGES = {
    DUCKDB: ("adbc_driver_manager", "duckdb"),
    POSTGRESQL: ("adbc_driver_manager", "adbc_driver_postgresql"),
}
_PASSES = ("08", "40", "53", "57P")
"""Beginnings of the SQLSTATEs that repetition mends: connection, conflict, resources, restart."""
_REFUSED_LOGIN = re.compile(
    r"FATAL: +(?:password|role|database|no pg_hba|permission)|no password supplied"
)
"""libpq gives a connection that fails no SQLSTATE. In another language such an error repeats."""
_IN_RANGE = "elasticdl: records in this range"
_LOGIN = (
    "give the processes what the driver reads of the environment, such as PGUSER, PGPASSWORD or"
    " PGPASSFILE"
)


@final
class SqlReader:
    """Reader of one table; see Reader.

    It has a connection while it reads a shard. While a job runs, it repeats a query that the
    network or a restart of the database broke off, and raises TransientError once that has failed
    for 90 seconds. How long a query may take is up to driver and database; see `_connected`.
    """

    def __init__(
        self,
        name: str,
        connect: Callable[[], Connection],
        table: str,
        params: TableParams,
        counted: Mapping[str, Source] | None = None,
    ) -> None:
        """`connect` returns a connection of ADBC's DB-API. `table` is `NAME` or `SCHEMA.NAME`.

        `name` is that of the source, in messages and in the receipt.
        """
        self._name = name
        self._connect = connect
        self._table = ".".join(quoted(part) for part in table.split("."))
        self._source = (counted or {}).get(name)
        self._fill_null = params.fill_null
        if not params.key:
            raise UserError(
                f"{name}: a table needs a key",
                hint='name a unique column that orders it: --data-reader-params "key=NAME"',
            )
        self._key = quoted(params.key)
        self._keys: TableKeys | None = None
        self._connection: Connection | None = None
        with closing(self):
            schema = self._fetched(f"SELECT * FROM {self._table} LIMIT 0").schema
            chosen_columns(schema, [params.key], name)
            self._columns = chosen_columns(schema, params.columns, name)
            self._schema = pa.schema([schema.field(column) for column in self._columns])
            self._lengths = {
                field.name: self._first_length(field.name)
                for field in self._schema
                if is_list(field.type)
            }

    @property
    def metadata(self) -> Metadata:
        return metadata_of_schema(self._schema, self._columns, self._lengths, self._name)

    def sources(self) -> tuple[Source, ...]:
        """The table with its number of records. Raises UserError if keys are missing or repeat."""
        if self._source is None:
            with closing(self):
                ends = self._ends()
                records = self._count(ends[0])
                self._keys, fingerprint = self._look_at_keys(records, ends)
                self._source = Source(self._name, records, fingerprint)
        return (self._source,)

    def read(self, shard: Shard) -> Iterator[Block]:
        (source,) = self.sources()
        check_within(source, shard)
        begin = shard.begin
        with closing(self):
            keys = self._known_keys(source)
            while begin < shard.end:
                count = min(BLOCK_RECORDS - begin % BLOCK_RECORDS, shard.end - begin)
                table = self._records(keys.range(begin, count), begin, count)
                place = partial(self._place, begin)
                yield block_of(table, self._lengths, self._fill_null, place)
                begin += count

    def place(self, source: str, number: int) -> str:
        """The key of a record."""
        with closing(self):
            return self._place(number, 0)

    def _place(self, first: int, row: int) -> str:
        number = first + row
        (source,) = self.sources()
        keys = self._known_keys(source).range(number, 1)
        query = f"SELECT {self._key} AS k {self._within(keys)} LIMIT 1 OFFSET {keys.skip}"
        (value,) = self._fetched(query, keys.ends).column("k").to_pylist()
        return f"{self._name}: {self._key} {value}"

    def close(self) -> None:
        """Close the connection; the next query opens another."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(UserError, ConnectionError), self._errors():
                connection.close()

    def _records(self, keys: KeyRange, begin: int, count: int) -> pa.Table:
        """Raises DataChanged if the range of keys has another number of records than before."""
        names = ", ".join(map(quoted, self._columns))
        if keys.records == count:
            table = self._fetched(f"SELECT {names} {self._within(keys)}", keys.ends)
            rows = table.num_rows
        else:
            # One query for both, so that the count is that of these records.
            table = self._fetched(
                f"SELECT {names}, COUNT(*) OVER () AS {quoted(_IN_RANGE)} {self._within(keys)}"
                f" LIMIT {count} OFFSET {keys.skip}",
                keys.ends,
            )
            counts = table.column(len(self._columns)).to_pylist()
            rows = int(counts[0] or 0) if counts else 0
            table = table.select(range(len(self._columns)))
        if rows != keys.records:
            raise DataChanged(
                f"{self._name} changed: the keys around record {begin} have"
                f" {amount(rows, 'record')}, expected {keys.records}",
                hint="do not change the table while a job runs",
            )
        return table

    def _within(self, keys: KeyRange) -> str:
        return f"FROM {self._table} WHERE {keys.condition(self._key)} ORDER BY {self._key}"

    def _count(self, first: int | str | None) -> int:
        counts = f"COUNT(*) AS records, COUNT(DISTINCT {self._key}) AS keys"
        (row,) = self._fetched(f"SELECT {counts} FROM {self._table}").to_pylist()
        if row["records"] == 0:
            raise UserError(f"{self._name} has no records")
        if row["keys"] != row["records"]:
            raise UserError(
                f"{self._name}: key {self._key} is null or not unique:"
                f" {amount(row['keys'], 'value')} in {amount(row['records'], 'record')}",
                hint="name a column that is different in each record with key=NAME",
            )
        records = int(row["records"])
        if isinstance(first, str):
            query = f"SELECT COUNT(*) AS n FROM {self._table} WHERE {self._key} >= $1"
            rows = int(self._fetched(query, (first,)).column("n").to_pylist()[0] or 0)
            if rows != records:
                # Such as of CHAR(9), which another rule compares with a parameter.
                raise UserError(
                    f"{self._name}: key {self._key} has {amount(rows, 'record')} from its first"
                    f" value {first!r} on, and {amount(records, 'record')} in all",
                    hint="a key has integers or text of the type TEXT or VARCHAR",
                )
        return records

    def _look_at_keys(self, records: int, ends: tuple[Any, Any]) -> tuple[TableKeys, str]:
        """The keys, and a fingerprint by which processes see that they have the same ones."""
        first, last = ends
        if without_gaps(first, last, records):
            return TableKeys(records, first, None), f"{first} to {last}"
        fences = self._fetched(fences_query(self._key, self._table)).column("k").to_pylist()
        digest = hashlib.sha256(repr(fences).encode()).hexdigest()[:16]
        return TableKeys(records, first, fences), f"{first} to {last} ({digest})"

    def _ends(self) -> tuple[Any, Any]:
        ends = f"MIN({self._key}) AS first, MAX({self._key}) AS last"
        (row,) = self._fetched(f"SELECT {ends} FROM {self._table}").to_pylist()
        for value in row.values():
            if not isinstance(value, (int, str, type(None))):
                raise UserError(
                    f"{self._name}: key {self._key} has values such as {value!r}",
                    hint="a key has integers or text",
                )
        return row["first"], row["last"]

    def _known_keys(self, source: Source) -> TableKeys:
        if self._keys is None:
            keys, fingerprint = self._look_at_keys(source.records, self._ends())
            if source.fingerprint != fingerprint:
                raise DataChanged(
                    f"{self._name} changed: it had the keys {source.fingerprint}, now"
                    f" {fingerprint}",
                    hint="do not change the table while a job runs",
                )
            self._keys = keys
        return self._keys

    def _first_length(self, column: str) -> int:
        name = quoted(column)
        query = f"SELECT {name} AS v FROM {self._table} WHERE {name} IS NOT NULL LIMIT 1"
        values: list[Any] = self._fetched(query).column("v").to_pylist()
        return len(values[0]) if values else 0

    def _fetched(self, query: str, values: Sequence[Any] = ()) -> pa.Table:
        return self._attempt(lambda: self._fetched_once(query, values))

    def _fetched_once(self, query: str, values: Sequence[Any]) -> pa.Table:
        """The result of a query. Raises ConnectionError, UserError."""
        try:
            with self._errors():
                if self._connection is None:
                    self._connection = self._connect()
                with closing(self._connection.cursor()) as cursor:
                    cursor.execute(query, values or None)
                    return _plain(cursor.fetch_arrow_table())
        except (OSError, UserError):
            # It may be broken, or in a transaction that has failed.
            self.close()
            raise

    @contextmanager
    def _errors(self) -> Iterator[None]:
        from adbc_driver_manager import Error, OperationalError

        try:
            yield
        except Error as error:
            text = " ".join(str(error).split())
            state = error.sqlstate or ""
            login = state.startswith("28") or (not state and bool(_REFUSED_LOGIN.search(text)))
            # The driver makes most states a ProgrammingError.
            if state.startswith(_PASSES) or (
                isinstance(error, OperationalError) and not state and not login
            ):
                raise ConnectionError(text) from error
            hint = _LOGIN if login else "check the address and the parameters"
            raise UserError(f"{self._name}: the database refuses it: {text}", hint=hint) from error

    def _attempt(self, call: Callable[[], T]) -> T:
        running = self._source is not None
        try:
            return attempt(self._name, "read", call, RUNNING if running else STARTING)
        except TransientError as error:
            # Before anything has started the user waits, and can mend it.
            kind = TransientError if running else UserError
            hint = "check that the database runs and answers from here"
            raise kind(error.message, hint=hint) from error


def open_sql(
    address: SqlAddress, params: TableParams, counted: Mapping[str, Source] | None = None
) -> SqlReader:
    """Open the table of an address. Raises UserError if its driver is not installed."""
    require_driver(address)
    return SqlReader(str(address), lambda: _connected(address), address.table, params, counted)


def require_driver(address: SqlAddress) -> None:
    """Raise UserError if the driver of an address is not installed."""
    packages = _PACKAGES[address.kind]
    if not all(map(find_spec, packages)):
        names = " and ".join(name.replace("_", "-") for name in packages)
        raise UserError(
            f"{address} needs the packages {names}, which are not installed",
            hint="pip install 'elasticdl[sql]'",
        )


def _connected(address: SqlAddress) -> Connection:
    if address.kind == DUCKDB:
        from adbc_driver_duckdb import driver_path
        from adbc_driver_manager import dbapi

        # Several processes may read the file at once.
        options = {"path": address.database, "access_mode": "READ_ONLY"}
        return dbapi.connect(
            driver=driver_path(), entrypoint="duckdb_adbc_init", db_kwargs=options, autocommit=True
        )
    from adbc_driver_postgresql import dbapi

    # Otherwise a connection that waits would keep a transaction open.
    return dbapi.connect(with_deadlines(address.database, os.environ), autocommit=True)


def _plain(table: pa.Table) -> pa.Table:
    """Replace values that a driver passes on in its own form: numbers as float64, others as is."""
    for index, field in enumerate(table.schema):
        if isinstance(field.type, pa.BaseExtensionType):
            storage_type: Any = field.type.storage_type
            stored = pa.chunked_array(
                [chunk.storage for chunk in _chunks(table, index)], storage_type
            )
            if getattr(field.type, "type_name", "") == "numeric":
                stored = stored.cast(pa.float64())
            table = table.set_column(index, field.name, stored)
    return table


def _chunks(table: pa.Table, index: int) -> list[Any]:
    return table.column(index).chunks

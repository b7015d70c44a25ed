"""Addresses of tables in databases: `postgresql://HOST/DATABASE?table=NAME` and the like."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import final
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

from elasticdl.data.sqlite_address import is_sqlite
from elasticdl.errors import UserError

POSTGRESQL, DUCKDB = "postgresql", "duckdb"
_FORMS = {
    POSTGRESQL: "postgresql://HOST:PORT/DATABASE?table=SCHEMA.NAME",
    DUCKDB: "duckdb:///PATH?table=NAME, where an absolute path begins with a fourth slash",
}


@final
@dataclass(frozen=True, slots=True)
class SqlAddress:
    """A table or view, `NAME` or `SCHEMA.NAME`, and its database.

    `database` is what a driver connects to: a URI without credentials, or the path of a file.
    """

    kind: str
    database: str
    table: str

    def __str__(self) -> str:
        beginning = f"duckdb:///{self.database}" if self.kind == DUCKDB else self.database
        mark = "&" if "?" in beginning else "?"
        return f"{beginning}{mark}table={quote(self.table)}"

    def absolute(self) -> SqlAddress:
        """The same with an absolute path: processes of a job have directories of their own."""
        if self.kind != DUCKDB:
            return self
        path = os.path.abspath(os.path.expanduser(self.database))
        return SqlAddress(self.kind, path, self.table)


def is_sql(origin: str) -> bool:
    """Whether an address is of a database that is read by a driver."""
    return origin.partition(":")[0] in _FORMS


def is_table(origin: str) -> bool:
    """Whether an address names a table, and no files."""
    return is_sqlite(origin) or is_sql(origin)


def parse_sql(origin: str) -> SqlAddress:
    """The parts of an address. Raises UserError if it has another form."""
    parts = urlsplit(origin)
    options = parse_qsl(parts.query, keep_blank_values=True)
    tables = [value for name, value in options if name == "table"]
    if parts.scheme == DUCKDB:
        fits = not parts.netloc and len(parts.path) > 1 and len(options) == 1
        database = parts.path[1:]
    else:
        # An absent host is a local socket, whose folder an option of the address may name.
        fits = len(parts.path) > 1
        left = urlencode([option for option in options if option[0] != "table"])
        database = urlunsplit((parts.scheme, parts.netloc, parts.path, left, ""))
        # `urlunsplit` leaves out an empty host.
        if not parts.netloc:
            database = database.replace(f"{parts.scheme}:", f"{parts.scheme}://", 1)
    if not fits or len(tables) != 1 or not all(tables[0].split(".")) or parts.fragment:
        raise UserError(
            f"{origin} is not the address of a table", hint=f"expected {_FORMS[parts.scheme]}"
        )
    return SqlAddress(parts.scheme, database, tables[0])

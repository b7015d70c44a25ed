"""Addresses of tables in databases: `postgresql://HOST/DATABASE?table=NAME`, `sqlite:///PATH`."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import final
from urllib.parse import quote, unquote, urlsplit

from elasticdl.errors import UserError

POSTGRESQL, DUCKDB = "postgresql", "duckdb"
_FORMS = {
    POSTGRESQL: "postgresql://HOST:PORT/DATABASE?table=SCHEMA.NAME",
    DUCKDB: "duckdb:///PATH?table=NAME, where an absolute path begins with a fourth slash",
}
_DEADLINES = {
    "connect_timeout": 15,  # s, for each address of the host
    "tcp_user_timeout": 30_000,  # ms without an acknowledgement
    "keepalives_idle": 15,  # s of silence before the first question
    "keepalives_interval": 5,
    "keepalives_count": 3,
}
_SQLITE_FORM = re.compile(r"sqlite:///([^?]+)(?:\?table=(.+))?", re.DOTALL)


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
    """Whether an address names a database that is read by a driver."""
    return origin.partition(":")[0] in _FORMS


def is_duckdb(origin: str) -> bool:
    """Whether an address names a file of DuckDB."""
    return origin.partition(":")[0] == DUCKDB


def is_table(origin: str) -> bool:
    """Whether an address names a table, and no files."""
    return is_sqlite(origin) or is_sql(origin)


def parse_sql(origin: str) -> SqlAddress:
    """The parts of an address. Raises UserError if it has another form."""
    kind = origin.partition(":")[0]
    try:
        parts = urlsplit(origin)
    except ValueError as error:
        raise _other_form(origin, kind) from error
    # As they are written: libpq decodes no "+", which other programs write for a space.
    options = parts.query.split("&") if parts.query else []
    tables = [unquote(option[6:]) for option in options if option.startswith("table=")]
    if kind == DUCKDB:
        fits = not parts.netloc and len(parts.path) > 1 and len(options) == 1
        database = parts.path[1:]
    else:
        # An absent host is a local socket, whose folder an option of the address may name.
        fits = len(parts.path) > 1
        left = "&".join(option for option in options if not option.startswith("table="))
        database = f"{kind}://{parts.netloc}{parts.path}" + (f"?{left}" if left else "")
    if not fits or len(tables) != 1 or not all(tables[0].split(".")) or parts.fragment:
        raise _other_form(origin, kind)
    return SqlAddress(kind, database, tables[0])


def with_deadlines(database: str, environment: Mapping[str, str]) -> str:
    """The URI of a PostgreSQL with limits on a connection that is silent.

    Those that the URI or the environment gives stay.
    """
    beginning, _, query = database.partition("?")
    options = query.split("&") if query else []
    names = {option.partition("=")[0] for option in options}
    if environment.get("PGCONNECT_TIMEOUT"):
        names.add("connect_timeout")
    options += [f"{name}={value}" for name, value in _DEADLINES.items() if name not in names]
    return f"{beginning}?{'&'.join(options)}" if options else beginning


def _other_form(origin: str, kind: str) -> UserError:
    return UserError(f"{origin} is not the address of a table", hint=f"expected {_FORMS[kind]}")


@final
@dataclass(frozen=True, slots=True)
class SqliteAddress:
    """A database file, and a table or view in it; '' is the only one."""

    path: str
    table: str = ""

    def __str__(self) -> str:
        return f"sqlite:///{self.path}" + (f"?table={self.table}" if self.table else "")

    def absolute(self) -> SqliteAddress:
        """The same with an absolute path: processes of a job have directories of their own."""
        return replace(self, path=os.path.abspath(os.path.expanduser(self.path)))


def is_sqlite(origin: str) -> bool:
    """Whether an address names a table of SQLite."""
    return origin.startswith("sqlite:")


def parse_sqlite(origin: str) -> SqliteAddress:
    """The parts of an address of SQLite. Raises UserError if it has another form."""
    match = _SQLITE_FORM.fullmatch(origin)
    if match is None:
        raise UserError(
            f"{origin} is not the address of a table",
            hint="expected sqlite:///PATH?table=NAME; an absolute path begins with a fourth slash",
        )
    return SqliteAddress(match[1], match[2] or "")

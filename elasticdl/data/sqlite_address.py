"""Addresses of tables in SQLite databases: `sqlite:///PATH?table=NAME`."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from typing import final

from elasticdl.errors import UserError

_FORM = re.compile(r"sqlite:///([^?]+)(?:\?table=(.+))?", re.DOTALL)


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
    """Whether an address is of SQLite."""
    return origin.startswith("sqlite:")


def parse_sqlite(origin: str) -> SqliteAddress:
    """The parts of an address. Raises UserError if it has another form."""
    match = _FORM.fullmatch(origin)
    if match is None:
        raise UserError(
            f"{origin} is not the address of a table",
            hint="expected sqlite:///PATH?table=NAME; an absolute path begins with a fourth slash",
        )
    return SqliteAddress(match[1], match[2] or "")

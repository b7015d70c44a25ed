"""The files that an origin names, on the machine or in an object store."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from glob import has_magic

from elasticdl.addresses import is_address
from elasticdl.data.files import DataFile, expand_path, look_at_path
from elasticdl.data.saved_datasets import saved_files
from elasticdl.data.sql_address import is_sql, is_sqlite, parse_sql, parse_sqlite
from elasticdl.errors import UserError

_LOOKS_AT_ONCE = 16


def expand(origin: str, *, running: bool = False) -> tuple[str, ...]:
    """The files that a path, a directory, a glob or an address names, sorted.

    Of a folder that Hugging Face `datasets` saved they are those that it lists, in its order.
    `running`: in a job, which waits longer for a store. Raises UserError if there are none,
    TransientError if the store of a running job does not answer.
    """
    if is_address(origin):
        # Object stores take pyarrow, whose import takes 0.2 s.
        from elasticdl.data.remote_files import expand_address

        paths = expand_address(origin, running=running)
    else:
        paths = expand_path(origin)
    if paths == (origin,) or has_magic(origin):
        return paths
    return saved_files(origin, paths, look_at) or paths


def require(origin: str, flag: str) -> None:
    """Raise UserError if what `flag` names is certainly not there, or its driver is missing."""
    try:
        if is_sqlite(origin):
            look_at_path(parse_sqlite(origin).path)
        elif is_sql(origin):
            # It takes pyarrow, whose import takes 0.2 s.
            from elasticdl.data.sql_tables import require_driver

            require_driver(parse_sql(origin))
        else:
            expand(origin)
    except UserError as error:
        error.message = f"{flag}: {error.message}"
        raise


def look_at(path: str) -> DataFile:
    """The file at a path or an address.

    Raises UserError if it is missing, not a readable file, or empty.
    """
    if is_address(path):
        from elasticdl.data.remote_files import look_at_object

        return look_at_object(path)
    return look_at_path(path)


def look_at_all(paths: Sequence[str]) -> list[DataFile]:
    """`look_at` for each path. Objects are looked at concurrently, since each look takes long."""
    if not any(map(is_address, paths)):
        return [look_at(path) for path in paths]
    with ThreadPoolExecutor(min(_LOOKS_AT_ONCE, len(paths))) as pool:
        return list(pool.map(look_at, paths))

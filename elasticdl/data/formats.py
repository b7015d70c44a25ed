"""Open a Reader of the right format for what the user names: a file, a directory or a glob."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import final

from elasticdl.data.base import Reader
from elasticdl.data.compressed_files import CompressedFormat, is_compressed, name_inside
from elasticdl.data.csv_files import CsvDialect, CsvFormat
from elasticdl.data.file_reader import FILES_AT_ONCE, Counting, FileFormat, FileReader
from elasticdl.data.files import refuse_compressed
from elasticdl.data.origins import expand, look_at
from elasticdl.data.sql_address import is_sqlite, is_table, parse_sql, parse_sqlite
from elasticdl.data.table_keys import TableParams
from elasticdl.data.tfrecord_files import TFRecordFormat
from elasticdl.errors import UserError
from elasticdl.flag_values import Scalar
from elasticdl.shard import Source


class Format(StrEnum):
    """Formats of data files, as `format=` names them."""

    CSV = "csv"
    TFRECORD = "tfrecord"
    PARQUET = "parquet"
    ARROW = "arrow"
    NPZ = "npz"
    NPY = "npy"
    WEBDATASET = "webdataset"


_SUFFIXES = {
    ".csv": Format.CSV,
    ".tsv": Format.CSV,
    ".tfrecord": Format.TFRECORD,
    ".tfrecords": Format.TFRECORD,
    ".parquet": Format.PARQUET,
    ".pq": Format.PARQUET,
    ".arrow": Format.ARROW,
    ".arrows": Format.ARROW,
    ".ipc": Format.ARROW,
    ".feather": Format.ARROW,
    ".npz": Format.NPZ,
    ".npy": Format.NPY,
    ".tar": Format.WEBDATASET,
}
_COMPRESSIBLE = (Format.CSV, Format.TFRECORD)
"""Formats of files that may be compressed as a whole. Others compress their parts."""
_BEGINNINGS = {
    b"PAR1": Format.PARQUET,
    b"ARRO": Format.ARROW,
    b"\xff\xff\xff\xff": Format.ARROW,
    b"PK\3\4": Format.NPZ,
    b"\x93NUM": Format.NPY,
}
_DELIMITERS = {"comma": ",", "tab": "\t", "\\t": "\t", "semicolon": ";", "pipe": "|", "space": " "}
_CSV_PARAMS = ("header", "delimiter", "column_names", "quoting")


@final
class _Params:
    """The user's `--data-reader-params`; each is taken once, and the remaining ones are errors."""

    def __init__(self, params: Mapping[str, Scalar]) -> None:
        self._left = dict(params)
        self._known: list[str] = []

    def flag(self, name: str, default: bool) -> bool:
        value = self._take(name, default)
        if not isinstance(value, bool):
            raise UserError(f"data reader parameter {name}={value!r}: expected true or false")
        return value

    def text(self, name: str) -> str:
        return str(self._take(name, ""))

    def names(self, name: str) -> tuple[str, ...]:
        return tuple(part.strip() for part in self.text(name).split(",") if part.strip())

    def number(self, name: str) -> float | None:
        value = self._take(name, "")
        if value == "":
            return None
        if isinstance(value, (bool, str)):
            raise UserError(f"data reader parameter {name}={value!r}: expected a number")
        return value

    def finish(self, form: str) -> None:
        for name in self._left:
            near = difflib.get_close_matches(name, self._known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(self._known)}"
            raise UserError(f"data of format {form} has no reader parameter {name!r}", hint=hint)

    def _take(self, name: str, default: Scalar) -> Scalar:
        self._known.append(name)
        return self._left.pop(name, default)


def open_reader(
    origin: str,
    params: Mapping[str, Scalar],
    *,
    max_bad_records: int = 0,
    counted: Sequence[Source] = (),
    counting: Counting = lambda done, files: None,
    moving: Callable[[], None] = lambda: None,
) -> Reader:
    """Open the files of one format that `origin` names: a file, a directory or a glob.

    `sqlite:///PATH?table=NAME` names a table, and so do the addresses of `sql_address`.

    `format=` selects the format; otherwise the name or the first bytes do. `sources()` refuses CSV
    files with more than `max_bad_records` bad rows. Other bad records are counted in blocks as they
    are read.

    `counted` are the sources of the job. Files that came later are ignored. A file that differs
    from its state when its records were counted is an error as soon as it is opened. `counting`
    receives the number of files that `sources()` has counted. `moving` is called after each piece
    of a compressed file, in the thread that decompresses it.

    Raises:
        UserError: data does not exist, formats are mixed, or a parameter is unknown.
    """
    sources = {source.name: source for source in counted}
    if is_table(origin):
        return _table_reader(origin, _Params(params), sources)
    present = expand(origin, running=bool(sources))
    paths = tuple(path for path in present if path in sources) or present
    left = _Params(params)
    file_format = _format(
        paths, left.text("format"), csv_params=any(name in params for name in _CSV_PARAMS)
    )
    if file_format is Format.NPY:
        return _npy_reader(origin, present, left, sources.get(origin))
    plain = _file_format(file_format, paths, left)
    left.finish(file_format)
    compressed = file_format in _COMPRESSIBLE and any(map(is_compressed, paths))
    return FileReader(
        paths,
        CompressedFormat(plain, moving) if compressed else plain,
        max_bad_records=max_bad_records,
        counted=sources,
        counting=counting,
        files_at_once=1 if compressed else FILES_AT_ONCE,
    )


def _npy_reader(
    origin: str, present: tuple[str, ...], params: _Params, counted: Source | None
) -> Reader:
    names = params.names("columns")
    params.finish(Format.NPY)
    from elasticdl.data.numpy_files import read_npy

    return read_npy(origin, present, names, counted)


def _table_reader(origin: str, params: _Params, counted: Mapping[str, Source]) -> Reader:
    chosen = TableParams(params.text("key"), params.names("columns"), params.number("fill_null"))
    params.finish(origin.partition(":")[0])
    if is_sqlite(origin):
        from elasticdl.data.sqlite_tables import SqliteReader

        return SqliteReader(parse_sqlite(origin), chosen, counted)
    from elasticdl.data.sql_tables import open_sql

    return open_sql(parse_sql(origin), chosen, counted)


def _file_format(form: Format, paths: tuple[str, ...], params: _Params) -> FileFormat:
    match form:
        case Format.CSV:
            return CsvFormat(_dialect(paths, params))
        case Format.TFRECORD:
            return TFRecordFormat()
        case Format.PARQUET:
            from elasticdl.data.parquet_files import (
                ParquetFormat,
            )  # takes 0.2 s and 40 MB to import

            return ParquetFormat(params.names("columns"), params.number("fill_null"))
        case Format.ARROW:
            from elasticdl.data.arrow_files import ArrowFormat

            return ArrowFormat(params.names("columns"), params.number("fill_null"))
        case Format.NPZ | Format.NPY:
            from elasticdl.data.numpy_files import NpzFormat

            return NpzFormat(params.names("columns"))
        case Format.WEBDATASET:
            from elasticdl.data.tar_files import TarFormat

            return TarFormat(params.names("columns"))


def _dialect(paths: tuple[str, ...], params: _Params) -> CsvDialect:
    option = params.text("delimiter")
    default = "\t" if name_inside(paths[0]).lower().endswith(".tsv") else ","
    delimiter = _DELIMITERS.get(option, option) or default
    if len(delimiter) != 1 or not delimiter.isascii() or delimiter in '"\r\n':
        raise UserError(
            f"delimiter={option!r}: expected one ASCII character or {', '.join(_DELIMITERS)}"
        )
    return CsvDialect(
        delimiter,
        params.flag("header", True),
        params.flag("quoting", True),
        params.names("column_names"),
    )


def _format(paths: tuple[str, ...], name: str, *, csv_params: bool) -> Format:
    if name:
        try:
            return Format(name)
        except ValueError as error:
            raise UserError(
                f"format={name!r} is unknown", hint=f"one of {', '.join(Format)}"
            ) from error
    first_paths: dict[Format, str] = {}
    for path in paths:
        first_paths.setdefault(_format_of(path, csv_params=csv_params), path)
    if len(first_paths) > 1:
        listed = ", ".join(f"{path} is {form}" for form, path in first_paths.items())
        raise UserError(
            f"the data has files of several formats: {listed}",
            hint="select the files of one format with a glob",
        )
    return next(iter(first_paths))


def _format_of(path: str, *, csv_params: bool) -> Format:
    form = _SUFFIXES.get(os.path.splitext(name_inside(path))[1].lower())
    if form is not None and (form in _COMPRESSIBLE or not is_compressed(path)):
        return form
    if csv_params:
        return Format.CSV
    file = look_at(path)
    with file.opened() as opened:
        beginning = opened.read(0, min(12, file.size_bytes))
    refuse_compressed(path, beginning)
    if beginning[:4] in _BEGINNINGS:
        return _BEGINNINGS[beginning[:4]]
    if _begins_like_tfrecord(beginning):
        return Format.TFRECORD
    if beginning.startswith(b"SQLite forma"):
        raise UserError(
            f"{path} is a SQLite database", hint=f"name a table of it: sqlite:///{path}?table=NAME"
        )
    raise UserError(
        f"{path}: unknown data format: neither name nor first bytes identify it",
        hint=f'set --data-reader-params "format=…" to one of {", ".join(Format)}',
    )


def _begins_like_tfrecord(beginning: bytes) -> bool:
    from elasticdl.native._native import crc32c

    crc = crc32c(beginning[:8])
    masked = (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF
    return len(beginning) == 12 and int.from_bytes(beginning[8:], "little") == masked

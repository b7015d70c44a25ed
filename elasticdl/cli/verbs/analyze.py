"""`analyze`: compute statistics of the data's columns."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import click

from elasticdl.cli.job_argument import SETTINGS
from elasticdl.cli.param_types import TEXT, LocalPath
from elasticdl.cli.views.console import put, tell
from elasticdl.errors import SpecError
from elasticdl.private_file import temporary_name

_PROGRESS_EVERY_S = 5.0


@click.command(context_settings=SETTINGS)
@click.argument("data", type=TEXT)
@click.option(
    "--data-reader-params",
    multiple=True,
    metavar="KEY=VALUE",
    help="Parameters of the reader, as for `train`.",
)
@click.option("--columns", default="", metavar="NAME,…", help="Columns to analyze. [all]")
@click.option("--output", type=LocalPath(path_type=Path), help="File to write. [stdout]")
@click.option(
    "--vocabulary-size",
    type=click.IntRange(1),
    default=10_000,
    help="Most frequent values to keep, per column. [10000]",
)
@click.option(
    "--quantiles",
    type=click.IntRange(2, 10_000),
    default=100,
    help="Number of parts with equally many values to find the boundaries of. [100]",
)
@click.option(
    "--max-bad-records",
    type=click.IntRange(0),
    default=0,
    help="Bad records to leave out before it is an error. [0]",
)
@click.option(
    "--processes", type=click.IntRange(1), help="Processes that read the data. [one per CPU]"
)
def analyze(
    data: str,
    data_reader_params: tuple[str, ...],
    columns: str,
    output: Path | None,
    processes: int | None,
    **limits: Any,  # noqa: ANN401 - numbers of the options
) -> None:
    """Compute statistics of the columns of DATA: a file, a directory, a quoted glob or an address.

    Writes JSON with the count, missing values, extremes, mean, variance, quantiles and most
    frequent values of each column. `elasticdl.preprocessing.Statistics` reads it in a model module.
    """
    from elasticdl.addresses import path_or_address
    from elasticdl.data.analysis.run import Analysis
    from elasticdl.data.analysis.run import analyze as run
    from elasticdl.flag_values import parse_params

    try:
        params: Any = parse_params(data_reader_params)
        path_or_address(data)
    except ValueError as error:
        raise SpecError(str(error)) from error
    if output is not None and not output.parent.is_dir():
        # Now, and not after hours of reading.
        raise SpecError(f"--output {output}: there is no directory {output.parent}")
    if output is not None and output.is_dir():
        raise SpecError(f"--output {output} is a directory, expected a file")
    names = tuple(name.strip() for name in columns.split(",") if name.strip())
    result = run(
        Analysis(data, params, names, **limits),
        processes or len(os.sched_getaffinity(0)),
        _Progress().tell,
    )
    text = _json(result)
    if output is None:
        put(text)
        return
    # Whole or not at all: a model may read it meanwhile.
    unfinished = temporary_name(output)
    try:
        unfinished.write_text(text, encoding="utf-8")
        os.replace(unfinished, output)
    finally:
        unfinished.unlink(missing_ok=True)
    tell(f"wrote {output}: {result['records']:,} records, {len(result['columns'])} columns")


class _Progress:
    """Prints how far a long analysis is."""

    def __init__(self) -> None:
        self._told_s = time.monotonic()

    def tell(self, done: int, records: int) -> None:
        if time.monotonic() - self._told_s >= _PROGRESS_EVERY_S:
            self._told_s = time.monotonic()
            tell(f"analyzed {done:,} of {records:,} records")


def _json(result: dict[str, Any]) -> str:
    """A line per column: lists of thousands of values have no use for lines of their own."""
    head = {name: value for name, value in result.items() if name != "columns"}
    lines = [
        f"  {json.dumps(name, ensure_ascii=False)}: {json.dumps(column, ensure_ascii=False)}"
        for name, column in result["columns"].items()
    ]
    begun = json.dumps(head, ensure_ascii=False)[:-1]
    return begun + ', "columns": {\n' + ",\n".join(lines) + "\n}}\n"

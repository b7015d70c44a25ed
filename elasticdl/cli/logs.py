"""`logs`: what a process of a job printed. Names are looked up among what is there, never joined into a path."""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from pathlib import Path
from typing import IO

import click

from elasticdl.cli.finding import find, job_argument, no_such_job
from elasticdl.cli.following import Tail
from elasticdl.cli.progress import plain
from elasticdl.master.files import JobDirectory

_LOOK_EVERY_S = 0.25
_BLOCK_BYTES = 1 << 16


@click.command(context_settings={"token_normalize_func": lambda token: token.replace("_", "-")})
@job_argument
@click.argument("process", required=False, default="")
@click.option("-n", "--lines", type=click.IntRange(min=0), default=200, metavar="N", help="The last lines only; 0: all. [200]")
@click.option("--follow", is_flag=True, help="Go on as it grows, until the job has ended.")
def logs(job: str, job_dir: str, process: str, lines: int, follow: bool) -> None:
    """Print the log of PROCESS (worker-0, ps-1, master-0), or list the logs."""
    if job_dir and job and not process:
        job, process = "", job  # `logs --job-dir D worker-0`
    directory = find(job, job_dir)
    there = {path.stem: path for path in sorted(directory.logs.glob("*.log")) if path.is_file() and not path.is_symlink()}
    if not process:
        for name, path in there.items():
            click.echo(f"{name:<12} {path.stat().st_size:>12,} bytes")
        return
    if process.partition(".")[0] not in there:
        raise no_such_job(f"the job in {directory.path} has no log of {process!r}", f"there are {', '.join(there) or 'none yet'}")
    path = there[process.partition(".")[0]]
    tail = Tail(path, from_end=True)
    _print_last(path, lines)
    if follow:
        _follow(tail, directory)


def _print_last(path: Path, lines: int) -> None:
    """The last lines of a file of any size, in memory that those lines need."""
    with path.open("rb") as file:
        file.seek(_begin_of_last(file, lines) if lines else 0)
        for line in deque(file, maxlen=lines) if lines else file:
            _write(line.decode("utf-8", errors="replace"))


def _begin_of_last(file: IO[bytes], lines: int) -> int:
    """A place that surely has the last `lines` lines after it, found from the end."""
    position, newlines = file.seek(0, os.SEEK_END), 0
    while position > 0 and newlines <= lines:
        step = min(_BLOCK_BYTES, position)
        position -= step
        file.seek(position)
        newlines += file.read(step).count(b"\n")
    return position


def _follow(tail: Tail, directory: JobDirectory) -> None:
    while True:
        running = directory.master.exists()
        found = tail.read()
        if found:
            _write(found.decode("utf-8", errors="replace"))
        elif not running:
            return
        else:
            sys.stdout.flush()
            time.sleep(_LOOK_EVERY_S)


def _write(text: str) -> None:
    """As it is into a file or pipe; without control characters onto a terminal."""
    sys.stdout.write(plain(text) if sys.stdout.isatty() else text)

"""All output of the command line: messages on stderr, results on stdout.

No other module of `elasticdl.cli` writes to a stream, so no name of a metric, a job or a directory
reaches a terminal with characters that control it.
"""

from __future__ import annotations

import os
import re
import sys
from io import TextIOWrapper
from typing import TextIO


def plain(text: str) -> str:
    """Remove control characters, which could control the terminal."""
    return "".join(
        char if char.isprintable() or char in "\n\t" else "\N{REPLACEMENT CHARACTER}"
        for char in text
    )


def one_line(text: str) -> str:
    """Like `plain`, also without line breaks and tabs, which could forge a line of output."""
    return plain(" ".join(text.splitlines()).replace("\t", " "))


def without_token(text: str) -> str:
    """Remove the token from the address of a status page, for a text that is kept in a file."""
    return re.sub(r"#token=\S+", " (`elasticdl dashboard JOB` opens it)", text)


def show(text: str) -> None:
    """Print text for people on stdout, without control characters. Raises OSError."""
    sys.stdout.write(plain(text) + "\n")
    sys.stdout.flush()


def put(text: str) -> None:
    """Write a document or a log to stdout: unchanged into a file or pipe. Raises OSError.

    A terminal gets it without control characters.
    """
    sys.stdout.write(plain(text) if sys.stdout.isatty() else text)
    sys.stdout.flush()


def tell(text: str, stream: TextIO | None = None) -> None:
    """Print one line. A reader that stops reading (`2>&1 | head`) does not end the job.

    A file or pipe gets no token of a status page: other users may read a log.
    """
    target = stream or sys.stderr
    try:
        print(plain(text if target.isatty() else without_token(text)), file=target, flush=True)
    except BrokenPipeError:
        silence(target)


def whole_streams() -> None:
    """Make every standard stream usable: replace closed ones, and tolerate any locale."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_RDWR)
            if (
                nowhere != number
            ):  # else the next file that we open would get the descriptor and our messages
                os.dup2(nowhere, number)
                os.close(nowhere)
            setattr(sys, name, open(number, "r" if number == 0 else "w", encoding="utf-8"))  # noqa: SIM115 - until our end
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def silence(stream: TextIO) -> None:
    """Discard all further output to the stream, including the interpreter's last flush."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)

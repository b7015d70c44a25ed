"""Words for people, on stderr; stdout is for data."""

from __future__ import annotations

import os
import sys
from io import TextIOWrapper
from typing import TextIO


def plain(text: str) -> str:
    """Without control characters, which could do anything to a terminal."""
    return "".join(
        char if char.isprintable() or char in "\n\t" else "\N{REPLACEMENT CHARACTER}"
        for char in text
    )


def tell(text: str, stream: TextIO | None = None) -> None:
    """One line. Whoever stopped reading (`2>&1 | head`) does not end the job."""
    target = stream or sys.stderr
    try:
        print(plain(text), file=target, flush=True)
    except BrokenPipeError:
        silence(target)


def whole_streams() -> None:
    """Every standard stream is there and takes every text: one that was closed leads to nowhere,
    and no locale is an error.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_RDWR)
            if nowhere != number:  # else a file of ours would take its place, and get what is said
                os.dup2(nowhere, number)
                os.close(nowhere)
            setattr(sys, name, open(number, "r" if number == 0 else "w", encoding="utf-8"))  # noqa: SIM115 - until our end
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def silence(stream: TextIO) -> None:
    """From now on it writes to nowhere, at the interpreter's end too."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)

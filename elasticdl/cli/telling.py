"""Words for people, on stderr; stdout is for data."""

from __future__ import annotations

import os
import sys
from typing import TextIO


def plain(text: str) -> str:
    """Without control characters, which could do anything to a terminal."""
    return "".join(char if char.isprintable() or char in "\n\t" else "\N{REPLACEMENT CHARACTER}" for char in text)


def tell(text: str, stream: TextIO | None = None) -> None:
    """One line. Whoever stopped reading (`2>&1 | head`) does not end the job."""
    target = stream or sys.stderr
    try:
        print(plain(text), file=target, flush=True)
    except BrokenPipeError:
        silence(target)


def silence(stream: TextIO) -> None:
    """From now on it writes to nowhere, at the interpreter's end too."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)

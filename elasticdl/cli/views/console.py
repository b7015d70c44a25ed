"""Messages for people, on stderr; stdout is for data."""

from __future__ import annotations

import os
import sys
from io import TextIOWrapper
from typing import TextIO


def plain(text: str) -> str:
    """Remove control characters, which could control the terminal."""
    return "".join(
        char if char.isprintable() or char in "\n\t" else "\N{REPLACEMENT CHARACTER}"
        for char in text
    )


def tell(text: str, stream: TextIO | None = None) -> None:
    """Print one line. A reader that stops reading (`2>&1 | head`) does not end the job."""
    target = stream or sys.stderr
    try:
        print(plain(text), file=target, flush=True)
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

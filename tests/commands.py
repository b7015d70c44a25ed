"""`elasticdl` commands in the test's own process: the start of another one takes ten times as long
as most of them.
"""

from __future__ import annotations

import io
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path

from elasticdl.cli import main


class _Text(io.TextIOWrapper):
    """A stream in UTF-8, as in most users' terminals."""

    def __init__(self) -> None:
        self._bytes = io.BytesIO()
        super().__init__(self._bytes, "utf-8", newline="")

    def text(self) -> str:
        self.flush()
        return self._bytes.getvalue().decode()


def call(*arguments: str, directory: Path | None = None) -> tuple[int, str, str]:
    """Run a command as from `directory`; its exit code, stdout and stderr."""
    output, errors = _Text(), _Text()
    with chdir(directory or "."), redirect_stdout(output), redirect_stderr(errors):
        code = main.run(arguments)
    return code, output.text(), errors.text()


def printed(*arguments: str) -> str:
    """What a command that succeeds prints to stdout."""
    code, output, errors = call(*arguments)
    assert code == 0, errors
    return output

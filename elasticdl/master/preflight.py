"""Check the model module and the data before any process starts.

The check needs TensorFlow and runs the user's code, so a child process does it. The child prints
its result as one JSON object.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elasticdl.clock import SystemClock
from elasticdl.cluster.local.parent_death import PARENT_PID_VARIABLE
from elasticdl.errors import ExitCode, UserError
from elasticdl.formatting import PIPE_VARIABLE
from elasticdl.job import JobSpec
from elasticdl.jobdir.layout import write_json
from elasticdl.master.check_watch import CheckLimits, CheckWatch, Tell
from elasticdl.shard import Source

COMMAND: tuple[str, ...] = (sys.executable, "-m", "elasticdl.model.check")
TIMEOUT_S = 600.0
_LAST_LINES = 15
_DEATH_S = 10.0
_QUIET = {"TF_CPP_MIN_LOG_LEVEL": "2", "TF_ENABLE_ONEDNN_OPTS": "0"}
"""Hide TensorFlow's own messages. Disable oneDNN, whose speed one batch does not need."""


@dataclass(frozen=True, slots=True)
class Preflight:
    """The result: what the job works on. `raw` is the child's whole answer."""

    training: tuple[Source, ...]
    validation: tuple[Source, ...]
    prediction: tuple[Source, ...]
    raw: Mapping[str, Any]


class PreflightCancelledError(Exception):
    """The caller cancelled the preflight."""


def run_preflight(
    spec: JobSpec,
    timeout_s: float = TIMEOUT_S,
    *,
    command: Sequence[str] = (),
    limits: CheckLimits = CheckLimits(),  # noqa: B008 - a frozen value
    tell: Tell = lambda text: None,
    cancelled: Callable[[], bool] = lambda: False,
) -> Preflight:
    """Run the check in a child; blocks. Raises UserError with the problem and its fix.

    Each part may take `timeout_s`: counted files and completed parts restart the time. `tell`
    receives messages about slow parts.

    Raises PreflightCancelledError within a second after `cancelled()` turns true. The child has
    ended whenever this returns or raises.
    """
    read, write = os.pipe()
    piped = {PARENT_PID_VARIABLE: str(os.getpid()), PIPE_VARIABLE: f"{write}:{limits.stacks_s}"}
    watch = CheckWatch(read, spec.model.model_zoo, limits, SystemClock(), tell)
    watch.start()
    try:
        child = subprocess.Popen(
            command or COMMAND,
            env={**_QUIET, **os.environ, **spec.cluster.envs, **piped},
            pass_fds=(write,),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            encoding="utf-8",
            errors="replace",
        )
    finally:
        os.close(write)
    with child:
        try:
            output, complaints = _conversation(
                child, spec.model_dump_json(), timeout_s, watch, cancelled
            )
        except subprocess.TimeoutExpired as expired:
            raise UserError(
                f"the check of the model and its data was not through after {timeout_s:g}"
                f" s{watch.story()}{_said(_text(expired.stderr))}",
                hint=(
                    f"does the module {spec.model.model_def} do long work when it is imported, or"
                    " wait for something?"
                ),
            ) from expired
        finally:
            # Also end processes that the user's code started.
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            # After Ctrl-C `Popen` waits only a quarter of a second, and we would exit before the
            # child.
            with suppress(subprocess.TimeoutExpired):
                child.wait(_DEATH_S)
    found = _answer(output)
    if found is None:
        raise UserError(
            f"the check of the model and its data ended with {_ending(child.returncode)} and no"
            f" answer{_said(complaints)}",
            hint=f"does the module {spec.model.model_def} end the process?",
        )
    return _judged(found)


def _conversation(
    child: subprocess.Popen[str],
    question: str,
    timeout_s: float,
    watch: CheckWatch,
    cancelled: Callable[[], bool],
) -> tuple[str, str]:
    """Return the child's stdout and stderr after its end.

    It wakes twice a second: Python notices a Ctrl-C just before a wait only when the wait ends.

    Raises TimeoutExpired, PreflightCancelledError, and UserError as `CheckWatch.look`.
    """
    given: str | None = question
    while True:
        if cancelled():
            raise PreflightCancelledError
        left_s = watch.moved_s + timeout_s - time.monotonic()
        watch.look(lambda: child.send_signal(signal.SIGUSR2))
        try:
            return child.communicate(given, timeout=max(0.0, min(0.5, left_s)))
        except subprocess.TimeoutExpired:
            given = None
            if left_s <= 0.5:
                raise


def save_preflight(path: Path, preflight: Preflight) -> None:
    """Save the result for the master. Raises OSError."""
    write_json(path, preflight.raw)


def load_preflight(path: Path) -> Preflight | None:
    """Return the saved result; None if there is none.

    Raises UserError if the file is invalid.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise UserError(
            f"{path} is not what a preflight leaves: {error}", hint="remove it"
        ) from error
    if not isinstance(found, dict) or "ok" not in found:
        raise UserError(f"{path} is not what a preflight leaves", hint="remove it")
    return _judged(found)


def _answer(output: str) -> dict[str, Any] | None:
    """Return the last line that is a JSON object with "ok"; the user's code may print before it."""
    for line in reversed(output.splitlines()):
        with suppress(ValueError):
            found = json.loads(line)
            if isinstance(found, dict) and "ok" in found:
                return found
    return None


def _judged(found: dict[str, Any]) -> Preflight:
    if not found["ok"]:
        error = UserError(
            str(found.get("error", "the model or its data is not usable")),
            hint=str(found.get("hint", "")),
        )
        with suppress(ValueError):
            error.exit_code = ExitCode(found.get("exit_code", ExitCode.USAGE))
        raise error
    return Preflight(
        _sources(found, "training"),
        _sources(found, "validation"),
        _sources(found, "prediction"),
        found,
    )


def _sources(found: Mapping[str, Any], key: str) -> tuple[Source, ...]:
    try:
        return tuple(
            Source(str(one["name"]), int(one["records"]), str(one.get("fingerprint", "")))
            for one in found.get(key) or ()
        )
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"the check told nonsense about the {key} data: {error!r}") from error


def _ending(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def _text(output: str | bytes | None) -> str:
    return output.decode("utf-8", "replace") if isinstance(output, bytes) else output or ""


def _said(complaints: str) -> str:
    lines = [line for line in complaints.splitlines() if line.strip()][-_LAST_LINES:]
    return "; it said last:\n  " + "\n  ".join(lines) if lines else ", and said nothing"

"""Check the model module and the data before any process of the job starts.

The check needs TensorFlow and runs the user's code, so a process of its own does it. A socket is
that process's stdin and stdout. It carries the job there, and progress and result back.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, Protocol

from elasticdl.clock import SystemClock
from elasticdl.cluster.local.machine import CGROUP, memory_kills
from elasticdl.cluster.local.parent_death import PARENT_PID_VARIABLE
from elasticdl.data.origins import require
from elasticdl.errors import ExitCode, UserError
from elasticdl.formatting import STACKS_VARIABLE
from elasticdl.job import DATA_FLAGS, JobSpec
from elasticdl.jobdir.layout import write_json
from elasticdl.master.preflight_watch import PreflightLimits, PreflightWatch, Tell
from elasticdl.model.module_file import module_file
from elasticdl.shard import Source

COMMAND: tuple[str, ...] = (sys.executable, "-m", "elasticdl.model.preflight_process")
PROCESS = "--process"
"""Argument that passes the predictions of one batch to the module's PredictionOutputsProcessor."""
LIMITS = PreflightLimits()
_LOOK_EVERY_S, _LAST_WORDS_S = 0.1, 0.5
_LAST_LINES, _LAST_BYTES = 15, 16 << 10
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

    @property
    def sync(self) -> bool | None:
        """Whether to train in synchronous steps; None: as the job says."""
        sync = (self.raw.get("steps") or {}).get("sync")
        return sync if isinstance(sync, bool) else None

    @property
    def max_staleness(self) -> int | None:
        """How many of its own updates a worker's step may miss; None: as the job says."""
        limit = (self.raw.get("steps") or {}).get("max_staleness")
        return limit if isinstance(limit, int) else None

    @property
    def why_sync(self) -> str:
        """Why, or why not, in a few words; '' if that is not known."""
        return str((self.raw.get("steps") or {}).get("reason") or "")


class PreflightCancelledError(Exception):
    """The caller cancelled the preflight."""


class PreflightProcess(Protocol):
    """The process of a check."""

    @property
    def waits_for(self) -> str:
        """Why it does not run yet, as text; '' if it runs. That time does not count."""

    def end(self) -> str:
        """How it ended, as text; '' if it has not. Raises ElasticDLError if it cannot run."""

    def ask_stack(self) -> None:
        """Have it write its stack, if it can be asked."""


@dataclass(frozen=True, slots=True)
class PreflightChild:
    """A `PreflightProcess` of this machine, not reaped yet. `ended` returns its end, or ''."""

    pid: int
    ended: Callable[[], str]
    waits_for: str = ""
    cgroup: Path = CGROUP
    kills_before: int | None = None
    """`memory_kills` when it began."""

    def end(self) -> str:
        """See PreflightProcess. Raises UserError if it had too little memory."""
        end = self.ended()
        kills = memory_kills(self.cgroup) if end == _KILLED else None
        if kills is not None and self.kills_before is not None and kills > self.kills_before:
            raise _usage(
                "the check of model and data: out of memory at the limit of this container",
                "raise the container's memory limit, or lower --minibatch-size",
            )
        return end

    def ask_stack(self) -> None:
        os.kill(self.pid, signal.SIGUSR2)


@dataclass(frozen=True, slots=True)
class PreflightStreams:
    """The two ends of the socket to the check, and a file that gets what user code prints."""

    ours: socket.socket
    theirs: socket.socket
    output: IO[bytes]

    @property
    def standard(self) -> tuple[int, int, int]:
        """Descriptors for stdin, stdout and stderr of the check."""
        return self.theirs.fileno(), self.theirs.fileno(), self.output.fileno()


@contextmanager
def check_streams() -> Iterator[PreflightStreams]:
    """Open the streams of one check."""
    ours, theirs = socket.socketpair()
    with ours, theirs, tempfile.TemporaryFile(buffering=0) as output:
        yield PreflightStreams(ours, theirs, output)


def refuse_paths(spec: JobSpec) -> None:
    """Raise UserError for a module or data that is not there, before TensorFlow's slow import.

    Only the module itself knows what its own reader accepts, so that data is left to the check.
    """
    try:
        module = module_file(spec.model)
        if module.reads_files:
            for task, origin in spec.origins().items():
                require(origin, DATA_FLAGS[task])
    except UserError as error:
        raise _usage(error.message, error.hint) from error


def run_preflight(
    spec: JobSpec,
    *,
    command: Sequence[str] = (),
    limits: PreflightLimits = LIMITS,
    tell: Tell = lambda text: None,
) -> Preflight:
    """Run the check in a child; blocks. Raises UserError with the problem and its fix.

    The child has ended whenever this returns or raises.
    """
    with (
        check_streams() as streams,
        child_process(spec, streams.standard, command, limits.stacks_s) as child,
    ):
        return follow_check(spec, child, streams, limits, tell)


@contextmanager
def child_process(
    spec: JobSpec,
    standard: Sequence[int],
    command: Sequence[str] = (),
    stacks_s: float = LIMITS.stacks_s,
) -> Iterator[PreflightChild]:
    """Start the check with these descriptors as its stdin, stdout and stderr.

    At the end of the block, it and the processes that the user's code started are ended.
    """
    ours = {PARENT_PID_VARIABLE: str(os.getpid()), STACKS_VARIABLE: str(stacks_s)}
    stdin, stdout, stderr = standard
    with (
        _temporary() as temporary,
        subprocess.Popen(
            command or COMMAND,
            env={**_QUIET, **os.environ, **temporary, **spec.cluster.envs, **ours},
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        ) as child,
    ):
        try:
            ended = partial(end_of_child, child.pid)
            yield PreflightChild(child.pid, ended, kills_before=memory_kills())
        finally:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            # After Ctrl-C `Popen` waits only a quarter of a second, and we would exit before the
            # child.
            with suppress(subprocess.TimeoutExpired):
                child.wait(_DEATH_S)


@contextmanager
def _temporary() -> Iterator[dict[str, str]]:
    """Give a check's temporary files a directory, and remove it at the end of the block.

    AutoGraph writes a file for each function, and a killed process deletes none.
    """
    try:
        folder = tempfile.TemporaryDirectory(prefix="elasticdl-", ignore_cleanup_errors=True)
    except OSError:  # The disk is full: the check sees that for itself.
        yield {}
        return
    with folder:
        yield {"TMPDIR": folder.name}


def follow_check(
    spec: JobSpec,
    child: PreflightProcess,
    streams: PreflightStreams,
    limits: PreflightLimits = LIMITS,
    tell: Tell = lambda text: None,
    cancelled: Callable[[], bool] = lambda: False,
) -> Preflight:
    """Ask the check of this job, and return its result; blocks.

    `tell` receives messages about slow parts. Raises UserError with the problem and its fix, and
    PreflightCancelledError soon after `cancelled()` turns true.
    """
    streams.theirs.close()
    with suppress(BrokenPipeError, ConnectionResetError):  # It ended without reading.
        streams.ours.sendall(spec.model_dump_json().encode())
        streams.ours.shutdown(socket.SHUT_WR)
    watch = PreflightWatch(streams.ours.detach(), spec.model.model_zoo, limits, SystemClock(), tell)
    watch.start()
    waited_for = ""
    # Python notices a Ctrl-C just before a wait only when the wait ends.
    while (result := watch.answer(_LOOK_EVERY_S)) is None:
        if cancelled():
            raise PreflightCancelledError
        if end := child.end():
            if watch.answer(_LAST_WORDS_S) is None:
                raise _usage(
                    f"the check of model and data ended with {end} and no"
                    f" result{_last_lines(streams.output)}",
                    _hint_for(end, spec),
                )
            continue
        if (waits_for := child.waits_for) != waited_for:
            waited_for = waits_for
            tell(waits_for or "checking the model and the data")
        if waits_for:
            watch.suspend()
            continue
        if time.monotonic() > watch.moved_s + limits.part_s:
            raise _usage(
                f"the check of model and data did not finish within {limits.part_s:g}"
                f" s{watch.story()}{_last_lines(streams.output)}",
                f"check whether the module {spec.model.model_def} does long work when it is"
                " imported, or waits for something",
            )
        watch.look(child.ask_stack)
    return _judged(result)


_KILLED = f"signal {signal.SIGKILL.name}"
_CRASHED = {
    f"signal {crash.name}"
    for crash in (signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT)
}


def _hint_for(end: str, spec: JobSpec) -> str:
    if end == _KILLED:
        return (
            "the kernel kills a process this way if memory runs out: give the check more memory, or"
            " lower --minibatch-size"
        )
    if end in _CRASHED:
        return (
            f"a library in C or C++ crashed: see the last output, and import {spec.model.model_def}"
            " with python -X faulthandler"
        )
    return f"check whether the module {spec.model.model_def} ends the process"


def _usage(message: str, hint: str) -> UserError:
    return UserError(message, hint=hint, exit_code=ExitCode.USAGE)


def end_of_child(pid: int) -> str:
    """How a child ended; '' if it has not. It stays a zombie."""
    exited = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if exited is None:
        return ""
    if exited.si_code == os.CLD_EXITED:
        return f"exit code {exited.si_status}"
    return f"signal {signal.Signals(exited.si_status).name}"


def _last_lines(output: IO[bytes]) -> str:
    size = os.fstat(output.fileno()).st_size
    # The check shares the position in the file.
    data = os.pread(output.fileno(), _LAST_BYTES, max(0, size - _LAST_BYTES))
    lines = [line for line in data.decode("utf-8", "replace").splitlines() if line.strip()]
    return "; last output:\n  " + "\n  ".join(lines[-_LAST_LINES:]) if lines else ", without output"


def save_preflight(path: Path, preflight: Preflight) -> None:
    """Save the result for the master. Raises OSError."""
    write_json(path, preflight.raw)


def load_preflight(path: Path) -> Preflight | None:
    """Return the saved result; None if there is none.

    Raises UserError if the file is invalid.
    """
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise UserError(f"{path} is not a preflight result: {error}", hint="remove it") from error
    if not isinstance(result, dict) or "ok" not in result:
        raise UserError(f"{path} is not a preflight result", hint="remove it")
    return _judged(result)


def _judged(result: dict[str, Any]) -> Preflight:
    if not result["ok"]:
        raise UserError(
            str(result.get("error", "the model or its data is unusable")),
            hint=str(result.get("hint", "")),
            exit_code=ExitCode.USAGE,
        )
    return Preflight(
        _sources(result, "training"),
        _sources(result, "validation"),
        _sources(result, "prediction"),
        result,
    )


def _sources(result: Mapping[str, Any], key: str) -> tuple[Source, ...]:
    try:
        return tuple(
            Source(str(source["name"]), int(source["records"]), str(source.get("fingerprint", "")))
            for source in result.get(key) or ()
        )
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"the check returned invalid {key} data: {error!r}") from error

"""The process that sends what a job writes: `python -m elasticdl.tracking.main DIR tracker|traces`.

The master starts it when the job has begun, and writes the job's end to its stdin, one line of
JSON. It answers on stdout with lines for the job's events. A library that hangs or is slow holds up
nothing but this process.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import final

from elasticdl.errors import UserError
from elasticdl.job import JobSpec
from elasticdl.jobdir.layout import JobDirectory
from elasticdl.jobdir.outcome import Outcome
from elasticdl.jobdir.spec_files import read_spec
from elasticdl.own_process import log_error, log_to_stderr
from elasticdl.private_file import FILE_MODE
from elasticdl.tracking.choice import Sent, kind_and_uri, why_no_traces
from elasticdl.tracking.followed_file import FollowedFile
from elasticdl.tracking.following import Following, SavedState, follow
from elasticdl.tracking.metric_rows import metric_row
from elasticdl.tracking.run_of_job import end_of, run_of
from elasticdl.tracking.spans import Span, span_of
from elasticdl.tracking.tracker import MetricRow, RunEnd, Tracker

_LOG = logging.getLogger(__name__)
_LEAVE_S = 10
_LOCK_S, _LOOK_S = 15.0, 0.1
"""Longer than an earlier process lives after its master."""


@final
class EndOnStdin:
    """The job's end, as the master writes it; a thread reads it.

    When the master has gone, the process has `leave_s` to leave, whatever a library hangs in.
    """

    def __init__(self, descriptor: int, leave_s: int = _LEAVE_S) -> None:
        self._descriptor, self._leave_s = descriptor, leave_s
        self._end: RunEnd | None = None
        self._known = threading.Event()
        threading.Thread(target=self._read, name="stdin", daemon=True).start()

    def wait(self, limit_s: float) -> RunEnd | None:
        if not self._known.wait(limit_s):
            return None
        if self._end is None:
            raise EOFError
        return self._end

    def _read(self) -> None:
        text = b""
        try:
            # Not by `sys.stdin`: its lock, held by a waiting thread, crashes the interpreter's end.
            while data := os.read(self._descriptor, 1 << 16):
                text += data
                if text.endswith(b"\n"):
                    self._take(text)
        finally:
            self._known.set()
            signal.alarm(self._leave_s)

    def _take(self, line: bytes) -> None:
        value = json.loads(line)
        outcome = Outcome.from_json(value)
        assert outcome is not None
        self._end = end_of(outcome, int(value["version"]))
        self._known.set()


def lock(path: Path, limit_s: float = _LOCK_S) -> bool:
    """Wait until the process of an earlier master has left the run; hold the lock until our end.

    Return False if it has not left within the limit.
    """
    until_s = time.monotonic() + limit_s
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, FILE_MODE)
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            except BlockingIOError:
                if time.monotonic() > until_s:
                    os.close(descriptor)
                    return False
                time.sleep(_LOOK_S)
    except OSError as error:
        # Some file systems have no locks. Two processes at worst write one run for a moment.
        _LOG.warning("cannot lock %s: %s", path, error)
        return True


def _curves(spec: JobSpec, directory: JobDirectory) -> Following[MetricRow]:
    state = SavedState(directory.tracker)
    kind, _ = kind_and_uri(spec.checkpoint.tracker)
    tracker: Tracker[MetricRow]
    if kind == "mlflow":
        from elasticdl.tracking.mlflow_run import MlflowRun

        tracker = MlflowRun()
    else:
        from elasticdl.tracking.wandb_run import WandbRun

        tracker = WandbRun()
    rows = FollowedFile(directory.metrics, state.position, metric_row)
    return Following(tracker, run_of(spec, state.key, directory.path), rows, state)


def _traces(spec: JobSpec, directory: JobDirectory) -> Following[Span]:
    from elasticdl.tracking.otlp_traces import OtlpTraces

    state = SavedState(directory.traces)
    rows = FollowedFile(directory.events, state.position, span_of)
    return Following(OtlpTraces(), run_of(spec, state.key, directory.path), rows, state)


def main() -> int:
    """Return 0 if the tracker has everything until the job's end, or until the master left."""
    for quiet in (signal.SIGINT, signal.SIGTERM):
        # The master decides when this process ends.
        signal.signal(quiet, signal.SIG_IGN)
    log_to_stderr()
    # What libraries print must not mix with our lines.
    events = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def say(level: str, text: str) -> None:
        # Its reader may have gone, which stdin tells, too.
        with suppress(BrokenPipeError):
            events.write(json.dumps({"level": level, "text": text}) + "\n")

    directory = JobDirectory(Path(sys.argv[1]))
    what = Sent(sys.argv[2])
    if what is Sent.TRACES and (why := why_no_traces(os.environ)):
        say("warning", why)
        return 0
    ends = EndOnStdin(sys.stdin.fileno())
    if not lock(directory.path / f"{what}.lock"):
        _LOG.error("the process of an earlier master has not left the run")
        return 1
    try:
        spec = read_spec(directory)
    except UserError as error:
        log_error(_LOG, error)
        return 1
    whole = (
        follow(_curves(spec, directory), ends, say)
        if what is Sent.CURVES
        else follow(_traces(spec, directory), ends, say)
    )
    return 0 if whole else 1


if __name__ == "__main__":
    sys.exit(main())

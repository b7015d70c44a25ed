"""The process that sends a job's curves to its tracker: `python -m elasticdl.tracking.main DIR`.

The master starts it when the job has begun, and writes the job's end to its stdin, one line of
JSON. It answers on stdout with lines for the job's events. A library that hangs or is slow holds up
nothing but this process.
"""

from __future__ import annotations

import json
import logging
import os
import select
import signal
import sys
from pathlib import Path
from typing import IO, final

from elasticdl.cluster.local.parent_death import die_with_parent
from elasticdl.job import JobSpec
from elasticdl.jobdir.layout import JobDirectory
from elasticdl.jobdir.outcome import Outcome
from elasticdl.tracking.choice import kind_and_uri
from elasticdl.tracking.following import Following, SavedState, follow
from elasticdl.tracking.metric_rows import MetricRows
from elasticdl.tracking.run_of_job import end_of, run_of
from elasticdl.tracking.tracker import RunEnd, Tracker

_NICE = 10
"""Training goes first."""
_MOST_BYTES = 1 << 20
"""Limit of the line about the job's end."""


@final
class EndOnStdin:
    """The job's end, as the master writes it."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._text = b""

    def wait(self, limit_s: float) -> RunEnd | None:
        """See `following.Ends`."""
        if not select.select([self._file], [], [], limit_s)[0]:
            return None
        while b"\n" not in self._text:
            data = os.read(self._file.fileno(), 1 << 16)
            if not data or len(self._text) > _MOST_BYTES:
                raise EOFError
            self._text += data
        value = json.loads(self._text)
        outcome = Outcome.from_json(value)
        if outcome is None:
            raise EOFError
        return end_of(outcome, int(value.get("version") or 0))


def _tracker(kind: str) -> Tracker:
    if kind == "mlflow":
        from elasticdl.tracking.mlflow_run import MlflowRun

        return MlflowRun()
    from elasticdl.tracking.wandb_run import WandbRun

    return WandbRun()


def main() -> int:
    """Return 0 if the tracker has everything, or another master continues the job."""
    die_with_parent()
    for quiet in (signal.SIGINT, signal.SIGTERM):
        # The master decides when this process ends.
        signal.signal(quiet, signal.SIG_IGN)
    os.nice(_NICE)
    logging.basicConfig(
        level=logging.INFO,
        format="%(asctime)s %(levelname).1s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    # What libraries print must not mix with our lines.
    events = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def say(level: str, text: str) -> None:
        events.write(json.dumps({"level": level, "text": text}) + "\n")

    directory = JobDirectory(Path(sys.argv[1]))
    spec = JobSpec.model_validate_json(directory.spec.read_text(encoding="utf-8"))
    state = SavedState(directory.tracker)
    kind, _ = kind_and_uri(spec.checkpoint.tracker)
    following = Following(
        _tracker(kind),
        run_of(spec, state.key, directory.path),
        MetricRows(directory.metrics, state.position),
        state,
    )
    try:
        return 0 if follow(following, EndOnStdin(sys.stdin.buffer), say) else 1
    except EOFError:
        return 0


if __name__ == "__main__":
    sys.exit(main())

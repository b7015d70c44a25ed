"""`--tensorboard-log-dir`: what goes to metrics.jsonl, for TensorBoard too; once a job, however
many workers there are.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

from elasticdl.history.event_file import EventFile

_RUNS = {"training": "train", "evaluation": "validation"}
"""Names of Keras' own callback, so that both curves of the loss are in one plot."""


@final
class ScalarRuns:
    """Curves by the model's version: of training in the run `train`, of evaluation rounds in
    `validation`, below one directory.
    """

    def __init__(self, log_dir: str) -> None:
        """`log_dir` '': nothing is written."""
        self._runs = (
            {kind: EventFile(Path(log_dir) / run) for kind, run in _RUNS.items()} if log_dir else {}
        )

    def append(self, row: Mapping[str, Any]) -> None:
        """A row of metrics.jsonl."""
        run = self._runs.get(row["kind"])
        if run is not None:
            run.add(row["values"], int(row["version"]), float(row.get("at") or time.time()))

    def close(self) -> None:
        """Close the files."""
        for run in self._runs.values():
            run.close()

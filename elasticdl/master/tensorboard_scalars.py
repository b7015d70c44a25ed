"""`--tensorboard-log-dir`: writes the rows of metrics.jsonl for TensorBoard, too.

Only the master writes, however many workers there are. For an object store it writes to the job's
directory, and copies that.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

from elasticdl.addresses import is_address
from elasticdl.history.event_file import EventFile

_RUNS = {"training": "train", "evaluation": "validation"}
"""Names of Keras' own callback, so that one plot shows both loss curves."""


@final
class ScalarRuns:
    """Curves by model version, below one directory.

    Training is the run `train`; evaluation rounds are the run `validation`.
    """

    def __init__(self, log_dir: str, local: Path) -> None:
        """`log_dir` '' disables writing; `local` is where files are whose copies are there."""
        self._copy = None
        folder = Path(log_dir)
        if is_address(log_dir):
            # It takes pyarrow, which a job without addresses does not need.
            from elasticdl.storage.copy_thread import FolderCopy

            folder = local
            self._copy = FolderCopy(local, log_dir)
            self._copy.start()
        self._runs = (
            {kind: EventFile(folder / run) for kind, run in _RUNS.items()} if log_dir else {}
        )

    def append(self, row: Mapping[str, Any]) -> None:
        """Append a row of metrics.jsonl."""
        run = self._runs.get(row["kind"])
        if run is not None:
            run.add(row["values"], int(row["version"]), float(row.get("at") or time.time()))

    def close(self) -> None:
        for run in self._runs.values():
            run.close()
        if self._copy is not None:
            self._copy.close()

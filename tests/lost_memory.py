"""Servers of a local job that go with their memory, as those of a lost node do."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterable
from pathlib import Path


def lose_servers(job: Path, pids_of: Callable[[int], Iterable[int]], *indices: int) -> None:
    """SIGKILL to servers, and away with the memory that outlives them.

    `pids_of`: the processes of the server with an index. Raises ProcessLookupError for one that
    has ended.
    """
    supervisor = json.loads((job / "supervisor.json").read_text())["pid"]
    os.kill(supervisor, signal.SIGSTOP)  # It would start the next ones meanwhile.
    try:
        for index in indices:
            for pid in pids_of(index):
                os.kill(pid, signal.SIGKILL)
        names = [f"/memfd:elasticdl-ps-{index}" for index in indices]
        files = [
            one
            for one in Path(f"/proc/{supervisor}/fd").iterdir()
            if os.readlink(one).partition(" ")[0] in names
        ]
        assert len(files) == len(indices)
        for file in files:
            os.truncate(file, 0)
    finally:
        os.kill(supervisor, signal.SIGCONT)

"""Run whole jobs on this machine through the command line, for the duration of a measurement."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from elasticdl.rpc.master_client import MasterClient

ROOT = Path(__file__).parent.parent
T = TypeVar("T")


@dataclass
class RunningJob:
    """An `elasticdl train` process with its own job directory."""

    process: subprocess.Popen[bytes]
    directory: Path
    log: IO[str]

    def status(self) -> dict[str, Any] | None:
        """Return the master's status, None until it has one."""
        address = self.directory / "master.json"
        if not address.exists():
            return None
        from elasticdl.errors import ElasticDLError

        try:
            with self._master() as master:
                return master.status().to_json()
        except ElasticDLError:
            return None

    def scale(self, workers: int) -> None:
        """Have so many workers from now on."""
        with self._master() as master:
            master.scale(workers, workers)

    def scale_servers(self, servers: int) -> None:
        """Have so many parameter servers from now on."""
        with self._master() as master:
            master.scale_servers(servers)

    @contextmanager
    def _master(self) -> Iterator[MasterClient]:
        from elasticdl.rpc.master_client import MasterClient

        where = json.loads((self.directory / "master.json").read_text())
        client = MasterClient(
            where["address"],
            where["token"],
            "cli",
            away_s=120.0,
            authority=where["authority"] or None,
        )
        try:
            yield client
        finally:
            client.close()

    def until(
        self, what: str, found: Callable[[], T | None], limit_s: float = 120.0, look_s: float = 0.2
    ) -> T:
        """Return the first result of `found` that is not None.

        Raises RuntimeError if the job ends before, or it takes too long.
        """
        deadline = time.perf_counter() + limit_s
        while time.perf_counter() < deadline:
            answer = found()
            if answer is not None:
                return answer
            if self.process.poll() is not None:
                self.log.seek(0)
                raise RuntimeError(
                    f"the job ended by itself before {what}:\n{self.log.read()[-3000:]}"
                )
            time.sleep(look_s)
        raise RuntimeError(f"not within {limit_s:g} s: {what}")

    def finish(self, limit_s: float) -> None:
        """Wait for its end. Raises RuntimeError if it failed."""
        if code := self.process.wait(limit_s):
            self.log.seek(0)
            raise RuntimeError(f"the job ended with {code}:\n{self.log.read()[-3000:]}")

    def live_status(self) -> dict[str, Any]:
        """Return the master's status. Raises RuntimeError if there is none."""
        status = self.status()
        if status is None:
            raise RuntimeError("the master does not answer")
        return status

    def live_pid(self, name: str) -> int:
        """Return the pid of a running process. Raises RuntimeError if it does not run."""
        for process in self.live_status()["processes"]:
            if process["name"] == name and str(process["where"]).startswith("pid "):
                return int(process["where"].removeprefix("pid "))
        raise RuntimeError(f"{name} does not run")


@contextmanager
def running(inside: Path | None = None, **flags: object) -> Iterator[RunningJob]:
    """Start a job, and stop it at the end of the block even after an error.

    Takes the flags of `elasticdl train`, `x=False` for `--no-x`. The model zoo is the benchmarks'
    if none is given.
    `inside`: a folder that keeps the job's directory.
    """
    with tempfile.TemporaryDirectory() as folder:
        job = (inside or Path(folder)) / "job"
        given = {"model_zoo": ROOT / "bench/zoo", **flags}
        arguments = [
            f"--{'no-' if value is False else ''}{name.replace('_', '-')}"
            + ("" if isinstance(value, bool) else f"={value}")
            for name, value in given.items()
        ]
        command = [sys.executable, "-m", "elasticdl.cli.main", "train", *arguments]
        with open(Path(folder) / "log", "w+") as log:
            child = subprocess.Popen(
                [*command, "--job-dir", str(job)],
                cwd=ROOT,
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )
            try:
                yield RunningJob(child, job, log)
            finally:
                child.terminate()
                try:
                    child.wait(30)
                except subprocess.TimeoutExpired:
                    child.kill()
                    child.wait()


def cpu_time_s(pid: int) -> float:
    """Return the CPU time of a process so far, of all its threads, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

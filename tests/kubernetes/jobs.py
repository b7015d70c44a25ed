"""Whole jobs on the cluster, run and looked at as a user does: by the command line, and by what
they leave on a volume.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from model_zoo import make_data
from tests.kubernetes.target_cluster import TargetCluster
from tests.waiting import until

ROOT = Path(__file__).parents[2]
CLAIM, DATA = "data", "/data"
JOB_LIMIT_S = 400.0
CALL_LIMIT_S, STEP_LIMIT_S, CAUSES_LIMIT_S = 180.0, 240.0, 60.0
until_seen = partial(until, every_s=0.2)
"""As `until`, when each look asks the API server."""
RBAC = (ROOT / "docker/rbac.yaml").read_text()


def make(place: TargetCluster, kind: str, metadata: dict[str, str], spec: dict[str, Any]) -> None:
    place.insist({"apiVersion": "v1", "kind": kind, "metadata": metadata, "spec": spec})


@contextlib.contextmanager
def volume(place: TargetCluster, namespace: str, folder: Path) -> Iterator[None]:
    """A claim of the namespace on a folder of this machine, which only the tests' own cluster
    has.
    """
    folder.mkdir()
    folder.chmod(0o777)
    name = f"volume-{namespace}"
    common = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    source = {
        "capacity": {"storage": "1Gi"},
        "hostPath": {"path": str(folder)},
        "claimRef": {"namespace": namespace, "name": CLAIM},
    }
    make(place, "PersistentVolume", {"name": name}, common | source)
    asked = {"volumeName": name, "resources": {"requests": {"storage": "1Gi"}}}
    make(place, "PersistentVolumeClaim", {"name": CLAIM, "namespace": namespace}, common | asked)

    def bound() -> bool:
        claim = place.read("persistentvolumeclaims", CLAIM, namespace=namespace)
        return bool(claim["status"].get("phase") == "Bound")

    # A scheduler that hears of a pod before it hears of its volume may not try it again for 5
    # minutes.
    until_seen("the claim is bound", bound, CALL_LIMIT_S)
    try:
        yield
    finally:
        place.delete("persistentvolumes", name)


@dataclass(frozen=True)
class Jobs:
    """Jobs of a namespace that keep everything on one volume: `folder` here, /data in the pods."""

    place: TargetCluster
    namespace: str
    image: str
    folder: Path

    def elasticdl(
        self, verb: str, *arguments: object, limit_s: float = CALL_LIMIT_S
    ) -> subprocess.CompletedProcess[str]:
        """Run one command to its end."""
        return subprocess.run(
            self.command(verb, *arguments),
            **self.process_options(),
            capture_output=True,
            text=True,
            timeout=limit_s,
        )

    def command(self, verb: str, *arguments: object) -> list[str]:
        program = (sys.executable, "-m", "elasticdl.cli.main")
        return [*program, verb, *map(str, arguments), "--namespace", self.namespace]

    def process_options(self) -> dict[str, Any]:
        """Folder and environment of a command's process."""
        return {
            "cwd": self.folder,
            "env": {**os.environ, "KUBECONFIG": str(self.place.kubeconfig)},
        }

    def make_data(self, name: str, records: int = 0) -> Path:
        """Data of the model zoo on the volume, in a folder of its name."""
        folder = self.folder / name
        folder.mkdir()
        make_data.MAKERS[name](folder, records)
        return folder

    def set_up_ladder(self) -> None:
        """Have this job, and those after it, stand on the priority ladder."""
        done = self.elasticdl("cluster", "setup")
        assert done.returncode == 0, done.stderr

    def submit(self, name: str, *more: str, **flags: object) -> Job:
        """Start `elasticdl train` and leave it running. `more`: arguments as they are."""
        given = {
            "image_name": self.image,
            "image_pull_policy": "Never",
            "model_zoo": "/model_zoo",
            "job_name": name,
            "job_dir": f"{DATA}/{name}",
            "volume": f"claim_name={CLAIM},mount_path={DATA}",
            **flags,
        }
        arguments = [
            part for key, value in given.items() for part in (f"--{key.replace('_', '-')}", value)
        ]
        done = self.elasticdl("train", *arguments, *more, "--detach")
        assert done.returncode == 0, done.stderr
        assert done.stdout.split() == [name]
        return Job(self, name)


@contextlib.contextmanager
def jobs_in(place: TargetCluster, namespace: str, image: str, folder: Path) -> Iterator[Jobs]:
    """Jobs in a namespace with docker/rbac.yaml, and a volume in `folder`, which is made."""
    place.kubectl("-n", namespace, "create", "-f", "-", text=RBAC)
    with volume(place, namespace, folder):
        yield Jobs(place, namespace, image, folder)


@dataclass(frozen=True)
class Job:
    """One of them."""

    jobs: Jobs
    name: str

    @property
    def directory(self) -> Path:
        return self.jobs.folder / self.name

    def wait(self, limit_s: float) -> tuple[int, str]:
        """Its exit code, and what `elasticdl wait` said."""
        done = self.jobs.elasticdl("wait", self.name, "--timeout", limit_s, limit_s=limit_s + 60)
        return done.returncode, done.stdout + done.stderr

    def done(self) -> None:
        """Wait until it ends, well and with all records trained."""
        code, said = self.wait(JOB_LIMIT_S)
        assert code == 0, f"{said}\n{self.story()}"
        total = self.receipt()
        assert total["lost"] == 0 and total["trained"] == total["expected"] > 0, total

    def status(self) -> dict[str, Any]:
        """As `elasticdl status -o json` shows it."""
        done = self.jobs.elasticdl("status", self.name, "-o", "json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def watch(self) -> Watch:
        """Its status from now on. A process that tells it each second takes less CPU time than one
        for each look.
        """
        told = self.jobs.folder.with_name(f"{self.name}.status")
        with told.open("w") as stdout:
            command = self.jobs.command("status", self.name, "--watch", "-o", "json")
            process = subprocess.Popen(command, **self.jobs.process_options(), stdout=stdout)
        return Watch(process, told)

    def causes(self, ended: Collection[str]) -> dict[str, str]:
        """Why processes ended, as the status says once it knows of all of them: a master may not be
        reached for a moment.
        """
        deadline_s = time.monotonic() + CAUSES_LIMIT_S
        while True:
            found = {
                process["name"]: process["cause"]
                for process in self.status()["processes"]
                if process["state"] == "ended"
            }
            if all(found.get(name) for name in ended) or time.monotonic() > deadline_s:
                return {name: found.get(name, "") for name in ended}
            time.sleep(0.5)

    def receipt(self) -> dict[str, int]:
        return json.loads((self.directory / "receipt.json").read_text())["total"]

    def events(self) -> list[dict[str, Any]]:
        path = self.directory / "events.jsonl"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def rows(self) -> list[dict[str, Any]]:
        """What was measured, in order."""
        lines = (self.directory / "metrics.jsonl").read_text().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def metrics(self) -> dict[str, float]:
        """Those of the last evaluation."""
        return [row["values"] for row in self.rows() if row["kind"] == "evaluation"][-1]

    def progress(self) -> int:
        """Records trained by now. Seen without asking the cluster."""
        if not (self.directory / "metrics.jsonl").exists():
            return 0
        return max((int(row["records"]) for row in self.rows() if "records" in row), default=0)

    def continues(self) -> None:
        """Wait until more records are trained than now."""
        trained = self.progress()
        self.until("training continues", lambda _: self.progress() > trained)

    def until(
        self,
        what: str,
        condition: Callable[[list[dict[str, Any]]], Any],
        limit_s: float = STEP_LIMIT_S,
    ) -> Any:
        """The first true value of a condition on the events."""

        def context() -> str:
            # The API server may be away, which is no news then.
            with contextlib.suppress(RuntimeError):
                return self.story()
            return ""

        return until(what, lambda: condition(self.events()), limit_s, every_s=0.2, context=context)

    def ready(self) -> list[str]:
        """Workers that are up, by the events."""
        up: list[str] = []
        for event in self.events():
            if event["process"].startswith("worker-"):
                if " is ready" in event["text"]:
                    up.append(event["process"])
                elif event["cause"] and event["process"] in up:
                    up.remove(event["process"])
        return up

    def until_workers(self, count: int, limit_s: float = STEP_LIMIT_S) -> list[str]:
        """Until so many workers are up; their names."""
        return self.until(
            f"{count} workers are ready",
            lambda _: found if len(found := self.ready()) >= count else None,
            limit_s,
        )

    def ended(self, process: str, limit_s: float = STEP_LIMIT_S) -> dict[str, Any]:
        """The event of a process's end."""

        def first(events: list[dict[str, Any]]) -> dict[str, Any] | None:
            return next(
                (event for event in events if event["process"] == process and event["cause"]), None
            )

        return self.until(f"{process} has ended", first, limit_s)

    def pod(self, process: str) -> str:
        return f"{self.name}-{process}"

    def story(self) -> str:
        """All that helps to see why something did not happen."""
        events = "\n".join(
            f"{event['at_s']:8.1f} {event['process']:12} {event['cause']:14} {event['text']}"
            for event in self.events()
        )
        told = [events, *map(self._told, (("get", "pods", "-o", "wide"), ("get", "events")))]
        logs = ("logs", "-l", f"batch.kubernetes.io/job-name={self.name}", "--tail=30", "--prefix")
        return "\n".join([*told, self._told(logs)])

    def _told(self, arguments: Collection[str]) -> str:
        """What kubectl says, or why it does not: a container may not have started yet."""
        try:
            return self.jobs.place.kubectl("-n", self.jobs.namespace, *arguments)
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            return str(error)


@dataclass
class Watch:
    """What `elasticdl status --watch` tells of a job."""

    _process: subprocess.Popen[Any]
    _told: Path
    _forgotten: int = 0

    def newest(self) -> dict[str, Any] | None:
        """The newest status; None if there is none since `forget`."""
        lines = self._told.read_text().splitlines(keepends=True)
        whole = [line for line in lines if line.endswith("\n")][self._forgotten :]
        return json.loads(whole[-1]) if whole else None

    def forget(self) -> None:
        """Forget what was told up to now, and the next: it may have been asked for before."""
        self._forgotten = self._told.read_text().count("\n") + 1

    def close(self) -> None:
        self._process.terminate()
        self._process.communicate(timeout=CALL_LIMIT_S)

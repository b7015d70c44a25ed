"""Fixtures for tests that run whole jobs as a user does: through the command line, on real
processes.
"""

from __future__ import annotations

import fcntl
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from elasticdl.model.tensorflow_import import without_unused_parts
from elasticdl.paused_collection import collect_rarely, paused_collection
from tests.async_tests import pytest_pyfunc_call as pytest_pyfunc_call
from tests.lost_memory import lose_servers
from tests.silence import Silence, print_stacks_on_request
from tests.waiting import until

if TYPE_CHECKING:
    from elasticdl.rpc.master_client import MasterClient

ROOT = Path(__file__).parent.parent

# A shell starts what runs in the background with SIGINT ignored, and children inherit that: Ctrl-C
# would not be tested.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Tests name their own trackers. Whoever runs them may have one in the environment.
for variable in [one for one in os.environ if one.startswith(("MLFLOW_", "OTEL_", "WANDB_"))]:
    del os.environ[variable]


WAITING = (
    "test_remote_data.py",
    "test_master_in_pod.py",
    "test_job_stragglers.py",
    "test_cli_jobs.py",
    "test_job_address.py",
    "test_ps_leaving.py",
    "test_preflight_pod.py",
    "test_job_remote.py",
    "test_ps_steps.py",
    "test_supervisor.py",
    "test_job_server_kills.py",
    "test_embedding_keras.py",
    "test_load_master.py",
    "test_rpc_checks.py",
    "test_job_stalls.py",
    "test_kept_pushes.py",
    "test_submit_cannot_start.py",
    "test_fates_in_a_job.py",
    "test_master_process_preflight.py",
    "test_cli_dashboard.py",
    "test_job_input.py",
    "test_kubernetes_resources.py",
    "test_cluster_reflector.py",
    "test_bulk_native.py",
    "test_cluster_creating.py",
    "test_cluster_not_placed.py",
    "test_ps_pushes.py",
    "test_why_verb.py",
)
"""Files whose tests mostly wait, those that wait longest first. They begin while the tests on
Kubernetes still run beside them: once those have ended, only what computes keeps all cores busy.
"""
COMPUTING = (
    "test_zoo_models.py",
    "test_simulation.py",
    "test_master_process_job.py",
    "test_page_live.py",
    "test_job_sync.py",
    "test_job_master_kills.py",
    "test_docs_examples.py",
    "test_ring_jobs.py",
    "test_ring_virtual.py",
    "test_ring_repeated_ids.py",
    "test_ring_fuzz.py",
    "test_ring_churn.py",
    "test_job_runs.py",
    "test_ring_members.py",
    "test_preflight_process.py",
    "test_wheel.py",
    "test_zoo_jobs.py",
    "test_model_training.py",
    "test_ring_callbacks.py",
    "test_ps_process.py",
    "test_job_troubles.py",
    "test_job_churn.py",
    "test_ring_step.py",
    "test_job_fuzz.py",
    "test_unusual_modules.py",
    "test_notebook_example.py",
    "test_ring_stalls.py",
    "test_prepare_script.py",
    "test_job_scaling.py",
    "test_model_export.py",
    "test_trackers.py",
    "test_job_shared_minibatches.py",
    "test_job_late_losses.py",
    "test_ring_loss_scale.py",
    "test_cluster_contract.py",
    "test_cli_completion.py",
    "test_cli_api.py",
    "test_cluster_template.py",
)
"""The long files of the others, those that compute most first: what begins last should be short, so
that all processes of a run end together.
"""


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):
        print_stacks_on_request(config)
    else:
        config.pluginmanager.register(Silence(config))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Half the time of a collection would go into looking for garbage among thousands of tests.

    Files that import TensorFlow get what a worker imports of it.
    """
    # For the whole process: tests of models would spend a twentieth of their time on it.
    collect_rarely()
    with paused_collection(), without_unused_parts():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """One process of a run rewrites the asserts of a file, and the others read what it wrote."""
    if not isinstance(collector, pytest.Module):
        return (yield)
    with collector.path.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        return (yield)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The files that wait, then those that compute for long, then the others as they come."""
    place = {name: number for number, name in enumerate(WAITING + COMPUTING)}
    items.sort(key=lambda item: place.get(item.path.name, len(place)))


@pytest.fixture(scope="session", autouse=True)
def own_temporary_directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Have temporary files of this process among those that pytest removes.

    AutoGraph leaves the bytecode of each function that it converts. Processes that tests start
    keep TMPDIR: the paths of their sockets must stay short.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("temporary")))
        yield


def whole_lines(path: Path) -> list[dict[str, Any]]:
    """The objects in a file of JSON lines that may be written to at this moment."""
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


@dataclass
class Job:
    """One `elasticdl` command on a job directory of its own."""

    process: subprocess.Popen[str]
    directory: Path
    _client: tuple[tuple[str, str, str], MasterClient] | None = None

    def finish(self, timeout_s: float = 400) -> tuple[int, str]:
        """Exit code and everything printed."""
        try:
            output, _ = self.process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the job did not end in {timeout_s} s; {self.tails()}") from None
        return self.process.returncode, output

    def spec(self) -> dict[str, Any]:
        return json.loads((self.directory / "job.json").read_text())

    def receipt(self) -> dict[str, Any]:
        return json.loads((self.directory / "receipt.json").read_text())

    def events(self) -> list[dict[str, Any]]:
        return whole_lines(self.directory / "events.jsonl")

    def metrics(self) -> list[dict[str, Any]]:
        return whole_lines(self.directory / "metrics.jsonl")

    def final(self, name: str) -> float:
        """The last value of an evaluation metric."""
        return float([row["values"][name] for row in self.metrics() if name in row["values"]][-1])

    def status(self) -> dict[str, Any] | None:
        """The master's view, or None while there is no master."""
        from elasticdl.errors import ElasticDLError

        try:
            where = json.loads((self.directory / "master.json").read_text())
            return self._client_of(where).status().to_json()
        except (FileNotFoundError, ElasticDLError):
            return None

    def _client_of(self, where: dict[str, Any]) -> MasterClient:
        """One connection for as long as the master is there: tests ask five times a second."""
        from elasticdl.rpc.master_client import MasterClient

        key = (where["address"], where["token"], where["authority"])
        if self._client is None or self._client[0] != key:
            self.close()
            client = MasterClient(key[0], key[1], "cli", away_s=120.0, authority=key[2] or None)
            self._client = (key, client)
        return self._client[1]

    def close(self) -> None:
        """Close the connection to the master."""
        if self._client is not None:
            self._client[1].close()
            self._client = None

    def pids(self, role: str, index: int | None = None) -> list[int]:
        """Process ids of the live processes of a role, or of an index, by their environment."""
        name = re.compile(
            rf"ELASTICDL_PROCESS={role}-{r'[0-9]+' if index is None else index}(\..*)?"
        )
        found = []
        for environ in Path("/proc").glob("[0-9]*/environ"):
            try:
                entries = environ.read_bytes().split(b"\0")
            except OSError:
                continue
            wanted = any(name.fullmatch(entry.decode(errors="replace")) for entry in entries)
            if wanted and f"ELASTICDL_JOB_DIR={self.directory}".encode() in entries:
                found.append(int(environ.parent.name))
        return found

    def wait_until(
        self, what: str, condition: Callable[[dict[str, Any]], bool], timeout_s: float = 240
    ) -> dict[str, Any]:
        """The first status for which `condition` holds."""

        def look() -> dict[str, Any] | None:
            status = self.status()
            return status if status is not None and condition(status) else None

        def context() -> str:
            ended = self.process.poll() is not None
            return self.process.communicate()[0] if ended else self.tails()

        def over() -> bool:
            return self.process.poll() is not None

        return until(what, look, timeout_s, every_s=0.2, context=context, over=over)

    def kill_one(self, role: str, choose: random.Random) -> int | None:
        """SIGKILL to one live process of a role; its pid."""
        pids = self.pids(role)
        if not pids:
            return None
        pid = choose.choice(sorted(pids))
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return None
        return pid

    def kill(self, role: str, choose: random.Random) -> None:
        """SIGKILL to the master, or to one process of a role, as soon as there is one."""
        if role == "master":
            os.kill(json.loads((self.directory / "master.json").read_text())["pid"], signal.SIGKILL)
        else:
            until(f"a {role} is killed", lambda: self.kill_one(role, choose))

    def lose_servers(self, *indices: int) -> None:
        """SIGKILL to servers, and away with the memory that outlives them: as lost nodes."""
        lose_servers(self.directory, partial(self.pids, "ps"), *indices)

    def tails(self) -> str:
        logs = sorted((self.directory / "logs").glob("*.log")) if self.directory.exists() else []
        return "\n".join(
            f"--- {log.name}\n{log.read_text(errors='replace')[-1500:]}" for log in logs
        )


@contextmanager
def starting(folder: Path) -> Iterator[Callable[..., Job]]:
    """Start `elasticdl ACTION --flags`; keyword arguments become flags, `x=False` becomes `--no-x`.

    Jobs that are left behind are ended.
    """
    jobs: list[Job] = []

    def start(
        action: str = "train",
        *extra: str,
        environment: Mapping[str, str] | None = None,
        **flags: object,
    ) -> Job:
        directory = Path(str(flags.setdefault("job_dir", folder / f"job-{len(jobs)}")))
        arguments: list[str] = [action]
        for name, value in {"model_zoo": ROOT / "model_zoo", **flags}.items():
            flag = name.replace("_", "-")
            arguments += [f"--no-{flag}"] if value is False else [f"--{flag}", str(value)]
        process = subprocess.Popen(
            [sys.executable, "-m", "elasticdl.cli.main", *arguments, *extra],
            cwd=ROOT,
            env={**os.environ, **(environment or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        jobs.append(Job(process, directory))
        return jobs[-1]

    try:
        yield start
    finally:
        for job in jobs:
            job.close()
            if job.process.poll() is None:
                job.process.kill()
            job.process.communicate(timeout=30)


@pytest.fixture
def start_job(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    """Jobs of one test."""
    with starting(tmp_path) as start:
        yield start


@pytest.fixture(scope="module")
def start_jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Job]]:
    """Jobs that several tests of a module look at."""
    with starting(tmp_path_factory.mktemp("jobs")) as start:
        yield start


def write_iris(path: Path, copies: int = 1) -> Path:
    """scikit-learn's iris, `copies` times over, as CSV; without its import, which takes 1 s."""
    package = find_spec("sklearn")
    assert package is not None and package.origin is not None
    source = Path(package.origin).parent / "datasets/data/iris.csv"
    _, *rows = source.read_text().splitlines()
    assert len(rows) == 150
    header = "sepal_length,sepal_width,petal_length,petal_width,species"
    path.write_text("\n".join([header, *rows * copies, ""]))
    return path


@pytest.fixture
def iris_csv(tmp_path: Path) -> Callable[..., Path]:
    """Iris, so many times over."""

    def write(copies: int = 1) -> Path:
        return write_iris(tmp_path / f"iris-{copies}.csv", copies)

    return write

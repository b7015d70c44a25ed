"""The command line as a process, against a master that follows a script.

Each verb that these tests use runs as a process at least once; most looks at a job are calls in
the test's own process.
"""

from __future__ import annotations

import json
import os
import pty
import random
import resource
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from elasticdl.checkpoint import directories
from elasticdl.checkpoint.manifest import Manifest, PartFile
from elasticdl.cli.main import VERBS
from elasticdl.master.core.data.counts import ShardIds
from elasticdl.master.core.data.ledger import Ledger
from elasticdl.master.core.data.resuming import ledger_json
from elasticdl.master.core.data.sharding import ShardPlan
from elasticdl.shard import Source, Task
from tests.commands import call
from tests.present import present
from tests.supervised import job_processes
from tests.waiting import gone, until

pytestmark = pytest.mark.process
HERE = Path(__file__).parent
LIMIT_S = 40.0

# The command line with a master that follows a script, or the real one with a check of the test's.
DRIVER = """
import sys
from elasticdl.cli.jobs import local_launch
from elasticdl.master import preflight
preflight.COMMAND = (sys.executable, "-c", sys.argv[2])
local_launch.WORKER_IMPORTS = ()
local_launch.MASTER_COMMAND = (
    (sys.executable, "-c", sys.argv[1], sys.argv[2])
    if "import" in sys.argv[1]
    else (sys.executable, sys.argv[1])
)
from elasticdl.cli.main import run
code = run(sys.argv[3:])
foreign = {"tensorflow", "keras", "kubernetes"} & set(sys.modules)
assert not foreign, foreign
sys.exit(code)
"""
MASTER = """
import sys
from elasticdl.master import main, preflight
preflight.COMMAND = (sys.executable, "-c", sys.argv[1])
sys.exit(main.main())
"""
FINE = """
import json
print("the user's code prints this")
print(json.dumps({"ok": True, "training": [{"name": "a.csv", "records": 100}]}))
"""
BROKEN = """
import json
error = "zoo/iris.py:3: SyntaxError: invalid syntax"
print(json.dumps({"ok": False, "error": error, "hint": "mend line 3", "exit_code": 2}))
"""


class Commands:
    """Runs `elasticdl` in a directory of the test's own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.started: list[subprocess.Popen[str]] = []

    def start(
        self, *arguments: str, preflight: str = FINE, **streams: Any
    ) -> subprocess.Popen[str]:
        command = [
            sys.executable,
            "-c",
            DRIVER,
            str(HERE / "scripted_master.py") if preflight == FINE else MASTER,
            preflight,
            *arguments,
        ]
        environment = {**os.environ, "TERM": "xterm", "PYTHONPATH": str(HERE.parent.parent)}
        pipes: dict[str, Any] = {
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            "text": True,
            **streams,
        }
        self.started.append(subprocess.Popen(command, cwd=self.directory, env=environment, **pipes))
        return self.started[-1]

    def train(
        self, script: str, *more: str, preflight: str = FINE, **streams: Any
    ) -> subprocess.Popen[str]:
        """A job whose name tells the scripted master what to do."""
        given = (
            "--model-zoo",
            "zoo",
            "--model-def",
            "iris",
            "--training-data",
            "a.csv",
            "--job-name",
            script,
        )
        return self.start("train", *given, *more, preflight=preflight, **streams)

    def run(self, *arguments: str) -> tuple[int, str, str]:
        """In a process of its own, as a user does."""
        return self.end(self.start(*arguments))

    def call(self, *arguments: str) -> tuple[int, str, str]:
        """In this process."""
        return call(*arguments, directory=self.directory)

    def end(self, process: subprocess.Popen[str]) -> tuple[int, str, str]:
        output, errors = process.communicate(timeout=LIMIT_S)
        return process.returncode, output, errors

    def master(self, script: str) -> dict[str, Any]:
        path = self.directory / "jobs" / script / "master.json"
        until("the master is up", path.exists)
        return json.loads(path.read_text())

    def asked(self, script: str) -> list[Any]:
        path = self.directory / "jobs" / script / "asked.jsonl"
        lines = (
            [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        )
        return [line for line in lines if line != "status"]


@pytest.fixture
def elasticdl(tmp_path: Path) -> Iterator[Commands]:
    with commands_in(tmp_path) as commands:
        yield commands


@contextmanager
def commands_in(directory: Path) -> Iterator[Commands]:
    (directory / "zoo").mkdir()
    (directory / "zoo" / "iris.py").write_text("custom_data_reader = print\n")
    commands = Commands(directory)
    try:
        yield commands
    finally:
        for process in commands.started:
            if process.poll() is None:
                process.kill()
            process.communicate(timeout=LIMIT_S)


@dataclass(frozen=True)
class Finished:
    """The job `finishes` in a directory of its own, and what the command said."""

    commands: Commands
    code: int
    output: str
    errors: str

    @property
    def job(self) -> Path:
        return self.commands.directory / "jobs/finishes"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Finished]:
    with commands_in(tmp_path_factory.mktemp("finished")) as commands:
        yield Finished(commands, *commands.end(commands.train("finishes", "--output", "export")))


def test_a_job_that_is_done_ends_with_0_its_receipt_on_stdout_and_its_story_on_stderr(
    finished: Finished,
) -> None:
    assert finished.code == 0, finished.errors
    assert finished.output.splitlines() == [
        "records  expected 200  trained 200  repeated 0  lost 0",
        "metrics  training loss 0.5  validation accuracy 0.75",
        f"output   {finished.commands.directory / 'export'}",
        f"job      {finished.job}",
    ]
    assert "worker-0 ended by SIGKILL [infrastructure]" in finished.errors
    assert {path.name for path in finished.job.iterdir()} >= {
        "job.json",
        "job.yaml",
        "preflight.json",
        "logs",
        "receipt.json",
        "status.json",
    }


@dataclass(frozen=True)
class Ended:
    """The jobs `finishes` and `fails` in one directory, and what their commands said."""

    commands: Commands
    finished: tuple[int, str, str]
    """With `-o json`."""
    failed: tuple[int, str, str]


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ended]:
    with commands_in(tmp_path_factory.mktemp("ended")) as commands:
        started = commands.train("finishes", "-o", "json"), commands.train("fails")
        yield Ended(commands, *map(commands.end, started))


def test_results_can_be_had_as_json(ended: Ended) -> None:
    code, output, _ = ended.finished
    assert code == 0
    found = json.loads(output)
    assert (found["exit_code"], found["receipt"]["total"]["lost"], found["metrics"]) == (
        0,
        0,
        {"accuracy": 0.75},
    )


def test_a_job_that_fails_ends_with_1_and_says_what_and_what_next(ended: Ended) -> None:
    code, _, errors = ended.failed
    assert code == 1
    assert (
        "Error: worker-0 failed four times: ValueError in iris.py:12\nHint: see logs/worker-0.log"
        in errors
    )


def test_a_master_that_is_killed_is_a_failed_job_with_its_last_words(elasticdl: Commands) -> None:
    code, _, errors = elasticdl.end(elasticdl.train("dies"))
    assert code == 1
    assert (
        "the master ended by signal SIGKILL" in errors
        and "last words" in errors
        and "logs/master-0.log" in errors
    )


def test_a_master_that_ends_with_0_but_without_a_word_is_no_success(elasticdl: Commands) -> None:
    code, _, errors = elasticdl.end(elasticdl.train("silent"))
    assert code == 1
    assert "without recording an outcome" in errors and "something is missing here" in errors


def test_a_broken_module_ends_with_2_and_leaves_nothing(elasticdl: Commands) -> None:
    code, output, errors = elasticdl.end(elasticdl.train("finishes", preflight=BROKEN))
    assert (code, output) == (2, "")
    assert "Error: zoo/iris.py:3: SyntaxError: invalid syntax\nHint: mend line 3" in errors
    assert errors.count("invalid syntax") == 1, "said once"
    assert [path.name for path in elasticdl.directory.iterdir()] == ["zoo"]


def test_a_wrong_job_ends_with_2_before_the_preflight_and_leaves_nothing(
    elasticdl: Commands,
) -> None:
    code, _, errors = elasticdl.end(elasticdl.train("finishes", "--num-workers", "3:1"))
    assert code == 2
    assert "--num-workers: MIN 3 is greater than MAX 1" in errors and "checking" not in errors
    assert [path.name for path in elasticdl.directory.iterdir()] == ["zoo"]


def test_a_directory_that_holds_a_job_is_refused_before_the_preflight(finished: Finished) -> None:
    before = {path.name: path.stat().st_mtime_ns for path in finished.job.iterdir()}
    code, _, errors = finished.commands.end(finished.commands.train("finishes"))
    assert code == 2
    assert "already contains a job" in errors and "another --job-dir" in errors
    assert {path.name: path.stat().st_mtime_ns for path in finished.job.iterdir()} == before


def test_of_two_submissions_of_one_name_one_runs(elasticdl: Commands) -> None:
    both = [elasticdl.train("finishes") for _ in range(2)]
    ends = [elasticdl.end(process) for process in both]
    assert sorted(code for code, _, _ in ends) == [0, 2], ends


def test_ctrl_c_stops_in_order_and_says_how_to_continue_and_a_file_is_never_told_the_token(
    elasticdl: Commands,
) -> None:
    process = elasticdl.train("drains")
    assert process.stderr is not None
    where = elasticdl.master("drains")
    told = next(line for line in iter(process.stderr.readline, "") if "status page" in line)
    assert told == f"status page: {where['page']} (`elasticdl dashboard JOB` opens it)\n"
    process.send_signal(signal.SIGINT)
    code, output, errors = elasticdl.end(process)
    job = elasticdl.directory / "jobs/drains"
    assert code == 130
    assert elasticdl.asked("drains") == [["stop", "Ctrl-C"]]
    assert f"elasticdl train -f {job / 'job.yaml'} --resume\n" in errors
    assert "trained 50" in output
    assert where["token"] not in errors
    assert gone(where["pid"])


def test_ctrl_c_before_the_master_listens_reaches_it_by_signal(elasticdl: Commands) -> None:
    process = elasticdl.train("drains")
    log = elasticdl.directory / "jobs/drains/logs/master-0.log"
    until("the master is started", log.exists)
    process.send_signal(signal.SIGINT)
    code, _, errors = elasticdl.end(process)
    assert code == 130, errors


@pytest.mark.parametrize("script", ["hangs", "records-slowly"])
def test_a_second_ctrl_c_ends_everything_at_once(elasticdl: Commands, script: str) -> None:
    process = elasticdl.train(script)
    where = elasticdl.master(script)
    process.send_signal(signal.SIGINT)
    until("the stop is asked for", lambda: elasticdl.asked(script))
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    code, output, errors = elasticdl.end(process)
    assert code == 130
    assert "interrupt again to end it at once" in errors
    # What the master recorded last, and not what was saved some seconds before.
    assert "Stopped: by the test\n" in errors and "trained 50" in output
    assert (
        f"elasticdl train -f {elasticdl.directory / 'jobs' / script / 'job.yaml'} --resume\n"
        in errors
    )
    assert gone(where["pid"])


def test_a_second_ctrl_c_ends_a_master_that_hears_no_signal(elasticdl: Commands) -> None:
    process = elasticdl.train("deaf")
    where = elasticdl.master("deaf")
    process.send_signal(signal.SIGINT)
    until("the stop is asked for", lambda: elasticdl.asked("deaf"))
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60.0)
    assert process.returncode == 130 and "no checkpoint exists" in errors
    assert not job_processes(elasticdl.directory / "jobs/deaf") and gone(where["pid"])


@pytest.fixture
def slow(tmp_path: Path) -> tuple[str, Path]:
    """A check that waits, and the file that then has its number; it passes once that is gone."""
    pid = tmp_path.parent / f"{tmp_path.name}-checking"
    program = (
        f"import os, time\nopen({str(pid)!r}, 'w').write(str(os.getpid()))\n"
        f"while os.path.exists({str(pid)!r}): time.sleep(0.05)\n"
    )
    return program, pid


def test_ctrl_c_during_the_check_leaves_nothing(
    elasticdl: Commands, slow: tuple[str, Path]
) -> None:
    process = elasticdl.train("finishes", preflight=slow[0] + FINE)
    until("the check runs", slow[1].exists)
    process.send_signal(signal.SIGINT)
    code, output, errors = elasticdl.end(process)
    assert (code, output) == (130, "")
    assert "Stopped: Ctrl-C, before the job began\n" in errors and "checkpoint" not in errors
    assert [path.name for path in elasticdl.directory.iterdir()] == ["zoo"]


def test_while_the_check_continues_the_job_can_be_looked_at_and_stopped(
    elasticdl: Commands, slow: tuple[str, Path]
) -> None:
    process = elasticdl.train("drains", preflight=slow[0] + FINE)
    until("the check runs", lambda: slow[1].exists() and slow[1].read_text())
    assert process.stderr is not None
    assert any("checking the model and the data" in line for line in process.stderr)
    code, output, _ = elasticdl.call("status", "drains")
    assert code == 0 and "checking the model and the data" in output
    code, output, _ = elasticdl.run("why", "drains")
    assert code == 0 and "job started" in output
    assert elasticdl.call("stop", "drains", "--yes")[0] == 0
    code, output, errors = elasticdl.end(process)
    assert (code, output) == (130, "")
    assert "Stopped: `elasticdl stop`, before the job began\n" in errors
    assert gone(int(slow[1].read_text()))
    assert [path.name for path in elasticdl.directory.iterdir()] == ["zoo"]


def test_whoever_waits_for_a_job_whose_check_fails_learns_of_it(
    elasticdl: Commands, slow: tuple[str, Path]
) -> None:
    process = elasticdl.train("drains", preflight=slow[0] + BROKEN)
    until("the check runs", slow[1].exists)
    waiting = elasticdl.start("wait", "drains")
    slow[1].unlink()
    assert elasticdl.end(process)[0] == 2
    # It finds the outcome, or no directory any more.
    assert elasticdl.end(waiting)[0] in (2, 4)


def test_a_command_that_is_killed_during_the_check_leaves_no_process_and_says_what_to_do_next(
    elasticdl: Commands, slow: tuple[str, Path]
) -> None:
    process = elasticdl.train("drains", preflight=slow[0] + FINE)
    where = elasticdl.master("drains")
    until("the check runs", lambda: slow[1].exists() and slow[1].read_text())
    process.kill()
    until("the check is gone", lambda: gone(int(slow[1].read_text())))
    until("the master is gone", lambda: gone(where["pid"]))
    code, _, errors = elasticdl.end(elasticdl.train("drains"))
    assert (
        code == 2 and "already contains a job" in errors and "continue it with --resume" in errors
    )


@pytest.fixture
def restarting(elasticdl: Commands) -> subprocess.Popen[str]:
    """The command of a job whose master was killed; its next one listens when the test says so."""
    process = elasticdl.train("returns")
    where = elasticdl.master("returns")
    os.kill(where["pid"], signal.SIGKILL)
    until("it is gone", lambda: gone(where["pid"]))
    return process


def let_it_go_on(elasticdl: Commands) -> None:
    (elasticdl.directory / "jobs/returns/go").touch()


def test_a_job_between_two_masters_runs_and_says_so(
    elasticdl: Commands, restarting: subprocess.Popen[str]
) -> None:
    code, output, errors = elasticdl.call("status", "returns")
    assert (code, errors) == (0, "")
    assert "its master is restarting" in output and "waiting: master-0 is restarting" in output
    (row,) = json.loads(elasticdl.run("list", "-o", "json")[1])
    assert (row["state"], row["message"]) == ("running", "its master is restarting")
    code, output, _ = elasticdl.call("why", "returns")
    assert code == 0 and output.startswith("returns is running")
    assert "master-0" in elasticdl.run("logs", "returns")[1]
    waiting = elasticdl.start("wait", "returns")
    following = elasticdl.start("logs", "returns", "master-0", "-f")
    lines = present(following.stdout)
    until("it has restarted", lambda: "=== master-0.1 started" in lines.readline())
    code, _, errors = elasticdl.call("wait", "returns", "--timeout", "0.2")
    assert code == 124
    code, _, errors = elasticdl.end(elasticdl.train("returns", "--resume"))
    assert code == 2 and "another command runs the job" in errors
    let_it_go_on(elasticdl)
    assert elasticdl.call("stop", "returns", "--yes")[0] == 0
    assert elasticdl.end(restarting)[0] == elasticdl.end(waiting)[0] == 130
    elasticdl.end(following)


def test_what_only_a_master_can_do_waits_for_the_next_one(
    elasticdl: Commands, restarting: subprocess.Popen[str]
) -> None:
    asked = [
        elasticdl.start("scale", "returns", "--num-workers", "1:4"),
        elasticdl.start("checkpoint", "returns"),
        elasticdl.start("dashboard", "returns", "--no-browser"),
    ]
    log = elasticdl.directory / "jobs/returns/logs/master-0.log"
    until("the next master has started", lambda: "=== master-0.1" in log.read_text())
    assert all(command.poll() is None for command in asked)
    let_it_go_on(elasticdl)
    ends = [elasticdl.end(command) for command in asked]
    assert [code for code, _, _ in ends] == [0, 0, 0], ends
    where = elasticdl.master("returns")
    assert ends[2][1].startswith(where["page"])
    assert ends[0][2] == "asked for 1:4 workers; only 2 compute at a time\n"
    assert sorted(elasticdl.asked("returns")) == [["checkpoint"], ["scale", 1, 4]]
    restarting.send_signal(signal.SIGINT)
    code, _, errors = elasticdl.end(restarting)
    assert code == 130, errors
    assert elasticdl.asked("returns")[-1] == ["stop", "Ctrl-C"]


def test_a_stop_at_once_between_two_masters_ends_the_job(
    elasticdl: Commands, restarting: subprocess.Popen[str]
) -> None:
    log = elasticdl.directory / "jobs/returns/logs/master-0.log"
    until("the next master has started", lambda: "=== master-0.1" in log.read_text())
    code, _, errors = elasticdl.call("stop", "returns", "--yes", "--now")
    assert code == 0 and "ended at once; it has no checkpoint" in errors
    assert elasticdl.end(restarting)[0] == 130
    assert not job_processes(elasticdl.directory / "jobs/returns")
    code, output, _ = elasticdl.call("status", "returns")
    assert code == 0 and "ended with exit code 130" in output


def test_a_second_ctrl_c_between_two_masters_ends_the_job(
    elasticdl: Commands, restarting: subprocess.Popen[str]
) -> None:
    lines = present(restarting.stderr)
    restarting.send_signal(signal.SIGINT)
    until("it is heard", lambda: "interrupt again" in lines.readline())
    assert restarting.poll() is None
    restarting.send_signal(signal.SIGINT)
    code, _, errors = elasticdl.end(restarting)
    assert code == 130 and "ending at once" in errors
    assert not job_processes(elasticdl.directory / "jobs/returns")
    code, output, _ = elasticdl.call("status", "returns")
    assert code == 0 and "ended with exit code 130: ended at once" in output


@pytest.mark.parametrize("seed", range(2))
def test_whenever_the_command_line_is_killed_no_process_is_left(
    elasticdl: Commands, seed: int
) -> None:
    process = elasticdl.train("hangs")
    with suppress(subprocess.TimeoutExpired):
        process.wait(random.Random(seed).uniform(0.0, 3.0))
    process.kill()
    process.wait(LIMIT_S)
    directory = elasticdl.directory / "jobs/hangs"
    until("no process is left", lambda: not job_processes(directory))


def test_a_supervisor_that_is_killed_is_a_failed_job(elasticdl: Commands) -> None:
    process = elasticdl.train("hangs")
    elasticdl.master("hangs")
    directory = elasticdl.directory / "jobs/hangs"
    os.kill(json.loads((directory / "supervisor.json").read_text())["pid"], signal.SIGKILL)
    code, _, errors = elasticdl.end(process)
    assert code == 1 and "its supervisor ended by signal SIGKILL" in errors
    until("no process is left", lambda: not job_processes(directory))
    code, output, _ = elasticdl.call("status", "hangs")
    assert code == 0 and "was killed with all of its processes" in output
    code, _, errors = elasticdl.call("stop", "hangs", "--yes", "--now")
    assert code == 0 and "has ended already" in errors


def test_no_process_is_left_when_the_command_line_is_killed(elasticdl: Commands) -> None:
    process = elasticdl.train("hangs")
    where = elasticdl.master("hangs")
    process.kill()
    until("the master is gone too", lambda: gone(where["pid"]))
    code, _, errors = elasticdl.call("scale", "hangs", "--num-workers", "2")
    assert code == 4 and "was killed" in errors


def test_a_job_continues_in_its_directory_with_resume_and_its_own_yaml(elasticdl: Commands) -> None:
    process = elasticdl.train("drains", "--minibatch-size", "7")
    elasticdl.master("drains")
    process.send_signal(signal.SIGINT)
    code, _, errors = elasticdl.end(process)
    told = errors.rpartition("resume with: ")[2]
    assert code == 130 and told
    job = elasticdl.directory / "jobs/drains"
    # The command that is told, pasted; only the script of the master that it starts is another one.
    again = elasticdl.start(*shlex.split(told.partition("elasticdl ")[2]), "--job-name", "finishes")
    code, _, errors = elasticdl.end(again)
    assert code == 0, errors
    spec = json.loads((job / "job.json").read_text())
    assert (spec["checkpoint"]["resume"], spec["data"]["minibatch_size"]) == (True, 7)


def damaged_checkpoint(checkpoints: Path) -> str:
    (checkpoints / "version-3").mkdir(parents=True)
    (checkpoints / "version-3/manifest.json").touch()
    return "no usable checkpoint"


def checkpoint_of_other_data(checkpoints: Path, servers: int = 1) -> str:
    ids = ShardIds()
    plan = ShardPlan((Source("a.csv", 64),), 16, 1)
    ledger = ledger_json(Ledger(plan, ids, task=Task.TRAINING), ids, {})
    making = directories.begin(checkpoints)
    (making / "part.bin").write_bytes(b"part")
    part = PartFile(name="part.bin", bytes=4, checksum=directories.checksum(making / "part.bin"))
    directories.complete(
        making, Manifest(version=3, servers=servers, parameters=None, files=(part,), ledger=ledger)
    )
    return "the training data changed since the checkpoint"


def checkpoint_of_a_ring(checkpoints: Path) -> str:
    checkpoint_of_other_data(checkpoints, servers=0)
    return "was made with --distribution-strategy AllreduceStrategy"


@pytest.mark.parametrize(
    "checkpoint", [damaged_checkpoint, checkpoint_of_other_data, checkpoint_of_a_ring]
)
def test_a_resume_whose_checkpoint_is_refused_leaves_the_job_as_it_was(
    elasticdl: Commands, checkpoint: Callable[[Path], str]
) -> None:
    """Its wrong flags replaced those of job.yaml, so the command that it printed failed again."""
    process = elasticdl.train("drains")
    elasticdl.master("drains")
    process.send_signal(signal.SIGINT)
    elasticdl.end(process)
    job = elasticdl.directory / "jobs/drains"
    problem = checkpoint(job / "checkpoints")
    names = ("job.json", "job.yaml", "status.json", "events.jsonl")
    before = {name: (job / name).read_bytes() for name in names}
    # Not the scripted master: the real one looks at the checkpoint.
    passes = f"{FINE}\n"
    code, _, errors = elasticdl.end(
        elasticdl.train("drains", "--resume", "--minibatch-size", "7", preflight=passes)
    )
    assert code == 1 and problem in errors.partition("Error: ")[2], errors
    assert f"elasticdl train -f {job / 'job.yaml'} --resume\n" in errors
    assert {name: (job / name).read_bytes() for name in names} == before
    assert elasticdl.call("status", "drains")[1].startswith("stopped")


def test_the_other_verbs_talk_to_a_running_job_and_to_one_that_has_ended(
    elasticdl: Commands,
) -> None:
    process = elasticdl.train("drains")
    elasticdl.master("drains")
    code, output, _ = elasticdl.run("status", "drains")
    assert code == 0
    assert (
        output.splitlines()[0]
        == "training, epoch 1 of 2, 50/200 records (25 %), 10/s, ETA 15 s, version 7, 1/1 worker,"
        " training loss 0.5, validation accuracy 0.75, staleness 0.5"
    )
    assert "worker-0  ready     pid 1" in output and "waiting: ps-0 is starting: loading" in output
    assert json.loads(elasticdl.call("status", "drains", "-o", "json")[1])["version"] == 7
    assert elasticdl.run("scale", "drains", "--num-workers", "1:4")[0] == 0
    assert elasticdl.run("checkpoint", "drains")[0] == 0
    code, _, errors = elasticdl.run("stop", "drains")
    assert code == 2 and "--yes" in errors, "without a terminal nobody can be asked"
    code, _, errors = elasticdl.run(
        "stop", "--job-dir", "jobs/drains", "--yes", "--reason", "enough"
    )
    assert code == 0 and "it ends when its workers have drained" in errors
    assert elasticdl.asked("drains") == [["scale", 1, 4], ["checkpoint"], ["stop", "enough"]]
    assert elasticdl.end(process)[0] == 130
    code, output, _ = elasticdl.call("status", "drains")
    assert code == 0 and "ended with exit code 130: stopped: by the test" in output
    assert elasticdl.call("stop", "drains", "--yes")[0] == 0
    code, _, errors = elasticdl.call("scale", "drains", "--num-workers", "2")
    assert code == 4 and "has ended" in errors


def test_stopping_a_job_whose_work_is_done_says_what_it_waits_for(elasticdl: Commands) -> None:
    process = elasticdl.train("drains")
    elasticdl.master("drains")
    (elasticdl.directory / "jobs" / "drains" / "phase").write_text("ending")
    code, _, errors = elasticdl.run("stop", "drains", "--yes")
    assert code == 0 and errors == (
        "its work is done: cutting off on_train_end of callbacks; it ends when its processes have\n"
    )
    elasticdl.end(process)


def test_jobs_are_listed_with_their_progress_and_waited_for(ended: Ended) -> None:
    elasticdl = ended.commands
    process = elasticdl.train("drains")
    elasticdl.master("drains")
    rows = {row["job"]: row for row in json.loads(elasticdl.call("list", "-o", "json")[1])}
    assert {name: row["state"] for name, row in rows.items()} == {
        "drains": "running",
        "finishes": "done",
        "fails": "failed",
    }
    assert (
        rows["drains"]["records"] == {"trained": 50, "expected": 200}
        and rows["drains"]["place"] == "local"
    )
    code, output, _ = elasticdl.call("list")
    assert code == 0 and output.splitlines()[0].split() == [
        "JOB",
        "WHERE",
        "STATE",
        "PROGRESS",
        "STEPS",
        "AGE",
        "WHAT",
    ]
    assert any(line.split()[0] == "drains" and "25 %" in line for line in output.splitlines())
    assert elasticdl.call("wait", "finishes")[0] == 0
    code, output, errors = elasticdl.call("wait", "fails")
    assert code == 1 and "Error: worker-0 failed four times" in errors and "trained 50" in output
    code, _, errors = elasticdl.call("wait", "drains", "--timeout", "0.2")
    assert code == 124 and "has not ended after 0.2 s" in errors
    waiting = elasticdl.start("wait", "drains")
    piped = elasticdl.start("status", "drains", "--watch")
    assert piped.stdout is not None and "waiting: ps-0 is starting" in piped.stdout.readline()
    watching = elasticdl.start("status", "drains", "--watch", "-o", "json")
    assert watching.stdout is not None
    first = json.loads(watching.stdout.readline())
    assert (first["state"], first["version"], first["exit_code"]) == ("running", 7, None)
    assert elasticdl.call("stop", "drains", "--yes")[0] == 0
    assert elasticdl.end(process)[0] == elasticdl.end(waiting)[0] == 130
    code, output, _ = elasticdl.end(piped)
    assert (
        code == 130
        and "ended with exit code 130: stopped: by the test" in output
        and len(output.splitlines()) < 30
    )
    *_, line = watching.stdout
    last = json.loads(line)
    assert watching.wait(LIMIT_S) == 130 and (last["state"], last["exit_code"], set(last)) == (
        "stopped",
        130,
        set(first),
    )


def test_stop_now_ends_a_master_that_obeys_no_stop_or_hangs(elasticdl: Commands) -> None:
    process = elasticdl.train("hangs")
    where = elasticdl.master("hangs")
    assert elasticdl.call("stop", "hangs", "--yes")[0] == 0
    assert process.poll() is None
    os.kill(where["pid"], signal.SIGSTOP)
    code, _, errors = elasticdl.call("stop", "hangs", "--yes")
    assert (
        code == 1
        and "does not answer" in errors
        and "`elasticdl stop hangs --now` ends it in any case" in errors
    )
    assert elasticdl.call("stop", "hangs", "--yes", "--now", "--reason", "enough")[0] == 0
    code, _, errors = elasticdl.end(process)
    assert code == 130 and "Stopped: by the test" in errors
    assert elasticdl.asked("hangs")[-1] == ["stop", "enough"], "whoever ends it says why"
    assert gone(where["pid"])


def test_logs_are_looked_up_by_name_and_can_be_followed_to_the_end(elasticdl: Commands) -> None:
    process = elasticdl.train("drains")
    elasticdl.master("drains")
    log = elasticdl.directory / "jobs/drains/logs/worker-0.log"
    log.write_text("".join(f"line {number}\n" for number in range(1000)))
    assert "worker-0" in elasticdl.call("logs", "drains")[1]
    assert elasticdl.call("logs", "drains", "worker-0", "--lines", "2")[1] == "line 998\nline 999\n"
    assert (
        elasticdl.call("logs", "--job-dir", "jobs/drains", "worker-0.3", "-n", "1")[1]
        == "line 999\n"
    )
    for name in ("../../../etc/passwd", "/etc/passwd", "worker-9"):
        code, output, errors = elasticdl.call("logs", "drains", name)
        assert (code, output) == (4, "") and "there are master-0, worker-0" in errors
    following = elasticdl.start("logs", "drains", "worker-0", "-n", "1", "--follow")
    assert following.stdout is not None
    assert following.stdout.readline() == "line 999\n"
    with log.open("a") as file:
        file.write("one more\n")
    assert following.stdout.readline() == "one more\n"
    process.send_signal(signal.SIGINT)
    assert elasticdl.end(process)[0] == 130
    assert elasticdl.end(following)[0] == 0


def test_a_job_that_is_not_there_is_4_and_says_which_are(finished: Finished) -> None:
    code, _, errors = finished.commands.call("status", "finish")
    assert code == 4
    assert "in ./jobs there are finishes" in errors


CHECK = ("check", "--model-zoo", "zoo", "--model-def", "iris", "--training-data", "a.csv")


def test_check_reports_what_it_found_and_leaves_nothing(elasticdl: Commands) -> None:
    code, output, _ = elasticdl.run(*CHECK)
    assert code == 0
    assert output == "training   100 records in 1 source\nthe model and the data are usable\n"
    assert [path.name for path in elasticdl.directory.iterdir()] == ["zoo"]


def test_what_check_found_can_be_had_as_data_whether_it_is_fine_or_not(
    elasticdl: Commands,
) -> None:
    code, output, _ = elasticdl.run(*CHECK, "-o", "yaml")
    found = yaml.safe_load(output)
    assert (code, found["result"]) == (0, "ok")
    assert found["findings"] == [
        {"about": "training", "result": "ok", "text": "100 records in 1 source"}
    ]
    code, output, errors = elasticdl.end(elasticdl.start(*CHECK, "-o", "json", preflight=BROKEN))
    found = json.loads(output)
    assert (code, found["result"], found["findings"][0]["result"]) == (2, "problem", "problem")
    assert "SyntaxError" in found["findings"][0]["text"] and "Hint: mend line 3" in errors


def test_help_is_there_at_once(elasticdl: Commands) -> None:
    """What each verb's help may import: tests/core/test_cli_help.py."""

    def help_cpu_s() -> float:
        """Of its own: what others do on this machine is not its fault."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [sys.executable, "-m", "elasticdl.cli.main", "--help"]
        done = subprocess.run(
            command, capture_output=True, text=True, cwd=HERE.parent.parent, timeout=LIMIT_S
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert done.returncode == 0 and all(f"\n  {verb} " in done.stdout for verb in VERBS)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    assert min(help_cpu_s() for _ in range(3)) < 0.3


def test_a_terminal_gets_a_live_picture(elasticdl: Commands) -> None:
    screen, terminal = pty.openpty()
    process = elasticdl.train("drains", stderr=terminal)
    os.close(terminal)
    seen = ""
    with os.fdopen(screen, "rb", buffering=0) as file:
        while "training loss 0.5" not in seen or "worker-0" not in seen:
            seen += file.read(4096).decode()
        process.send_signal(signal.SIGINT)
        while "--resume" not in seen:
            seen += file.read(4096).decode()
        assert process.wait(LIMIT_S) == 130
    assert "/#token=" in seen
    assert "\x1b[" in seen and "10 records/s" in seen and "waiting: ps-0 is starting" in seen


def test_a_terminal_that_goes_away_lets_the_job_end_in_order(elasticdl: Commands) -> None:
    process = elasticdl.train("drains")
    elasticdl.master("drains")
    process.send_signal(signal.SIGHUP)
    assert process.wait(LIMIT_S) == 130
    assert elasticdl.asked("drains") == [["stop", "the terminal is gone"]]


def test_a_reader_that_goes_away_does_not_end_the_job(elasticdl: Commands) -> None:
    process = elasticdl.train("finishes")
    assert process.stderr is not None
    process.stderr.close()
    process.stderr = None
    code, output, _ = elasticdl.end(process)
    assert code == 0 and "lost 0" in output

"""`elasticdl.train(...)`: from a thread and from a script, against a master that follows a
script.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import pytest

import elasticdl
from elasticdl.cli.jobs import local_launch
from elasticdl.errors import PermanentError, SpecError, TransientError, UserError
from tests.waiting import gone, until

pytestmark = pytest.mark.process
HERE = Path(__file__).parent
LIMIT_S = 40.0
BROKEN = """
import json, sys
from elasticdl.master import main, preflight
found = {"ok": False, "error": "iris.py:3: no loss", "hint": "add one", "exit_code": 2}
preflight.COMMAND = (sys.executable, "-c", f"print({json.dumps(found)!r})")
sys.exit(main.main())
"""


@pytest.fixture(autouse=True)
def scripted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(
        local_launch, "MASTER_COMMAND", (sys.executable, str(HERE / "scripted_master.py"))
    )
    monkeypatch.setattr(local_launch, "WORKER_IMPORTS", ())
    monkeypatch.setenv("PYTHONPATH", str(HERE.parent.parent))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "zoo").mkdir()
    (tmp_path / "zoo" / "iris.py").write_text("custom_data_reader = print\n")


def train(script: str, **flags: object) -> elasticdl.JobHandle:
    return elasticdl.train(
        show=False,
        model_zoo="zoo",
        model_def="iris",
        training_data="a.csv",
        job_name=script,
        **flags,
    )


def test_a_job_that_is_done_returns_its_receipt_and_metrics() -> None:
    job = train("finishes")
    outcome = job.wait(LIMIT_S)
    assert outcome.exit_code == 0
    for asked in (partial(job.scale, 2), job.checkpoint):
        with pytest.raises(PermanentError, match=r"job finishes in .* has ended"):
            asked()
    assert outcome.receipt["total"]["lost"] == 0
    assert outcome.metrics == {"accuracy": 0.75}


def test_a_job_that_fails_raises_with_what_to_do() -> None:
    job = train("fails")
    with pytest.raises(PermanentError, match=r"ValueError in iris\.py:12") as failed:
        job.wait(LIMIT_S)
    assert failed.value.hint == "see logs/worker-0.log"


def test_a_running_job_can_be_looked_at_scaled_and_stopped_and_outlives_the_asking_thread(
    tmp_path: Path,
) -> None:
    jobs: list[elasticdl.JobHandle] = []
    starter = threading.Thread(target=lambda: jobs.append(train("drains")))
    starter.start()
    starter.join(LIMIT_S)
    (job,) = jobs
    until("the master is up", (tmp_path / "jobs/drains/master.json").exists)
    assert job.running
    assert job.status().version == 7
    job.scale(1, 4)
    job.checkpoint()
    with pytest.raises(TransientError, match="has not ended after 0 s") as late:
        job.wait(0)
    assert (late.value.exit_code, late.value.hint) == (
        124,
        "it is still running: wait longer, or stop it",
    ), "as `elasticdl wait` has it"
    for wrong in ((0,), (3, 2), (2, 0), ("2",), (2.5,), (True,)):
        with pytest.raises(SpecError, match="invalid range of workers"):
            job.scale(*wrong)
    with pytest.raises(SpecError, match="invalid number of parameter servers: 0"):
        job.scale_servers(0)
    job.stop("enough")
    job.stop("twice is not at once")
    outcome = job.wait(LIMIT_S)
    assert outcome.exit_code == 130 and "--resume" in outcome.hint
    assert not job.running and "has ended" in repr(job)
    assert job.status().version == 7, "as it was at the end"
    asked = (tmp_path / "jobs/drains/asked.jsonl").read_text()
    assert '["scale", 1, 4]' in asked and '["stop", "enough"]' in asked and "twice" not in asked


def test_a_job_can_be_looked_at_scaled_and_stopped_at_once(tmp_path: Path) -> None:
    job = train("drains")
    assert job.status().version == 7
    job.stop()
    job.wait(LIMIT_S)
    other = elasticdl.train(
        show=False,
        model_zoo="zoo",
        model_def="iris",
        training_data="a.csv",
        job_name="drains",
        job_dir=tmp_path / "scaled",
    )
    other.scale(2)
    other.stop()
    other.wait(LIMIT_S)
    assert '["scale", 2, 2]' in (tmp_path / "scaled/asked.jsonl").read_text()


def test_a_handle_outlives_a_master_of_its_job(tmp_path: Path) -> None:
    job = train("returns")
    assert job.status().version == 7
    directory = tmp_path / "jobs/returns"
    master = json.loads((directory / "master.json").read_text())
    os.kill(master["pid"], signal.SIGKILL)
    until("it is gone", lambda: gone(master["pid"]))
    assert job.running and job.status().message == "its master is restarting"
    scaling = threading.Thread(target=lambda: job.scale(1, 4))
    scaling.start()  # It waits for the next master.
    (directory / "go").touch()
    scaling.join(LIMIT_S)
    assert '["scale", 1, 4]' in (directory / "asked.jsonl").read_text()
    assert job.status().version == 7
    job.stop("enough")
    assert job.wait(LIMIT_S).exit_code == 130


def test_a_job_that_is_stopped_before_its_master_is_up_ends() -> None:
    job = train("drains")
    job.stop("changed my mind")
    assert job.wait(LIMIT_S).exit_code == 130


def test_wrong_flags_and_a_broken_module_raise_and_leave_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(SpecError, match="unknown key 'num_worker'") as unknown:
        train("finishes", num_worker=3)
    assert unknown.value.hint == "did you mean num-workers?"
    monkeypatch.setattr(local_launch, "MASTER_COMMAND", (sys.executable, "-c", BROKEN))
    with pytest.raises(UserError, match=r"iris\.py:3: no loss") as refused:
        train("finishes")
    assert (refused.value.hint, refused.value.exit_code) == ("add one", 2)
    assert [path.name for path in tmp_path.iterdir()] == ["zoo"]


def test_a_taken_name_is_refused_while_the_job_runs_and_after_it(tmp_path: Path) -> None:
    job = train("drains")
    (tmp_path / "jobs/drains/checkpoints/version-1").mkdir(parents=True)
    (tmp_path / "jobs/drains/checkpoints/version-1/manifest.json").touch()
    with pytest.raises(SpecError, match="already contains a job"):
        train("drains")
    with pytest.raises(SpecError, match="another command runs the job"):
        train("drains", resume=True)
    job.stop()
    job.wait(LIMIT_S)
    with pytest.raises(SpecError, match="already contains a job"):
        train("drains")


def test_a_script_that_ends_waits_for_its_job() -> None:
    program = f"""
import sys, elasticdl
from elasticdl.cli.jobs import local_launch
local_launch.MASTER_COMMAND = (sys.executable, {str(HERE / "scripted_master.py")!r})
elasticdl.train(model_zoo="zoo", model_def="iris", training_data="a.csv", job_name="finishes")
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        env=os.environ,
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert "worker-0 ended by SIGKILL [infrastructure]" in done.stderr
    assert Path("jobs/finishes/receipt.json").exists()


def test_a_handle_in_a_loop_in_a_forked_process_and_after_ctrl_c() -> None:
    program = f"""
import asyncio, os, signal, sys, threading, elasticdl
from elasticdl.cli.jobs import local_launch
local_launch.MASTER_COMMAND = (sys.executable, {str(HERE / "scripted_master.py")!r})

async def begin():
    job = elasticdl.train(
        show=False, model_zoo="zoo", model_def="iris", training_data="a.csv", job_name="drains"
    )
    assert job.status().version == 7
    return job

job = asyncio.run(begin())
if os.fork() == 0:
    for ask in (job.wait, job.stop, job.status, job.checkpoint, lambda: job.scale(2)):
        try:
            ask()
            os._exit(1)
        except elasticdl.errors.PermanentError as error:
            assert "from which this one was forked" in error.message
    assert "of process" in repr(job)
    os._exit(7)
print("forked", os.waitstatus_to_exitcode(os.wait()[1]))
threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    job.wait()
except KeyboardInterrupt as interrupt:
    print(*interrupt.__notes__)
assert job.running
stopping = [threading.Thread(target=job.stop) for _ in range(3)]
for one in stopping:
    one.start()
print(int(job.wait().exit_code))
job.stop()
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        env=os.environ,
    )
    assert done.returncode == 0, done.stderr
    forked, interrupted, code = done.stdout.splitlines()
    assert (forked, code) == (
        "forked 7",
        "130",
    ) and "job drains continues: stop() stops it gracefully" in interrupted


def test_the_package_imports_nothing_until_it_is_used() -> None:
    program = (
        "import sys, elasticdl; sys.exit(bool({'elasticdl.cli', 'pydantic', 'click'} &"
        " set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", program], timeout=LIMIT_S).returncode == 0
    with pytest.raises(AttributeError, match="has no attribute 'trian'"):
        elasticdl.trian  # noqa: B018

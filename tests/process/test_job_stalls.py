"""A whole job that stands still: user code that waits for a lock is named, with its stack, and goes
on.
"""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.commands import printed
from tests.conftest import ROOT, Job, write_iris

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]

MORE = """
import fcntl
import os

feed_of_iris = feed


@tf.autograph.experimental.do_not_convert
def feed(*arguments):
    if os.environ.get("ELASTICDL_PROCESS", "").startswith("worker-"):
        with open(os.environ["LOCK_FILE"]) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
    return feed_of_iris(*arguments)
"""


@pytest.fixture
def start_locked(tmp_path: Path, start_job: Callable[..., Job]) -> Callable[..., Job]:
    """Starts a job whose workers read nothing while the test holds the lock."""
    zoo = tmp_path / "zoo"
    zoo.mkdir()
    shutil.copy(ROOT / "model_zoo/iris.py", zoo / "iris_locked.py")
    with (zoo / "iris_locked.py").open("a") as module:
        module.write(MORE)
    (tmp_path / "lock").touch()

    def start(**flags: object) -> Job:
        data, envs = write_iris(tmp_path / "iris.csv"), f"LOCK_FILE={tmp_path / 'lock'}"
        return start_job(
            model_zoo=zoo, model_def="iris_locked", training_data=data, envs=envs, **flags
        )

    return start


def test_code_that_waits_for_a_lock_is_named_with_its_stack_and_the_job_continues(
    tmp_path: Path, start_locked: Callable[..., Job]
) -> None:
    with (tmp_path / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # Workers tell of an activity after 5 s, at their next report: long before a stall is due.
        job = start_locked(stall_seconds=20)
        named = lambda status: any("has been in feed for" in wait for wait in status["waiting"])  # noqa: E731
        status = job.wait_until("the activity is named", named)
        assert status["stall"] is None
        job.wait_until(
            "its stack is there", lambda _: any(event["kind"] == "stall" for event in job.events())
        )
        assert "worker-0 has been in feed for" in printed("status", "--job-dir", str(job.directory))
        (told,) = [event for event in job.events() if event["kind"] == "stall"]
        assert told["process"] == "worker-0"
        assert "iris_locked.py" in told["text"].splitlines()[1]
        assert "in feed" in told["text"].splitlines()[1]
    code, output = job.finish()
    assert code == 0, output
    assert job.receipt()["total"]["trained"] == 150

"""A member that holds up a ring is named while the others wait for it in a reduction."""

from __future__ import annotations

import fcntl
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.commands import printed
from tests.conftest import ROOT, Job
from tests.ring.ring_jobs import finished, start

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]

LOCKED_IN_WORKER_1 = """
import fcntl
import os

import keras


class Locked(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        if os.environ.get("ELASTICDL_PROCESS") == "worker-1":
            with open(os.environ["LOCK_FILE"]) as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)


def callbacks():
    return [Locked()]
"""


def test_the_member_that_holds_up_a_reduction_is_named(
    tmp_path: Path, start_job: Callable[..., Job], digits: Path
) -> None:
    zoo = tmp_path / "zoo"
    zoo.mkdir()
    shutil.copy(ROOT / "model_zoo/digits.py", zoo / "digits_locked.py")
    with (zoo / "digits_locked.py").open("a") as module:
        module.write(LOCKED_IN_WORKER_1)
    flags = {
        "model_zoo": zoo,
        "model_def": "digits_locked",
        "num_workers": 2,
        "num_epochs": 1,
        "stall_seconds": 6,
        "envs": f"LOCK_FILE={tmp_path / 'lock'}",
    }
    with (tmp_path / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        job = start(start_job, digits, **flags)
        named = job.wait_until(
            "the member is named",
            lambda status: any(
                "worker-1" in wait and "callbacks" in wait for wait in status["waiting"]
            ),
        )
        assert sorted(named["ring"]["members"]) == ["worker-0", "worker-1"]
        job.wait_until("its stack is there", lambda _: shows_the_lock(stalls(job)))
        job.wait_until(
            "the wait is an event", lambda _: any("worker-1" in wait for wait in waits(job))
        )
        for verb in ("status", "why"):
            assert "worker-1" in said(verb, job), verb
    finished(job, epochs=1, accuracy=0.5)


def stalls(job: Job) -> list[dict[str, Any]]:
    return [event for event in job.events() if event["kind"] == "stall"]


def shows_the_lock(stalls: list[dict[str, Any]]) -> bool:
    """Whether a stack of worker-1 shows the lock.

    On a busy machine the master may ask for stacks twice, or ask the other member, too.
    """
    return any(
        (stall["process"], "digits_locked.py" in stall["text"]) == ("worker-1", True)
        for stall in stalls
    )


def waits(job: Job) -> list[str]:
    return [event["text"] for event in job.events() if event["kind"] == "wait"]


def said(verb: str, job: Job) -> str:
    """What the job waits for, as a verb of the command line prints it."""
    answer = json.loads(printed(verb, "--job-dir", str(job.directory), "-o", "json"))
    if verb == "status":
        return "\n".join(answer["waiting"])
    return "\n".join(entry["text"] for entry in answer["entries"])

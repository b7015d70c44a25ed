"""Whole jobs whose servers are killed at random: no update is lost, and weights count each record.

Each record adds 1 to its row, to its bucket and to the total (`tests/fuzz_jobs/zoo/counting.py`),
so the weights show what they were trained on. Where the number of servers changes, the model is a
float64 one and each record adds `UNIT`. All sums of it are exact in float64 and in any order, and
most are not in float32. So the weights have to be, bit for bit, those of a job without the change.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.step_log import still_s
from elasticdl.checkpoint import inspection
from tests import churn
from tests.commands import printed
from tests.conftest import ROOT, Job
from tests.fuzz_jobs import counts
from tests.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]

RECORDS, EPOCHS, MINIBATCH = 1200, 3, 8
LIMIT_S = 240.0
UNIT = 1.0 + 2.0**-38
COUNTING = ROOT / "tests/fuzz_jobs/zoo/counting.py"
_UNTIL_OVER = """

keras.config.set_floatx("float64")

from bench.step_log import StepLog


def loss(labels, predictions):
    return -(1.0 + 2.0**-38) * tf.reduce_sum(predictions)


class Waits(keras.callbacks.Callback):
    wait_s = 0.1

    def on_train_batch_end(self, batch, logs=None):
        end_s = time.monotonic() + self.wait_s
        self.wait_s *= 1.02
        while time.monotonic() < end_s and not os.path.exists({over!r}):
            time.sleep(0.05)


def callbacks():
    return [StepLog(), Waits()]
"""


@pytest.fixture
def start(start_job: Callable[..., Job], tmp_path: Path) -> Callable[..., Job]:
    """A job on the ids 0 to RECORDS - 1."""
    (tmp_path / "ids.csv").write_text("\n".join(["id", *map(str, range(RECORDS))]) + "\n")

    def run(**flags: object) -> Job:
        return start_job(
            "train",
            model_zoo=tmp_path,
            model_def="counted",
            model_params=f"rows={RECORDS};kind='served'",
            training_data=tmp_path / "ids.csv",
            num_epochs=EPOCHS,
            num_workers=2,
            num_ps_pods=2,
            minibatch_size=MINIBATCH,
            output=tmp_path / "export",
            **flags,
        )

    return run


def check_weights(job: Job, tmp_path: Path, *, most_repeated: int) -> None:
    """The weights have seen just what the receipt says."""
    check_receipt(job, most_repeated=most_repeated)
    total = job.receipt()["total"]
    found = counts.of_export(tmp_path / "export", RECORDS, width=1)
    print(f"weights count {found.total:g}")
    repeated = total["repeated"]
    assert found.problem(repeated) == ""
    assert 0 <= found.total - total["trained"] <= repeated
    assert found.records.min() >= EPOCHS


def check_receipt(job: Job, *, most_repeated: int) -> None:
    """No record and no update was lost."""
    total = job.receipt()["total"]
    print(f"receipt {total}")
    assert (total["trained"], total["lost"], total["left"]) == (RECORDS * EPOCHS, 0, 0)
    assert total["repeated"] <= most_repeated
    updates = job.receipt()["updates"]
    print(f"updates {updates}")
    assert (updates["lost"], updates["repeated"], updates["at_least"]) == (0, 0, False)
    # The last minibatch of a shard may be smaller.
    assert 1.0 <= updates["applied"] * MINIBATCH / total["trained"] <= 1.2


def returns(job: Job) -> list[dict[str, Any]]:
    """Events of servers that came back."""
    return [event for event in job.events() if event["kind"] == "server"]


def resize(job: Job, number: int) -> None:
    printed("scale", str(job.directory), "--num-ps-pods", str(number))


def kept(job: Job) -> set[int]:
    """Indices of the servers whose memory the supervisor keeps."""
    supervisor = json.loads((job.directory / "supervisor.json").read_text())["pid"]
    found = []
    for descriptor in Path(f"/proc/{supervisor}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            found.append(os.readlink(descriptor))
    names = [one.partition("elasticdl-ps-")[2].split(" ")[0] for one in found]
    return {int(name) for name in names if name}


def kill_twice(job: Job, choose: random.Random) -> None:
    """Kill a server, and the next process of it as soon as it is there, before it is ready."""
    before = set(job.pids("ps"))
    job.kill("ps", choose)
    following = until("its next process starts", lambda: set(job.pids("ps")) - before, LIMIT_S)
    for pid in following:
        os.kill(pid, signal.SIGKILL)


def kill_all_servers(job: Job) -> None:
    pids = job.pids("ps")
    assert len(pids) == 2
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def wait_for_moment(job: Job, choose: random.Random, done: int) -> None:
    """Until the next kill: any moment of the change, or in every other case one in which workers
    wait for it, if that is seen.
    """
    if choose.random() < 0.5:
        time.sleep(choose.uniform(0.0, 2.0))
        return

    def waits() -> bool:
        waiting = (job.status() or {}).get("waiting", ())
        return any("workers wait" in one for one in waiting) or len(moves(job)) == done

    until("workers wait", waits, LIMIT_S, every_s=0.01)


def moves(job: Job) -> list[str]:
    return [event["text"] for event in job.events() if "the parameters moved" in event["text"]]


def write_until(over: Path, folder: Path) -> None:
    """Put the float64 model into a folder. Its workers wait longer and longer after each step, as
    long as there is no file `over`: training outlasts what happens meanwhile, however slow it is.
    """
    text = COUNTING.read_text() + _UNTIL_OVER.format(over=str(over))
    (folder / "counted.py").write_text(text)


def check_exact(tmp_path: Path) -> None:
    """The weights are those of a job to which nothing happens."""
    found, ids = counts.of_export(tmp_path / "export", RECORDS, width=1), np.arange(RECORDS)
    print(f"total {found.total!r}")
    assert (found.records == EPOCHS * UNIT).all()
    assert (found.buckets == EPOCHS * UNIT * np.bincount(ids % counts.BUCKETS)).all()
    assert found.total == EPOCHS * UNIT * RECORDS


@pytest.mark.parametrize("seed", range(churn.SEEDS or 1))
def test_the_number_of_servers_changes_there_and_back_with_kills_and_loses_no_update(
    seed: int, start: Callable[..., Job], tmp_path: Path
) -> None:
    over, choose = tmp_path / "over", random.Random(seed)
    write_until(over, tmp_path)
    job = start()
    job.wait_until("training began", lambda status: status["version"] > 20, LIMIT_S)
    workers = job.pids("worker")
    for done, (number, role) in enumerate(((3, "ps"), (2, "master")), 1):
        begin_s = time.time()
        resize(job, number)
        wait_for_moment(job, choose, done)
        job.kill(role, choose)

        def changed(done: int = done) -> bool:
            return len(moves(job)) == done

        until(f"there are {number} servers", changed, LIMIT_S, every_s=0.2)
        print(f"no step for {still_s(job.directory, begin_s, time.time()):.2f} s")
    assert job.pids("worker") == workers, "no worker was restarted"
    until(
        "the memory of all other servers is free", lambda: len(kept(job)) == 2, LIMIT_S, every_s=0.2
    )
    assert not kept(job) & {0, 1}
    over.touch()
    code, output = job.finish()
    assert code == 0, output
    print([event["text"] for event in job.events() if event["kind"] == "scale"])
    back = returns(job)
    # There are none if the killed server was of the next map; `check_exact` holds in any case.
    assert all("no update of its part was lost" in one["text"] for one in back), back
    check_receipt(job, most_repeated=0)
    check_exact(tmp_path)


def test_servers_workers_and_masters_that_are_killed_by_turns_lose_no_update(
    start: Callable[..., Job], tmp_path: Path
) -> None:
    """At last the servers lose their memory, too."""
    churn.write_paced(COUNTING, tmp_path, "counted", pace_s=0.1)
    job = start(checkpoint_steps=50, keep_checkpoint_max=0)
    job.wait_until("training began", lambda status: status["version"] > 20, LIMIT_S)
    choose = random.Random(5)
    kills: tuple[tuple[str, Callable[[], None]], ...] = (
        ("a server", lambda: job.kill("ps", choose)),
        ("the master", lambda: job.kill("master", choose)),
        ("a server, and its next process", lambda: kill_twice(job, choose)),
        ("a worker", lambda: job.kill("worker", choose)),
        ("both servers", lambda: kill_all_servers(job)),
    )
    for killed, kill in kills:
        before = job.wait_until("it trains", lambda status: status["version"] > 0, LIMIT_S)
        kill()

        def further(status: dict[str, Any], before: int = before["version"]) -> bool:
            return bool(status["version"] > before + 10)

        job.wait_until(f"it trains after the kill of {killed}", further, LIMIT_S)
    # The pushes of the killed worker must be in a checkpoint first.
    before = job.wait_until("it trains", lambda status: status["version"] > 0, LIMIT_S)

    def covered(status: dict[str, Any]) -> bool:
        newest = status["checkpoints"][-1]["version"] if status["checkpoints"] else 0
        return bool(before["version"] < newest < status["version"] - 5)

    job.wait_until("a checkpoint has all of the killed worker", covered, LIMIT_S)
    job.lose_servers(0, 1)
    code, output = job.finish()
    assert code == 0, output
    # By their words, not by their order: the servers that were killed last may have come back after
    # the job was seen to train on.
    back = [one["text"] for one in returns(job)]
    # A server that is lost right after a checkpoint may lack nothing.
    words = ("workers push again", "no update of its part was lost")
    restored = [text for text in back if "restored version" in text]
    assert len(restored) == 2 < len(back), back
    assert all(any(word in text for word in words) for text in back), back
    check_weights(job, tmp_path, most_repeated=2 * MINIBATCH)
    check_deltas(job.directory / "checkpoints")


def check_deltas(checkpoints: Path) -> None:
    """Checkpoints were taken between the kills, and every byte of them is there."""
    found = inspection.summaries(checkpoints)
    print([(one.version, one.bytes, one.base, one.deltas) for one in found])
    assert any(one.base is not None for one in found)
    assert not [one for one in inspection.verify_all(checkpoints) if one.problems]

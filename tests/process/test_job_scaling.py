"""Many more workers than this machine has cores: they come up a few at a time, and the job goes on
meanwhile.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from elasticdl.rpc.master_client import MasterClient
from elasticdl.tokens import process_token
from tests import churn
from tests.conftest import ROOT, Job

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]
AT_ONCE = max(2, len(os.sched_getaffinity(0)))
WORKERS = 2 * AT_ONCE
EPOCHS = AT_ONCE
PACE_S = 0.05
"""Of each step; an epoch has 140. The job must last until the second wave of workers comes up."""


def shown(supervisor: int) -> dict[int, bytes]:
    """Arguments and environment of a supervisor and all below it, as other processes see them."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parents[int(stat.parent.name)] = int(stat.read_bytes().rpartition(b")")[2].split()[1])
    tree = {supervisor}
    while more := {pid for pid, parent in parents.items() if parent in tree} - tree:
        tree |= more
    texts = {}
    for pid in tree:
        with suppress(OSError):
            place = Path(f"/proc/{pid}")
            texts[pid] = (place / "cmdline").read_bytes() + (place / "environ").read_bytes()
    return texts


def test_scaling_to_many_workers_starts_a_few_at_a_time_and_loses_nothing(
    start_job: Callable[..., Job], iris_csv: Callable[..., Path], tmp_path: Path
) -> None:
    churn.write_paced(ROOT / "model_zoo/iris.py", tmp_path, "iris_paced", PACE_S)
    job = start_job(
        model_zoo=tmp_path,
        model_def="iris_paced",
        training_data=iris_csv(60),
        num_epochs=EPOCHS,
        num_workers="1:1",
        num_ps_pods=1,
        minibatch_size=64,
    )
    job.wait_until("training is under way", lambda status: status["records"]["trained"] > 0)
    where = json.loads((job.directory / "master.json").read_text())
    supervisor = json.loads((job.directory / "supervisor.json").read_text())
    texts = shown(supervisor["pid"])
    assert len(texts) >= 5, "supervisor, master, template, worker and server"
    assert not [pid for pid, text in texts.items() if where["token"].encode() in text]
    own = process_token(where["token"], "worker-0").encode()
    assert len([text for text in texts.values() if own in text]) == 1, "only worker-0 has its token"
    client = MasterClient(
        where["address"],
        where["token"],
        "cli",
        away_s=120.0,
        authority=where["authority"] or None,
    )
    try:
        client.scale(1, WORKERS)
        most, ordered = 0, set()
        while (status := job.status()) is not None and job.process.poll() is None:
            workers = [p for p in status["processes"] if p["role"] == "worker"]
            coming_up = [p for p in workers if p["state"] in ("requested", "pending", "starting")]
            most = max(most, len(coming_up))
            ordered |= {p["name"] for p in workers}
            with suppress(subprocess.TimeoutExpired):
                job.process.wait(timeout=0.2)
    finally:
        client.close()
    code, output = job.finish()
    assert code == 0, output
    total, records = job.receipt()["total"], 9_000 * EPOCHS
    assert (total["expected"], total["trained"], total["lost"]) == (records, records, 0)
    assert 0 < most <= AT_ONCE
    assert len(ordered) > 1 + AT_ONCE, "a second wave came up"
    kept = json.loads((job.directory / "scale.json").read_text())
    assert kept == {"num_workers": f"1:{WORKERS}", "instead_of": ["1"]}
    words = [event["text"] for event in job.events()]
    assert not [event for event in job.events() if event["cause"] in ("silent", "straggler")], words

"""Parameter servers as pods have them: each with a disk of its own, and no volume. A server goes
with its disk, and its successor has what is in the object store and what workers kept.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from elasticdl.checkpoint import copies, inspection
from elasticdl.cluster.base import ProcessName
from elasticdl.job import JobSpec
from elasticdl.job_choices import Action
from elasticdl.master.core.commands import SaveSnapshot
from elasticdl.master.executor.checkpoint_archive import CheckpointArchive
from elasticdl.master.executor.snapshots import CutLimits, Snapshots
from elasticdl.master.gateway.ps_registry import PsRegistry
from elasticdl.ps.restoring import restore
from elasticdl.ps.saving import ServerPart
from elasticdl.shard import SnapshotId
from tests.contract.ps_stage import Stage, as_ids, counting_spec
from tests.object_store import ObjectStore, reached, serving
from tests.process.test_ps_process import Job, Worker, pushed_on

pytestmark = pytest.mark.process
ADDRESS = "s3://bucket/job"
ENOUGH_BYTES = 1 << 24
LIMIT_S = 120.0
PATIENT = CutLimits(LIMIT_S, LIMIT_S, LIMIT_S, LIMIT_S, LIMIT_S)


@pytest.fixture
def server() -> Iterator[ObjectStore]:
    with serving() as made, reached(made):
        yield made


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    made = Job(tmp_path / "seen-by-nobody", 2, LIMIT_S)
    yield made
    made.close()


def start(job: Job, name: str, server: ObjectStore, disks: Path) -> Path:
    """Start a server in a pod; returns the pod's disk."""
    disk = disks / name
    left = disk / f"elasticdl-this-run-{ProcessName.parse(name).index}-of-2"
    left.mkdir(parents=True)
    (left / "half").write_text("what a killed process of the pod left")
    job.start(name, TMPDIR=str(disk), **server.environment())
    return disk


def archive_of(folder: Path, **flags: object) -> CheckpointArchive:
    given = {"model_def": "m", "training_data": "t", "image_name": "i", "num_ps_pods": 2}
    spec = JobSpec.from_flags(Action.TRAIN, {**given, "checkpoint_dir": ADDRESS, **flags})
    return CheckpointArchive(spec, folder)


async def checkpoint(job: Job, archive: CheckpointArchive, number: int) -> str:
    """Take one as the master does."""
    controls, snapshot = job.controls(), SnapshotId(number)
    registry = PsRegistry(len(controls), lambda name, _: controls[name.index])
    for index in range(len(controls)):
        registry.attach(ProcessName.parse(f"ps-{index}"), "")
    snapshots = Snapshots(registry, PATIENT)
    async with snapshots.cut(snapshot) as cut:
        command = SaveSnapshot(snapshot, cut.version, "{}")
    saved = await archive.save(command, snapshots)
    await snapshots.drop(snapshot, saved=True)
    await registry.close()
    return saved.directory


def test_a_server_that_goes_with_its_disk_loses_no_update(
    job: Job, server: ObjectStore, tmp_path: Path
) -> None:
    disks = [start(job, f"ps-{k}", server, tmp_path) for k in range(2)]
    job.await_attached(2)
    workers = [Worker(job, f"worker-{w}", ENOUGH_BYTES) for w in range(2)]
    for worker in workers:
        worker.start()
        worker.await_pushes(20)
    archive = archive_of(tmp_path / "master")
    asyncio.run(checkpoint(job, archive, 1))
    workers[1].await_pushes(20)
    # The store is away for a moment.
    server.faults.unavailable = 4
    job.master.restore_from = asyncio.run(checkpoint(job, archive, 2))
    assert server.faults.unavailable == 0
    saved = copies.manifest(job.master.restore_from)
    assert len(saved.links) == 1 and job.master.restore_from.startswith(ADDRESS)
    workers[0].await_pushes(20)

    job.processes["ps-1"].kill()
    job.processes["ps-1"].wait(LIMIT_S)
    shutil.rmtree(disks[1])
    disks[1] = start(job, "ps-1.1", server, tmp_path)
    job.await_attached(1)
    assert job.versions["ps-1.1"] == saved.version
    pulled, pushes = pushed_on(job, workers)
    assert pulled.versions == (pushes, pushes) and pulled.dense is not None
    assert set(-pulled.dense) == {pushes} == set(np.ravel(-pulled.rows[0])), "each push, once"

    # Another master goes on with the servers, and then the job with another number of them.
    last = asyncio.run(checkpoint(job, archive_of(tmp_path / "next"), 3))
    assert copies.manifest(last).links == ()
    verified = inspection.verify_copies(ADDRESS)
    assert verified and all(not checkpoint.problems for checkpoint in verified)
    beginning = archive_of(tmp_path / "resumed", resume=True).beginning()
    assert (beginning.restore_from, beginning.version) == (last, pushes)
    stage = Stage(1)
    assert restore(stage.servers[0], ServerPart(0, 1, "another-run"), last) == pushes
    pool = stage.pool()
    pool.initialise(counting_spec(), np.zeros(6, np.float32), timeout_s=LIMIT_S)
    again = pool.pull([as_ids([0, 1])], timeout_s=LIMIT_S)
    assert again.dense is not None
    assert set(-again.dense) == {pushes} == set(np.ravel(-again.rows[0]))
    stage.close()
    assert [path for disk in disks for path in disk.rglob("*") if path.is_file()] == []
    assert not any((tmp_path / name).exists() for name in ("seen-by-nobody", "master", "next"))
    for worker in workers:
        worker.pool.close()

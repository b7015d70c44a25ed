"""Every member takes part in every reduction, also one that has nothing to bring."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.ring.ring_stage import FORKS, LIMIT_S, RingStage, prepare_server

pytestmark = pytest.mark.process

CONSTANTS = """
import os
os.dup2(os.open(errors_at, os.O_WRONLY), 2)
import tensorflow as tf
from elasticdl.worker.ring.ring import HorovodRing
from elasticdl.worker.ring.base import RingMembership, RingBroken

ring = HorovodRing()

@tf.function(input_signature=[], autograph=False)
def reduce_constants():
    total, rows = ring.reduced("sum", tf.zeros([3])), ring.gathered("rows", tf.zeros([0, 2]))
    return total, rows, ring.gathered("ids", tf.zeros([0], tf.int64))

ring.enter(RingMembership(0, 0, 1))
for _ in range(2):
    total, rows, ids = reduce_constants()
    assert total.shape == (3,) and rows.shape == (0, 2) and ids.shape == (0,), (total, rows, ids)
ring.leave()
try:
    with ring.guarded():
        reduce_constants()
except RingBroken:
    pass
else:
    raise AssertionError("nothing was reduced")
"""


def test_what_is_reduced_of_constants_is_reduced_each_time_and_not_once_when_it_is_compiled(
    tmp_path: Path,
) -> None:
    prepare_server()
    errors_at = tmp_path / "errors"
    errors_at.touch()
    names = {"__name__": "constants", "errors_at": str(errors_at)}
    process = FORKS.Process(target=exec, args=(CONSTANTS, names), daemon=True)
    process.start()
    try:
        process.join(LIMIT_S)
        assert process.exitcode == 0, errors_at.read_text()
    finally:
        process.kill()
        process.join()


def test_minibatches_of_one_record_with_several_gradient_vectors_are_the_same_on_two_members(
    tmp_path: Path,
) -> None:
    """The member without a record has constants for gradients, in a vector of each type."""

    def losses(members: int) -> dict[int, float]:
        folder = tmp_path / str(members)
        folder.mkdir()
        stage = RingStage(folder, model="mixed", records=18, batch=4)

        async def play() -> None:
            async with stage:
                await stage.form(
                    list(await asyncio.gather(*(stage.spawn() for _ in range(members))))
                )
                assert len({one["digest"] for one in await stage.ends()}) == 1, (
                    "the members' weights differ"
                )

        asyncio.run(play())
        return {version: found.pop() for version, found in stage.losses().items()}

    alone, together = losses(1), losses(2)
    assert len(alone) == 2 * 2 * 3  # of each epoch's two shards of nine records: 4, 4 and 1
    assert together == pytest.approx(alone, rel=1e-5)

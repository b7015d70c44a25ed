"""Rings of real processes: whoever is killed and whoever joins, the model goes the way it would
have gone undisturbed.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from elasticdl.worker.ring.ring import SILENCE_S, settings
from tests.ring.ring_stage import LIMIT_S, RingStage

pytestmark = pytest.mark.process

STEPS = 24
"""Of 2 epochs with 96 records in 2 shards, by 8."""


def run(
    tmp_path: Path, play: Callable[[RingStage], Awaitable[None]], **setting: object
) -> RingStage:
    stage = RingStage(tmp_path, **setting)

    async def main() -> None:
        async with stage:
            await play(stage)

    asyncio.run(main())
    return stage


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    """Losses of a ring of one."""

    async def play(stage: RingStage) -> None:
        await stage.form([await stage.spawn()])
        await stage.ends()

    stage = run(tmp_path_factory.mktemp("undisturbed"), play)
    return {version: losses.pop() for version, losses in stage.losses().items()}


def check(stage: RingStage, ends: list[dict[str, Any]], undisturbed: dict[int, float]) -> None:
    assert {end["end"] for end in ends} == {STEPS}
    assert len({end["digest"] for end in ends}) == 1, "the members' weights differ"
    assert stage.offsets() == {(shard, epoch): 48 for shard in (0, 1) for epoch in (0, 1)}
    seen = stage.losses()
    assert seen.keys() == set(range(1, STEPS + 1))
    for version, losses in seen.items():
        for loss in losses:
            assert loss == pytest.approx(undisturbed[version], rel=1e-9), f"version {version}"


def test_any_script_of_kills_and_joins_ends_with_equal_weights(
    tmp_path: Path, undisturbed: dict[int, float]
) -> None:
    """This seed kills rank 0 while a member joins, has one join as rank 0, kills rank 0 of three,
    and the last but one: the others lose whom they count from, and joiners get their weights.
    """
    ends: list[dict[str, Any]] = []
    choice = random.Random(7)

    async def play(stage: RingStage) -> None:
        waiting = list(await asyncio.gather(*(stage.spawn() for _ in range(4))))
        members = [waiting.pop() for _ in range(2)]
        await stage.form(members)
        for version in sorted(choice.sample(range(2, STEPS - 6), 4)):
            await members[0].step(version)
            if len(members) > 1 and choice.random() < 0.6:
                stage.kill(members.pop(choice.randrange(len(members))))
            if waiting and choice.random() < 0.7:
                members = [*members]
                members.insert(choice.randrange(len(members) + 1), waiting.pop())
            await stage.form(members)
        ends.extend(await stage.ends())

    check(run(tmp_path, play, delay_s=0.05), ends, undisturbed)


def test_a_ring_that_loses_a_member_while_it_forms_is_formed_again(
    tmp_path: Path, undisturbed: dict[int, float]
) -> None:
    ends: list[dict[str, Any]] = []

    async def play(stage: RingStage) -> None:
        members = list(await asyncio.gather(*(stage.spawn() for _ in range(3))))
        await stage.form(members[:2])
        await members[0].step(4)
        stage.kill(members[2], with_signal=signal.SIGSTOP)
        await stage.form(members, wait=False)  # the third will never come
        await members[0].until(lambda one: one.get("step", 0) >= 5 or one.get("entered", 0) > 0)
        stage.kill(members.pop())
        await stage.form(members)
        ends.extend(await stage.ends())

    check(run(tmp_path, play, delay_s=0.05), ends, undisturbed)


def test_a_member_whose_step_takes_three_times_the_silence_that_makes_one_lost_is_waited_for(
    tmp_path: Path, undisturbed: dict[int, float]
) -> None:
    """The others hear of it all the time: silence is what makes a member lost, and 4 s of it are
    enough.
    """
    ends: list[dict[str, Any]] = []

    async def play(stage: RingStage) -> None:
        await stage.form(list(await asyncio.gather(*(stage.spawn() for _ in range(2)))))
        ends.extend(await stage.ends())

    stage = run(tmp_path, play, long={"worker-1": [6, 3.0 * SILENCE_S]})
    check(stage, ends, undisturbed)
    for member in stage.members:
        assert not [one for one in member.told if one.get("broken")]
        times = [one["time"] for one in member.told if "step" in one]
        assert max(b - a for a, b in itertools.pairwise(times)) > 3.0 * SILENCE_S - 1


def test_a_member_that_hangs_ends_itself_and_a_stopped_one_is_known_to_be_lost_within_five_seconds(
    tmp_path: Path, undisturbed: dict[int, float]
) -> None:
    """Those that wait for the one that hangs do not end. A process that is stopped is to the others
    what a node is whose link is cut: connections that say nothing.
    """
    ends: list[dict[str, Any]] = []

    async def play(stage: RingStage) -> None:
        members = list(await asyncio.gather(*(stage.spawn() for _ in range(4))))
        await stage.form(members)
        hung = members.pop(1)
        async with asyncio.timeout(LIMIT_S):
            assert await hung.process.wait() == 1
        assert "has not finished" in hung.last_words
        await stage.form(members)
        await members[0].step(8)
        lost = members.pop(2)
        at_s = stage.kill(lost, with_signal=signal.SIGSTOP)
        for member in members:
            told = await member.until(lambda one: one.get("broken", 0) > 1)
            assert SILENCE_S - 1 < told["heard"] - at_s < 5.0
        await stage.form(members)
        ends.extend(await stage.ends())

    long = {"worker-1": [6, 3600.0]}
    check(run(tmp_path, play, delay_s=0.02, long=long, hung_s=4.0), ends, undisturbed)


def test_horovod_and_nccl_use_the_members_network_unless_the_user_says_otherwise() -> None:
    known = settings({}, 4, "eth1")
    assert (known["HOROVOD_GLOO_IFACE"], known["NCCL_SOCKET_IFNAME"]) == ("eth1", "=eth1")
    assert known["HOROVOD_GLOO_TIMEOUT_SECONDS"] == "4"
    own = {"NCCL_SOCKET_IFNAME": "ib0", "HOROVOD_GLOO_TIMEOUT_SECONDS": "30"}
    assert not own.keys() & settings(own, 4, "eth1").keys()
    chosen = settings({"HOROVOD_GLOO_IFACE": "ib1"}, 4, "eth1")
    assert chosen["NCCL_SOCKET_IFNAME"] == "=ib1", "one network for both"
    assert not {"NCCL_SOCKET_IFNAME", "HOROVOD_GLOO_IFACE"} & settings({}, 4, "").keys()

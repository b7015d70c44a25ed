"""What workers hear of their pushes in synchronous steps, and what they may ask for."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest

from elasticdl.clock import SystemClock
from elasticdl.cluster.base import ProcessName, Role
from elasticdl.master.core.ps.steps import Contribution, Outlook, Steps, TrainingLease
from elasticdl.master.event_queue import EventQueue
from elasticdl.master.gateway.order_streams import OrderStreams
from elasticdl.master.gateway.ps_registry import PsRegistry
from elasticdl.master.gateway.servicer import MasterService, Welcome, proof_of
from elasticdl.master.gateway.step_turns import StepTurns
from elasticdl.rpc import elasticdl_pb2 as pb
from elasticdl.rpc.call_client import CallClient
from elasticdl.rpc.call_frames import METHODS, CallFailed
from elasticdl.rpc.call_server import CallServer
from elasticdl.rpc.channel import Credentials
from elasticdl.rpc.conversation import Settled
from elasticdl.shard import ShardId
from elasticdl.tokens import process_token, proof_to_master
from tests.contract.status_stage import TOKEN, staged

pytestmark = [pytest.mark.contract, pytest.mark.timeout(60)]

WORKER = ProcessName(Role.WORKER, 0)
LEASE = TrainingLease(WORKER, ShardId(0), 0, 0)
FULL = 200


async def test_all_pushes_of_a_large_step_that_is_dropped_are_named() -> None:
    """One that is not named counts as trained."""
    queue, orders = EventQueue(SystemClock()), OrderStreams(0)
    registry = PsRegistry(0, lambda name, address: pytest.fail("no server is needed"))
    turns = StepTurns(
        Steps(FULL, 0), lambda: Outlook((LEASE,)), queue, registry, orders, asyncio.Lock()
    )
    for number in range(1, FULL):
        assert await turns.take(WORKER, number, 0, 0, 5.0) == (1, "")
        assert await turns.end(
            WORKER, number, Contribution(WORKER, number, 1.0), LEASE.part, last=False
        )
    turns.server_changed()
    async for order in orders.stream(WORKER):
        if isinstance(order, Settled):
            assert order.through == FULL - 1
            assert sorted(order.dropped) == list(range(1, FULL))
            break
    await queue.close()


async def test_a_late_gradient_of_a_lease_that_was_taken_back_costs_the_next_lease_nothing() -> (
    None
):
    queue, orders = EventQueue(SystemClock()), OrderStreams(0)
    registry = PsRegistry(0, lambda name, address: pytest.fail("no server is needed"))
    held = [LEASE]
    turns = StepTurns(
        Steps(FULL, 0), lambda: Outlook(tuple(held)), queue, registry, orders, asyncio.Lock()
    )
    await turns.take(WORKER, 1, 0, 0, 5.0)
    turns.revoked(WORKER, 1)
    held[:] = [TrainingLease(WORKER, ShardId(1), 0, 0)]
    assert await turns.take(WORKER, 2, 0, 1, 5.0) == (1, "")
    late = Contribution(WORKER, 1, 1.0)
    assert not await turns.end(WORKER, 1, late, LEASE.part, last=False)
    assert await turns.end(WORKER, 2, Contribution(WORKER, 2, 1.0), held[0].part, last=False), (
        "its turn stands"
    )
    assert await turns.take(WORKER, 3, 0, 1, 5.0) == (1, "")
    # One of a lease that it still has brings that back.
    turns.revoked(WORKER, 2)
    assert not await turns.end(WORKER, 3, Contribution(WORKER, 3, 1.0), held[0].part, last=False)
    assert (await turns.take(WORKER, 4, 0, 2, 5.0))[1] == "its lease was revoked"
    await queue.close()


async def test_a_step_gets_no_old_number_after_a_takeover_though_no_server_knows_of_any() -> None:
    queue, orders = EventQueue(SystemClock()), OrderStreams(0)
    registry = PsRegistry(0, lambda name, address: pytest.fail("no server is needed"))
    turns = StepTurns(
        Steps(FULL, 0), lambda: Outlook((LEASE,)), queue, registry, orders, asyncio.Lock()
    )
    turns.recover(7)
    assert await turns.take(WORKER, 1, 0, 0, 5.0) == (8, "")
    await queue.close()


@pytest.mark.parametrize(
    ("method", "request_"),
    [
        ("TakeTurn", pb.TurnRequest(number=0)),
        ("TakeTurn", pb.TurnRequest(number=1, epoch=-1)),
        ("TakeTurn", pb.TurnRequest(number=1, wait_s=float("nan"))),
        ("EndTurn", pb.EndTurnRequest(number=-1)),
        ("EndTurn", pb.EndTurnRequest(number=1, sequence=-1)),
        *[
            ("EndTurn", pb.EndTurnRequest(number=1, sequence=1, examples=examples))
            for examples in (-1.0, 1e17, float("inf"), float("nan"))
        ],
    ],
)
async def test_numbers_that_no_worker_has_are_refused(
    tmp_path: Path, method: str, request_: Any
) -> None:
    async with staged(tmp_path) as stage:
        stage.gateway.train_in_steps(stage.turns)
        welcome = Welcome(TOKEN, 1, lambda: "{}", lambda: "")
        service = MasterService(stage.inbox, stage.gateway, welcome, lambda: "{}", stage.core)
        server = CallServer(partial(proof_of, token=TOKEN))
        server.serve(service, service.refusal)
        port = await server.start("127.0.0.1", 0)
        proof = proof_to_master(process_token(TOKEN, "worker-0"))
        credentials = Credentials(proof, "worker-0", "one")
        client = CallClient(f"127.0.0.1:{port}", credentials, None, "")
        try:
            for name, message in (("Attach", pb.AttachRequest()), (method, request_)):
                await client.call(METHODS[name], message, term=1, timeout_s=10)
            pytest.fail("it was not refused")
        except CallFailed as error:
            assert error.code() is grpc.StatusCode.INVALID_ARGUMENT, error
            assert "worker-0" in error.details()
        finally:
            await client.close()
            await server.close()

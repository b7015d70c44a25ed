"""Messages with anything changed: the master refuses them with a status, and serves the next."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path
from typing import Any, cast

import grpc
import pytest

from elasticdl.master.gateway.servicer import MasterService, Welcome, proof_of
from elasticdl.rpc import elasticdl_pb2 as pb
from elasticdl.rpc.call_client import CallClient
from elasticdl.rpc.call_frames import METHODS, CallFailed
from elasticdl.rpc.call_server import CallServer
from elasticdl.rpc.channel import Credentials
from elasticdl.tokens import process_token, proof_to_master
from tests.contract import status_stage
from tests.contract.status_stage import TOKEN, staged
from tests.fuzz.budget import fuzz_s, rounds

pytestmark = [pytest.mark.contract, pytest.mark.timeout(fuzz_s() + 120)]

REQUESTS: dict[str, Any] = {
    "Attach": pb.AttachRequest(control_address="127.0.0.1:1", bulk_address="127.0.0.1:2"),
    "RequestLease": pb.LeaseRequest(sequence=1, wait_s=0.001),
    "Report": pb.ReportRequest(sequence=1),
    "TakeTurn": pb.TurnRequest(number=1, wait_s=0.001),
    "EndTurn": pb.EndTurnRequest(number=1, sequence=1, examples=1.0),
    "Status": pb.StatusRequest(),
    "Scale": pb.ScaleRequest(min_workers=1, max_workers=2),
    "Checkpoint": pb.CheckpointRequest(),
}
EXPECTED = {
    grpc.StatusCode.OK,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.OUT_OF_RANGE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
}


def changed(message: Any, choose: random.Random) -> bytes:
    """The message with any of its fields filled, and some bytes replaced."""
    made = type(message)()
    made.CopyFrom(message)
    _fill(made, choose, 3)
    data = bytearray(made.SerializeToString())
    if data and choose.random() < 0.3:
        data[choose.randrange(len(data))] = choose.randrange(256)
    return bytes(data)


def _fill(message: Any, choose: random.Random, depth: int) -> None:
    for field in message.DESCRIPTOR.fields:
        if choose.random() < 0.5:
            continue
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            continue
        if field.message_type is not None:
            if depth > 0:
                inner = getattr(message, field.name)
                _fill(inner.add() if field.is_repeated else inner, choose, depth - 1)
            continue
        value = _value(field, choose)
        if field.is_repeated:
            getattr(message, field.name).append(value)
        else:
            setattr(message, field.name, value)


def _value(field: Any, choose: random.Random) -> Any:
    kind = field.cpp_type
    if kind in (field.CPPTYPE_DOUBLE, field.CPPTYPE_FLOAT):
        return choose.choice([0.0, -1.0, 1e300, float("inf"), float("nan"), 0.5])
    if kind == field.CPPTYPE_BOOL:
        return choose.random() < 0.5
    if kind == field.CPPTYPE_STRING:
        text = choose.choice(["", "x", "worker-0", "\0", "ä" * 3000, "1", "-1"])
        return text.encode() if field.type == field.TYPE_BYTES else text
    if kind == field.CPPTYPE_ENUM:
        return choose.choice([0, 1, 2, 77])
    bits = 64 if kind in (field.CPPTYPE_INT64, field.CPPTYPE_UINT64) else 32
    signed = kind in (field.CPPTYPE_INT64, field.CPPTYPE_INT32)
    most = 2 ** (bits - signed) - 1
    return choose.choice([0, 1, 2, 7, most, most - 1, *([-1, -most - 1] if signed else [])])


class Bytes:
    """A message as it is on the wire."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def SerializeToString(self) -> bytes:
        return self._data


async def status_of(address: str, method: str, data: bytes, name: str) -> Any:
    proof = proof_to_master(TOKEN if name == "cli" else process_token(TOKEN, name))
    client = CallClient(address, Credentials(proof, name, "one"), None, "")
    try:
        await client.call(METHODS[method], cast("Any", Bytes(data)), term=1, timeout_s=5)
    except CallFailed as error:
        return error.code(), error.details()
    finally:
        await client.close()
    return grpc.StatusCode.OK, ""


async def test_a_message_is_taken_or_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status_stage, "LIMIT_S", fuzz_s() + 60)

    async with staged(tmp_path) as stage:
        welcome = Welcome(TOKEN, 1, lambda: "{}", lambda: "")
        stage.gateway.train_in_steps(stage.turns)
        service = MasterService(stage.inbox, stage.gateway, welcome, lambda: "{}", stage.core)
        server = CallServer(partial(proof_of, token=TOKEN))
        server.serve(service, service.refusal)
        address = f"127.0.0.1:{await server.start('127.0.0.1', 0)}"
        try:
            for choose in rounds("messages"):
                method, message = choose.choice(sorted(REQUESTS.items()))
                name = choose.choice(["worker-0", "worker-1", "ps-0", "cli"])
                data = changed(message, choose)
                code, details = await status_of(address, method, data, name)
                assert code in EXPECTED, (method, name, code, details)
            empty = pb.StatusRequest().SerializeToString()
            assert (await status_of(address, "Status", empty, "cli"))[0].name == "OK"
        finally:
            await server.close()
    assert [record for record in caplog.records if record.exc_info] == []

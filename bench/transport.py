"""The bulk plane against gRPC with identity serializers, both over loopback between two processes:
`python -m bench.transport`.

Get: a dense vector is pulled. Put: a dense gradient is pushed and applied by SGD, which gRPC's side
    does not do.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from bench.server import LIMIT_S, server_process, timed
from elasticdl.embedding.spec import DenseSpec, OptimizerKind, OptimizerSpec, ParametersSpec
from elasticdl.rpc.parameters import Update
from elasticdl.rpc.ps_client import ServerPool
from elasticdl.shard import Applied, ShardId
from elasticdl.tokens import bulk_key, bulk_token

ROOT = Path(__file__).parent.parent
SIZES = (16, 64 << 10, 1 << 20, 4 << 20, 25 << 20)
OPTIONS = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.http2.max_frame_size", 16777215),
    ("grpc.http2.lookahead_bytes", 32 << 20),
    ("grpc.http2.write_buffer_size", 32 << 20),
    ("grpc.experimental.tcp_min_read_chunk_size", 4 << 20),
    ("grpc.optimization_target", "throughput"),
    ("grpc.http2.bdp_probe", 0),
]


def serve_grpc() -> None:
    """Serve in the other process: `get` returns the requested number of bytes, `put` discards."""
    stored: dict[bytes, bytes] = {}

    def get(request: bytes, context: Any) -> bytes:
        if request not in stored:
            stored[request] = bytes(int(request))
        return stored[request]

    handlers = {
        "get": grpc.unary_unary_rpc_method_handler(get),
        "put": grpc.unary_unary_rpc_method_handler(lambda request, context: b""),
    }
    server = grpc.server(ThreadPoolExecutor(2), options=OPTIONS)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bulk", handlers),))
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    server.start()
    sys.stdin.read()


def grpc_calls(size: int, port: int) -> tuple[Callable[[], object], Callable[[], object]]:
    channel = grpc.insecure_channel(f"127.0.0.1:{port}", options=OPTIONS)
    get = channel.unary_unary("/bulk/get", None, None)
    put = channel.unary_unary("/bulk/put", None, None)
    payload = bytes(size)
    return lambda: get(str(size).encode(), timeout=LIMIT_S), lambda: put(payload, timeout=LIMIT_S)


def bulk_calls(size: int, address: str) -> tuple[Callable[[], object], Callable[[], object]]:
    pool = ServerPool([address], "worker-0", [bulk_token(bulk_key("bench", 0), "worker-0")])
    spec = ParametersSpec(
        optimizer=OptimizerSpec(kind=OptimizerKind.SGD),
        dense=(DenseSpec(path="w", shape=(size // 4,)),),
    )
    pool.initialise(spec, np.zeros(size // 4, np.float32), timeout_s=LIMIT_S)
    gradient = np.ones(size // 4, np.float32)
    sequences = iter(range(1, 1 << 40))

    def put() -> object:
        number = next(sequences)
        return pool.push(
            Update(number, Applied(ShardId(0), 0, number), (number,), 0.1, gradient),
            timeout_s=LIMIT_S,
        )

    return lambda: pool.pull([], timeout_s=LIMIT_S), put


def measure() -> dict[str, Any]:
    results: dict[str, Any] = {}
    command = [sys.executable, "-c", "from bench.transport import serve_grpc; serve_grpc()"]
    other = subprocess.Popen(
        command,
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ},
    )
    try:
        assert other.stdout is not None
        port = int(other.stdout.readline())
        for size in SIZES:
            with server_process() as (address, _):
                for name, (get, put) in {
                    "bulk plane": bulk_calls(size, address),
                    "gRPC": grpc_calls(size, port),
                }.items():
                    for direction, call in (("get", get), ("put", put)):
                        results[f"{name} {direction} {size}"] = (
                            statistics.median(timed(call, 1.0)) * 1e3
                        )
    finally:
        other.kill()
        other.communicate()
    print(f"{'bytes':>10}{'get: bulk, gRPC, ratio':>30}{'put: bulk, gRPC, ratio':>30}   (p50, ms)")
    for size in SIZES:
        pairs = [
            (results[f"bulk plane {way} {size}"], results[f"gRPC {way} {size}"])
            for way in ("get", "put")
        ]
        print(
            f"{size:>10}"
            + "".join(f"{bulk:12.3f}{other:9.3f}{other / bulk:8.1f}x" for bulk, other in pairs)
        )
    return results


if __name__ == "__main__":
    measure()

"""`python -m bench load --server N`: one parameter server, and N workers of two connections each.

The workers live in a few processes (`load_server_clients`). Their number does not change what they
ask for in sum, as if the same cores computed their steps: each step computes for as long as makes
STEPS_PER_S in sum. With ELASTICDL_BENCH_STEPS_PER_S=0 steps take no time: then the
clients compete with the server for the machine's cores. ELASTICDL_BENCH_TLS=1 encrypts.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from typing import IO, Any

from bench.jobs import cpu_time_s
from bench.load import Load
from bench.load_server_clients import Share
from bench.server import DIM, ROOT, ROWS, Client, resident_bytes, server_process
from elasticdl.embedding.spec import OptimizerKind, OptimizerSpec
from elasticdl.own_process import raise_file_limit
from elasticdl.tls.authority import Authority

ROWS_PER_STEP = 1_000
PROCESSES = 2
STEPS_PER_S = float(os.environ.get("ELASTICDL_BENCH_STEPS_PER_S", "2000"))
WARM_UP_S = 1.0


def run(clients: int, seconds: float) -> Load:
    """Measure for these seconds, after all have greeted."""
    raise_file_limit()
    compute_s = clients / STEPS_PER_S if STEPS_PER_S else 0.0
    # Every worker should have made steps.
    seconds, warm_up_s = max(seconds, 2 * compute_s), max(WARM_UP_S, compute_s)
    authority = Authority.new("bench") if os.environ.get("ELASTICDL_BENCH_TLS") == "1" else None
    with server_process(authority) as (address, server), ExitStack() as stack:
        filling = Client(address, OptimizerSpec(kind=OptimizerKind.ADAM), 1, authority)
        filling.fill()
        filling.pool.close()
        trusted = authority.certificate if authority is not None else ""
        shares = [
            Share(address, first, count, ROWS_PER_STEP, ROWS, DIM, compute_s, trusted)
            for first, count in _split(clients, PROCESSES)
        ]
        processes = [stack.enter_context(_clients(share)) for share in shares]
        greeted = sum(_answer(process)["greeted"] for process in processes)
        before_s = cpu_time_s(server.pid)
        for process in processes:
            _put(process, [seconds, warm_up_s])
        steps = sorted(step for process in processes for step in _answer(process)["steps"])
        cpu_s = (cpu_time_s(server.pid) - before_s) * seconds / (seconds + warm_up_s)
        answers = [_answer(process) for process in processes]
        for trouble in (trouble for answer in answers for trouble in answer["troubles"]):
            print(trouble, file=sys.stderr)
        print(
            f"{greeted:,} greeted; steps of a worker: {steps[0]} to {steps[-1]},"
            f" median {steps[len(steps) // 2]}",
            flush=True,
        )
        return Load(
            clients=clients,
            stranded=sum(answer["stranded"] for answer in answers),
            cpu_s=cpu_s,
            rss_mib=resident_bytes(server) / (1 << 20),
            lease_p50_ms=None,
            lease_p99_ms=None,
            rows_per_s=2 * ROWS_PER_STEP * sum(steps) / seconds,
            noticed_s=None,
        )


def _split(clients: int, parts: int) -> Iterator[tuple[int, int]]:
    """(first, count) of each process that has some."""
    for part in range(parts):
        first, end = clients * part // parts, clients * (part + 1) // parts
        if end > first:
            yield first, end - first


@contextmanager
def _clients(share: Share) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.load_server_clients"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        _put(process, asdict(share))
        yield process
    finally:
        process.kill()
        process.communicate()


def _put(process: subprocess.Popen[str], value: object) -> None:
    _pipe(process.stdin).write(json.dumps(value) + "\n")
    _pipe(process.stdin).flush()


def _answer(process: subprocess.Popen[str]) -> dict[str, Any]:
    line = _pipe(process.stdout).readline()
    if not line:
        raise RuntimeError("a process of clients ended; its error is above")
    answer: dict[str, Any] = json.loads(line)
    return answer


def _pipe(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe

"""The same server with TLS and without it, in turns: `python -m bench tls`."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

from bench.server import DENSE, SIZES, Client, server_process, timed
from elasticdl.embedding.spec import OptimizerKind, OptimizerSpec
from elasticdl.tls.authority import Authority

ROUNDS = 5
ADAM = OptimizerSpec(kind=OptimizerKind.ADAM)


def calls(client: Client) -> dict[str, Callable[[], list[float]]]:
    rows = {f"pull {size}": lambda size=size: timed(client.pull(size)) for size in SIZES}
    pushes = {f"push adam {size}": lambda size=size: timed(client.push(size)) for size in SIZES}
    return {**rows, **pushes}


def dense_calls(client: Client) -> dict[str, Callable[[], list[float]]]:
    return {
        "dense pull": lambda: timed(client.dense_pull()),
        "dense push adam": lambda: timed(client.dense_push()),
    }


def compared(
    dense: int, calls_of: Callable[[Client], dict[str, Callable[[], list[float]]]]
) -> dict[str, dict[str, float]]:
    """Medians in ms; both servers run all the time, and take turns."""
    authority = Authority.new("bench")
    with server_process() as (clear, _), server_process(authority) as (secured, _):
        ways = {
            "clear": calls_of(Client(clear, ADAM, dense)),
            "tls": calls_of(Client(secured, ADAM, dense, authority)),
        }
        found: dict[str, dict[str, list[float]]] = {}
        for _ in range(ROUNDS):
            for way, named in ways.items():
                for name, call in named.items():
                    found.setdefault(name, {}).setdefault(way, []).extend(call())
    medians = {
        name: {way: statistics.median(times) * 1e3 for way, times in by_way.items()}
        for name, by_way in found.items()
    }
    return {name: {**row, "ratio": row["tls"] / row["clear"]} for name, row in medians.items()}


def measure() -> dict[str, Any]:
    results = {**compared(1, calls), **compared(DENSE, dense_calls)}
    print(f"{'':18}{'clear, ms':>12}{'TLS, ms':>12}{'ratio':>8}")
    for name, row in results.items():
        print(f"{name:18}{row['clear']:12.3f}{row['tls']:12.3f}{row['ratio']:8.2f}")
    return results


if __name__ == "__main__":
    measure()

"""`python -m bench load --server N | --master N [--seconds S] [--lease-seconds L] [--tls]
[-o json]`: a parameter server, or a master, with N clients over real sockets. With `-o json` the
last line is one JSON object.
"""

from __future__ import annotations

import argparse
import importlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

LOADS = {"server": "bench.load_server", "master": "bench.load_master"}
"""Modules with `run(clients: int, seconds: float) -> Load`; a master's takes `lease_s` and `tls`,
too."""


@dataclass(frozen=True, slots=True)
class Load:
    """What was measured; None where it does not apply.

    `stranded` clients could not do their work. `cpu_s` and `rss_mib` are of the process under load,
    `cpu_s` during the measured seconds. `noticed_s` passes from the kill of a client to the moment
    when that process has noticed.
    """

    clients: int
    stranded: int
    cpu_s: float
    rss_mib: float
    lease_p50_ms: float | None
    lease_p99_ms: float | None
    rows_per_s: float | None
    noticed_s: float | None


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench load")
    which = parser.add_mutually_exclusive_group(required=True)
    for kind in LOADS:
        which.add_argument(f"--{kind}", type=int, metavar="N", help=f"N clients of one {kind}")
    parser.add_argument("--seconds", type=float, default=20.0, help="seconds to measure")
    parser.add_argument(
        "--lease-seconds", type=float, help="how long a master's client works on a lease"
    )
    parser.add_argument(
        "--tls", action="store_true", help="have a master's clients connect over TLS"
    )
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text")
    given = parser.parse_args(arguments)
    kind = next(kind for kind in LOADS if getattr(given, kind) is not None)
    options = {"lease_s": given.lease_seconds} if given.lease_seconds else {}
    options |= {"tls": True} if given.tls else {}
    if options and kind != "master":
        parser.error("--lease-seconds and --tls are for --master")
    run = importlib.import_module(LOADS[kind]).run
    load: Load = run(getattr(given, kind), given.seconds, **options)
    if given.output == "json":
        print(json.dumps(asdict(load)), flush=True)
        return
    for name, value in asdict(load).items():
        print(f"{name:>14}  {'-' if value is None else f'{value:,.10g}'}", flush=True)

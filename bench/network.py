"""DeepFM with Adam on a real network's speed: one server and two workers, against the same model on
TensorFlow's ParameterServerStrategy, over a link of 500 Mbit/s, of 2 Gbit/s, and without a limit.

The link is the loopback interface of a network namespace of its own, which both directions share;
no interface outside of it is touched. Making one needs root. Samples/s; bytes a sample as the
interface counts them; AUC after one pass. Our AUC is that of one worker with `--max-staleness 0`:
its steps are the same with every precision, so nothing else differs. First what workers exchange is
measured alone (`bench/exchange.py`), which other work on the cores disturbs least;
`NETWORK_SYSTEMS=` (none) measures nothing else. `NETWORK_LINKS`, `NETWORK_BATCHES`,
`NETWORK_SYSTEMS`, `NETWORK_ROUNDS` (0: no AUC, one round), `NETWORK_SECONDS` and `E2E_RECORDS`
shorten it.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.deepfm_data import write
from bench.end_to_end import flags, learn, run_peer
from bench.exchange import WAYS
from bench.exchange import measure as exchange
from bench.jobs import ROOT, RunningJob, running
from bench.learning_curve import loopback_bytes

LINKS = {"500mbit": "500 Mbit/s", "2gbit": "2 Gbit/s", "none": "no limit"}
SYSTEMS = ("float32", "bfloat16", "auto", "pss")
"""Ours, by --wire-precision, and ParameterServerStrategy."""
AUC_AIM = 0.001
"""Of the difference between a lower precision and float32."""
AIMS = {"float32": 1.1, "bfloat16": 2.0, "auto": 2.0}
"""Times PSS, at 500 Mbit/s."""
_BURST, _QUEUE = "256k", "50ms"
"""Of the token bucket: a few packets of the loopback's 64 KiB, and how long one may wait."""
_SETTLE_S = 12.0
"""From the first trained record: steps are compiled, and workers have tried packed frames."""


@dataclass(frozen=True, slots=True)
class Figures:
    """One system over one link."""

    samples_per_s: float
    bytes_per_sample: float
    auc: float | None


def measure() -> dict[str, Any]:
    """Measure each link in a namespace of its own."""
    _check_possible()
    figures: dict[str, Any] = {}
    for link in os.environ.get("NETWORK_LINKS", " ".join(LINKS)).split():
        if link not in LINKS:
            sys.exit(f"NETWORK_LINKS: unknown {link!r}; choose from {' '.join(LINKS)}")
        print(LINKS[link], flush=True)
        command = ["unshare", "--net", sys.executable, "-m", "bench.network", link, _namespace()]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as inside:
            assert inside.stdout is not None
            for line in inside.stdout:
                if line.startswith("{"):
                    figures[LINKS[link]] = json.loads(line)
                else:
                    print(line, end="", flush=True)
        if inside.returncode != 0:
            raise RuntimeError(f"the measurement at {LINKS[link]} ended with {inside.returncode}")
    return figures


def _check_possible() -> None:
    missing = [tool for tool in ("unshare", "ip", "tc") if shutil.which(tool) is None]
    if missing:
        sys.exit(f"network: {', '.join(missing)} is missing: install util-linux and iproute2")
    if subprocess.run(["unshare", "--net", "true"], capture_output=True).returncode != 0:
        sys.exit("network: cannot make a network namespace: run it as root, with CAP_SYS_ADMIN")


def _namespace() -> str:
    return os.readlink("/proc/self/ns/net")


def _shape(link: str, outside: str) -> None:
    """Bring up the loopback of this namespace, at this rate."""
    if _namespace() == outside:
        sys.exit("network: this is not a namespace of its own; nothing was changed")
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    if link != "none":
        bucket = f"rate {link} burst {_BURST} latency {_QUEUE}"
        subprocess.run(f"tc qdisc add dev lo root tbf {bucket}".split(), check=True)


def _measure_here(link: str) -> dict[str, dict[str, Any]]:
    rounds = int(os.environ.get("NETWORK_ROUNDS", "3"))
    systems = os.environ.get("NETWORK_SYSTEMS", " ".join(SYSTEMS)).split()
    batches = [int(batch) for batch in os.environ.get("NETWORK_BATCHES", "512 4096").split()]
    found: dict[str, dict[str, Any]] = {"exchange": _exchanges(batches)}
    if not systems:
        return found
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        write(folder)
        for batch in batches:
            runs: dict[str, list[Figures]] = {system: [] for system in systems}
            for _ in range(max(rounds, 1)):
                for system in systems:
                    runs[system].append(_run(system, batch, folder, with_auc=rounds > 0))
            found[str(batch)] = {system: _medians(made) for system, made in runs.items()}
            _show(batch, found[str(batch)], AIMS if link == "500mbit" else {})
    return found


def _exchanges(batches: list[int]) -> dict[str, dict[str, dict[str, float]]]:
    seconds = float(os.environ.get("NETWORK_SECONDS", "12"))
    found: dict[str, dict[str, dict[str, float]]] = {}
    for batch in batches:
        for way in WAYS:
            one = exchange(way, batch, seconds)
            found.setdefault(str(batch), {})[way] = asdict(one)
            print(
                f"  {batch:5} {way:9} {one.samples_per_s:9,.0f} samples/s exchanged"
                f" {one.bytes_per_sample:7,.0f} bytes a sample   {one.mbit_per_s:7,.0f} Mbit/s",
                flush=True,
            )
    return found


def _run(system: str, batch: int, folder: Path, *, with_auc: bool) -> Figures:
    if system == "pss":
        peer = run_peer("bench.peer_pss", "adam", batch, folder)
        return Figures(peer.rate, peer.bytes_per_sample, peer.auc)
    ours = flags("adam", batch, folder / "train.npz", 2) | {"wire_precision": system}
    with running(**ours, num_epochs=1000) as job:
        rate, bytes_per_sample = _steady(job, float(os.environ.get("NETWORK_SECONDS", "12")))
    return Figures(rate, bytes_per_sample, _auc(system, batch, folder) if with_auc else None)


def _auc(precision: str, batch: int, folder: Path) -> float:
    """Of one worker that pulls only after its own pushes."""
    alone = {"workers": 1, "max_staleness": 0}
    return learn("adam", batch, folder, 0.0, wire_precision=precision, **alone).auc


def _steady(job: RunningJob, seconds: float) -> tuple[float, float]:
    """Samples/s and bytes a sample over `seconds`, once the job is in its stride.

    By the slopes of lines through all points: workers report every two seconds, so records come in
    steps.
    """
    times_s, records, sent = zip(*_points(job, seconds), strict=True)
    rate = statistics.linear_regression(times_s, records).slope
    return rate, statistics.linear_regression(times_s, sent).slope / rate


def _points(job: RunningJob, seconds: float) -> Iterator[tuple[float, int, int]]:
    first_s = 0.0
    while not first_s or time.perf_counter() < first_s + _SETTLE_S + seconds:
        status = job.until("it answered", job.status)
        now_s, records = time.perf_counter(), int(status["records"]["trained"])
        first_s = first_s or (now_s if records else 0.0)
        if first_s and now_s > first_s + _SETTLE_S:
            yield now_s, records, loopback_bytes()
        time.sleep(0.5)


def _medians(runs: list[Figures]) -> dict[str, float | None]:
    aucs = [run.auc for run in runs if run.auc is not None]
    return {
        "samples_per_s": statistics.median(run.samples_per_s for run in runs),
        "bytes_per_sample": statistics.median(run.bytes_per_sample for run in runs),
        "auc": statistics.median(aucs) if aucs else None,
    }


def _show(batch: int, row: dict[str, Any], aims: Mapping[str, float]) -> None:
    pss = row.get("pss", {}).get("samples_per_s")
    exact = row.get("float32", {}).get("auc")
    for system, one in row.items():
        auc = f"   AUC {one['auc']:.5f}" if one["auc"] is not None else ""
        if auc and exact is not None and system in ("bfloat16", "auto"):
            auc += f" ({one['auc'] - exact:+.5f}; aim +-{AUC_AIM})"
        times = f"   {one['samples_per_s'] / pss:.2f} x PSS" if pss else ""
        if times and system in aims:
            times += f" (aim {aims[system]})"
        print(
            f"  {batch:5} {system:9} {one['samples_per_s']:9,.0f} samples/s"
            f" {one['bytes_per_sample']:7,.0f} bytes a sample{auc}{times}",
            flush=True,
        )


if __name__ == "__main__":
    _shape(sys.argv[1], sys.argv[2])
    print(json.dumps(_measure_here(sys.argv[1])), flush=True)

"""Run one experiment: `python -m experiments NAME`. The last line of `-o json` has the figures.

All but elasticdl3 need what `make test-kubernetes` needs: Linux, root and Go. `--keep` writes the
figures and a chart of the slots over time into a folder.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from experiments import (
    edl1,
    edl2,
    elasticdl1,
    elasticdl2,
    elasticdl3,
    trials,
    volcano,
)
from experiments.chart import slots_over_time
from experiments.clusters import on_cluster
from experiments.figures import Figures

EXPERIMENTS: Mapping[str, Callable[..., Figures]] = {
    "edl1": partial(on_cluster, edl1.run),
    "edl2": partial(on_cluster, edl2.run),
    "elasticdl1": partial(on_cluster, elasticdl1.run),
    "elasticdl1-gpu": partial(on_cluster, elasticdl1.run_gpus),
    "elasticdl2": partial(on_cluster, elasticdl2.run),
    "elasticdl3": elasticdl3.run,
    "trials": partial(on_cluster, trials.run),
    "volcano": partial(on_cluster, volcano.run, gangs=True),
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m experiments", description=__doc__)
    parser.add_argument("name", choices=EXPERIMENTS)
    parser.add_argument("--small", action="store_true", help="Smaller and shorter.")
    parser.add_argument(
        "--scheduler",
        type=_json_object,
        metavar="JSON",
        help="Fields of KubeSchedulerConfiguration. elasticdl3 has no scheduler.",
    )
    parser.add_argument("--keep", type=Path, help="A folder for figures and chart.")
    parser.add_argument("-o", dest="form", choices=("table", "json"), default="table")
    given = parser.parse_args()
    load = os.getloadavg()[0]
    options: dict[str, Any] = {"small": given.small}
    if given.scheduler is not None:
        if given.name == "elasticdl3":
            parser.error("elasticdl3 has no scheduler")
        options["scheduler"] = given.scheduler
    found = EXPERIMENTS[given.name](**options)
    today = datetime.now(UTC).date().isoformat()
    settings = {"experiment": given.name, "small": given.small, "date": today, "cpu": _cpu()}
    if given.scheduler is not None:
        settings["scheduler"] = given.scheduler
    row = settings | found.as_row() | {"load": [load, os.getloadavg()[0]]}
    row = {key: _rounded(value) for key, value in row.items()}
    if given.keep is not None:
        _keep(given.keep, given.name, row, found)
    if given.form == "json":
        print(json.dumps(row))
        return
    for key, value in row.items():
        print(f"{key:<24} {value}")


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"{text!r} is not a JSON object")
    return value


def _cpu() -> str:
    """Cores and, where Linux tells it, their model."""
    info = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*: (.+)", info.read_text()) if info.exists() else None
    return f"{os.cpu_count()} cores, {found[1] if found else platform.machine()}"


def _keep(folder: Path, name: str, row: Mapping[str, object], found: Figures) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(row, indent=1) + "\n")
    if found.spans:
        (folder / f"{name}.svg").write_text(slots_over_time(found.spans))


def _rounded(value: object) -> object:
    if isinstance(value, Mapping):
        return {key: _rounded(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_rounded(one) for one in value]
    return round(value, 4) if isinstance(value, float) else value


if __name__ == "__main__":
    main()

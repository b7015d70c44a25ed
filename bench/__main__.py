"""`python -m bench [table] [server] [tls] [end_to_end] [ring] [page] [quality] [kubernetes]
[backup_workers] [stale] [virtual_workers] [faults] [decisions] [network] [checkpoints]
[resizing] [kept_pushes]`: by default the first six. quality, stale and network take half an hour
each; kubernetes needs root and Go, and network needs root. Writes figures to
bench/results/<name>.json.

`python -m bench load …` puts one process under load: see `bench/load.py`.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

DEFAULT = ("table", "server", "tls", "end_to_end", "ring", "page")
NAMES = (
    *DEFAULT,
    *("quality", "kubernetes", "backup_workers", "stale", "virtual_workers", "faults", "decisions"),
    *("network", "checkpoints", "resizing", "kept_pushes"),
)


def main(names: list[str]) -> None:
    unknown = set(names) - set(NAMES)
    if unknown:
        sys.exit(f"unknown: {', '.join(sorted(unknown))}; choose from {', '.join(NAMES)}")
    results = Path(__file__).parent / "results"
    results.mkdir(exist_ok=True)
    for name in names or DEFAULT:
        print(f"== {name}", flush=True)
        figures = importlib.import_module(f"bench.{name}").measure()
        (results / f"{name}.json").write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["load"]:
        importlib.import_module("bench.load").main(sys.argv[2:])
    else:
        main(sys.argv[1:])

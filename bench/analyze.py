"""What `elasticdl analyze` takes, by format and processes: `python -m bench.analyze`.

CPU seconds of all processes, which other work on the machine moves less than the time on a clock.
"""

from __future__ import annotations

import csv
import os
import tempfile
import time
from pathlib import Path

from bench.data_files import write_csv, write_parquet
from elasticdl.data.analysis.run import Analysis, analyze


def main() -> None:
    print(f"{'file':24}{'processes':>10}{'seconds':>10}{'CPU s':>8}{'values/CPU s':>14}")
    with tempfile.TemporaryDirectory() as name:
        os.environ["ELASTICDL_CACHE_DIR"] = f"{name}/cache"
        folder = Path(name)
        write_csv(folder / "a.csv", csv.QUOTE_MINIMAL)
        write_parquet(folder / "a.parquet")
        for title, path in (("CSV, 10 fields", "a.csv"), ("Parquet, 10 float64", "a.parquet")):
            for processes in (1, 2):
                began_s, cpu_s = time.perf_counter(), -sum(os.times()[:4])
                found = analyze(Analysis(str(folder / path), {}), processes)
                took_s = time.perf_counter() - began_s
                cpu_s += sum(os.times()[:4])
                values = found["records"] * len(found["columns"])
                print(f"{title:24}{processes:10}{took_s:10.1f}{cpu_s:8.1f}{values / cpu_s:14,.0f}")


if __name__ == "__main__":
    main()

"""`python -m bench load --server` in small: a real server, and more workers than it has threads."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.process.sanitized import ROOT

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]


@pytest.mark.parametrize("tls", ["", "1"])
def test_hundreds_of_workers_on_one_server_all_make_progress(tls: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "bench", "load", "--server", "200", "--seconds", "1", "-o", "json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "ELASTICDL_BENCH_TLS": tls},
    )
    assert ran.returncode == 0, ran.stderr
    load = json.loads(ran.stdout.splitlines()[-1])
    assert (load["clients"], load["stranded"]) == (200, 0), ran.stderr
    assert load["rows_per_s"] > 0 and load["cpu_s"] > 0 and load["rss_mib"] > 0
    assert load["lease_p50_ms"] is None and load["noticed_s"] is None

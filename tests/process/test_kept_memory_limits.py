"""A parameter server where memory cannot outlive it, and where its core is dumped."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tests.conftest import ROOT

pytestmark = pytest.mark.process

SERVER = """
import os, resource, sys
from types import SimpleNamespace
from elasticdl.ps.lifecycle import ServerPart, _native_server

memory, limit, most = sys.argv[1:]
if limit:
    resource.setrlimit(getattr(resource, limit), (int(most), int(most)))
attached = SimpleNamespace(
    bulk_tokens=["token"], run="run", spec=SimpleNamespace(turns_per_step=1)
)
server = _native_server(ServerPart(0, 1, "run"), attached, None, memory)
print(open("/proc/self/smaps").read() if not limit else f"memory {server.memory_id}")
"""


def serve(limit: str = "", most: int = 0) -> tuple[str, str, int]:
    """What a server's process prints and logs, and the size of the file that it was given."""
    memory = os.memfd_create("kept")
    try:
        os.write(memory, b"of an earlier process")
        os.truncate(memory, 0)
        command = [sys.executable, "-c", SERVER, f"/proc/self/fd/{memory}", limit, str(most)]
        done = subprocess.run(
            command,
            cwd=ROOT,
            pass_fds=(memory,),
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        return done.stdout, done.stderr, os.fstat(memory).st_size
    finally:
        os.close(memory)


@pytest.mark.parametrize("limit", ["RLIMIT_AS", "RLIMIT_FSIZE"])
def test_a_server_whose_limits_forbid_kept_memory_serves_without(limit: str) -> None:
    printed, logged, size = serve(limit, 16 << 30)
    assert "memory 0" in printed
    assert "keeps no memory beyond its process" in logged
    assert size == 0, "a later process would take on what is older than this one's state"


def test_a_core_dump_leaves_kept_memory_out() -> None:
    printed, _, _ = serve()
    (region,) = re.findall(r"/memfd:kept.*?VmFlags: ([^\n]*)", printed, re.DOTALL)
    assert "dd" in region.split()

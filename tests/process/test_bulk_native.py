"""Servers, clients, the wire, steps and kept memory in C++ alone, under the sanitizers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from elasticdl.tls.authority import Authority
from tests.fuzz.budget import VARIABLE, fuzz_s
from tests.process.sanitized import ROOT, SANITIZERS, check_held

# Compiling is all work: minutes of it where other work has the cores.
pytestmark = [pytest.mark.process, pytest.mark.timeout(900 + fuzz_s())]

PARTS = ("embedding", "rpc", "ps", "checkpoint")
NOT_HERE = {"bindings.cc", "module.cc"}  # they need Python
SOURCES = [
    *(
        source
        for part in PARTS
        for source in sorted((ROOT / f"elasticdl/{part}/native").glob("*.cc"))
        if source.name not in NOT_HERE
    ),
    ROOT / "elasticdl/data/native/crc32c.cc",
    ROOT / "tests/native/bulk_test.cc",
]
STEPS = [*SOURCES[:-1], ROOT / "tests/native/steps_test.cc"]
PACKED = [*SOURCES[:-1], ROOT / "tests/native/packed_test.cc"]
EVERY_POINT_S = 600.0 if VARIABLE in os.environ else 0.0
KEPT = [*SOURCES[:-1], ROOT / "tests/native/kept_test.cc"]


@pytest.mark.parametrize("sanitizers", SANITIZERS)
def test_servers_and_clients_hold_under_the_sanitizers(sanitizers: str, tmp_path: Path) -> None:
    authority = Authority.new("job")
    (tmp_path / "authority.crt").write_text(authority.certificate)
    for server in range(8):
        certified = authority.certified_key([f"ps-{server}"])
        (tmp_path / f"ps-{server}.crt").write_text(certified.certificate)
        (tmp_path / f"ps-{server}.key").write_text(certified.key)
    check_held(SOURCES, sanitizers, tmp_path, {"TLS_CERTIFICATES": str(tmp_path)})


@pytest.mark.parametrize("sanitizers", SANITIZERS)
def test_packed_frames_hold_under_the_sanitizers(sanitizers: str, tmp_path: Path) -> None:
    check_held(PACKED, sanitizers, tmp_path)


@pytest.mark.parametrize("sanitizers", SANITIZERS)
def test_synchronous_steps_hold_under_the_sanitizers(sanitizers: str, tmp_path: Path) -> None:
    check_held(STEPS, sanitizers, tmp_path)


@pytest.mark.timeout(900 + fuzz_s() + EVERY_POINT_S)
@pytest.mark.parametrize("sanitizers", SANITIZERS)
def test_kept_memory_holds_under_the_sanitizers(sanitizers: str, tmp_path: Path) -> None:
    """Its servers are killed at random, and at some of hundreds of points, others in each run;
    with `make fuzz` at all of them.
    """
    check_held(KEPT, sanitizers, tmp_path, more_s=EVERY_POINT_S)

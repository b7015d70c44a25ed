"""Files of checkpoints with anything changed are used as they are, or refused as Corrupted."""

from __future__ import annotations

import json
import random
import resource
import shutil
import struct
from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elasticdl.checkpoint import directories, ring_file
from elasticdl.checkpoint.layout import MANIFEST, part_name
from elasticdl.checkpoint.manifest import Manifest
from elasticdl.checkpoint.part import read_header
from elasticdl.errors import Corrupted, UserError
from elasticdl.native import _native
from elasticdl.ps.restoring import restore
from elasticdl.ps.saving import ServerPart
from tests.contract.ps_stage import TOKEN, Stage, rich_spec
from tests.contract.test_checkpoint_restore import checkpoint, train
from tests.fuzz.budget import fuzz_s, rounds
from tests.fuzz.odd_json import mutated

pytestmark = [pytest.mark.contract, pytest.mark.timeout(fuzz_s() + 120)]

FRONT = struct.Struct("<8sQ")
MOST_MORE_BYTES = 200 << 20


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def rewritten(path: Path, change: Callable[[Any], Any]) -> None:
    """Change the header of a part or of a ring's file."""
    data = path.read_bytes()
    magic, size = FRONT.unpack_from(data)
    header = json.dumps(change(json.loads(data[FRONT.size : FRONT.size + size]))).encode()
    path.write_bytes(FRONT.pack(magic, len(header)) + header + data[FRONT.size + size :])


def flipped(path: Path, choose: random.Random) -> None:
    """Change some bytes, or the length."""
    data = bytearray(path.read_bytes())
    for _ in range(choose.randint(0, 3)):
        data[choose.choice([choose.randrange(len(data)), choose.randrange(40)])] = choose.choice(
            [0, 255, choose.randrange(256)]
        )
    if choose.random() < 0.3:
        del data[choose.randrange(len(data)) :]
    path.write_bytes(data)


def made_to_match(directory: Path) -> None:
    """Give the manifest the sizes, the checksums and the spec of the files as they are now."""
    text = json.loads((directory / MANIFEST).read_text())
    for file in text["files"]:
        path = directory / file["name"]
        file["bytes"], file["checksum"] = path.stat().st_size, directories.checksum(path)
    try:
        data = (directory / text["files"][0]["name"]).read_bytes()
        size = FRONT.unpack_from(data)[1]
        text["parameters"] = json.loads(data[FRONT.size : FRONT.size + size])["parameters"]
    except (ValueError, KeyError, TypeError, struct.error):
        pass
    (directory / MANIFEST).write_text(json.dumps(text))


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with closing(Stage(1)) as stage:
        pool = stage.pool()
        pool.initialise(rich_spec(), np.zeros(37, np.float32), timeout_s=20)
        pool.pull([np.arange(300), np.arange(5)], timeout_s=20)
        train(stage, rich_spec(), 1)
        return checkpoint(stage, tmp_path_factory.mktemp("checkpoint"))


def test_a_part_is_restored_or_corrupted(good: Path, tmp_path: Path) -> None:
    before = peak_bytes()
    for choose in rounds("parts"):
        directory = tmp_path / "changed"
        shutil.copytree(good, directory)
        victim = directory / part_name(0, 1)
        if choose.random() < 0.7:
            rewritten(victim, partial(mutated, choose=choose))
        else:
            flipped(victim, choose)
        if choose.random() < 0.9:
            made_to_match(directory)
        with suppress(Corrupted, UserError):
            read_header(victim)
            server = _native.Server(0, 1, TOKEN)
            restore(server, ServerPart(0, 1, "run"), directory)
            server.cut(1, server.gate(20), 20)
        shutil.rmtree(directory)
    assert peak_bytes() - before < MOST_MORE_BYTES


def test_a_manifest_is_taken_or_corrupted(good: Path, tmp_path: Path) -> None:
    text = json.loads((good / MANIFEST).read_text())
    directory = tmp_path / "changed"
    shutil.copytree(good, directory)
    for choose in rounds("manifests"):
        (directory / MANIFEST).write_text(json.dumps(mutated(text, choose)))
        with suppress(Corrupted, UserError):
            restore(_native.Server(0, 1, TOKEN), ServerPart(0, 1, "run"), directory)


def test_a_rings_file_is_read_or_corrupted(tmp_path: Path) -> None:
    arrays: dict[str, Any] = {
        "kernel": np.ones((3, 4), np.float32),
        "step": np.array(7, np.int64),
        "flag": np.array([True]),
    }
    making = directories.begin(tmp_path)
    part = ring_file.write(making, 3, arrays)
    manifest = Manifest(version=3, servers=0, parameters=None, files=(part,), ledger="{}")
    good = directories.complete(making, manifest)
    before = peak_bytes()
    for choose in rounds("ring files"):
        directory = tmp_path / "changed"
        shutil.copytree(good, directory)
        victim = directory / ring_file.NAME
        if choose.random() < 0.7:
            rewritten(victim, partial(mutated, choose=choose))
        else:
            flipped(victim, choose)
        text = json.loads((directory / MANIFEST).read_text())
        size, crc = victim.stat().st_size, directories.checksum(victim)
        text["files"][0].update(bytes=size, checksum=crc)
        (directory / MANIFEST).write_text(json.dumps(text))
        with suppress(Corrupted, UserError):
            ring_file.read(directory)
        shutil.rmtree(directory)
    assert peak_bytes() - before < MOST_MORE_BYTES

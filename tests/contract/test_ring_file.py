"""The file of a ring's checkpoint: what is written comes back bit for bit, and damage is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from elasticdl.checkpoint import ring_file, store
from elasticdl.checkpoint.manifest import Manifest
from elasticdl.errors import Corrupted, UserError

pytestmark = pytest.mark.contract

ARRAYS: dict[str, NDArray[Any]] = {
    "model/dense/kernel": np.arange(12, dtype=np.float32).reshape(3, 4),
    "optimizer/iteration": np.array(7, np.int64),
    "random/seed": np.array([1, 2], np.uint32),
    "model/flag": np.array([True, False]),
    "model/empty": np.empty((0, 3), np.float64),
}


def checkpoint(root: Path, version: int = 12) -> Path:
    making = store.begin(root)
    part = ring_file.write(making, version, ARRAYS)
    return store.complete(
        making, Manifest(version=version, servers=0, parameters=None, files=(part,), ledger="{}")
    )


def test_every_array_comes_back_bit_for_bit_with_its_version(tmp_path: Path) -> None:
    version, arrays = ring_file.read(checkpoint(tmp_path))
    assert version == 12
    assert arrays.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        assert arrays[name].dtype == array.dtype
        assert arrays[name].shape == array.shape
        assert arrays[name].tobytes() == array.tobytes()
    found = store.newest(tmp_path)
    assert found is not None
    assert found.manifest.parameters is None


def test_a_flipped_bit_is_found(tmp_path: Path) -> None:
    directory = checkpoint(tmp_path)
    data = bytearray((directory / ring_file.NAME).read_bytes())
    data[-1] ^= 1
    (directory / ring_file.NAME).write_bytes(data)
    with pytest.raises(Corrupted, match="checksum"):
        ring_file.read(directory)


def test_a_checkpoint_of_servers_is_refused_by_name(tmp_path: Path) -> None:
    making = store.begin(tmp_path)
    directory = store.complete(making, Manifest(version=1, servers=0, parameters=None, files=()))
    with pytest.raises(UserError, match="written by parameter servers"):
        ring_file.read(directory)

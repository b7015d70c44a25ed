"""The file of a ring's checkpoint: what is written comes back bit for bit, and damage is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from elasticdl.checkpoint import directories, object_store, ring_file
from elasticdl.checkpoint.manifest import Manifest, PartFile
from elasticdl.errors import Corrupted, UserError
from elasticdl.worker.ring.barriers import _written

pytestmark = pytest.mark.contract

ARRAYS: dict[str, NDArray[Any]] = {
    "model/dense/kernel": np.arange(12, dtype=np.float32).reshape(3, 4),
    "optimizer/iteration": np.array(7, np.int64),
    "random/seed": np.array([1, 2], np.uint32),
    "model/flag": np.array([True, False]),
    "model/empty": np.empty((0, 3), np.float64),
}


def checkpoint(root: Path, version: int = 12) -> Path:
    making = directories.begin(root)
    part = ring_file.write(making, version, ARRAYS)
    return directories.complete(
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
    found = directories.newest(tmp_path)
    assert found is not None
    assert found.manifest.parameters is None


@pytest.mark.usefixtures("empty")
def test_it_comes_back_from_a_store_if_members_share_no_directory(tmp_path: Path) -> None:
    address = "s3://bucket/ring"
    for values in ({"old": np.zeros(1)}, ARRAYS):
        # The same version again: the first one counts until the second has its manifest.
        one, uploaded_s = _written(object_store.folder_of(address, 12), 12, values)
        assert uploaded_s > 0
        part = PartFile(name=one.name, bytes=one.bytes, checksum=one.checksum)
        whole = Manifest(version=12, servers=0, parameters=None, files=(part,), ledger="{}")
        where = object_store.complete(address, whole)
    found = object_store.newest(address)
    assert found is not None and found.where == where
    with object_store.directory_with(where) as directory:
        version, arrays = ring_file.read(directory)
        assert ring_file.shapes(directory).keys() == ARRAYS.keys()
    assert version == 12 and not directory.exists()
    assert {name: array.tobytes() for name, array in arrays.items()} == {
        name: array.tobytes() for name, array in ARRAYS.items()
    }
    with object_store.directory_with(str(tmp_path)) as directory:
        assert directory == tmp_path


def test_a_flipped_bit_is_found(tmp_path: Path) -> None:
    directory = checkpoint(tmp_path)
    data = bytearray((directory / ring_file.NAME).read_bytes())
    data[-1] ^= 1
    (directory / ring_file.NAME).write_bytes(data)
    with pytest.raises(Corrupted, match="checksum"):
        ring_file.read(directory)


def test_a_checkpoint_of_servers_is_refused_by_name(tmp_path: Path) -> None:
    making = directories.begin(tmp_path)
    directory = directories.complete(
        making, Manifest(version=1, servers=0, parameters=None, files=())
    )
    with pytest.raises(UserError, match="written by parameter servers"):
        ring_file.read(directory)

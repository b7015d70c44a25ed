"""TFRecord against TensorFlow's own writer and reader, and damaged files."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticdl.data import open_reader
from elasticdl.errors import UserError
from elasticdl.native._native import crc32c
from elasticdl.shard import Shard, ShardId

pytestmark = [pytest.mark.contract, pytest.mark.usefixtures("own_cache")]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A file by TensorFlow's writer, and what is in it: small, empty and large records."""
    import tensorflow as tf

    choose = random.Random(3)
    records = [choose.randbytes(choose.choice([0, 1, 15, 100, 5000])) for _ in range(2500)] + [
        choose.randbytes(3 << 20),
        b"end",
    ]
    path = tmp_path_factory.mktemp("tfrecord") / "data.tfrecord"
    with tf.io.TFRecordWriter(str(path)) as writer:
        for record in records:
            writer.write(record)
    return path, records


def blocks_of(path: Path, begin: int, end: int) -> Any:
    return list(open_reader(str(path), {}).read(Shard(ShardId(1), str(path), begin, end)))


def test_what_tensorflow_wrote_is_read(written: Any) -> None:
    path, records = written
    (source,) = open_reader(str(path), {}).sources()
    assert source.records == len(records)
    for begin, end in [(0, len(records)), (2499, 2502), (7, 8), (1000, 2000)]:
        assert [
            record for block in blocks_of(path, begin, end) for record in block.records
        ] == records[begin:end]


def test_tensorflow_reads_the_same(written: Any) -> None:
    import tensorflow as tf

    path, records = written
    assert [record.numpy() for record in tf.data.TFRecordDataset(str(path))] == records


@settings(deadline=None)
@given(st.binary(), st.binary())
def test_the_checksum_can_be_gone_on_with(first: Any, second: Any) -> None:
    assert crc32c(second, crc32c(first)) == crc32c(first + second)


def by_definition(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


@settings(deadline=None)
@given(st.binary(max_size=70))
def test_the_checksum_is_the_polynomial_s(data: Any) -> None:
    assert crc32c(data) == by_definition(data)
    assert crc32c(b"123456789") == 0xE3069283


def copy(written: Any, tmp_path: Path) -> Any:
    path, records = written
    other = tmp_path / "data.tfrecord"
    other.write_bytes(path.read_bytes())
    offsets = [0]
    for record in records:
        offsets.append(offsets[-1] + 16 + len(record))
    return other, records, offsets


def flip(path: Path, at: Any) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 4]))


def test_a_flipped_bit_in_data_makes_one_bad_record(written: Any, tmp_path: Path) -> None:
    path, records, offsets = copy(written, tmp_path)
    bad = next(i for i in range(1500, 2500) if len(records[i]) == 5000)
    flip(path, offsets[bad] + 12 + 77)
    blocks = blocks_of(path, 1400, len(records))
    assert [record for block in blocks for record in block.records] == records[1400:bad] + records[
        bad + 1 :
    ]
    assert sum(block.bad for block in blocks) == 1
    assert sum(block.count for block in blocks) == len(records) - 1400
    (example,) = [text for block in blocks for text in block.bad_examples]
    assert (
        example
        == f"{path}: at offset {offsets[bad]}: the record's data does not match its checksum"
    )


def test_a_flipped_bit_in_a_length_is_reported_with_its_offset(
    written: Any, tmp_path: Path
) -> None:
    path, _, offsets = copy(written, tmp_path)
    flip(path, offsets[700] + 1)
    with pytest.raises(
        UserError,
        match=(
            rf"data\.tfrecord: at offset {offsets[700]}: a record's length does not match its"
            r" checksum"
        ),
    ):
        open_reader(str(path), {}).sources()


@pytest.mark.parametrize("missing", [1, 4, 5, 8, 15, 18])
def test_a_truncated_file_is_reported_with_the_offset_of_the_record(
    written: Any, tmp_path: Path, missing: int
) -> None:
    path, records, offsets = copy(written, tmp_path)
    os.truncate(path, offsets[-1] - missing)
    with pytest.raises(
        UserError, match=rf"at offset {offsets[len(records) - 1]}: the file ends inside a record"
    ):
        open_reader(str(path), {}).sources()


def test_a_bit_flipped_while_size_and_time_stay_is_found_when_read(
    written: Any, tmp_path: Path
) -> None:
    path, _, offsets = copy(written, tmp_path)
    reader = open_reader(str(path), {})
    (source,) = reader.sources()
    times = (path.stat().st_atime_ns, path.stat().st_mtime_ns)
    flip(path, offsets[700] + 1)
    os.utime(path, ns=times)
    with pytest.raises(UserError, match=rf"at offset {offsets[700]}"):
        list(reader.read(Shard(ShardId(1), source.name, 690, 710)))


def test_a_compressed_file_is_refused_in_words(tmp_path: Path) -> None:
    import gzip

    path = tmp_path / "data.tfrecord"
    path.write_bytes(gzip.compress(b"x" * 100))
    with pytest.raises(UserError, match="compressed with gzip"):
        open_reader(str(path), {}).sources()


def test_a_file_without_a_telling_name_is_known_by_its_first_bytes(
    written: Any, tmp_path: Path
) -> None:
    path, records = written
    plain = tmp_path / "part-00000"
    plain.write_bytes(path.read_bytes())
    assert open_reader(str(plain), {}).sources()[0].records == len(records)


def test_readers_do_not_import_tensorflow(written: Any) -> None:
    path, records = written
    code = (
        "import sys; from elasticdl.data import open_reader; reader = open_reader(sys.argv[1], {});"
        " print(reader.sources()[0].records);assert not {'tensorflow', 'keras', 'pyarrow'} &"
        " set(sys.modules)"
    )
    found = subprocess.run(
        [sys.executable, "-c", code, str(path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert int(found.stdout) == len(records)

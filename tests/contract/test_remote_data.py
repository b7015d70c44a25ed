"""Data in an object store is read as local files are, whatever the store does meanwhile.

The reader's own suite is in `test_data_reader_contract.py`; its files are uploaded here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from elasticdl.data import Reader, open_reader
from elasticdl.data.files import DataChanged
from elasticdl.data.remote_files import RemoteOpenFile, look_at_object
from elasticdl.errors import TransientError, UserError
from elasticdl.shard import Shard, ShardId
from elasticdl.storage.address import Address
from elasticdl.storage.attempts import Limits
from elasticdl.storage.connecting import connected
from elasticdl.storage.store import forget_connections
from tests.contract.test_data_reader_contract import IN_FILES, RECORDS, read, write
from tests.object_store import KEY, SECRET, ObjectStore
from tests.waiting import until

pytestmark = pytest.mark.contract
# A compressed file is read from start to end, whatever format is in it.
KINDS = [kind for kind in IN_FILES if kind not in ("csv gz", "tfrecord zst")]
OF_PARTS = [kind for kind in KINDS if kind != "npy"]


@pytest.fixture
def store(server: ObjectStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ObjectStore:
    """Empty and without faults."""
    monkeypatch.setenv("ELASTICDL_CACHE_DIR", str(tmp_path / "cache"))
    server.buckets["bucket"].clear()
    server.faults.__init__()  # type: ignore[misc]
    server.requests.clear()
    server.bytes_sent = 0
    return server


def upload(store: ObjectStore, kind: str, tmp_path: Path, numbers: range, name: str) -> str:
    path = Path(write(kind, tmp_path / "number", numbers))
    return store.put(f"{name}{''.join(path.suffixes)}", path.read_bytes())


@pytest.mark.parametrize("kind", KINDS)
def test_records_are_the_same_through_latency_unavailability_and_torn_connections(
    kind: Any, store: ObjectStore, tmp_path: Path
) -> None:
    address = upload(store, kind, tmp_path, range(RECORDS), "a/number")
    store.faults.latency_s = 0.02
    store.faults.unavailable, store.faults.torn = 3, 3
    reader = open_reader(address, {})
    (source,) = reader.sources()
    assert (source.name, source.records) == (address, RECORDS)
    store.faults.unavailable, store.faults.torn = 3, 3
    assert read(reader, address, 0, 5000) == list(range(5000))
    # Another process's reader, with a shard that begins inside a block.
    assert read(open_reader(address, {}, counted=(source,)), address, 5000, RECORDS) == list(
        range(5000, RECORDS)
    )
    assert not store.faults.unavailable and not store.faults.torn


def test_a_compressed_object_is_read_from_start_to_end_once(
    store: ObjectStore, tmp_path: Path
) -> None:
    address = upload(store, "csv gz", tmp_path, range(RECORDS), "a/number")
    store.faults.unavailable, store.faults.torn = 2, 2
    reader = open_reader(address, {})
    (source,) = reader.sources()
    assert not store.faults.unavailable and not store.faults.torn
    sent = store.bytes_sent
    for one in (reader, open_reader(address, {}, counted=(source,))):
        assert read(one, address, 5000, RECORDS) == list(range(5000, RECORDS))
    assert store.bytes_sent == sent


@pytest.mark.parametrize("kind", OF_PARTS)
def test_folders_and_globs_name_the_objects_that_they_name_on_disk(
    kind: Any, store: ObjectStore, tmp_path: Path
) -> None:
    names = [upload(store, kind, tmp_path, range(9), f"d/part-{part}") for part in (2, 0, 1)]
    deep = upload(store, kind, tmp_path, range(9), "d/day=1/part-3")
    suffix = Path(deep).suffix
    for hidden in ("_SUCCESS", ".part-0.crc", "d/.hidden/part-4"):
        store.put(f"d/{hidden}{suffix}", b"x")

    def sources(origin: str) -> list[str]:
        return [source.name for source in open_reader(origin, {}).sources()]

    for origin in ("s3://bucket/d", "s3://bucket/d/", f"s3://bucket/d/part-[0-2]{suffix}"):
        assert sources(origin) == sorted(names)
    assert sources(f"s3://bucket/d/part-[!0]{suffix}") == sorted(names)[1:]
    assert sources("s3://bucket/d/day=*/part-?.*") == [deep]
    assert sources(f"s3://bucket/d/**/part-*{suffix}") == sorted([*names, deep])


def test_a_saved_dataset_is_read_from_a_store(store: ObjectStore, tmp_path: Path) -> None:
    names = [upload(store, "arrows", tmp_path, range(9), f"d/data-{part}") for part in (1, 0)]
    store.put("d/dataset_info.json", b"{}")
    files = ", ".join(f'{{"filename": "{name.rpartition("/")[2]}"}}' for name in names)
    store.put("d/state.json", f'{{"_data_files": [{files}]}}'.encode())
    assert [source.name for source in open_reader("s3://bucket/d/", {}).sources()] == names


def test_a_listing_of_many_pages_is_read_to_its_end(store: ObjectStore) -> None:
    addresses = [store.put(f"d/{number:03}.csv", b"a,b\n1,2\n") for number in range(120)]
    assert [source.name for source in open_reader("s3://bucket/d", {}).sources()] == addresses


def test_a_shard_reads_its_own_bytes_and_not_the_object(store: ObjectStore) -> None:
    rows = b"".join(b"%07d,x\n" % number for number in range(400_000))
    address = store.put("big.csv", b"number,text\n" + rows)
    (source,) = open_reader(address, {}).sources()
    store.bytes_sent = 0
    reader = open_reader(address, {}, counted=(source,))
    assert read(reader, address, 200_000, 200_100) == list(range(200_000, 200_100))
    # The index came from the cache: a shard of 1 kB takes a stride of the index and the header.
    assert store.bytes_sent < 200_000
    assert len(rows) > 15 * store.bytes_sent


def test_ranges_are_under_way_before_they_are_asked_for(store: ObjectStore) -> None:
    data = bytes(40 << 20)
    file = look_at_object(store.put("big.bin", data))
    store.requests.clear()
    with file.opened() as opened:
        ranges = opened.ranges((begin, begin + (4 << 20)) for begin in range(0, 40 << 20, 4 << 20))
        assert len(next(ranges)) == 4 << 20
        until("four requests are under way", lambda: len(store.requests) >= 4)
        assert len(store.requests) <= 6
        assert sum(map(len, ranges)) == 36 << 20


def test_the_pass_of_the_index_reads_forward_once(store: ObjectStore) -> None:
    data = bytes(range(256)) * (10 << 12)
    file = look_at_object(store.put("big.bin", data))
    opened = RemoteOpenFile(file)
    at, got = 0, b""
    while part := opened.native(at, 300_000):
        got += part
        at += len(part)
    assert got == data
    assert opened.native(5, 7) == data[5:12]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("change", ["rewritten", "grown", "cut", "removed"])
def test_an_object_that_changes_during_the_job_is_named(
    kind: Any, change: str, store: ObjectStore, tmp_path: Path
) -> None:
    address = upload(store, kind, tmp_path, range(RECORDS), "number")
    reader = open_reader(address, {})
    reader.sources()
    key = address.removeprefix("s3://bucket/")
    data = store.get(key)
    match change:
        case "rewritten":  # the same bytes, with an ETag of their own
            store.put(key, data)
        case "grown":
            store.put(key, data + b"x")
        case "cut":
            store.put(key, data[: len(data) // 2])
        case "removed":
            del store.buckets["bucket"][key]
    with pytest.raises(UserError, match=rf"{address} (changed|was truncated|disappeared)"):
        until("the change is noticed", lambda: not read(reader, address, 0, 10))


@pytest.mark.parametrize("kind", KINDS)
def test_an_object_that_changed_since_its_records_were_counted_is_named(
    kind: Any, store: ObjectStore, tmp_path: Path
) -> None:
    address = upload(store, kind, tmp_path, range(100), "number")
    counted = open_reader(address, {}).sources()
    upload(store, kind, tmp_path, range(1, 101), "number")

    def reader() -> Reader:
        return open_reader(address, {}, counted=counted)

    with pytest.raises(DataChanged, match=rf"{address} changed since its records were counted"):
        list(reader().read(Shard(ShardId(0), address, 0, 10)))


def test_a_store_that_is_away_is_waited_for_in_a_job_and_not_blamed_on_the_user(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = store.put("d/a.csv", b"number,text\n1,2\n")
    counted = open_reader("s3://bucket/d", {}).sources()
    for name in ("RUNNING", "STARTING"):
        monkeypatch.setattr(f"elasticdl.data.remote_files.{name}", Limits(0.3, 0.1, 0.1))
    store.faults.down = True
    with pytest.raises(UserError):
        open_reader("s3://bucket/d", {})
    with pytest.raises(TransientError, match=address.rpartition("/")[0]):
        open_reader("s3://bucket/d", {}, counted=counted)


def test_a_worker_counts_no_object_again_and_all_objects_share_a_connection(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for part in range(8):
        store.put(f"d/{part}.csv", b"number,text\n1,2\n")
    connections = []

    def counting(root: Address, limits: Limits) -> Any:
        connections.append(root)
        return connected(root, limits)

    monkeypatch.setattr("elasticdl.storage.connecting.connected", counting)
    with reached_as_set():
        counted = open_reader("s3://bucket/d", {}).sources()
    assert len(counted) == 8 and len(connections) == 1
    reader = open_reader("s3://bucket/d", {}, counted=counted)
    store.requests.clear()
    assert reader.sources() == counted and not store.requests


def test_the_pass_over_large_records_reads_each_byte_about_once(
    store: ObjectStore, tmp_path: Path
) -> None:
    path = tmp_path / "large.tfrecord"
    with tf.io.TFRecordWriter(str(path)) as writer:
        for _ in range(100):
            writer.write(bytes(300_000))
    address = store.put("large.tfrecord", path.read_bytes())
    store.bytes_sent = 0
    assert open_reader(address, {}).sources()[0].records == 100
    assert store.bytes_sent < 1.2 * path.stat().st_size


@pytest.mark.parametrize(
    ("origin", "words"),
    [
        ("s3://elsewhere/x.csv", "the bucket does not exist"),
        ("s3://elsewhere/*.csv", "the bucket does not exist"),
        ("s3://bucket/none.csv", "s3://bucket/none.csv does not exist"),
        ("s3://bucket/*.tsv", "no object matches"),
        ("s3://bucket/folder", "has no data files"),
        ("s3://bucket/empty.csv", "is empty"),
        ("s3:///x.csv", "names no bucket"),
        ("file:///x.csv", "names no bucket"),
        ("s3://buck*/x.csv", "the bucket is a pattern"),
        ("nowhere://x/y.csv", "nowhere:// addresses are unknown"),
    ],
)
def test_what_is_not_there_is_said_at_once(origin: str, words: str, store: ObjectStore) -> None:
    store.put("folder/_SUCCESS", b"")
    store.put("empty.csv", b"")
    with pytest.raises(UserError) as caught:
        open_reader(origin, {}).sources()
    assert words in caught.value.message and caught.value.hint


@contextmanager
def reached_as_set() -> Iterator[None]:
    """Connect anew, with the environment as it is now."""
    forget_connections()
    try:
        yield
    finally:
        forget_connections()


def test_wrong_credentials_are_said_and_not_shown(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = store.put("a.csv", b"a,b\n1,2\n")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "stranger")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "do-not-show")
    with reached_as_set(), pytest.raises(UserError, match="access denied") as caught:
        open_reader(address, {}).sources()
    assert "AWS_ACCESS_KEY_ID" in caught.value.hint
    assert "do-not-show" not in f"{caught.value}{caught.value.hint}{caught.value.__cause__}"


def test_an_address_that_fsspec_knows_is_read_through_it() -> None:
    import fsspec

    with fsspec.open("memory://data/a.csv", "wb") as file:
        file.write(b"number,text\n1,2\n3,4\n")
    reader = open_reader("memory://data/*.csv", {})
    (source,) = reader.sources()
    assert read(reader, source.name, 0, 2) == [1, 3]


def test_credentials_may_come_from_a_mounted_file(
    store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = store.put("a.csv", b"number,text\n1,2\n")
    file = tmp_path / "credentials"
    file.write_text(f"[default]\naws_access_key_id = {KEY}\naws_secret_access_key = {SECRET}\n")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    with reached_as_set():
        assert open_reader(address, {}).sources()[0].records == 1

"""The seam to object stores: one suite for S3 on loopback and for fsspec's memory."""

from __future__ import annotations

import io
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from elasticdl.errors import TransientError, UserError
from elasticdl.job import JobSpec
from elasticdl.job_choices import Action
from elasticdl.jobdir.output_folder import refuse_output_address
from elasticdl.master.tensorboard_scalars import ScalarRuns
from elasticdl.shard import Lease, Shard, ShardId, Task
from elasticdl.storage import folders
from elasticdl.storage.attempts import Absent, Limits, attempt, reason
from elasticdl.storage.copy_thread import CopyThread, FolderCopy, Pace
from elasticdl.storage.store import Store, store_of
from elasticdl.worker.tasks.prediction_files import PartName, parts_from, prediction_files
from tests.object_store import ObjectStore
from tests.waiting import until

pytestmark = pytest.mark.contract
QUICK = Limits(give_up_s=0.3, first_pause_s=0.01)


@pytest.fixture(params=["s3", "memory"])
def folder(request: pytest.FixtureRequest, server: ObjectStore) -> str:
    """The address of a new folder."""
    name = uuid.uuid4().hex
    return f"s3://bucket/{name}" if request.param == "s3" else f"memory://bucket/{name}"


def test_what_was_written_is_read_listed_and_removed(folder: str, tmp_path: Path) -> None:
    store = store_of(folder)
    (tmp_path / "big").write_bytes(bytes(range(256)) * (12 << 12))
    store.write(f"{folder}/a", b"first")
    store.write(f"{folder}/a", b"second")
    store.upload(tmp_path / "big", f"{folder}/below/big")
    assert store.open(f"{folder}/a").read(0, 6) == b"second"
    big = store.open(f"{folder}/below/big")
    assert big.read(256 * 5000, 256 * 5001) == bytes(range(256))
    assert [(entry.address, entry.is_folder) for entry in store.listed(folder)] == [
        (f"{folder}/a", False),
        (f"{folder}/below", True),
    ]
    sizes = {
        entry.address: entry.size_bytes
        for entry in store.listed(folder, deep=True)
        if not entry.is_folder
    }
    assert sizes == {f"{folder}/a": 6, f"{folder}/below/big": 12 << 20}
    store.remove(f"{folder}/a")
    store.remove(f"{folder}/a")
    store.remove_below(f"{folder}/below")
    store.remove_below(f"{folder}/below")
    assert not [entry for entry in store.listed(folder, deep=True) if not entry.is_folder]


def test_what_is_not_there_is_absent(folder: str) -> None:
    store = store_of(folder)
    assert store.look_at(f"{folder}/none") is None
    assert store.listed(f"{folder}/none") == []
    with pytest.raises(Absent, match=f"{folder}/none does not exist"):
        store.open(f"{folder}/none")


def test_a_replaced_folder_has_the_new_files_only(folder: str, tmp_path: Path) -> None:
    for name in ("saved_model.pb", "variables/index", "variables/data"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    store = store_of(folder)
    store.write(f"{folder}/variables/old", b"")
    store.write(f"{folder}/saved_model.pb", b"old")
    folders.replace(tmp_path, folder, last="saved_model.pb")
    assert folders.names_in(folder) == ["saved_model.pb", "variables"]
    assert [
        entry.address.removeprefix(folder) for entry in store.listed(f"{folder}/variables")
    ] == ["/variables/data", "/variables/index"]


def test_the_file_that_says_complete_is_never_beside_half_of_the_others(
    server: ObjectStore, tmp_path: Path
) -> None:
    for name in ("a", "last"):
        (tmp_path / name).write_text(name)
    folders.replace(tmp_path, "s3://bucket/export", last="last")
    server.requests.clear()
    folders.replace(tmp_path, "s3://bucket/export", last="last")
    # After a removal, pyarrow marks the folder with an object that ends with a slash.
    writes = [
        request
        for request in server.requests
        if request.startswith(("PUT", "DELETE")) and not request.endswith("/")
    ]
    assert writes == ["DELETE bucket/export/last", "PUT bucket/export/a", "PUT bucket/export/last"]


def test_writes_outlive_unavailability(server: ObjectStore, tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(bytes(11 << 20))
    server.faults.unavailable = 7
    store = store_of("s3://bucket/x")
    store.write("s3://bucket/x", b"small")
    server.faults.unavailable = 7
    store.upload(tmp_path / "big", "s3://bucket/big")
    assert (server.get("x"), len(server.get("big"))) == (b"small", 11 << 20)


def hear(monkeypatch: pytest.MonkeyPatch, call: Callable[[str], None]) -> None:
    """Call before each write and flush of an upload, which are small."""
    created = Store._created

    class Heard:
        def __init__(self, stream: Any) -> None:
            self._stream = stream

        def write(self, data: bytes) -> None:
            call("write")
            self._stream.write(data)

        def flush(self) -> None:
            call("flush")
            self._stream.flush()

    @contextmanager
    def heard(store: Store, address: str) -> Iterator[Heard]:
        with created(store, address) as stream:
            yield Heard(stream)

    monkeypatch.setattr(Store, "_created", heard)
    monkeypatch.setattr("elasticdl.storage.store._CHUNK_BYTES", 1 << 20)
    monkeypatch.setattr("elasticdl.storage.store._FLUSHED_BYTES", 2 << 20)


def test_an_upload_waits_before_much_is_queued(
    server: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pyarrow's clients would queue a whole file of gigabytes."""
    calls = list[str]()
    hear(monkeypatch, calls.append)
    (tmp_path / "big").write_bytes(bytes(5 << 20))
    store_of("s3://bucket/x").upload(tmp_path / "big", "s3://bucket/big")
    assert calls == ["write", "write", "flush", "write", "write", "flush", "write"]
    assert server.get("big") == bytes(5 << 20)


@pytest.mark.parametrize("comes_further", [True, False])
def test_the_limit_of_an_upload_counts_from_the_last_bytes_that_the_store_took(
    comes_further: bool, server: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each flush takes a minute: a fault after several is later than the limit of 90 s."""
    now_s, flushes, faults = [0.0], list[int](), [3, 8] if comes_further else [3, 6, 9]

    def call(name: str) -> None:
        if name == "flush":
            now_s[0] += 60.0
            flushes.append(1)
            if len(flushes) in faults:
                raise ConnectionError("HTTP status 503")

    hear(monkeypatch, call)
    clock = SimpleNamespace(monotonic=lambda: now_s[0], sleep=lambda _: None)
    monkeypatch.setattr("elasticdl.storage.attempts.time", clock)
    (tmp_path / "big").write_bytes(bytes(11 << 20))
    store = store_of("s3://bucket/x")
    if comes_further:
        store.upload(tmp_path / "big", "s3://bucket/late")
        assert server.get("late") == bytes(11 << 20)
    else:
        with pytest.raises(TransientError, match="cannot write, tried for"):
            store.upload(tmp_path / "big", "s3://bucket/late")
        assert len(flushes) == 6


def test_a_store_that_stays_away_is_given_up_with_its_reason(server: ObjectStore) -> None:
    server.put("x", b"data")
    opened = store_of("s3://bucket/x").open("s3://bucket/x", QUICK)
    server.faults.down = True
    try:
        with pytest.raises(TransientError, match=r"s3://bucket/x: cannot read at offset 0, tried"):
            opened.read(0, 4)
    finally:
        server.faults.down = False
    assert opened.read(0, 4) == b"data"


@pytest.mark.parametrize("words", ["ACCESS_DENIED", "HTTP status 403", "SIGNATURE_DOES_NOT_MATCH"])
def test_what_no_repetition_mends_is_not_repeated(words: str) -> None:
    calls: list[int] = []

    def refused() -> Any:
        calls.append(1)
        raise OSError(f"AWS Error {words} during GetObject")

    with pytest.raises(UserError, match="access denied"):
        attempt("s3://bucket/x", "read", refused)
    assert len(calls) == 1


def test_a_signed_request_in_an_error_is_not_shown() -> None:
    error = OSError("GET https://host/x?X-Amz-Signature=abc123&X-Amz-Security-Token=def failed")
    assert "abc123" not in reason(error) and "def" not in reason(error)


def test_predictions_need_an_empty_folder_unless_they_may_be_the_jobs_own(folder: str) -> None:
    flags = {"model_def": "m", "prediction_data": "p", "checkpoint_dir_for_init": "c"}
    # Users cannot name memory.
    spec = JobSpec.from_flags(Action.PREDICT, {**flags, "model_zoo": "zoo"}).replace(output=folder)
    refuse_output_address(spec)
    store_of(folder).write(f"{folder}/predictions-000003-000000000-000000001.npz", b"")
    with pytest.raises(UserError, match="is not empty: it contains predictions-000003"):
        refuse_output_address(spec)
    refuse_output_address(spec, again=True)


def test_numbered_exports_are_not_replaced_by_one_without_a_number(folder: str) -> None:
    flags = {"model_def": "m", "training_data": "t", "model_zoo": "zoo"}
    spec = JobSpec.from_flags(Action.TRAIN, flags).replace(output=folder)
    store_of(folder).write(f"{folder}/3/saved_model.pb", b"model")
    for again in (False, True):
        with pytest.raises(UserError, match=r"contains numbered exports \(3\)"):
            refuse_output_address(spec, again=again)
        refuse_output_address(spec.replace(export_seconds=60), again=again)
    store_of(folder).write(f"{folder}/3/elasticdl-run-a", b"")
    refuse_output_address(spec.replace(output=f"{folder}/3"))


def test_predictions_are_objects_that_a_later_attempt_finds_and_removes(folder: str) -> None:
    files = prediction_files(folder)
    shard, other = ShardId(3), ShardId(30)
    assert files.names(shard) == []
    first, second = PartName(shard, 0, 6), PartName(shard, 6, 10)
    for number, name in enumerate((first, second, PartName(other, 0, 4))):
        files.write(name, {"y": np.arange(name.end), "attempt": np.asarray(number)}, number)
    store_of(folder).write(f"{folder}/predictions-000003-000000000-000000001.npz", b"no archive")
    assert sorted(files.names(shard), key=str) == [PartName(shard, 0, 1), first, second]
    assert [files.attempt(name) for name in (first, second, PartName(shard, 0, 1))] == [0, 1, -1]
    later = Lease(Task.PREDICTION, Shard(shard, "data.csv", 0, 10), 2, offset=6)
    assert parts_from(files, later) == [second]
    files.remove(second)
    files.remove(second)
    files.remove_unfinished(shard, 2)
    assert sorted(files.names(shard), key=str) == [PartName(shard, 0, 1), first]
    stored = store_of(folder).open(f"{folder}/{first}")
    with np.load(io.BytesIO(stored.read(0, stored.size_bytes))) as part:
        np.testing.assert_array_equal(part["y"], np.arange(6))


def test_a_folder_is_copied_while_files_grow_and_once_more_at_the_end(
    server: ObjectStore, tmp_path: Path
) -> None:
    run = tmp_path / "train/events"
    run.parent.mkdir()
    run.write_bytes(b"first")
    copy = FolderCopy(tmp_path, "s3://bucket/curves", every_s=0.05)
    copy.start()
    until("the file is there", lambda: "curves/train/events" in server.keys("curves/"))
    server.faults.down = True
    run.write_bytes(b"first, second")
    asked = len(server.requests)
    until("the store was asked while it is away", lambda: len(server.requests) > asked)
    server.faults.down = False
    until("the file has grown", lambda: server.get("curves/train/events") == b"first, second")
    copy.close()
    late = FolderCopy(tmp_path, "s3://bucket/late", every_s=1000.0)
    late.start()
    run.write_bytes(b"first, second, third")
    late.close()
    assert server.get("late/train/events") == b"first, second, third"


def test_a_thread_that_copies_tells_of_any_error_and_continues() -> None:
    tries = iter([ValueError("not foreseen"), None])
    told: list[str] = []

    def copy() -> None:
        if (error := next(tries, None)) is not None:
            raise error

    thread = CopyThread(copy, told.append, Pace(0.01, 0.0))
    thread.start()
    until("it is told", lambda: len(told) == 2)
    thread.close()
    assert "not foreseen" in told[0] and told[1] == ""


def test_curves_in_a_store_are_those_of_the_job(server: ObjectStore, tmp_path: Path) -> None:
    runs = ScalarRuns("s3://bucket/runs", tmp_path / "tensorboard")
    for kind in ("training", "evaluation"):
        runs.append({"kind": kind, "values": {"loss": 0.5}, "version": 3})
    runs.close()
    (training,), (validation,) = server.keys("runs/train/"), server.keys("runs/validation/")
    local = tmp_path / "tensorboard" / training.removeprefix("runs/")
    assert server.get(training) == local.read_bytes() and server.get(validation)

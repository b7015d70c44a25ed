"""Numbered folders of exports, on a disk and in object stores: a name stands for a whole export."""

from __future__ import annotations

import errno
import fcntl
import os
import uuid
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from elasticdl.embedding.spec import OptimizerKind, OptimizerSpec, ParametersSpec
from elasticdl.errors import PermanentError, UserError
from elasticdl.rpc.parameters import Floats
from elasticdl.shard import Lease, SnapshotId, Task
from elasticdl.storage import folders
from elasticdl.storage.store import store_of
from elasticdl.worker.pipeline.leases import HeldLease
from elasticdl.worker.pipeline.outbox import Outbox
from elasticdl.worker.pipeline.trainer import Batch, Loaded
from elasticdl.worker.tasks import export_folders as export_folders_module
from elasticdl.worker.tasks.export import ExportTask
from elasticdl.worker.tasks.export_folders import ExportFolders, NumberTaken, surplus
from elasticdl.worker.tasks.export_folders import export_folders as _export_folders
from tests.object_store import ObjectStore

pytestmark = pytest.mark.contract
FILES = ("model.weights.h5", "saved_model.pb", "variables/variables.index")
RUN = "elasticdl-run-a"
WHOLE = sorted((*FILES, RUN))


def export_folders(place: str, keep: int, run: str = "a") -> ExportFolders:
    return _export_folders(place, keep, run)


@pytest.fixture(params=["disk", "s3", "memory"])
def place(request: pytest.FixtureRequest, server: ObjectStore, tmp_path: Path) -> str:
    """A new folder."""
    if request.param == "disk":
        return str(tmp_path / "exports")
    scheme = "s3" if request.param == "s3" else "memory"
    return f"{scheme}://bucket/{uuid.uuid4().hex}"


def writes(made: Path) -> None:
    for name in FILES:
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        (made / name).write_text(name)


def breaks(made: Path) -> None:
    (made / "variables").mkdir(parents=True)
    (made / "model.weights.h5").touch()
    raise UserError("no such layer")


def names(place: str) -> list[str]:
    """Whatever is directly below a place, hidden names, too."""
    if "://" not in place:
        return sorted(os.listdir(place)) if os.path.isdir(place) else []
    found = store_of(place).listed(place)
    return sorted(one.address.rpartition("/")[2] for one in found)


def files(folder: str) -> list[str]:
    if "://" not in folder:
        root = Path(folder)
        found = (str(one.relative_to(root)) for one in root.rglob("*") if one.is_file())
    else:
        entries = store_of(folder).listed(folder, deep=True)
        found = (
            entry.address.removeprefix(f"{folder}/") for entry in entries if not entry.is_folder
        )
    return sorted(found)


def published(exports: ExportFolders, *numbers: int) -> None:
    for number in numbers:
        exports.publish(number, writes)
        exports.prune(number)


def test_a_folder_has_its_name_when_the_export_is_whole(place: str) -> None:
    exports = export_folders(place, 2)

    def looks(made: Path) -> None:
        writes(made)
        assert "7" not in names(place)

    assert exports.publish(7, looks) == f"{place}/7"
    assert names(place) == ["7"] and files(f"{place}/7") == WHOLE


def test_an_export_that_fails_leaves_nothing(place: str) -> None:
    with pytest.raises(UserError, match="no such layer"):
        export_folders(place, 2).publish(1, breaks)
    assert names(place) == []


def test_a_number_that_is_complete_stays_as_it_is(place: str) -> None:
    exports = export_folders(place, 2)
    exports.publish(1, writes)
    exports.publish(1, breaks)
    assert files(f"{place}/1") == WHOLE


def test_the_newest_stay(place: str) -> None:
    published(export_folders(place, 2), 9, 10, 11)
    assert names(place) == ["10", "11"]
    published(export_folders(place, 0), 12, 13)
    assert names(place) == ["10", "11", "12", "13"]
    published(export_folders(place, 1), 14)
    assert names(place) == ["14"]


def test_of_two_jobs_with_one_place_each_number_is_of_one(place: str) -> None:
    ours, theirs = export_folders(place, 0), export_folders(place, 0, "b")

    def overtaken(made: Path) -> None:
        """The other job publishes the number while this one makes its export."""
        theirs.publish(5, writes)
        writes(made)

    with pytest.raises(NumberTaken, match="/5 belongs to another job"):
        ours.publish(5, overtaken)
    with pytest.raises(NumberTaken):
        ours.publish(5, writes)
    assert files(f"{place}/5") == sorted((*FILES, "elasticdl-run-b"))
    ours.publish(6, writes)
    with pytest.raises(NumberTaken):
        theirs.publish(6, writes)
    assert names(place) == ["5", "6"] and files(f"{place}/6") == WHOLE


def test_the_last_export_gets_a_number_of_its_own_once(place: str) -> None:
    ours, theirs = export_folders(place, 0), export_folders(place, 0, "b")
    for number in (5, 9):
        theirs.publish(number, writes)
    written = []

    def once(made: Path) -> None:
        """The other job publishes the number that this one has chosen."""
        written.append(made)
        writes(made)
        theirs.publish(10, writes)

    assert ours.publish_last(5, once) == (11, f"{place}/11")
    assert len(written) == 1
    theirs.publish(12, writes)
    # A second attempt, of a worker that was given up.
    assert ours.publish_last(5, breaks) == (11, f"{place}/11")


def test_what_another_job_has_not_finished_is_not_removed(place: str) -> None:
    ours, theirs = export_folders(place, 1), export_folders(place, 1, "b")
    store = store_of(place) if "://" in place else None

    def slow(made: Path) -> None:
        writes(made)
        if store is not None:
            # What an upload in progress has written.
            store.write(f"{place}/2/elasticdl-run-b", b"")
        published(ours, 7, 8)

    theirs.publish(2, slow)
    assert files(f"{place}/2") == sorted((*FILES, "elasticdl-run-b"))
    assert names(place) == ["2", "8"]


def test_of_two_claims_at_the_same_time_none_is_mixed_with_the_other(
    server: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export_folders_module, "_TIE_S", 0.0)
    place = f"s3://bucket/{uuid.uuid4().hex}"
    claims = [export_folders(place, 0, run) for run in "ab"]

    def claimed(made: Path) -> None:
        store_of(place).write(f"{place}/1/elasticdl-run-b", b"")
        writes(made)

    with pytest.raises(NumberTaken):
        claims[0].publish(1, claimed)
    assert files(f"{place}/1") == ["elasticdl-run-b"]
    claims[1].publish(1, writes)
    assert files(f"{place}/1") == sorted((*FILES, "elasticdl-run-b"))


def test_of_two_claims_that_see_each_other_one_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    place = f"memory://bucket/{uuid.uuid4().hex}"
    store, other = store_of(place), f"{place}/1/elasticdl-run-b"

    def sleep(_seconds: float) -> None:
        """The other one looks, too, and leaves."""
        store.remove(other)

    monkeypatch.setattr(export_folders_module, "time", SimpleNamespace(sleep=sleep))

    def meets(made: Path) -> None:
        store.write(other, b"")
        writes(made)

    export_folders(place, 0).publish(1, meets)
    assert files(f"{place}/1") == WHOLE


def test_what_a_killed_exporter_left_in_a_store_is_completed_or_removed(
    server: ObjectStore,
) -> None:
    place = f"s3://bucket/{uuid.uuid4().hex}"
    store, exports = store_of(place), export_folders(place, 2)
    for number in (3, 4):
        store.write(f"{place}/{number}/variables/of-a-killed-exporter", b"")
    published(exports, 4)
    assert names(place) == ["4"] and files(f"{place}/4") == WHOLE


def test_what_a_killed_exporter_left_on_a_disk_is_removed(tmp_path: Path) -> None:
    for name in (".3.0a", ".4.0b", ".5.0c", ".notes.txt"):
        (tmp_path / name / "variables").mkdir(parents=True)
    published(export_folders(str(tmp_path), 2), 4)
    assert names(str(tmp_path)) == [".5.0c", ".notes.txt", "4"]


def test_what_cannot_be_removed_does_not_keep_the_rest(tmp_path: Path) -> None:
    (tmp_path / ".3.0a").touch()
    (tmp_path / ".3.0b").mkdir()
    published(export_folders(str(tmp_path), 1), 4)
    assert names(str(tmp_path)) == [".3.0a", "4"]


def test_without_locks_an_exporter_that_writes_keeps_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the folder itself counted, which does not change while a file below it grows."""

    def refuses(_file: int, _operation: int) -> None:
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr(fcntl, "flock", refuses)
    for name in (".2.0a", ".3.0b"):
        (tmp_path / name / "export").mkdir(parents=True)
        for file in ("lock", "export/rows"):
            (tmp_path / name / file).touch()
    paths = [*tmp_path.rglob("*")]
    for path in paths:
        os.utime(path, (0, 0))
    os.utime(tmp_path / ".3.0b/export/rows")
    published(export_folders(str(tmp_path), 1), 4)
    assert names(str(tmp_path)) == [".3.0b", "4"]


def test_a_folder_that_another_job_removes_meanwhile_is_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its name is taken when the export is renamed, and free when that is looked at."""
    exports, rename = export_folders(str(tmp_path), 1), Path.rename

    def meets(path: Path, target: Path) -> Path:
        if target == tmp_path / "1" and not refused:
            refused.append(target)
            raise OSError(errno.ENOTEMPTY, "not empty")
        return rename(path, target)

    refused: list[Path] = []
    monkeypatch.setattr(Path, "rename", meets)
    assert exports.publish(1, writes) == f"{tmp_path}/1"
    assert refused and names(str(tmp_path)) == ["1"]


def test_the_later_of_two_exporters_of_a_view_keeps_what_is_there(tmp_path: Path) -> None:
    exports = export_folders(str(tmp_path), 2)

    def overtaken(made: Path) -> None:
        exports.publish(1, writes)
        made.mkdir()
        (made / "late").touch()

    exports.publish(1, overtaken)
    assert names(str(tmp_path)) == ["1"] and files(str(tmp_path / "1")) == WHOLE


@pytest.mark.parametrize(
    ("complete", "keep", "removed"),
    [
        ({1: True, 2: True, 3: True}, 2, [1]),
        ({1: True, 2: True, 3: True}, 0, []),
        # Half of a folder is none of the kept ones, and a newer one may be in the making.
        ({1: False, 2: True, 3: True, 4: False}, 2, [1]),
        ({1: False, 2: True, 3: True}, 0, [1]),
        # Another job's newer folders count, but are never removed.
        ({1: True, 3: True, 8: True, 9: True}, 1, [1]),
    ],
)
def test_only_what_is_older_is_removed(
    complete: dict[int, bool], keep: int, removed: list[int]
) -> None:
    assert surplus(complete, 3, keep) == removed


class NoParameters:
    def dense_of(self, lease: Lease) -> Floats:
        return np.empty(0, np.float32)

    def rows_of(self, lease: Lease, table: int) -> Any:
        raise AssertionError("there are no tables")


def task(place: str, outbox: Outbox) -> ExportTask:
    spec = ParametersSpec(optimizer=OptimizerSpec(kind=OptimizerKind.SGD), dense=(), tables=())

    def write(dense: Floats, tables: Any, made: Path) -> None:
        writes(made)

    return ExportTask(NoParameters(), spec, write, place, export_folders(place, 1), outbox)


def run(of: ExportTask, number: int | None, snapshot: SnapshotId | None) -> None:
    lease = Lease(Task.EXPORT, None, 0, round=number, snapshot=snapshot)
    of.run(Loaded(Batch(HeldLease(lease))))


def test_a_task_reports_the_folder_of_its_number(place: str) -> None:
    outbox = Outbox()
    for number, snapshot in ((1, SnapshotId(0)), (2, None)):
        run(task(place, outbox), number, snapshot)
        report = outbox.take({})
        assert (report.exported, report.export_problem) == (f"{place}/{number}", "")
    assert names(place) == ["2"]


@pytest.mark.parametrize("where", ["disk", "s3"])
def test_a_place_that_refuses_costs_an_export_while_the_job_trains_and_fails_the_last_one(
    where: str, server: ObjectStore, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    place = str(tmp_path / "file") if where == "disk" else "s3://no-such-bucket/exports"
    outbox = Outbox()
    run(task(place, outbox), 1, SnapshotId(0))
    report = outbox.take({})
    assert report.exported == f"{place}/1" and report.export_problem
    with pytest.raises(PermanentError):
        run(task(place, outbox), 1, None)


def test_a_store_without_the_export_has_no_model(server: ObjectStore) -> None:
    """saved_model.pb is the last object that appears, and the first that goes."""
    place = f"s3://bucket/{uuid.uuid4().hex}"
    key = place.removeprefix("s3://bucket/")
    exports = export_folders(place, 1)
    server.requests.clear()
    published(exports, 1)
    puts = [
        request
        for request in server.requests
        if request.startswith("PUT") and not request.endswith("/")
    ]
    assert puts[-1] == f"PUT bucket/{key}/1/saved_model.pb"
    server.requests.clear()
    published(exports, 2)
    gone = [request for request in server.requests if request.startswith(("DELETE", "POST"))]
    assert f"DELETE bucket/{key}/1/saved_model.pb" in gone
    assert folders.names_in(place) == ["2"]

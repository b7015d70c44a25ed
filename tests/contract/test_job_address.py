"""Jobs whose --job-dir is an address: who may use it, and which of two copies is the newer one."""

from __future__ import annotations

import asyncio
import errno
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from elasticdl.cli.jobs import address_job
from elasticdl.cli.jobs.address_claim import claimed_place, refuse_if_used
from elasticdl.cli.jobs.address_job import AddressJob
from elasticdl.cli.main import run
from elasticdl.cli.request import Request, settle
from elasticdl.errors import Corrupted, ExitCode, SpecError, TransientError
from elasticdl.job import JobSpec
from elasticdl.job_choices import Action
from elasticdl.jobdir import address_owner
from elasticdl.jobdir.address_copy import AddressCopy, Index, continues, fetch, read_index
from elasticdl.jobdir.address_owner import (
    AddressLost,
    AddressTaken,
    OwnedAddress,
    Owner,
    OwnerTimes,
    read_owner,
)
from elasticdl.jobdir.layout import JobDirectory
from elasticdl.jobdir.working_directory import WorkingDirectory
from elasticdl.master.core.commands import Announce
from elasticdl.master.directory_copy import DirectoryCopy
from elasticdl.master.executor.checkpoint_archive import CheckpointArchive
from elasticdl.storage.attempts import STARTING, Limits
from elasticdl.storage.copy_thread import Pace
from elasticdl.storage.store import Store
from tests.object_store import ObjectStore
from tests.waiting import until, until_async

pytestmark = [pytest.mark.contract, pytest.mark.usefixtures("empty")]
ADDRESS = "s3://bucket/jobs/iris"
QUICK = OwnerTimes(beat_s=0.1, lost_s=0.6, settle_s=0.0, look_s=0.1)
SILENT = OwnerTimes(beat_s=1000.0, lost_s=0.6, settle_s=0.0, look_s=0.1)


@pytest.fixture
def on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], WorkingDirectory]:
    """Go on with the cache of this machine; its working directory for the address."""

    def go(machine: str) -> WorkingDirectory:
        monkeypatch.setenv("ELASTICDL_CACHE_DIR", str(tmp_path / machine))
        return WorkingDirectory.of(ADDRESS)

    return go


def job(**flags: object) -> JobSpec:
    given = {"model_zoo": "zoo", "model_def": "iris", "training_data": "a.csv", **flags}
    return settle(Request(Action.TRAIN, {"job_dir": ADDRESS, **given}))


@contextmanager
def running(
    said: list[str] | None = None, times: OwnerTimes = QUICK, **flags: object
) -> Iterator[JobDirectory]:
    """A job that has begun, as far as its files show."""
    say = (said if said is not None else []).append
    with claimed_place(job(**flags), say, times) as (_, directory):
        directory.preflight.write_text("{}")
        yield directory


def keys(server: ObjectStore) -> list[str]:
    """The objects of the job; pyarrow leaves an empty one in place of a folder's last."""
    names = (key.removeprefix("jobs/iris/") for key in server.keys("jobs/iris/"))
    return [name for name in names if name]


def copied_events(server: ObjectStore) -> str:
    return server.get("jobs/iris/events.jsonl").decode()


def test_the_files_are_at_the_address_when_the_job_has_ended_and_no_secret_is(
    server: ObjectStore, on: Callable[[str], WorkingDirectory]
) -> None:
    on("a")
    with running() as directory:
        directory.events.write_text("one\n")
        directory.journal.mkdir()
        (directory.journal / "run-0001-000000.jsonl").write_text("an event\n")
        directory.logs.mkdir()
        directory.master_log.write_text("a line\n")
        directory.master.write_text('{"token": "secret"}')
        directory.dashboard.write_text("secret")
        (directory.checkpoints / "version-1").mkdir(parents=True)
        (directory.checkpoints / "version-1/part.bin").write_text("large")
        (directory.path / ".events.jsonl.tmp").write_text("half")
    there = [
        "events.jsonl",
        "job.json",
        "job.yaml",
        "journal/run-0001-000000.jsonl",
        "logs/master-0.log",
        "preflight.json",
    ]
    assert keys(server) == sorted([*there, "index.json", "owner.json"])
    index, owner = read_index(ADDRESS), read_owner(ADDRESS)
    assert index is not None and sorted(index.files) == there
    assert owner is not None and owner.ended
    assert f"job_dir: {ADDRESS}" in server.get("jobs/iris/job.yaml").decode()


def test_the_index_names_only_what_is_there_while_the_store_goes_away(
    server: ObjectStore, on: Callable[[str], WorkingDirectory]
) -> None:
    working = on("a")
    with running() as directory:
        copy = AddressCopy(working)
        copy.copy()
        (directory.path / "late").write_text("late")
        server.faults.down = True
        timer = threading.Timer(0.5, lambda: setattr(server.faults, "down", False))
        timer.start()
        copy.copy()  # waits for the store
        timer.join()
        index = read_index(ADDRESS)
        assert index is not None and "late" in index.files
        (directory.path / "late").unlink()
        copy.copy()
        assert "late" not in keys(server)
        sent = len([request for request in server.requests if request.startswith("PUT")])
        copy.copy()
        assert sent == len([request for request in server.requests if request.startswith("PUT")])


def test_a_large_file_that_grows_is_not_copied_each_time(
    server: ObjectStore, on: Callable[[str], WorkingDirectory]
) -> None:
    working, now_s = on("a"), 0.0
    with running() as directory:
        copy = AddressCopy(working, lambda: now_s)
        directory.events.write_bytes(b"x" * (3 << 20))
        copy.copy()
        with directory.events.open("a") as events:
            events.write("more")
        now_s = 2.0
        copy.copy()
        assert len(server.get("jobs/iris/events.jsonl")) == 3 << 20
        now_s = 4.0
        copy.copy()
        assert copied_events(server).endswith("more")


def test_a_new_job_refuses_an_address_that_has_one(
    on: Callable[[str], WorkingDirectory], server: ObjectStore
) -> None:
    on("a")
    with running():
        pass
    for machine in ("a", "b"):
        on(machine)
        taken = pytest.raises(SpecError, match=f"{ADDRESS} already contains a job")
        with taken, running():
            pass
        with taken:
            refuse_if_used(job())
    # A refused job leaves nothing behind.
    server.buckets["bucket"].clear()
    on("c")
    with pytest.raises(SpecError, match="of the check"), claimed_place(job(), print, QUICK):
        raise SpecError("of the check")
    assert keys(server) == []


def test_only_an_address_with_a_job_or_checkpoints_is_resumed(
    on: Callable[[str], WorkingDirectory], server: ObjectStore
) -> None:
    on("a")
    missing = f"--resume, but {ADDRESS} holds no job"
    with pytest.raises(SpecError, match=missing), running(resume=True):
        pass
    server.put("jobs/iris/checkpoints/newest.json", b'{"version": 7}')
    with running(resume=True) as directory:
        assert directory.spec.exists()


def test_another_machine_fetches_the_files_and_then_has_the_newer_ones(
    on: Callable[[str], WorkingDirectory], server: ObjectStore
) -> None:
    first = on("a")
    with running() as directory:
        directory.events.write_text("a\n")
        directory.scale.write_text('{"num_workers": "3", "instead_of": ["1"]}')
    second, said = on("b"), list[str]()
    with claimed_place(job(resume=True), said.append, QUICK) as (spec, directory):
        directory.preflight.write_text("{}")
        assert directory.path == second.job.path != first.job.path
        assert directory.events.read_text() == "a\n" and spec.cluster.num_workers.high == 3
        directory.events.write_text("a\nb\n")
    assert copied_events(server) == "a\nb\n" and not any("Warning" in one for one in said)
    # What the first machine has is of before, however late its clock says it was written.
    on("a")
    first.job.events.write_text("stale\n")
    with running(said, resume=True) as directory:
        assert directory.events.read_text() == "a\nb\n"
    assert (first.path / "job-2/events.jsonl").read_text() == "stale\n"
    assert any(str(first.path / "job-2") in one for one in said)


def test_what_this_machine_could_not_copy_is_newer_than_the_copy(
    on: Callable[[str], WorkingDirectory], server: ObjectStore
) -> None:
    working = on("a")
    with running() as directory:
        directory.events.write_text("a\n")
    working.job.events.write_text("a\nnot copied\n")
    with running(resume=True) as directory:
        assert directory.events.read_text() == "a\nnot copied\n"
    assert copied_events(server) == "a\nnot copied\n"


def test_a_second_job_is_refused_while_the_first_one_lives(
    on: Callable[[str], WorkingDirectory], server: ObjectStore
) -> None:
    on("a")
    with running() as directory:
        directory.events.write_text("a\n")
        AddressCopy(WorkingDirectory.of(ADDRESS)).copy()
        with pytest.raises(SpecError, match="on this machine"), running(resume=True):
            pass
        on("b")
        patient = OwnerTimes(0.1, 60.0, 0.0, 0.1)
        with (
            pytest.raises(AddressTaken, match="another command runs the job"),
            running(times=patient, resume=True),
        ):
            pass


def test_the_same_machine_continues_at_once_after_its_command_was_killed(
    on: Callable[[str], WorkingDirectory], server: ObjectStore
) -> None:
    """Nobody else can have the lock of its working directory."""
    on("a")
    said: list[str] = []
    with running(times=SILENT) as directory:
        directory.events.write_text("a\n")
        of_the_killed = server.get("jobs/iris/owner.json")
    server.put("jobs/iris/owner.json", of_the_killed)
    with running(said, replace(QUICK, lost_s=5.0), resume=True) as directory:
        assert directory.events.read_text() == "a\n"
    assert said == []


def test_an_owner_without_a_heartbeat_loses_the_address_and_copies_nothing_more(
    on: Callable[[str], WorkingDirectory], server: ObjectStore
) -> None:
    working, said = on("a"), list[str]()
    with running(said, SILENT) as directory:
        copy = AddressCopy(working)
        copy.copy()
        on("b")
        with running(resume=True) as other:
            directory.events.write_text("of the first\n")
            with pytest.raises(AddressLost, match="has taken it"):
                copy.copy()
            other.events.write_text("of the second\n")
        on("a")
    assert copied_events(server) == "of the second\n"
    assert any("Warning" in one and "has taken it" in one for one in said)


def test_a_command_that_is_refused_gives_the_address_back_to_the_one_that_runs_the_job(
    on: Callable[[str], WorkingDirectory], server: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two that begin at the same time, the second replaces the first one's object unseen."""
    on("a")
    with running(times=SILENT) as directory:
        directory.events.write_text("of the first\n")
        AddressCopy(WorkingDirectory.of(ADDRESS)).copy()
        index = json.loads(server.get("jobs/iris/index.json"))
        first = OwnedAddress(ADDRESS, Owner(f"{index['writer']}.1", "here"), SILENT)
        assert not first.beat(), "another one has the address"
        with monkeypatch.context() as patch:
            patch.setattr(address_owner, "_refuse_if_alive", lambda *_: None)
            second = OwnedAddress.take(ADDRESS, "b", print, SILENT)
        second.release(forget=True)
        assert "owner.json" not in keys(server)
        assert first.beat() and first.beat()
        owner = read_owner(ADDRESS)
        assert owner is not None and (owner.id, owner.beat) == (first.id, 2)
        for key in ("index.json", "owner.json"):
            del server.buckets["bucket"][f"jobs/iris/{key}"]
        assert first.beat() and "owner.json" not in keys(server), "a person removed it all"


def test_the_heartbeat_continues_after_another_owner_that_is_refused(
    on: Callable[[str], WorkingDirectory], server: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    beat, seen = OwnedAddress.beat, list[bool]()

    def noted(owned: OwnedAddress) -> bool:
        seen.append(beat(owned))
        return seen[-1]

    def is_lost() -> bool:
        another_owner(server)  # Again: a heartbeat on its way may replace it.
        return False in seen

    monkeypatch.setattr(OwnedAddress, "beat", noted)
    working = on("a")
    with running() as directory:
        directory.events.write_text("of the first\n")
        AddressCopy(working).copy()
        until("the heartbeat finds another owner", is_lost)
        del server.buckets["bucket"]["jobs/iris/owner.json"]
        until("it is ours again", lambda: "owner.json" in keys(server))
        owner = read_owner(ADDRESS)
        assert owner is not None and owner.id == working.state().owner


def test_the_last_copy_takes_an_address_back_that_a_refused_command_has_left(
    on: Callable[[str], WorkingDirectory], server: ObjectStore
) -> None:
    working, said = on("a"), list[str]()
    with running(said, SILENT) as directory:
        AddressCopy(working).copy()
        del server.buckets["bucket"]["jobs/iris/owner.json"]
        directory.events.write_text("the last\n")
    owner = read_owner(ADDRESS)
    assert copied_events(server) == "the last\n" and said == []
    assert owner is not None and owner.ended


def test_a_copy_waits_while_nobody_holds_the_address(
    on: Callable[[str], WorkingDirectory], server: ObjectStore
) -> None:
    working = on("a")
    with running(times=SILENT):
        copy = AddressCopy(working)
        owner = server.get("jobs/iris/owner.json")
        del server.buckets["bucket"]["jobs/iris/owner.json"]
        with pytest.raises(TransientError, match=r"its owner\.json was removed"):
            copy.copy()
        server.put("jobs/iris/owner.json", owner)
        copy.copy()


def test_a_checkpoint_waits_for_the_store_longer_than_a_person_does(
    on: Callable[[str], WorkingDirectory], server: ObjectStore
) -> None:
    on("a")
    with running() as directory:
        archive = CheckpointArchive(job(), directory.checkpoints)
        server.faults.down = True
        back_s = STARTING.give_up_s + 1.0
        timer = threading.Timer(back_s, lambda: setattr(server.faults, "down", False))
        timer.start()
        archive._require_ours()
        timer.join()


def test_the_heartbeat_outlives_a_store_that_is_away(server: ObjectStore) -> None:
    owned = OwnedAddress.take(ADDRESS, "machine", print, QUICK)

    def beat() -> int:
        owner = read_owner(ADDRESS)
        assert owner is not None
        return owner.beat

    until("a heartbeat", lambda: beat() > 0)
    server.faults.unavailable = 10
    before = beat()
    until("a heartbeat after that", lambda: beat() > before)
    owned.release(forget=True)
    assert keys(server) == []


def test_a_store_that_is_away_at_the_start_is_an_error_before_there_is_a_file(
    server: ObjectStore, on: Callable[[str], WorkingDirectory]
) -> None:
    working, limits = on("a"), Limits(give_up_s=0.2)
    server.faults.down = True
    try:
        with (
            pytest.raises(TransientError, match="cannot open"),
            running(times=replace(QUICK, limits=limits)),
        ):
            pass
    finally:
        server.faults.down = False
    assert keys(server) == [] and not working.job.path.exists()


@pytest.mark.parametrize("name", ["../outside", "/etc/outside", ""])
def test_an_index_names_nothing_outside_of_the_directory(
    name: str, server: ObjectStore, on: Callable[[str], WorkingDirectory]
) -> None:
    index = {"format": 1, "writer": "w", "sequence": 1, "wall_s": 0, "files": {name: 1}}
    server.put("jobs/iris/index.json", json.dumps(index).encode())
    on("a")
    with pytest.raises(Corrupted, match=r"index\.json is damaged"), running(resume=True):
        pass


def test_verbs_read_the_copy_where_the_job_does_not_run(
    server: ObjectStore, on: Callable[[str], WorkingDirectory], capsys: pytest.CaptureFixture[str]
) -> None:
    on("a")
    with running(job_name="flowers") as directory:
        directory.logs.mkdir()
        directory.master_log.write_text("first\nlast\n")
        directory.status.write_text('{"exit_code": 0, "message": "trained it all"}')
        AddressCopy(WorkingDirectory.of(ADDRESS)).copy()
        on("b")
        assert run(["status", ADDRESS]) == ExitCode.DONE
        assert "runs on" in capsys.readouterr().out
        assert run(["stop", "--job-dir", ADDRESS, "--yes"]) == ExitCode.JOB_FAILED
        assert "run the command on" in capsys.readouterr().err
        on("a")
    on("b")
    assert run(["status", ADDRESS, "-o", "json"]) == ExitCode.DONE
    shown = json.loads(capsys.readouterr().out)
    assert (shown["job"], shown["state"], shown["outcome"]) == ("flowers", "done", "trained it all")
    assert run(["logs", "--job-dir", ADDRESS, "master-0", "-n", "1"]) == ExitCode.DONE
    assert capsys.readouterr().out == "last\n"
    assert run(["why", ADDRESS]) == ExitCode.DONE
    assert run(["scale", ADDRESS, "--num-workers", "2"]) == ExitCode.NO_SUCH_JOB
    assert run(["status", "s3://bucket/jobs/none"]) == ExitCode.NO_SUCH_JOB


def test_a_resume_that_could_not_fetch_the_newer_files_copies_no_older_ones(
    on: Callable[[str], WorkingDirectory], server: ObjectStore
) -> None:
    first = on("a")
    with running() as directory:
        directory.events.write_text("a\n")
    on("b")
    with running(resume=True) as directory:
        directory.events.write_text("a\nb\n")
    on("a")
    first.job.events.write_text("stale\n")
    del server.buckets["bucket"]["jobs/iris/job.yaml"]
    before = server.get("jobs/iris/index.json")
    with pytest.raises(Corrupted, match="names it"), running(resume=True):
        pass
    assert server.get("jobs/iris/index.json") == before and copied_events(server) == "a\nb\n"
    owner = read_owner(ADDRESS)
    assert owner is not None and owner.ended


def another_owner(server: ObjectStore) -> None:
    """Another command takes the address."""
    owner = json.loads(server.get("jobs/iris/owner.json"))
    server.put("jobs/iris/owner.json", json.dumps({**owner, "id": "b.1", "host": "b"}).encode())


def after_each_upload(patch: pytest.MonkeyPatch, then: Callable[[str], object]) -> list[str]:
    """Call `then` after the upload of each file; the addresses of the uploaded ones."""
    upload, sent = Store.upload, list[str]()

    def uploaded(store: Store, file: Path, address: str, limits: Limits) -> None:
        upload(store, file, address, limits)
        sent.append(address)
        then(address)

    patch.setattr(Store, "upload", uploaded)
    return sent


@pytest.mark.parametrize("why", ["the address is lost", "the master ends", "the store is away"])
def test_a_copy_ends_between_two_files(
    why: str,
    server: ObjectStore,
    on: Callable[[str], WorkingDirectory],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    working = on("a")
    with suppress(AddressLost), running(times=SILENT) as directory:
        copy = AddressCopy(working)
        copy.copy()
        before = server.get("jobs/iris/index.json")
        directory.logs.mkdir()
        for number in range(60):
            (directory.logs / f"worker-{number}.log").write_text("a line\n")

        def happens(_address: str) -> None:
            if why == "the master ends":
                copy.stop()
            elif why == "the store is away":
                raise TransientError("cannot write, tried for 15 s")
            else:
                another_owner(server)

        expected: dict[str, AbstractContextManager[object]] = {
            "the address is lost": pytest.raises(AddressLost, match="on b has taken it"),
            "the master ends": nullcontext(),
            "the store is away": pytest.raises(TransientError, match="cannot write"),
        }
        with monkeypatch.context() as patch:
            sent = after_each_upload(patch, happens)
            with expected[why]:
                copy.copy()
        # Eight threads copy at once, and each may have compared the owner before.
        assert 0 < len(sent) <= 8 and server.get("jobs/iris/index.json") == before


def test_a_command_that_overwrote_the_owner_writes_no_index_over_that_of_another(
    server: ObjectStore, on: Callable[[str], WorkingDirectory]
) -> None:
    working, said = on("a"), list[str]()
    with running(said) as directory:
        copy = AddressCopy(working)
        copy.copy()
        index = json.loads(server.get("jobs/iris/index.json"))
        of_another = json.dumps({**index, "writer": "b", "id": "other"}).encode()
        server.put("jobs/iris/index.json", of_another)
        directory.events.write_text("of the first\n")
        with pytest.raises(AddressLost, match=r"its index\.json belongs to another"):
            copy.copy()
    assert server.get("jobs/iris/index.json") == of_another
    # It frees the address, and promises nothing that a resume here would not do.
    owner = read_owner(ADDRESS)
    assert owner is not None and owner.ended
    assert any("Warning" in one for one in said) and not any("--resume" in one for one in said)
    assert any(str(working.job.path) in one for one in said)


def test_ctrl_c_during_the_last_copy_does_not_change_how_the_job_ended(
    on: Callable[[str], WorkingDirectory], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **_more: object) -> None:
        raise KeyboardInterrupt

    on("a")
    said: list[str] = []
    monkeypatch.setattr(AddressCopy, "copy", interrupted)
    with running(said) as directory:
        directory.status.write_text('{"exit_code": 0, "message": "done"}')
    owner = read_owner(ADDRESS)
    assert owner is not None and owner.ended
    assert "not copied to s3://bucket/jobs/iris: Ctrl-C" in said[0]
    assert said[1] == f"Hint: they are in {directory.path}"  # it is done: nothing to resume


def test_a_file_that_cannot_be_copied_is_named_and_holds_no_other_file_up(
    server: ObjectStore, on: Callable[[str], WorkingDirectory], monkeypatch: pytest.MonkeyPatch
) -> None:
    working, said = on("a"), list[str]()

    def refuse(address: str) -> None:
        if address.endswith("odd.log"):
            raise ValueError("an odd name")

    with monkeypatch.context() as patch, running(said) as directory:
        after_each_upload(patch, refuse)
        directory.logs.mkdir()
        (directory.logs / "odd.log").write_text("a line\n")
        directory.events.write_text("a\n")
        with pytest.raises(TransientError, match=r"logs/odd\.log: an odd name"):
            AddressCopy(working).copy()
        index = read_index(ADDRESS)
        assert index is not None and "events.jsonl" in index.files
        assert "logs/odd.log" not in index.files
    assert any("--resume on this machine copies them" in one for one in said)


def test_two_copies_are_never_taken_for_the_same_one(
    server: ObjectStore, on: Callable[[str], WorkingDirectory]
) -> None:
    """A command may be killed after it has written the index, and before it notes that."""
    working = on("a")
    with running() as directory:
        AddressCopy(working).copy()
        before, seen = working.state(), set[str]()
        for text in ("one\n", "two\n"):
            working.keep(before)
            directory.events.write_text(text)
            AddressCopy(working).copy()
            index = read_index(ADDRESS)
            assert index is not None and continues(before, index)
            seen.add(index.id)
        assert len(seen) == 2


@pytest.mark.parametrize("lacks", ["machine", "lock"])
def test_a_working_directory_on_another_machine_or_without_a_lock_waits_for_the_heartbeat(
    lacks: str,
    server: ObjectStore,
    on: Callable[[str], WorkingDirectory],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    working, said = on("a"), list[str]()
    with running() as directory:
        directory.events.write_text("a\n")
        owner = json.loads(server.get("jobs/iris/owner.json"))
    server.put("jobs/iris/owner.json", json.dumps(owner).encode())  # killed
    identity = working.state().id

    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "no locks available")

    if lacks == "machine":
        monkeypatch.setattr(socket, "gethostname", lambda: "clone")
    else:
        monkeypatch.setattr("elasticdl.cli.jobs.job_claim.fcntl.flock", no_locks)
    with running(said, resume=True) as directory:
        assert directory.events.read_text() == "a\n"
        assert (working.state().id == identity) == (lacks == "lock")
    assert any("waiting" in one for one in said)


@pytest.mark.parametrize("source", ["its own flags", "other flags"])
def test_flags_of_the_job_that_another_command_changes_meanwhile_are_read_again(
    source: str, server: ObjectStore, on: Callable[[str], WorkingDirectory]
) -> None:
    on("a")
    with running(num_epochs=4):
        pass
    given = Request(Action.TRAIN, {"resume": True}, f"{ADDRESS}/job.yaml")
    spec = settle(given) if source == "its own flags" else job(resume=True, num_epochs=3)
    changed = server.get("jobs/iris/job.yaml").replace(b"num_epochs: 4", b"num_epochs: 2")
    server.put("jobs/iris/job.yaml", changed)
    on("b")
    if source == "its own flags":
        match = r"changed s3://bucket/jobs/iris/job\.yaml"
        with pytest.raises(SpecError, match=match), claimed_place(spec, print, QUICK):
            pass
        spec = settle(given)
    with claimed_place(spec, print, QUICK) as (claimed, _):
        assert claimed.flags()["num_epochs"] == (2 if source == "its own flags" else 3)


def test_the_page_of_a_copy_has_its_logs_though_a_newer_copy_comes_meanwhile(
    server: ObjectStore, on: Callable[[str], WorkingDirectory], monkeypatch: pytest.MonkeyPatch
) -> None:
    working = on("a")
    with running() as directory:
        directory.logs.mkdir()
        directory.master_log.write_text("a line\n")
        AddressCopy(working).copy()
        on("b")
        job = AddressJob(ADDRESS)

        def overtaken(*arguments: Any) -> Index:
            found = fetch(*arguments)
            directory.events.write_text("more\n")
            AddressCopy(working).copy()
            return found

        with monkeypatch.context() as patch:
            patch.setattr(address_job, "_AGAIN_S", 0.0)
            patch.setattr(address_job, "fetch", overtaken)
            shown = job.snapshot()
        job.close()
        on("a")
    assert "a line" in json.dumps(shown["logs"])


def test_checkpoints_are_found_where_the_job_copied_them(
    server: ObjectStore, on: Callable[[str], WorkingDirectory], capsys: pytest.CaptureFixture[str]
) -> None:
    on("a")
    with running(checkpoint_dir="s3://bucket/elsewhere"):
        pass
    server.put("elsewhere/version-7/manifest.json", b"{}")
    assert run(["checkpoints", "list", ADDRESS, "-o", "json"]) == ExitCode.DONE
    (found,) = json.loads(capsys.readouterr().out)
    assert found["path"].startswith("s3://bucket/elsewhere/version-7")


def test_a_file_of_flags_that_is_not_there_is_a_wrong_flag(server: ObjectStore) -> None:
    with pytest.raises(SpecError, match=r"-f: s3://bucket/none\.yaml does not exist"):
        settle(Request(Action.TRAIN, {}, "s3://bucket/none.yaml"))


@pytest.mark.parametrize("why", ["its owner cannot be read", "it has another owner"])
async def test_a_master_copies_at_once_and_tells_once_that_it_cannot_and_that_it_can_again(
    why: str, server: ObjectStore, on: Callable[[str], WorkingDirectory]
) -> None:
    on("a")
    events: list[Announce] = []

    with running(times=SILENT) as directory:
        owner = server.get("jobs/iris/owner.json")

        def write_owner() -> None:
            server.put("jobs/iris/owner.json", owner)

        copy = DirectoryCopy(ADDRESS, events.append, Pace(0.05, 0.0))
        copy.start()
        try:
            await until_async("the first copy", lambda: "index.json" in keys(server))
            if why == "it has another owner":
                another_owner(server)
            else:
                server.put("jobs/iris/owner.json", b"damaged")
            directory.events.write_text("more\n")
            await until_async("it is told", lambda: len(events) == 1)
            write_owner()
            await until_async("it is told", lambda: len(events) == 2)
        finally:
            await asyncio.to_thread(copy.close)
    assert [event.level for event in events] == ["warning", "info"]
    assert "copied to s3://bucket/jobs/iris: " in events[0].text

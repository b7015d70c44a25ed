"""Masters without a volume find their journal in the memory of other processes, over real gRPC."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from elasticdl.cluster.base import ProcessName
from elasticdl.cluster.role_environment import RoleEnvironment
from elasticdl.errors import ElasticDLError, MasterSuperseded, TransientError
from elasticdl.job import JobSpec
from elasticdl.job_choices import Action
from elasticdl.master.core.state import JobState
from elasticdl.master.journal import files
from elasticdl.master.journal.copies import (
    CopiedJournal,
    CopyHolder,
    CopyLimits,
    CopyPlace,
    JournalCopy,
)
from elasticdl.master.journal.fetching import fetch
from elasticdl.master.journal.files import Header
from elasticdl.master.journal.recovery import Recovered, claim
from elasticdl.master.journal.rules import worth_keeping
from elasticdl.master.journal.writer import JournalFile, JournalLimits
from elasticdl.master.platform.lease_record import journal_copies
from elasticdl.rpc.conversation import Attached
from elasticdl.rpc.journal_copy import Change, Copy, serve_copy
from elasticdl.rpc.master_client import MasterClient
from elasticdl.tls import CertifiedKey
from elasticdl.tls.authority import Authority, KeyPair
from elasticdl.tokens import process_token
from elasticdl.worker.process.journal_holder import hold_journal_copy
from tests.core.random_history import SPEC, Script, canonical
from tests.recovered import recover
from tests.waiting import LIMIT_S, until_async

pytestmark = pytest.mark.contract
TOKEN, RUN = "the job's token", "this launch"
OFTEN = JournalLimits(segment_bytes=8_000, image_events=20, image_times=0.0)
NEVER_S = 1e6
LIMITS = CopyLimits(change_s=LIMIT_S, again_s=0.0, record_again_s=0.01, read_s=LIMIT_S)


class Record:
    """As the Lease: durable, and only the newest master changes it."""

    def __init__(self) -> None:
        self.on_record: tuple[CopyHolder, ...] = ()
        self.term, self.away, self.asked = 1, False, 0
        self.unanswered = False
        """It changes, but the master does not hear of it."""

    def of(self, term: int) -> RecordOf:
        return RecordOf(self, term)


class RecordOf:
    """The record as the master of a term has it."""

    def __init__(self, record: Record, term: int) -> None:
        self._record, self._term = record, term

    def holders(self) -> tuple[CopyHolder, ...]:
        return self._record.on_record

    async def record(self, holders: Sequence[CopyHolder]) -> None:
        self._record.asked += 1
        if self._record.away:
            raise TransientError("the API server is away")
        if self._record.term != self._term:
            raise MasterSuperseded("another master has the Lease")
        self._record.on_record = tuple(holders)
        if self._record.unanswered:
            raise TransientError("the API server did not answer")


class UnansweredOnce:
    """A copy whose next answer is lost."""

    def __init__(self, copy: JournalCopy, job: Job) -> None:
        self._copy, self._job = copy, job

    async def change(self, change: Change, *, timeout_s: float) -> None:
        await self._copy.change(change, timeout_s=timeout_s)
        lost, self._job.lose_answer = self._job.lose_answer, False
        if lost:
            raise TransientError("the connection was reset")

    async def read(self, *, timeout_s: float) -> Copy:
        if self._job.unreachable:
            raise TransientError("no route to host")
        return await self._copy.read(timeout_s=timeout_s)

    async def close(self) -> None:
        await self._copy.close()


class Job:
    """The processes of a job, and the masters that it has one after another."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.record = folder, Record()
        self.authority: Authority | None = None
        self.processes: dict[CopyHolder, grpc.Server] = {}
        self.masters: list[CopiedJournal] = []
        self.limits = LIMITS
        self.hanging: dict[CopyHolder, socket.socket] = {}
        """Processes that accept connections and never answer."""
        self.asked: list[str] = []
        """Those that masters have connected to."""
        self.nodes: dict[str, str] = {}
        self.lose_answer = self.unreachable = False
        self.silent = False
        """No process has attached to the newest master yet."""

    def start(self, name: str) -> CopyHolder:
        certified = None
        if self.authority is not None:
            pair = KeyPair.new()
            certified = CertifiedKey(self.authority.certify(pair.public, [name]), pair.private)
        server, port = serve_copy(process_token(TOKEN, name), 1, "127.0.0.1:0", certified)
        holder = CopyHolder(name, f"127.0.0.1:{port}")
        self.processes[holder] = server
        return holder

    def kill(self, name: str) -> None:
        for holder in [process for process in self.processes if process.name == name]:
            self.processes.pop(holder).stop(None).wait(LIMIT_S)

    def hang(self, name: str) -> None:
        listening = socket.create_server(("127.0.0.1", 0))
        self.hanging[CopyHolder(name, f"127.0.0.1:{listening.getsockname()[1]}")] = listening

    def attached(self) -> list[CopyHolder]:
        return [] if self.silent else [*self.hanging, *self.processes]

    def lives(self, name: str) -> bool:
        return any(one.name == name for one in (*self.hanging, *self.processes))

    def node(self, name: str) -> str:
        return self.nodes.get(name, "")

    async def running(self) -> list[str]:
        return [one.name for one in (*self.hanging, *self.processes)]

    def place(self, term: int) -> CopyPlace:
        trusted = self.authority.certificate if self.authority is not None else None
        place = journal_copies(self.record.of(term), self.running, TOKEN, trusted, term)

        def connect(holder: CopyHolder, term: int) -> UnansweredOnce:
            self.asked.append(holder.name)
            return UnansweredOnce(place.connect(holder, term), self)

        return replace(place, connect=connect)

    @property
    def on_record(self) -> list[str]:
        return [one.name for one in self.record.on_record]

    async def master(self, term: int, seed: int = 1) -> Master:
        """Start the next one in a folder of its own."""
        self.record.term = term
        place = self.place(term)
        folder = self.folder / f"term-{term}"
        before = None
        if await fetch(place, folder, LIMITS) is not None:
            assert claim(folder, RUN, term) == term
            before = recover(folder, RUN, SPEC)
        master = Master(folder, term, before, seed)
        master.journal = CopiedJournal(master.file, place, self, self.limits)
        self.masters.append(master.journal)
        return master

    async def close(self) -> None:
        for master in self.masters:
            await master.aclose()
        for holder in tuple(self.processes):
            self.kill(holder.name)
        for listening in self.hanging.values():
            listening.close()


class Master:
    """A master that journals a random history."""

    journal: CopiedJournal

    def __init__(self, folder: Path, term: int, before: Recovered | None, seed: int) -> None:
        self.before, self.script = before, Script(random.Random(seed))
        self.state = before.core if before is not None else JobState(SPEC)
        self.file = JournalFile(
            folder,
            Header(RUN, term, before and before.end),
            lambda: self.state.image(SPEC),
            run=before.run if before is not None else None,
            limits=OFTEN,
        )

    async def live(self, events: int = 1) -> str:
        """Handle events; return the state that this master may act upon."""
        for _ in range(events):
            event = self.script.next()
            commands = self.state.handle(event)
            if worth_keeping(event, commands):
                self.journal.append(event)
            await self.journal.flush()
            self.script.heard(commands)
        return canonical(self.state)


@pytest.fixture
@asynccontextmanager
async def job(tmp_path: Path) -> AsyncIterator[Job]:
    made = Job(tmp_path)
    try:
        yield made
    finally:
        await made.close()


@pytest.mark.parametrize("secured", [False, True])
async def test_each_next_master_continues_with_the_state_of_the_one_before(
    job: Job, secured: bool
) -> None:
    if secured:
        job.authority = Authority.new("a-job")
    job.start("ps-0")
    job.start("ps-1")
    job.start("ps-2")
    acted = await (await job.master(1)).live(90)
    assert job.on_record == ["ps-0", "ps-1"]
    for term in (2, 3):
        next_one = await job.master(term, seed=term)
        assert canonical(next_one.state) == acted
        assert next_one.before is not None and next_one.before.term == term - 1
        acted = await next_one.live(60)


async def test_holders_that_have_not_attached_again_keep_their_copies(job: Job) -> None:
    for number in range(3):
        job.start(f"worker-{number}")
    await (await job.master(1)).live(30)
    job.silent = True
    acted = await (await job.master(2)).live(10)
    assert sorted(job.on_record) == ["worker-0", "worker-1"]
    assert canonical((await job.master(3)).state) == acted


async def test_holders_are_on_different_nodes_where_processes_are(job: Job) -> None:
    job.nodes = {f"ps-{number}": "node-a" for number in range(3)}
    for name in job.nodes:
        job.start(name)
    master = await job.master(1)
    await master.live(30)
    assert job.on_record == ["ps-0", "ps-1"], "there is one node only"
    job.nodes["ps-3"] = "node-b"
    job.start("ps-3")
    await master.live(2)
    assert sorted(job.on_record) == ["ps-1", "ps-3"]
    job.kill("ps-1")
    job.nodes["ps-4"] = "node-b"
    job.start("ps-4")
    acted = await master.live(2)
    assert sorted(job.on_record) == ["ps-0", "ps-3"], "not both on node-b"
    for name in ("ps-0", "ps-2"):
        job.kill(name)
    assert canonical((await job.master(2)).state) == acted, "a whole node is lost"


async def test_a_holder_keeps_its_copy_until_its_exchange_is_on_record(job: Job) -> None:
    job.nodes = {"ps-0": "node-a", "ps-1": "node-a"}
    for name in job.nodes:
        job.start(name)
    master = await job.master(1)
    await master.live(30)
    job.record.away = True
    job.nodes["ps-2"] = "node-b"
    job.start("ps-2")
    acted = await master.live(2)
    assert job.on_record == ["ps-0", "ps-1"]
    job.kill("ps-1")
    job.record.away = False
    next_one = await job.master(2)
    assert canonical(next_one.state) == acted
    await next_one.live(5)
    assert sorted(job.on_record) == ["ps-0", "ps-2"]


@pytest.mark.parametrize("seed", range(5))
async def test_any_holder_on_record_has_what_was_acted_upon_whoever_dies(
    job: Job, seed: int
) -> None:
    """Processes come and go at random. Before each next master all but one on record die."""
    chance, started, acted = random.Random(seed), 2, ""
    for number in range(started):
        job.start(f"worker-{number}")
    for term in range(1, 7):
        master = await job.master(term, seed=seed * 10 + term)
        if term > 1:
            assert master.before is not None
            assert canonical(master.state) == acted
        for _ in range(chance.randrange(1, 6)):
            acted = await master.live(chance.randrange(1, 30))
            if chance.random() < 0.6:
                job.start(f"worker-{started}")
                started += 1
            if chance.random() < 0.5 and len(job.processes) > 1:
                job.kill(chance.choice(list(job.processes)).name)
            acted = await master.live()
        for name in chance.sample(job.on_record, len(job.on_record) - 1):
            job.kill(name)


async def test_a_replaced_master_cannot_act_whatever_it_can_reach(job: Job) -> None:
    job.start("ps-0")
    job.start("ps-1")
    old = await job.master(1)
    acted = await old.live(30)
    # The next master reaches one of them only.
    second = job.record.on_record[1]
    job.record.on_record = job.record.on_record[:1]
    new = await job.master(2, seed=2)
    assert canonical(new.state) == acted
    with pytest.raises(MasterSuperseded):
        await old.live(5)
    acted = await new.live(5)
    assert second in job.attached()
    assert canonical((await job.master(3)).state) == acted


async def test_a_replaced_master_waits_while_it_cannot_ask_the_record(job: Job) -> None:
    job.start("ps-0")
    old = await job.master(1)
    await old.live(30)
    await job.master(2)
    job.record.away, asked = True, job.record.asked
    late = asyncio.ensure_future(old.live(5))
    await until_async("it asks again", lambda: job.record.asked > asked + 2)
    assert not late.done()
    job.record.away = False
    with pytest.raises(MasterSuperseded):
        await late


@pytest.mark.parametrize("is_certain", [True, False])
async def test_a_holder_that_ends_while_the_record_is_away_is_waited_for(
    job: Job, is_certain: bool
) -> None:
    """Also one that the record may not name yet."""
    job.start("ps-0")
    if is_certain:
        job.start("ps-1")
    master = await job.master(1)
    await master.live(30)
    if not is_certain:
        job.start("ps-1")
    job.record.away = True
    await master.live(5)
    job.kill("ps-1")
    asked = job.record.asked
    waiting = asyncio.ensure_future(master.live(5))
    await until_async("it asks again", lambda: job.record.asked > asked + 2)
    assert not waiting.done()
    job.record.away = False
    acted = await waiting
    assert job.on_record == ["ps-0"]
    assert canonical((await job.master(2)).state) == acted


async def test_without_the_record_no_further_process_counts_and_nobody_waits(job: Job) -> None:
    job.start("ps-0")
    master = await job.master(1)
    await master.live(30)
    job.record.away = True
    job.start("ps-1")
    acted = await master.live(20)
    assert job.on_record == ["ps-0"]
    assert canonical((await job.master(2)).state) == acted
    job.record.away = False


@pytest.mark.parametrize("restarted", [False, True])
async def test_without_holders_the_job_continues_and_the_next_master_finds_nothing(
    job: Job, restarted: bool, caplog: pytest.LogCaptureFixture
) -> None:
    job.start("ps-0")
    job.start("ps-1")
    master = await job.master(1)
    await master.live(30)
    assert master.journal.whole
    job.kill("ps-0")
    job.kill("ps-1")
    await master.live(20)
    assert not master.journal.whole and job.on_record == []
    assert "no process has a copy of the journal" in caplog.text
    if restarted:
        job.start("ps-0.1")
        acted = await master.live(5)
        assert master.journal.whole and job.on_record == ["ps-0.1"]
    next_one = await job.master(2)
    assert (next_one.before is not None) == restarted
    if restarted:
        assert canonical(next_one.state) == acted


async def test_processes_that_end_with_their_master_leave_no_copy(
    job: Job, caplog: pytest.LogCaptureFixture
) -> None:
    job.start("ps-0")
    master = await job.master(1)
    await master.live(30)
    (holder,) = job.record.on_record
    job.kill("ps-0")
    quick = CopyLimits(read_s=0.2)
    place = journal_copies(job.record.of(2), job.running, TOKEN, None, 2)
    assert await fetch(place, job.folder / "term-2", quick) is None
    assert f"no copy of the journal can be read; on record: ps-0 ({holder.address})" in (
        caplog.text
    )
    job.record.term = 1


async def test_a_copy_that_no_master_wrote_is_refused(
    job: Job, caplog: pytest.LogCaptureFixture
) -> None:
    holder = job.start("worker-0")
    job.record.on_record = (holder,)
    place = journal_copies(job.record.of(2), job.running, TOKEN, None, 2)
    forger = place.connect(holder, 1)
    forged = Change(1, {"run-0001-000001.jsonl": b"{}\n"}, seal="a guess", anew=True)
    await forger.change(forged, timeout_s=LIMIT_S)
    await forger.close()
    assert await fetch(place, job.folder / "term-2", LIMITS) is None
    assert "its seal is wrong" in caplog.text
    assert not files.segments(job.folder / "term-2")


async def test_a_change_that_does_not_follow_the_one_before_is_refused(job: Job) -> None:
    holder = job.start("worker-0")
    place = journal_copies(job.record.of(1), job.running, TOKEN, None, 1)
    copy = place.connect(holder, 1)
    try:
        name = "run-0001-000001.jsonl"
        await copy.change(Change(3, {name: b"a"}, "", anew=True), timeout_s=LIMIT_S)
        await copy.change(Change(4, {name: b"b"}, ""), timeout_s=LIMIT_S)
        for number in (4, 6):
            with pytest.raises(ElasticDLError, match="does not follow 4"):
                await copy.change(Change(number, {name: b"c"}, ""), timeout_s=LIMIT_S)
        assert (await copy.read(timeout_s=LIMIT_S)).files == {name: b"ab"}
    finally:
        await copy.close()


async def test_a_copy_stays_small_however_long_the_job_runs(job: Job) -> None:
    job.start("ps-0")
    master = await job.master(1)
    sizes = []
    for _ in range(6):
        await master.live(100)
        sizes.append(sum(path.stat().st_size for path in master.file.needed))
    assert max(sizes[2:]) < 2 * max(sizes[:2])


async def test_a_holder_whose_record_is_not_certain_has_what_was_acted_upon(job: Job) -> None:
    job.limits = replace(LIMITS, again_s=NEVER_S)
    job.start("ps-0")
    master = await job.master(1)
    await master.live(30)
    job.start("ps-1")
    job.record.unanswered = True
    acted = await master.live(40)
    assert job.on_record == ["ps-0", "ps-1"]
    job.kill("ps-0")
    assert canonical((await job.master(2)).state) == acted


async def test_a_journal_that_cannot_be_read_costs_the_copies_and_not_the_job(
    job: Job, caplog: pytest.LogCaptureFixture
) -> None:
    job.start("ps-0")
    master = await job.master(1)
    await master.live(30)
    unreadable = files.segment_path(job.folder / "term-1", 1, 999_999)
    unreadable.mkdir()
    await master.live(3)
    assert not master.journal.whole and job.on_record == []
    assert "cannot read the journal" in caplog.text
    unreadable.rmdir()
    acted = await master.live(3)
    assert master.journal.whole and job.on_record == ["ps-0"]
    assert canonical((await job.master(2)).state) == acted


async def test_one_process_that_takes_no_copy_makes_the_job_wait_once(job: Job) -> None:
    job.limits = replace(LIMITS, change_s=0.1, again_s=NEVER_S)
    for number in range(4):
        job.hang(f"worker-{number}")
    await (await job.master(1)).live(10)
    assert job.asked == ["worker-0"]


async def test_processes_that_took_no_copy_are_asked_last(job: Job) -> None:
    job.limits = replace(LIMITS, holders=1)
    gone = job.start("worker-0")
    job.processes[gone].stop(None).wait(LIMIT_S)
    job.start("worker-1")
    await (await job.master(1)).live(10)
    assert job.asked == ["worker-0", "worker-1"]
    assert job.on_record == ["worker-1"]


async def test_no_process_has_a_copy_above_the_limit(
    job: Job, caplog: pytest.LogCaptureFixture
) -> None:
    job.limits = replace(LIMITS, bytes=3_000)
    job.start("ps-0")
    master = await job.master(1)
    await master.live(1)
    assert job.on_record == ["ps-0"]
    await master.live(60)
    assert not master.journal.whole and job.on_record == []
    warned, _, after = caplog.text.partition("above that no process has a copy")
    assert "no process has a copy of the journal any longer" in after
    assert "any longer" not in warned


async def test_a_lost_answer_costs_no_holder(job: Job) -> None:
    job.limits = replace(LIMITS, again_s=NEVER_S)
    job.start("ps-0")
    job.start("ps-1")
    master = await job.master(1)
    await master.live(30)
    asked, job.lose_answer = job.record.asked, True
    acted = await master.live(10)
    assert not job.lose_answer and job.record.asked == asked
    assert canonical((await job.master(2)).state) == acted


async def test_a_late_change_does_not_replace_a_newer_copy(job: Job) -> None:
    holder = job.start("worker-0")
    copies = [job.place(term).connect(holder, term) for term in (1, 2)]
    earlier, later = copies
    name = "run-0001-000001.jsonl"
    try:
        await earlier.change(Change(9, {name: b"a"}, "", anew=True), timeout_s=LIMIT_S)
        await later.change(Change(3, {name: b"b"}, "", anew=True), timeout_s=LIMIT_S)
        with pytest.raises(ElasticDLError, match="does not follow 3"):
            await later.change(Change(2, {name: b"c"}, "", anew=True), timeout_s=LIMIT_S)
        with pytest.raises(ElasticDLError):
            await earlier.change(Change(10, {name: b"c"}, "", anew=True), timeout_s=LIMIT_S)
        assert (await later.read(timeout_s=LIMIT_S)).files == {name: b"b"}
    finally:
        for copy in copies:
            await copy.close()


def test_a_worker_that_cannot_listen_does_without_a_copy(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    spec = JobSpec.from_flags(
        Action.TRAIN,
        {
            "model_def": "m",
            "training_data": "t",
            "image_name": "i:1",
            "job_name": "j",
            "job_dir": str(tmp_path),
            "distribution_strategy": "AllreduceStrategy",
        },
    )
    # An address of nobody: RFC 5737.
    place = RoleEnvironment(
        "127.0.0.1:1", TOKEN, ProcessName.parse("worker-0"), tmp_path, "192.0.2.1"
    )
    client = MasterClient(place.master, TOKEN, "worker-0", away_s=LIMIT_S)
    assert hold_journal_copy(place, client, Attached(1, 1.0, spec, (), "")) is None
    assert "this worker cannot have a copy of the journal" in caplog.text
    client.close()


async def test_a_holder_that_runs_and_does_not_answer_is_asked_again(
    job: Job, caplog: pytest.LogCaptureFixture
) -> None:
    job.start("ps-0")
    acted = await (await job.master(1)).live(30)
    job.unreachable = True
    next_one = asyncio.ensure_future(job.master(2))
    await until_async("it tries again", lambda: caplog.text.count("no route to host") > 1)
    assert not next_one.done()
    job.unreachable = False
    assert canonical((await next_one).state) == acted


async def test_the_end_of_all_processes_is_no_loss_while_the_job_ends(
    job: Job, caplog: pytest.LogCaptureFixture
) -> None:
    job.limits = replace(LIMITS, again_s=NEVER_S)
    job.start("worker-0")
    master = await job.master(1)
    await master.live(30)
    job.kill("worker-0")
    await master.live(5)
    assert not master.journal.whole
    assert "starts the job over" not in caplog.text

"""A master that takes over lets processes connect to a real port while it replays the journal."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import pytest

from elasticdl.errors import ExitCode
from elasticdl.jobdir.layout import JobDirectory, read_json
from elasticdl.master import lifecycle
from elasticdl.master.call_port import CallPort
from elasticdl.master.core.commands import FinishJob
from elasticdl.master.core.job_context import Limits
from elasticdl.master.core.state import JobState
from elasticdl.master.job_record import JobRecord
from elasticdl.master.journal import files
from elasticdl.master.journal.files import Header
from elasticdl.master.journal.recovery import Recovery
from elasticdl.master.journal.rules import worth_keeping
from elasticdl.master.journal.writer import JournalFile, JournalLimits
from elasticdl.master.master import Master
from elasticdl.master.platform.local import LocalPlatform
from elasticdl.master.platform.platform import MasterEnvironment, Platform
from elasticdl.rpc.call_frames import GREETING, REPLY, TERM, TERM_NUMBER
from elasticdl.tokens import run_name
from tests.core.random_history import SPEC, Script, canonical
from tests.waiting import at_once

pytestmark = pytest.mark.contract

TOKEN = "the-token-of-this-job"
EVENTS = 60


@dataclass(frozen=True, slots=True)
class Stub:
    """What a master that takes over asks its platform before it runs."""

    limits: Limits


@dataclass(frozen=True, slots=True)
class Left:
    """The directory and the state of a job whose master of term 3 was killed."""

    environment: MasterEnvironment
    state: JobState

    @property
    def journal(self) -> Path:
        return self.environment.directory.journal


@pytest.fixture
def left(tmp_path: Path) -> Left:
    directory = JobDirectory(tmp_path)
    directory.spec.write_text(SPEC.model_dump_json())
    state, script = JobState(SPEC), Script(random.Random(1))
    journal = JournalFile(
        directory.journal,
        Header(run_name(TOKEN), 3),
        lambda: state.image(SPEC),
        limits=JournalLimits(image_events=10_000),
    )
    for _ in range(EVENTS):
        event = script.next()
        commands = state.handle(event)
        if worth_keeping(event, commands):
            journal.append(event)
        at_once(journal.flush())
        script.heard(commands)
    journal.close()
    return Left(MasterEnvironment(directory, TOKEN, "127.0.0.1", 0, replaces=True), state)


@pytest.fixture
def ports(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Where processes could connect; the replay lets them after each event."""
    found, opened = list[int](), CallPort.open

    async def open_(port: CallPort) -> int:
        found.append(await opened(port))
        return found[-1]

    monkeypatch.setattr(CallPort, "open", open_)
    monkeypatch.setattr(lifecycle, "_REPLAY_S", 0.0)
    return found


async def greeting(port: int) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        return await reader.readexactly(len(GREETING) + REPLY.size + TERM_NUMBER.size)
    finally:
        writer.close()


async def is_closed(port: int) -> bool:
    try:
        await greeting(port)
    except ConnectionError:
        return True
    return False


def replayed(left: Left, stack: AsyncExitStack) -> Coroutine[Any, Any, Any]:
    return lifecycle._recovered(left.environment, SPEC, Limits(), stack)


async def test_processes_that_connect_during_the_replay_learn_the_term_that_the_master_claimed(
    left: Left, ports: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    greetings, replay = list[asyncio.Task[bytes]](), Recovery.replay

    def replay_(recovery: Recovery, limit_s: float) -> bool:
        if not greetings:
            greetings.append(asyncio.ensure_future(greeting(ports[0])))
        return replay(recovery, limit_s)

    monkeypatch.setattr(Recovery, "replay", replay_)
    async with AsyncExitStack() as stack:
        environment, (recovered, _) = await replayed(left, stack)
        assert environment.term == 4
        assert canonical(recovered.core) == canonical(left.state)
        said = REPLY.pack(TERM_NUMBER.size, 0, TERM) + TERM_NUMBER.pack(4)
        assert await greetings[0] == GREETING + said
    assert await is_closed(ports[0])


async def test_the_port_closes_when_the_replay_finds_a_damaged_line(
    left: Left, ports: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    (segment,) = files.segments(left.journal)
    lines = segment.path.read_bytes().splitlines(keepends=True)
    lines[20] = lines[20].replace(b"{", b"[", 1)
    segment.path.write_bytes(b"".join(lines))
    async with AsyncExitStack() as stack:
        _, recovered = await replayed(left, stack)
        assert recovered is None and "damaged" in caplog.text
        assert await is_closed(ports[0])


async def test_a_port_that_is_taken_when_the_replay_begins_may_be_free_when_the_master_runs(
    left: Left,
) -> None:
    async with AsyncExitStack() as stack:
        with socket.create_server(("127.0.0.1", 0)) as other:
            taken = replace(left.environment, port=other.getsockname()[1])
            _, (recovered, calls) = await replayed(replace(left, environment=taken), stack)
            assert calls.server.port is None
        assert canonical(recovered.core) == canonical(left.state)
        assert await calls.open() == calls.environment.port


@pytest.mark.parametrize("end", ["it is cancelled in the replay", "no master can be made"])
async def test_a_start_that_fails_leaves_no_open_port(
    left: Left, ports: list[int], end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cancelled(recovery: Recovery) -> bool:
        asyncio.current_task().cancel()  # type: ignore[union-attr]
        return True

    def failed(*_: object) -> None:
        raise PermissionError("events.jsonl")

    in_replay = end == "it is cancelled in the replay"
    if in_replay:
        monkeypatch.setattr(lifecycle, "_replay", cancelled)
    else:
        monkeypatch.setattr(lifecycle, "Master", failed)
    task = asyncio.ensure_future(
        lifecycle.serve(left.environment, cast("Platform", Stub(Limits())))
    )
    with pytest.raises(asyncio.CancelledError if in_replay else PermissionError):
        await task
    assert await is_closed(ports[0])


async def test_the_outcome_is_recorded_before_the_master_waits_for_a_store(
    left: Left, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A master that is ended at once is killed some seconds later."""
    closed, before = JobRecord.close, list[object]()
    environment, directory = left.environment, left.environment.directory

    def waits(record: JobRecord) -> None:
        before.append(read_json(directory.status)["exit_code"])
        closed(record)

    async def ended(*_: object) -> FinishJob:
        return FinishJob(ExitCode.INTERRUPTED, "ended at once by a second signal")

    monkeypatch.setattr(JobRecord, "close", waits)
    monkeypatch.setattr(lifecycle, "_run", ended)
    platform = LocalPlatform()
    master = Master(environment, SPEC, platform, CallPort.of(environment))
    await lifecycle._finish(master, environment, platform)
    assert before == [ExitCode.INTERRUPTED]

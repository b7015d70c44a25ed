"""Which masters are started again, and how messages between a supervisor and a master are cut."""

from __future__ import annotations

import signal
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticdl.cluster.base import (
    CreateRefused,
    ExitStatus,
    ProcessExited,
    ProcessName,
    ProcessObserved,
    ProcessSpec,
    Role,
)
from elasticdl.cluster.local.supervisor import messages
from elasticdl.cluster.local.supervisor.channel import FrameParser, frame
from elasticdl.cluster.local.supervisor.master_restarts import (
    RestartLimits,
    Restarts,
    ended_on_purpose,
)
from elasticdl.cluster.local.supervisor.messages import Predecessor, Welcome
from elasticdl.cluster.role_environment import MASTER_AWAY_S
from elasticdl.errors import ExitCode

pytestmark = pytest.mark.core
W0 = ProcessName(Role.WORKER, 0)


def test_five_masters_that_live_shortly_are_replaced_after_longer_and_longer_pauses() -> None:
    restarts = Restarts()
    assert [restarts.delay_s(1.0) for _ in range(6)] == [0.0, 0.0, 0.5, 1.0, 2.0, None]
    assert restarts.in_a_row == 6


def test_a_job_that_gets_further_has_all_its_restarts_again() -> None:
    restarts = Restarts()
    for records in range(100, 10_000, 100):
        restarts.progressed(records)
        assert restarts.delay_s(1.0) == 0.0
        assert restarts.delay_s(1.0) == 0.0


def test_what_an_earlier_master_had_done_already_is_no_progress() -> None:
    restarts = Restarts()
    restarts.progressed(1000)
    delays = []
    for _ in range(6):
        delays.append(restarts.delay_s(1.0))
        restarts.progressed(900)  # It went back to a checkpoint, and did not come as far.
    assert delays[-1] is None


def test_a_master_that_lived_long_does_not_count_as_one_that_cannot_live() -> None:
    restarts = Restarts()
    for _ in range(3):
        assert [restarts.delay_s(1.0) for _ in range(3)] == [0.0, 0.0, 0.5]
        assert restarts.delay_s(30.0) == 0.0


def test_masters_that_live_long_but_bring_nothing_end_the_job_too() -> None:
    restarts = Restarts(RestartLimits(most=3))
    assert [restarts.delay_s(3600.0) for _ in range(4)] == [0.0, 0.0, 0.0, None]


@pytest.mark.parametrize(
    "status",
    [
        ExitStatus(exit_code=ExitCode.USAGE),
        ExitStatus(exit_code=ExitCode.INTERRUPTED),
        ExitStatus(signal=signal.SIGTERM),
        ExitStatus(signal=signal.SIGINT),
    ],
)
def test_a_master_that_was_refused_or_interrupted_is_not_started_again(status: ExitStatus) -> None:
    assert ended_on_purpose(status)


@pytest.mark.parametrize(
    "status",
    [
        ExitStatus(exit_code=0),
        ExitStatus(exit_code=1),
        ExitStatus(exit_code=ExitCode.UNAVAILABLE),
        ExitStatus(signal=signal.SIGKILL),
        ExitStatus(signal=signal.SIGSEGV),
        ExitStatus(reason="no memory"),
    ],
)
def test_a_master_that_crashed_is_started_again(status: ExitStatus) -> None:
    assert not ended_on_purpose(status)


texts = st.text(max_size=20)
numbers = st.integers(0, 2**31)
statuses = st.builds(
    ExitStatus,
    st.none() | numbers,
    st.none() | numbers,
    texts,
    st.lists(texts, max_size=3).map(tuple),
    texts,
    st.booleans(),
    st.none() | numbers,
)


@settings(deadline=None)
@given(st.lists(st.dictionaries(texts, texts | st.text("\udc80\udcff")), max_size=5), st.data())
def test_messages_survive_any_cut_of_the_stream(
    sent: list[dict[str, str]], data: st.DataObject
) -> None:
    stream = b"".join(frame({"message": one}) for one in sent)
    parser, received = FrameParser(), []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        parser.feed(stream[:size])
        stream = stream[size:]
        while (one := parser.next()) is not None:
            received.append(one.message["message"])
    assert received == sent and parser.next() is None


@settings(deadline=None)
@given(statuses, st.booleans(), texts)
def test_events_arrive_as_they_were_sent(status: ExitStatus, running: bool, text: str) -> None:
    name = replace(W0, incarnation=3)
    for event in (ProcessExited(name, status), ProcessObserved(name, running, text, text)):
        (sent,) = parsed(frame({"event": messages.event_plain(event)}))
        assert messages.event_of(sent["event"]) == event


@settings(deadline=None)
@given(st.none() | st.builds(Predecessor, statuses, st.floats(0, 1e6), st.floats(0, 2e9)), texts)
def test_a_welcome_arrives_as_it_was_sent(before: Predecessor | None, secret: str) -> None:
    welcome = Welcome({"token": secret}, before)
    (sent,) = parsed(frame(welcome.to_plain()))
    assert Welcome.of(sent) == welcome
    assert secret not in repr(welcome) or secret in repr(before) or secret in "Welcome(before=)"


@settings(deadline=None)
@given(st.dictionaries(texts, texts), st.floats(0.1, 100), st.none() | numbers)
def test_a_spec_arrives_as_it_was_sent(
    env: dict[str, str], cores: float, memory_bytes: int | None
) -> None:
    spec = ProcessSpec(W0, ("python", "-c", "\udcff"), env, {"TOKEN": "t"}, cores, memory_bytes)
    (sent,) = parsed(frame({"spec": messages.spec_plain(spec)}))
    assert messages.spec_of(sent["spec"]) == spec


def test_errors_arrive_with_what_a_caller_needs_of_them() -> None:
    refused = messages.error_of(messages.error_plain(CreateRefused("no memory", retry=True)))
    assert isinstance(refused, CreateRefused)
    assert (refused.reason, refused.retry) == ("no memory", True)
    full = messages.error_of(messages.error_plain(OSError(98, "Address already in use")))
    assert isinstance(full, OSError) and (full.errno, full.strerror) == (
        98,
        "Address already in use",
    )
    bug = messages.error_of(messages.error_plain(ValueError("x")))
    assert isinstance(bug, RuntimeError) and "ValueError('x')" in str(bug)
    assert messages.error_of({"id": 3}) is None


def parsed(data: bytes) -> list[messages.Message]:
    parser = FrameParser()
    parser.feed(data)
    received = []
    while (one := parser.next()) is not None:
        received.append(one.message)
    return received


def test_processes_wait_longer_than_masters_in_a_row_need_to_start() -> None:
    """Each may be killed as soon as it is there: nobody may leave before the job ends for it."""
    limits = RestartLimits()
    assert limits.most * limits.short_s < MASTER_AWAY_S

"""What goes over the wire comes back as it was; what makes no sense is refused at the border."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticdl.rpc import elasticdl_pb2 as pb
from elasticdl.rpc import messages
from elasticdl.rpc.conversation import (
    Drain,
    Failure,
    Finish,
    Finished,
    Load,
    Order,
    Progress,
    Report,
    Restore,
    Revoke,
    Servers,
    Summary,
    Wait,
)
from elasticdl.shard import Applied, Lease, Shard, ShardId, SnapshotId, Task

pytestmark = pytest.mark.core

counts = st.integers(0, 2**62)
texts = st.text(st.characters(codec="utf-8"), max_size=20)
applied = st.builds(Applied, counts.map(ShardId), counts, counts)
shards = st.builds(
    lambda id, source, begin, records: Shard(ShardId(id), source, begin, begin + records),
    counts,
    texts,
    st.integers(0, 2**61),
    st.integers(1, 2**61),
)
leases = st.builds(
    Lease,
    task=st.sampled_from(Task),
    shard=st.none() | shards,
    attempt=counts,
    offset=counts,
    epoch=counts,
    order_seed=st.none() | st.integers(0, 2**63 - 1),
    round=st.none() | counts,
    snapshot=st.none() | counts.map(SnapshotId),
    version=counts,
    payload=texts,
)
finite = st.floats(allow_nan=False, allow_infinity=False)
names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)
states = st.lists(st.lists(finite, max_size=3).map(tuple), max_size=3).map(tuple)
progress = st.builds(
    Progress,
    task=st.sampled_from(Task),
    applied=applied,
    version=counts,
    loss=st.none() | finite,
    bad_records=counts,
    bad_examples=st.lists(texts, max_size=3).map(tuple),
    done=st.booleans(),
    metrics=st.dictionaries(names, states, max_size=3),
)
reports = st.builds(
    Report,
    progress=st.lists(progress, max_size=3).map(tuple),
    summaries=st.lists(
        st.builds(Summary, counts, st.dictionaries(names, finite, max_size=3), st.booleans()),
        max_size=2,
    ).map(tuple),
    failures=st.lists(
        st.builds(
            Failure,
            st.none() | st.sampled_from(Task),
            st.none() | counts.map(ShardId),
            counts,
            texts,
            st.booleans(),
        ),
        max_size=2,
    ).map(tuple),
    exported=texts,
    stop_asked=texts,
    version=counts,
    gauges=st.dictionaries(names, finite, max_size=3),
)


@given(leases)
def test_a_lease_comes_back_as_it_was(lease: Lease) -> None:
    assert messages.lease_from_wire(messages.lease_to_wire(lease)) == lease


@given(reports, counts)
def test_a_report_comes_back_as_it_was(report: Report, sequence: int) -> None:
    message = pb.ReportRequest.FromString(
        messages.report_to_wire(report, sequence).SerializeToString()
    )
    assert messages.report_from_wire(message) == report
    assert message.sequence == sequence


@pytest.mark.parametrize("answer", [Wait("all leased"), Finished(), Lease(Task.EXPORT, None, 0)])
def test_an_answer_comes_back_as_it_was(answer: Wait | Finished | Lease) -> None:
    assert messages.lease_answer_from_wire(messages.lease_answer_to_wire(answer)) == answer


@pytest.mark.parametrize(
    "order",
    [
        Drain("scaled down", 30.0),
        Drain("stopped twice", 0.0),
        Revoke("late", 3),
        Servers(("a:1", "", "b:2")),
        Servers(()),
        Load("version-3"),
        Restore("version-3"),
        Finish(),
    ],
)
def test_an_order_comes_back_as_it_was(order: Order) -> None:
    assert messages.order_from_wire(messages.order_to_wire(order)) == order


def test_an_empty_answer_is_not_the_end_of_the_work() -> None:
    with pytest.raises(ValueError, match="empty answer"):
        messages.lease_answer_from_wire(pb.LeaseReply())


def test_an_empty_order_is_refused() -> None:
    with pytest.raises(ValueError, match="empty order"):
        messages.order_from_wire(pb.Order())


@pytest.mark.parametrize("grace_s", [-1.0, math.nan])
def test_an_order_to_drain_with_an_impossible_grace_is_refused(grace_s: float) -> None:
    with pytest.raises(ValueError, match="grace_s is"):
        messages.order_from_wire(pb.Order(drain="scaled down", grace_s=grace_s))


NONSENSE = [
    pb.ReportRequest(progress=[pb.Progress(task="training", applied=pb.Applied(shard=-1))]),
    pb.ReportRequest(progress=[pb.Progress(task="training", applied=pb.Applied(offset=-5))]),
    pb.ReportRequest(progress=[pb.Progress(task="dancing", applied=pb.Applied())]),
    pb.ReportRequest(progress=[pb.Progress(task="training", done=True, returned=True)]),
    pb.ReportRequest(progress=[pb.Progress(task="training", bad_records=-1)]),
    pb.ReportRequest(summaries=[pb.Summary(round=-2)]),
    pb.ReportRequest(failures=[pb.Failure(task="x", shard=1)]),
    pb.ReportRequest(version=-1),
    pb.ReportRequest(gauges={"": 1.0}),
    pb.ReportRequest(gauges={"x" * 10_000: 1.0}),
    pb.ReportRequest(gauges={str(number): 1.0 for number in range(1000)}),
    pb.ReportRequest(summaries=[pb.Summary()] * 20_000),
]


@pytest.mark.parametrize("message", NONSENSE, ids=range(len(NONSENSE)))
def test_nonsense_in_a_report_is_refused(message: pb.ReportRequest) -> None:
    with pytest.raises(ValueError):
        messages.report_from_wire(message)


@given(st.binary(max_size=200))
def test_random_bytes_are_a_report_or_are_refused(noise: bytes) -> None:
    from google.protobuf.message import DecodeError

    try:
        message = pb.ReportRequest.FromString(noise)
    except DecodeError:
        return
    try:
        report = messages.report_from_wire(message)
    except ValueError:
        return
    assert all(part.applied.offset >= 0 for part in report.progress)


def test_numbers_that_json_cannot_say_are_left_out() -> None:
    found = messages.report_from_wire(
        pb.ReportRequest(gauges={"good": 1.0, "bad": math.nan, "worse": math.inf})
    )
    assert found.gauges == {"good": 1.0}


def test_a_loss_that_is_no_number_is_left_out() -> None:
    message = pb.ReportRequest(
        progress=[pb.Progress(task="training", has_loss=True, loss=math.nan)]
    )
    assert messages.report_from_wire(message).progress[0].loss is None


def test_of_a_long_error_the_end_is_kept() -> None:
    error = "x" * 1_000_000 + "ValueError: the reason"
    found = messages.report_from_wire(
        pb.ReportRequest(failures=[pb.Failure(task="training", shard=1, error=error)])
    )
    assert len(found.failures[0].error) < 100_000
    assert found.failures[0].error.endswith("ValueError: the reason")

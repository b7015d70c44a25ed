"""One stream of reports, without a network: what ends the wait for an answer."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from elasticdl.rpc import elasticdl_pb2 as pb
from elasticdl.rpc.report_stream import ReportStream

pytestmark = pytest.mark.core

LIMIT_S = 30.0
SERVERS = pb.Order(servers=pb.Servers())


def reported(sequence: int, *, taken: bool = True) -> pb.Order:
    return pb.Order(reported=pb.ReportReply(sequence=sequence, taken=taken))


def read(stream: ReportStream) -> None:
    """The master has sent its first order, and somebody waits for the next."""
    assert stream.came(SERVERS)
    with stream.unread():
        pass


def under_way(stream: ReportStream, pool: ThreadPoolExecutor, sequence: int = 1) -> Future[object]:
    request = pb.ReportRequest(sequence=sequence)
    call: Future[object] = pool.submit(stream.report, request, LIMIT_S)
    assert next(stream.requests()) is request
    return call


@pytest.mark.parametrize("taken", [True, False])
def test_the_answer_is_the_one_to_this_report(taken: bool) -> None:
    stream = ReportStream(1)
    read(stream)
    with ThreadPoolExecutor(1) as pool:
        call = under_way(stream, pool, sequence=2)
        assert not stream.came(reported(1)), "an answer is no order"
        assert not stream.came(reported(2, taken=taken))
        answer = call.result(LIMIT_S)
    assert answer == (reported(2).reported if taken else None)


def test_the_end_of_the_stream_ends_the_wait_and_the_requests() -> None:
    stream = ReportStream(1)
    read(stream)
    with ThreadPoolExecutor(1) as pool:
        call = under_way(stream, pool)
        stream.close()
        assert call.result(LIMIT_S) is None
    assert list(stream.requests()) == []
    assert stream.report(pb.ReportRequest(sequence=2), LIMIT_S) is None


def test_a_reader_that_is_busy_with_an_order_ends_the_wait() -> None:
    stream, go = ReportStream(1), threading.Event()
    read(stream)
    with ThreadPoolExecutor(2) as pool:
        call = under_way(stream, pool)

        def follow() -> None:
            with stream.unread():
                assert go.wait(LIMIT_S)

        following = pool.submit(follow)
        assert call.result(LIMIT_S) is None
        go.set()
        following.result(LIMIT_S)


def test_nothing_travels_before_the_master_has_opened_the_stream_or_if_it_is_large() -> None:
    stream = ReportStream(1)
    assert stream.report(pb.ReportRequest(sequence=1), LIMIT_S) is None
    read(stream)
    assert stream.report(pb.ReportRequest(exported="x" * (2 << 20)), LIMIT_S) is None
    stream.close()
    assert list(stream.requests()) == []

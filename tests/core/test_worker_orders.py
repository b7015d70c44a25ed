"""What the master orders, and the first batch of models that need one."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from elasticdl.data.base import Block, Metadata
from elasticdl.errors import Refused, UserError
from elasticdl.rpc.conversation import Drain, Finish, Order, Revoke, Servers, Settled
from elasticdl.shard import Shard, Source, Task
from elasticdl.worker.pipeline.first_batch import first_features
from elasticdl.worker.pipeline.reading import Sources
from elasticdl.worker.pipeline.user_reader import UserReader
from elasticdl.worker.process.order_receiver import OrderReceiver
from elasticdl.worker.process.shutdown import Done, Draining, Failed, Shutdown

pytestmark = pytest.mark.core

LIMIT_S = 10.0


def listen(
    orders: Any,
    shutdown: Shutdown,
    move: Any = lambda servers: None,
    revoke: Any = pytest.fail,
    settled: Any = pytest.fail,
) -> OrderReceiver:
    """To orders that are about neither a ring nor the worker's state."""
    return OrderReceiver(
        orders,
        shutdown,
        move=move,
        revoke=revoke,
        ring=pytest.fail,  # type: ignore[arg-type]
        tell_state=pytest.fail,
        settled=settled,
    )


def follow(*orders: Order | Exception) -> tuple[Shutdown, list[tuple[str, ...]], OrderReceiver]:
    """A worker that heard these orders and, by the last of them, ends."""
    shutdown, moves = Shutdown(), []

    def stream() -> Iterator[Order]:
        for order in orders:
            if isinstance(order, Exception):
                raise order
            yield order

    listening = listen(stream, shutdown, lambda servers: moves.append(servers.addresses))
    listening.start()
    assert shutdown.wait(LIMIT_S)
    return shutdown, moves, listening


def test_addresses_are_passed_on_and_the_job_may_finish() -> None:
    shutdown, moves, _ = follow(Servers(("a:1", "")), Servers(("a:1", "b:2")), Finish())
    assert moves == [("a:1", ""), ("a:1", "b:2")]
    assert shutdown.reason == Done()


def test_a_drain_is_a_drain() -> None:
    assert follow(Drain("scaled down", 30.0))[0].reason == Draining("scaled down")


def test_a_draining_worker_hears_what_became_of_its_last_gradients() -> None:
    heard: queue.Queue[Settled] = queue.Queue()
    settled, shutdown = Settled(7, 3), Shutdown()
    orders = listen(lambda: iter([Drain("stopped", 30.0), settled]), shutdown, settled=heard.put)
    orders.start()
    assert heard.get(timeout=LIMIT_S) == settled
    assert shutdown.reason == Draining("stopped")


def test_a_worker_that_drains_may_be_fenced() -> None:
    shutdown, _, _ = follow(Drain("stopped", 30.0), Refused("its leases are back"))
    for thread in threading.enumerate():
        if thread.name == "orders":
            thread.join(LIMIT_S)
    assert shutdown.reason == Draining("stopped")


def test_a_refused_stream_ends_the_worker() -> None:
    reason = follow(Refused("replaced"))[0].reason
    assert isinstance(reason, Failed) and isinstance(reason.error, Refused)


def test_a_revocation_reaches_the_pipeline() -> None:
    heard, shutdown = threading.Event(), Shutdown()
    orders = listen(
        lambda: iter([Revoke("stopped", 1)]), shutdown, revoke=lambda revocation: heard.set()
    )
    orders.start()
    assert heard.wait(LIMIT_S)
    assert not shutdown


class Reader:
    metadata = Metadata()

    def __init__(self, records: int, bad: int = 0) -> None:
        self.records, self.bad = records, bad

    def sources(self) -> tuple[Source, ...]:
        return (Source("one", self.records), Source("two", 5))

    def read(self, shard: Shard) -> Iterator[Block]:
        yield Block(np.arange(shard.begin + self.bad, shard.end), shard.end - shard.begin, self.bad)

    def close(self) -> None: ...


def sample(reader: Reader, feed: Callable[..., Any]) -> object:
    return first_features(Sources(lambda task: reader, lambda task: feed, 4), Task.TRAINING)


def test_the_first_batch_is_what_feed_makes_of_the_first_records() -> None:
    assert np.array_equal(sample(Reader(3), lambda window: (window, None)), [0, 1, 2])  # type: ignore[arg-type]
    assert np.array_equal(
        sample(Reader(30), lambda window: (window, None) if 8 in window else None),  # type: ignore[arg-type]
        [8, 9, 10, 11],
    )


def test_a_feed_that_makes_nothing_of_the_first_records_is_named() -> None:
    with pytest.raises(UserError, match="kept none of the first records of one"):
        sample(Reader(30), lambda window: None)


def test_an_error_of_the_users_reader_is_the_users() -> None:
    class Broken(Reader):
        def read(self, shard: Any) -> Iterator[Block]:
            yield from super().read(shard)
            raise ConnectionError("the warehouse is closed")

    blocks = UserReader(Broken(4), "/zoo").read(Shard(0, "one", 0, 4))  # type: ignore[arg-type]
    assert next(blocks).count == 4
    with pytest.raises(UserError, match="ConnectionError: the warehouse is closed"):
        next(blocks)

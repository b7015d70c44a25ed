"""Long polls: every lease reaches its worker or goes back, whatever becomes of the call."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from elasticdl.cluster.base import ProcessName, Role
from elasticdl.master.gateway.lease_polls import LeasePolls
from elasticdl.rpc.conversation import Finished, Wait
from elasticdl.shard import Lease, Shard, ShardId, Task

pytestmark = [pytest.mark.core, pytest.mark.timeout(30)]

WORKER = ProcessName(Role.WORKER, 1)


def lease(number: int) -> Lease:
    return Lease(Task.TRAINING, Shard(ShardId(number), "a.csv", 0, 10), attempt=0)


SUMMARY = Lease(Task.SUMMARY, None, attempt=0, round=3)


class Bench:
    """Lease polls whose questions and returns are written down."""

    def __init__(self) -> None:
        self.asked: list[ProcessName] = []
        self.returned: list[Lease] = []
        self.polls = LeasePolls(self.asked.append, lambda _, lease: self.returned.append(lease))

    def poll(self, sequence: int, wait_s: float = 5.0) -> asyncio.Task[Any]:
        return asyncio.create_task(self.polls.poll(WORKER, sequence, wait_s))


@pytest.fixture
def bench() -> Bench:
    return Bench()


async def test_thousands_that_wait_are_asked_for_in_turns(bench: Bench) -> None:
    workers = [ProcessName(Role.WORKER, index) for index in range(40)]
    polls = [asyncio.create_task(bench.polls.poll(worker, 1, 5.0)) for worker in workers]
    await asyncio.sleep(0)
    for one in workers:
        bench.polls.answer(one, Wait("nothing to do"))
    bench.asked.clear()
    bench.polls.work_appeared()
    assert len(bench.asked) == 32, "some at once"
    bench.polls.tick()
    assert sorted(bench.asked) == workers, "the others soon"
    for one in workers:
        bench.polls.answer(one, Wait("nothing to do"))
    bench.polls.tick()
    assert len(bench.asked) == 40
    for poll in polls:
        poll.cancel()
    await asyncio.gather(*polls, return_exceptions=True)


async def waiting(bench: Bench, number: int) -> tuple[list[ProcessName], list[asyncio.Task[Any]]]:
    """So many workers that wait, and their calls. The core had no work for any of them."""
    workers = [ProcessName(Role.WORKER, index) for index in range(number)]
    polls = [asyncio.create_task(bench.polls.poll(worker, 1, 5.0)) for worker in workers]
    await asyncio.sleep(0)
    for worker in workers:
        bench.polls.answer(worker, Wait("nothing to do"))
    bench.asked.clear()
    return workers, polls


async def ended(polls: list[asyncio.Task[Any]]) -> None:
    for poll in polls:
        poll.cancel()
    await asyncio.gather(*polls, return_exceptions=True)


async def test_each_lease_has_one_more_worker_asked_for_until_it_was_everyones_turn(
    bench: Bench,
) -> None:
    workers, polls = await waiting(bench, 40)
    bench.polls.work_appeared()
    bench.polls.answer(workers[0], Wait("nothing for this one"))
    for number in range(1, 9):
        assert bench.polls.answer(workers[number], lease(number))
        assert bench.asked == workers[: 32 + number]
    bench.polls.answer(workers[9], lease(9))
    assert bench.asked == workers, "worker 0 had its turn"
    await ended(polls)


async def test_a_lease_has_nobody_else_asked_for_where_all_were(bench: Bench) -> None:
    workers, polls = await waiting(bench, 3)
    bench.polls.answer(workers[2], lease(2))
    assert bench.asked == [], "no work has appeared"
    bench.polls.work_appeared()
    assert bench.asked == workers[:2]
    bench.polls.answer(workers[0], Wait("nothing for this one"))
    bench.polls.answer(workers[1], lease(1))
    assert bench.asked == workers[:2]
    await ended(polls)


async def test_an_answer_that_nobody_waits_for_is_reported_as_such(bench: Bench) -> None:
    for answer in (Finished(), Wait("nothing to do"), lease(1)):
        assert not bench.polls.answer(WORKER, answer)
    assert bench.returned == [lease(1)]


async def test_nothing_is_kept_of_a_worker_that_left(bench: Bench) -> None:
    poll = bench.poll(1)
    await asyncio.sleep(0)
    bench.polls.answer(WORKER, lease(1))
    await poll
    bench.polls.answer(WORKER, SUMMARY)
    assert bench.polls.revoked(WORKER) == 1
    bench.polls.leave(WORKER)
    for sequence in (1, 2):
        assert isinstance(await bench.polls.poll(WORKER, sequence, 0.001), Wait)
    assert bench.polls.revoked(WORKER) == 1


async def test_revocations_continue_from_what_an_earlier_master_counted(bench: Bench) -> None:
    bench.polls.restore(WORKER, 0)
    poll = bench.poll(1)
    await asyncio.sleep(0)
    bench.polls.answer(WORKER, lease(1))
    assert await poll == lease(1), "none before it"
    bench.polls.restore(WORKER, 3)
    bench.polls.restore(WORKER, 2)
    assert bench.polls.revoked(WORKER) == 4


async def settle() -> None:
    """Let every task go as far as it can."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_lease_reaches_the_worker_that_waits(bench: Bench) -> None:
    poll = bench.poll(1)
    await settle()
    assert bench.asked == [WORKER]
    bench.polls.answer(WORKER, lease(7))
    assert await poll == lease(7)
    assert bench.returned == []


async def test_a_repeated_request_gets_the_answer_that_was_lost_on_its_way(bench: Bench) -> None:
    poll = bench.poll(1)
    await settle()
    bench.polls.answer(WORKER, lease(7))
    assert await poll == lease(7)
    assert await bench.poll(1) == lease(7)
    assert bench.asked == [WORKER]
    assert bench.returned == []


async def test_a_lease_tells_how_often_leases_were_voided_before_it(bench: Bench) -> None:
    for number in range(3):
        poll = bench.poll(number + 1)
        await settle()
        bench.polls.answer(WORKER, lease(number))
        assert await poll == replace(lease(number), revocation=number)
        assert bench.polls.revoked(WORKER) == number + 1


async def test_the_next_request_gets_another_lease(bench: Bench) -> None:
    for number in (1, 2):
        poll = bench.poll(number)
        await settle()
        bench.polls.answer(WORKER, lease(number))
        assert await poll == lease(number)


async def test_a_request_that_does_not_wait_is_answered_when_the_core_has_decided(
    bench: Bench,
) -> None:
    poll = bench.poll(1, 0.0)
    await settle()
    assert not poll.done()
    bench.polls.answer(WORKER, Wait("all shards are leased"))
    assert await poll == Wait("all shards are leased")
    # The number was not answered with a lease, so the next request may have it.
    again = bench.poll(1, 0.0)
    await settle()
    bench.polls.answer(WORKER, lease(7))
    assert await again == lease(7)
    assert await bench.poll(1, 0.0) == lease(7), "a repeat gets the answer that was lost"
    assert bench.asked == [WORKER, WORKER]
    assert bench.returned == []


async def test_a_lease_for_a_call_that_did_not_wait_and_was_cancelled_goes_back(
    bench: Bench,
) -> None:
    poll = bench.poll(1, 0.0)
    await settle()
    poll.cancel()
    await settle()
    bench.polls.answer(WORKER, lease(7))
    assert bench.returned == [lease(7)]


async def test_a_lease_whose_call_was_cancelled_before_it_came_goes_back(bench: Bench) -> None:
    poll = bench.poll(1)
    await settle()
    poll.cancel()
    await settle()
    bench.polls.answer(WORKER, lease(7))
    assert bench.returned == [lease(7)]


async def test_a_lease_that_comes_in_the_moment_of_the_cancellation_goes_back(bench: Bench) -> None:
    poll = bench.poll(1)
    await settle()
    bench.polls.answer(WORKER, lease(7))
    poll.cancel()
    await settle()
    assert poll.cancelled()
    assert bench.returned == [lease(7)]
    again = bench.poll(1)
    await settle()
    bench.polls.answer(WORKER, lease(8))
    assert await again == lease(8)


async def test_a_lease_taken_by_a_retry_does_not_go_back_when_the_first_call_is_cancelled(
    bench: Bench,
) -> None:
    poll = bench.poll(1)
    await settle()
    bench.polls.answer(WORKER, lease(7))
    # In the same turn of the loop: the retry is served before the first call notices anything.
    retry = await bench.polls.poll(WORKER, 1, 5.0)
    poll.cancel()
    await settle()
    assert retry == lease(7)
    assert bench.returned == []


async def test_a_retry_joins_the_question_that_is_already_asked(bench: Bench) -> None:
    first = bench.poll(1)
    await settle()
    second = bench.poll(1)
    await settle()
    assert bench.asked == [WORKER]
    bench.polls.answer(WORKER, lease(7))
    assert await second == lease(7)
    assert await first == Wait("superseded by a newer request of this worker")
    assert bench.returned == []


async def test_who_waits_is_told_the_reason_when_the_time_is_over(bench: Bench) -> None:
    poll = bench.poll(1, wait_s=0.01)
    await settle()
    bench.polls.answer(WORKER, Wait("all shards are leased"))
    assert await poll == Wait("all shards are leased")
    bench.polls.answer(WORKER, lease(7))
    assert bench.returned == [lease(7)]


async def test_who_got_nothing_is_asked_for_again_when_work_appears(bench: Bench) -> None:
    poll = bench.poll(1)
    await settle()
    bench.polls.work_appeared()
    assert bench.asked == [WORKER], "the first question is still open"
    bench.polls.answer(WORKER, Wait("nothing yet"))
    bench.polls.work_appeared()
    assert bench.asked == [WORKER, WORKER]
    bench.polls.answer(WORKER, Finished())
    assert await poll == Finished()


async def test_work_for_one_of_thousands_that_wait_costs_few_requests_and_reaches_any(
    bench: Bench,
) -> None:
    names = [ProcessName(Role.WORKER, number) for number in range(3000)]
    polls = [asyncio.create_task(bench.polls.poll(name, 1, 20.0)) for name in names]
    await settle()
    last = names[-1]

    def answer_all() -> int:
        asked = tuple(bench.asked)
        bench.asked.clear()
        for name in asked:
            bench.polls.answer(name, lease(1) if name == last else Wait("not for this one"))
        return len(asked)

    assert answer_all() == 3000, "each worker's own request"
    for _ in range(2):
        bench.polls.work_appeared()
        assert answer_all() < 100
    for _ in range(3):
        bench.polls.tick()
        assert answer_all() <= 1000
    assert await polls[-1] == lease(1)
    bench.polls.tick()
    assert not bench.asked, "everyone was asked for once"
    for poll in polls:
        poll.cancel()


async def test_while_there_is_work_the_next_ones_that_wait_follow_at_once(bench: Bench) -> None:
    names = [ProcessName(Role.WORKER, number) for number in range(200)]
    polls = [asyncio.create_task(bench.polls.poll(name, 1, 20.0)) for name in names]
    await settle()
    for name in names:
        bench.polls.answer(name, Wait("nothing yet"))
    bench.asked.clear()
    bench.polls.work_appeared()
    for number in range(200):
        bench.polls.answer(bench.asked[number], lease(number))
    shards = [
        one.shard.id for one in await asyncio.gather(*polls) if isinstance(one, Lease) and one.shard
    ]
    assert sorted(shards) == list(range(200))


async def test_a_lease_without_a_shard_is_kept_for_its_worker(bench: Bench) -> None:
    poll = bench.poll(1)
    await settle()
    poll.cancel()
    await settle()
    bench.polls.answer(WORKER, SUMMARY)
    assert bench.returned == []
    assert await bench.poll(1) == SUMMARY
    assert await bench.poll(1) == SUMMARY


async def test_a_worker_that_left_waits_no_more_and_its_leases_are_not_returned_twice(
    bench: Bench,
) -> None:
    poll = bench.poll(1)
    await settle()
    bench.polls.leave(WORKER)
    assert await poll == Wait("worker-1 was given up")
    assert bench.polls.waiting() == {}

"""The rendezvous speaks Horovod's protocol, makes early members wait, and tells all when a
generation is withdrawn.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from elasticdl.rpc.rendezvous import Rendezvous, RendezvousLimits, new_scopes

pytestmark = pytest.mark.contract

LIMIT_S = 20.0
LIMITS = RendezvousLimits()


@asynccontextmanager
async def started(limits: RendezvousLimits = LIMITS) -> AsyncIterator[tuple[Rendezvous, int]]:
    """A rendezvous and its port."""
    rendezvous = Rendezvous(limits)
    port = await rendezvous.start("127.0.0.1")
    try:
        async with asyncio.timeout(LIMIT_S):
            yield rendezvous, port
    finally:
        await rendezvous.close()


async def ask(
    port: int, method: str, path: str, body: bytes = b"", pieces: int = 1
) -> tuple[int, bytes]:
    """As Horovod's client writes it; the request in some pieces."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n"
    request = head.encode() + body
    size = -(-len(request) // pieces)
    for begin in range(0, len(request), size):
        writer.write(request[begin : begin + size])
        await writer.drain()
        await asyncio.sleep(0)
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    status_line, _, value = answer.partition(b"\r\n\r\n")
    return int(status_line.split()[1]), value


async def test_a_value_is_given_to_those_who_ask_before_and_after_it_is_there() -> None:
    async with started() as (rendezvous, port):
        rendezvous.open(["g1-a", "g1-b"])
        early = [asyncio.create_task(ask(port, "GET", f"/g1-a:{port}/global/0")) for _ in range(3)]
        assert await ask(port, "PUT", f"/g1-a:{port}/global/0", b"\x00\xffaddress", pieces=7) == (
            200,
            b"",
        )
        assert await asyncio.gather(*early) == [(200, b"\x00\xffaddress")] * 3
        assert await ask(port, "DELETE", f"/g1-a:{port}/global/0") == (200, b"")
        assert await ask(port, "GET", f"/g1-a:{port}/global/0") == (200, b"\x00\xffaddress")


async def test_the_values_of_a_generation_have_a_limit_and_a_replaced_value_counts_once() -> None:
    async with started(RendezvousLimits(generation_bytes=100)) as (rendezvous, port):
        rendezvous.open(["g1-a", "g1-b"])
        for value in (b"x" * 60, b"x" * 80, b"x" * 40):
            assert (await ask(port, "PUT", "/g1-a/global/0", value))[0] == 200
        assert (await ask(port, "PUT", "/g1-b/global/1", b"x" * 61))[0] == 507
        assert (await ask(port, "PUT", "/g1-b/global/1", b"x" * 60))[0] == 200
        rendezvous.open(["g2-a"])
        assert (await ask(port, "PUT", "/g2-a/global/0", b"x" * 100))[0] == 200


async def test_generations_do_not_see_one_another() -> None:
    async with started() as (rendezvous, port):
        first, second = new_scopes(1, 2), new_scopes(2, 2)
        rendezvous.open(first)
        rendezvous.open(second)
        waiting = asyncio.create_task(ask(port, "GET", f"/{second[1]}/global/0"))
        await ask(port, "PUT", f"/{first[0]}/global/0", b"first")
        await ask(port, "PUT", f"/{second[0]}/global/0", b"second")
        assert await waiting == (200, b"second")


async def test_a_member_writes_what_is_its_own_and_nothing_of_another_member() -> None:
    async with started() as (rendezvous, port):
        first, second, third = new_scopes(7, 3)
        rendezvous.open([first, second, third])
        assert (await ask(port, "PUT", f"/{first}/global/0", b"mine"))[0] == 200
        assert (await ask(port, "PUT", f"/{first}/global/rank_0", b"mine"))[0] == 200
        for key in ("global/0", "global/rank_0", "global/2", "other/0", "global/00", "global/x"):
            assert (await ask(port, "PUT", f"/{second}/{key}", b"evil"))[0] == 403, key
        assert await ask(port, "GET", f"/{third}/global/0") == (200, b"mine")
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"PUT /{second}/global/0 HTTP/1.1\r\n".encode())
        assert (await reader.readline()).split()[1] == b"403", "before its body is read"
        writer.close()


async def test_a_withdrawn_generation_is_gone_for_those_who_wait_and_for_those_who_come() -> None:
    async with started() as (rendezvous, port):
        rendezvous.open(["g1-a", "g1-b"])
        waiting = asyncio.create_task(ask(port, "GET", "/g1-a/global/1"))
        await ask(port, "PUT", "/g1-a/global/0", b"here")  # after this one, the other is waiting
        rendezvous.withdraw(["g1-a", "g1-b"])
        assert (await waiting)[0] == 410
        assert (await ask(port, "PUT", "/g1-b/global/1", b"late"))[0] == 410
        assert (await ask(port, "GET", "/g1-a/global/0"))[0] == 410


@pytest.mark.parametrize("path", ["/", "/g1-a", "/g1-a/a/b/c", "/G1/a/b", "/g1-a/a/" + "k" * 300])
async def test_nonsense_is_refused(path: str) -> None:
    async with started() as (rendezvous, port):
        rendezvous.open(["g1-a", "g1-b"])
        assert (await ask(port, "GET", path))[0] == 400


async def test_who_goes_away_while_waiting_leaves_nothing_behind() -> None:
    async with started() as (rendezvous, port):
        rendezvous.open(["g1-a", "g1-b"])
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /g1-a/global/1 HTTP/1.1\r\n\r\n")
        await writer.drain()
        await ask(port, "PUT", "/g1-a/global/0", b"x")
        writer.close()
        await writer.wait_closed()
        assert await ask(port, "PUT", "/g1-b/global/1", b"y") == (200, b"")


async def test_a_stranger_is_refused_before_its_body_is_read() -> None:
    async with started() as (_rendezvous, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"PUT /g1-guessed/global/0 HTTP/1.1\r\n")
        assert (await reader.readline()).split()[1] == b"410"
        writer.close()


async def test_a_request_that_stays_incomplete_is_given_up() -> None:
    async with started(RendezvousLimits(request_s=0.2)) as (rendezvous, port):
        rendezvous.open(["g1-a", "g1-b"])
        unfinished = b"PUT /g1-a/a/0 HTTP/1.1\r\nContent-Length: 9\r\n\r\n"
        for sent in (b"", b"GET /g1-a/global/0", unfinished):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(sent)
            assert (await reader.read()).split()[1] == b"408"
            writer.close()


async def test_a_member_that_waits_longer_than_a_request_may_take_is_answered() -> None:
    async with started(RendezvousLimits(request_s=0.3)) as (rendezvous, port):
        rendezvous.open(["g1-a", "g1-b"])
        waiting = asyncio.create_task(ask(port, "GET", "/g1-a/global/0"))
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert (await reader.read()).split()[1] == b"408"  # one that began later was given up
        writer.close()
        await ask(port, "PUT", "/g1-a/global/0", b"here")
        assert await waiting == (200, b"here")


async def test_strangers_keep_no_member_out() -> None:
    async with started(RendezvousLimits(most_strangers=8)) as (rendezvous, port):
        rendezvous.open(["g1-a", "g1-b"])
        waiting = asyncio.create_task(ask(port, "GET", "/g1-a/global/0"))
        strangers = [await asyncio.open_connection("127.0.0.1", port) for _ in range(50)]
        assert await strangers[0][0].read() == b"", "the oldest made room"
        assert await ask(port, "PUT", "/g1-a/global/0", b"x" * 100_000, pieces=9) == (200, b"")
        assert await waiting == (200, b"x" * 100_000)
        for _, writer in strangers:
            writer.transport.abort()

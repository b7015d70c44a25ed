"""The rendezvous speaks Horovod's protocol, makes early members wait, and tells all when a
generation is withdrawn.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from elasticdl.rpc.rendezvous import Rendezvous, new_scope

pytestmark = pytest.mark.contract

LIMIT_S = 20.0


def run(play: Any) -> None:
    async def main() -> None:
        rendezvous = Rendezvous()
        port = await rendezvous.start("127.0.0.1")
        try:
            async with asyncio.timeout(LIMIT_S):
                await play(rendezvous, port)
        finally:
            await rendezvous.close()

    asyncio.run(main())


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
    head, _, value = answer.partition(b"\r\n\r\n")  # type: ignore[assignment]
    return int(head.split()[1]), value


def test_a_value_is_given_to_those_who_ask_before_and_after_it_is_there() -> None:
    async def play(rendezvous: Any, port: int) -> None:
        rendezvous.open("g1-a")
        early = [asyncio.create_task(ask(port, "GET", f"/g1-a:{port}/global/0")) for _ in range(3)]
        assert await ask(port, "PUT", f"/g1-a:{port}/global/0", b"\x00\xffaddress", pieces=7) == (
            200,
            b"",
        )
        assert await asyncio.gather(*early) == [(200, b"\x00\xffaddress")] * 3
        assert await ask(port, "DELETE", f"/g1-a:{port}/global/0") == (200, b"")
        assert await ask(port, "GET", f"/g1-a:{port}/global/0") == (200, b"\x00\xffaddress")

    run(play)


def test_generations_do_not_see_one_another() -> None:
    async def play(rendezvous: Any, port: int) -> None:
        first, second = new_scope(1), new_scope(2)
        rendezvous.open(first)
        rendezvous.open(second)
        waiting = asyncio.create_task(ask(port, "GET", f"/{second}/global/0"))
        await ask(port, "PUT", f"/{first}/global/0", b"first")
        await ask(port, "PUT", f"/{second}/global/0", b"second")
        assert await waiting == (200, b"second")

    run(play)


def test_a_withdrawn_generation_is_gone_for_those_who_wait_and_for_those_who_come() -> None:
    async def play(rendezvous: Any, port: int) -> None:
        rendezvous.open("g1-a")
        waiting = asyncio.create_task(ask(port, "GET", "/g1-a/global/1"))
        await ask(port, "PUT", "/g1-a/global/0", b"here")  # after this one, the other is waiting
        rendezvous.withdraw("g1-a")
        assert (await waiting)[0] == 410
        assert (await ask(port, "PUT", "/g1-a/global/1", b"late"))[0] == 410
        assert (await ask(port, "GET", "/g1-a/global/0"))[0] == 410

    run(play)


@pytest.mark.parametrize("path", ["/", "/g1-a", "/g1-a/a/b/c", "/G1/a/b", "/g1-a/a/" + "k" * 300])
def test_nonsense_is_refused(path: str) -> None:
    async def play(rendezvous: Any, port: int) -> None:
        rendezvous.open("g1-a")
        assert (await ask(port, "GET", path))[0] == 400

    run(play)


def test_who_goes_away_while_waiting_leaves_nothing_behind() -> None:
    async def play(rendezvous: Any, port: int) -> None:
        rendezvous.open("g1-a")
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /g1-a/global/1 HTTP/1.1\r\n\r\n")
        await writer.drain()
        await ask(port, "PUT", "/g1-a/global/0", b"x")
        writer.close()
        await writer.wait_closed()
        assert await ask(port, "PUT", "/g1-a/global/1", b"y") == (200, b"")

    run(play)

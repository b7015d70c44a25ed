"""All ports over TLS: who is refused, with which words, and what is overheard.

The bulk plane has test_bulk_tls.py.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from elasticdl.cluster.base import ProcessName
from elasticdl.cluster.role_environment import RoleEnvironment
from elasticdl.errors import PermanentError, TransientError, UserError
from elasticdl.jobdir.layout import JobDirectory
from elasticdl.master.call_port import certificates
from elasticdl.master.platform.platform import MasterEnvironment
from elasticdl.master.status.limits import PageLimits
from elasticdl.native import _native
from elasticdl.ps.lifecycle import control_server
from elasticdl.ps.saving import ServerPart
from elasticdl.ps.servicer import ControlService
from elasticdl.rpc.call_server import CallServer
from elasticdl.rpc.master_client import MasterClient
from elasticdl.rpc.ps_control import GrpcServerControl
from elasticdl.rpc.rendezvous import Rendezvous, RendezvousLimits
from elasticdl.rpc.term_guard import TermGuard
from elasticdl.tls import MASTER_NAME, CertifiedKey
from elasticdl.tls.acceptor import Handshake, accepting
from elasticdl.tls.authority import Authority, KeyPair
from elasticdl.tls.contexts import client_context, server_context
from elasticdl.tls.relay import Relay, RelayThread
from elasticdl.tokens import bulk_key, process_token, proof_to_master
from tests.contract.driver_stage import TERM, TOKEN, Stage
from tests.contract.ps_stage import BadNetwork
from tests.contract.status_stage import BEARER, get, staged
from tests.contract.status_stage import TOKEN as PAGE_TOKEN
from tests.contract.test_ring_rendezvous import ask
from tests.present import present

pytestmark = [pytest.mark.contract, pytest.mark.timeout(60)]

SHORT_S = 0.5
LIMIT_S = 20.0
LIMITS = RendezvousLimits()
LONG_AGO = datetime.now(UTC) - timedelta(days=4000)
AUTHORITY = Authority.new("job")
TRUSTED = AUTHORITY.certificate
OTHER = Authority.new("job").certificate

WRONG = {
    "another authority": (AUTHORITY.certified_key([MASTER_NAME]), OTHER, "certificate is refused"),
    "another process": (AUTHORITY.certified_key(["ps-1"]), TRUSTED, "(?i)hostname mismatch"),
    "expired": (
        AUTHORITY.certified_key([MASTER_NAME], now=LONG_AGO),
        TRUSTED,
        "certificate has expired",
    ),
    "clear text": (None, TRUSTED, "TLS handshake failed"),
}
"""(what the server shows, whom the client trusts, what the client says)."""
wrong = pytest.mark.parametrize("shown,trusted,words", WRONG.values(), ids=WRONG)


@contextmanager
def master(directory: Path, certified: CertifiedKey | None) -> Iterator[Stage]:
    with closing(Stage(directory, certified=certified)) as stage:
        yield stage


@contextmanager
def client(address: str, authority: str | None, away_s: float = LIMIT_S) -> Iterator[MasterClient]:
    token = process_token(TOKEN, "worker-1")
    with closing(
        MasterClient(address, token, "worker-1", away_s=away_s, authority=authority)
    ) as made:
        yield made


# calls to the master


@wrong
def test_a_client_refuses_a_master_that_it_cannot_verify(
    tmp_path: Path, shown: CertifiedKey | None, trusted: str, words: str
) -> None:
    with (
        master(tmp_path, shown) as stage,
        client(stage.address, trusted, SHORT_S) as worker,
        pytest.raises(TransientError, match=words),
    ):
        worker.attach()


def test_a_master_refuses_clear_text(tmp_path: Path) -> None:
    certified = AUTHORITY.certified_key([MASTER_NAME])
    with (
        master(tmp_path, certified) as stage,
        client(stage.address, None, SHORT_S) as worker,
        pytest.raises(TransientError),
    ):
        worker.attach()


@pytest.mark.parametrize("secured", [False, True])
def test_an_eavesdropper_sees_calls_and_their_proof_only_without_tls(
    tmp_path: Path, secured: bool
) -> None:
    certified = AUTHORITY.certified_key([MASTER_NAME]) if secured else None
    with (
        master(tmp_path, certified) as stage,
        closing(BadNetwork(stage.address, seed=0, breaks=0)) as network,
        client(network.address, TRUSTED if secured else None) as worker,
    ):
        worker.attach()
    overheard = network.overheard
    proof = proof_to_master(process_token(TOKEN, "worker-1")).encode()
    assert overheard and [text in overheard for text in (proof, b"checkpoints/version-5")] == [
        not secured,
        not secured,
    ]


def test_processes_are_certified_only_in_a_job_with_tls(tmp_path: Path) -> None:
    certified = AUTHORITY.certified_key([MASTER_NAME])
    with (
        master(tmp_path, certified) as stage,
        client(stage.address, TRUSTED) as worker,
        pytest.raises(UserError, match="certificate"),
    ):
        worker.attach(public_key=KeyPair.new().public)


# a server's gRPC


async def fence(port: int, trusted: str | None) -> None:
    token = process_token(TOKEN, "ps-0")
    control = GrpcServerControl("ps-0.3", f"127.0.0.1:{port}", token, TERM, trusted)
    try:
        await control.fence("worker-1", timeout_s=SHORT_S)
    finally:
        await control.close()


@contextmanager
def server(directory: Path, certified: CertifiedKey | None) -> Iterator[int]:
    token = process_token(TOKEN, "ps-0")
    environment = RoleEnvironment(
        "127.0.0.1:1", token, ProcessName.parse("ps-0"), directory, "127.0.0.1"
    )
    guard = TermGuard(token)
    guard.learn(TERM)
    core = _native.Server(0, 1, bulk_key(TOKEN, 0))
    service = ControlService(core, ServerPart(0, 1, "run"), guard)
    control, port = control_server(environment, service, guard, certified)
    try:
        yield port
    finally:
        control.stop(None).wait(LIMIT_S)
        core.stop()


def test_a_server_is_known_by_its_index_whatever_its_incarnation(tmp_path: Path) -> None:
    pair = KeyPair.new()
    certificate = AUTHORITY.certify(pair.public, ["ps-0"])
    with server(tmp_path, CertifiedKey(certificate, pair.private)) as port:
        asyncio.run(fence(port, TRUSTED))


@pytest.mark.parametrize(
    "shown,trusted,words",
    [
        (AUTHORITY.certified_key(["ps-0"]), OTHER, "certificate is refused"),
        (AUTHORITY.certified_key(["ps-0"]), None, "ps-0"),
        (AUTHORITY.certified_key([MASTER_NAME]), TRUSTED, "(?i)hostname mismatch"),
        (AUTHORITY.certified_key(["ps-0"], now=LONG_AGO), TRUSTED, "certificate has expired"),
        (None, TRUSTED, "TLS handshake failed"),
    ],
)
def test_a_master_and_a_server_refuse_what_they_cannot_verify(
    tmp_path: Path, shown: CertifiedKey | None, trusted: str | None, words: str
) -> None:
    with server(tmp_path, shown) as port, pytest.raises(TransientError, match=words):
        asyncio.run(fence(port, trusted))


# the rendezvous, and the relay to it


def meet(
    scene: Callable[[Rendezvous, int], Any],
    shown: CertifiedKey | None,
    limits: RendezvousLimits = LIMITS,
) -> None:
    async def story() -> None:
        context = server_context(shown.certificate, shown.key) if shown is not None else None
        rendezvous = Rendezvous(limits, context)
        port = await rendezvous.start("127.0.0.1")
        rendezvous.open(["g1-0"])
        try:
            async with asyncio.timeout(LIMIT_S):
                await scene(rendezvous, port)
        finally:
            await rendezvous.close()

    asyncio.run(story())


MASTER_KEY = AUTHORITY.certified_key([MASTER_NAME])


def test_members_meet_through_their_relay() -> None:
    async def scene(rendezvous: Rendezvous, port: int) -> None:
        relay = Relay(TRUSTED, MASTER_NAME)
        here = await relay.open("127.0.0.1", port)
        waiting = asyncio.ensure_future(ask(here, "GET", "/g1-0/global/0"))
        large = bytes(range(256)) * 2000
        assert await ask(here, "PUT", "/g1-0/global/0", large, pieces=9) == (200, b"")
        assert await waiting == (200, large)
        late = asyncio.ensure_future(ask(here, "GET", "/g1-0/global/7"))
        await asyncio.sleep(0.1)
        rendezvous.withdraw(["g1-0"])
        assert (await late)[0] == 410
        assert (await ask(here, "GET", "/unknown/global/0"))[0] == 410
        await relay.close()

    meet(scene, MASTER_KEY)


def test_a_thread_relays_for_a_process_without_a_loop() -> None:
    async def scene(rendezvous: Rendezvous, port: int) -> None:
        relay = RelayThread(TRUSTED, MASTER_NAME)
        address = await asyncio.to_thread(relay.to, "127.0.0.1", port)
        assert address == await asyncio.to_thread(relay.to, "127.0.0.1", port)
        here = int(address.rpartition(":")[2])
        assert await ask(here, "PUT", "/g1-0/global/0", b"x") == (200, b"")
        await asyncio.to_thread(relay.close)

    meet(scene, MASTER_KEY)


@wrong
def test_a_relay_refuses_a_master_that_it_cannot_verify(
    shown: CertifiedKey | None, trusted: str, words: str
) -> None:
    async def scene(rendezvous: Rendezvous, port: int) -> None:
        relay = Relay(trusted, MASTER_NAME)
        here = await relay.open("127.0.0.1", port)
        reader, writer = await asyncio.open_connection("127.0.0.1", here)
        writer.write(b"PUT /g1-0/global/0 HTTP/1.1\r\nContent-Length: 1\r\n\r\nx")
        assert await reader.read() == b""
        writer.close()
        await relay.close()
        with pytest.raises(TransientError, match=words):
            raise TransientError(relay.problem)

    meet(scene, shown, RendezvousLimits(request_s=1.0))


@pytest.mark.parametrize("secured", [False, True])
def test_an_eavesdropper_sees_a_scope_only_without_tls(secured: bool) -> None:
    async def scene(rendezvous: Rendezvous, port: int) -> None:
        network = BadNetwork(f"127.0.0.1:{port}", seed=0, breaks=0)
        there = int(network.address.rpartition(":")[2])
        relay = Relay(TRUSTED, MASTER_NAME)
        here = await relay.open("127.0.0.1", there) if secured else there
        assert await ask(here, "PUT", "/g1-0/global/0", b"address") == (200, b"")
        await relay.close()
        await asyncio.to_thread(network.close)
        assert [text in network.overheard for text in (b"g1-0", b"address")] == [not secured] * 2

    meet(scene, MASTER_KEY if secured else None)


def test_the_rendezvous_refuses_clear_text_and_silent_strangers_keep_nobody_out() -> None:
    async def scene(rendezvous: Rendezvous, port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"PUT /g1-0/global/0 HTTP/1.1\r\nContent-Length: 1\r\n\r\nx")
        assert b"200" not in await reader.read()
        writer.close()
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(20)]
        # The oldest had to make room: their handshake counts.
        assert await silent[0][0].read() == b""
        relay = Relay(TRUSTED, MASTER_NAME)
        here = await relay.open("127.0.0.1", port)
        assert await ask(here, "PUT", "/g1-0/global/0", b"y") == (200, b"")
        await relay.close()
        for _, silent_writer in silent:
            silent_writer.close()

    meet(scene, MASTER_KEY, RendezvousLimits(most_strangers=4))


# the page


class Nobody:
    """Has no place for a new connection."""

    def __init__(self) -> None:
        self.came = 0
        self.here: list[Handshake] = []

    def enter(self, connection: Handshake) -> None:
        self.came += 1
        self.here.append(connection)
        connection.abort()

    def leave(self, connection: Handshake) -> None:
        self.here.remove(connection)


async def test_a_connection_that_is_refused_at_once_leaves_nothing_behind() -> None:
    nobody = Nobody()
    loop = asyncio.get_running_loop()
    accept = accepting(page_context(MASTER_KEY), asyncio.Protocol, nobody)
    server = await loop.create_server(accept, "127.0.0.1", 0)
    _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    async with asyncio.timeout(5):
        while not nobody.came or nobody.here:
            await asyncio.sleep(0.01)
    assert asyncio.all_tasks() == {asyncio.current_task()}
    writer.close()
    server.close()


def test_thousands_of_connections_have_no_large_buffers_each() -> None:
    number, most_bytes = 20, 100_000

    async def story() -> int:
        certified = AUTHORITY.certified_key([MASTER_NAME])
        context = server_context(certified.certificate, certified.key)
        server = CallServer(lambda caller: "", context)
        port = await server.start("127.0.0.1", 0)
        trusting = client_context(TRUSTED)
        tracemalloc.start()
        writers = []
        for _ in range(number):
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", port, ssl=trusting, server_hostname=MASTER_NAME
            )
            writers.append(writer)
            assert await reader.readexactly(len(server.greeting)) == server.greeting
        taken_bytes, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        for writer in writers:
            writer.close()
        await server.close()
        await asyncio.gather(*(writer.wait_closed() for writer in writers), return_exceptions=True)
        return taken_bytes

    # Of both ends, which are in this process.
    assert asyncio.run(story()) < number * most_bytes


def page_context(certified: CertifiedKey | None) -> ssl.SSLContext | None:
    return server_context(certified.certificate, certified.key) if certified is not None else None


async def status(url: str, trusted: str, name: str = MASTER_NAME) -> int:
    async with (
        aiohttp.ClientSession(headers=BEARER) as session,
        session.get(
            f"{url}/api/v1/status", ssl=client_context(trusted), server_hostname=name
        ) as answer,
    ):
        return answer.status


async def test_the_page_answers_who_trusts_the_jobs_authority(tmp_path: Path) -> None:
    async with staged(tmp_path, context=page_context(MASTER_KEY)) as stage:
        assert stage.url.startswith("https://")
        assert await status(stage.url, TRUSTED) == 200


@wrong
async def test_a_client_refuses_a_page_that_it_cannot_verify(
    tmp_path: Path, shown: CertifiedKey | None, trusted: str, words: str
) -> None:
    async with staged(tmp_path, context=page_context(shown)) as stage:
        with pytest.raises(aiohttp.ClientConnectorError):
            await status(f"https://{stage.host}", trusted)


@pytest.mark.parametrize("secured", [False, True])
async def test_the_page_refuses_clear_text_and_hides_the_token(
    tmp_path: Path, secured: bool
) -> None:
    context = page_context(MASTER_KEY) if secured else None
    async with staged(tmp_path, context=context) as stage:
        network = BadNetwork(stage.host, seed=0, breaks=0)
        host = network.address
        if secured:
            assert await status(f"https://{host}", TRUSTED) == 200
        reader, writer = await asyncio.open_connection("127.0.0.1", stage.port)
        writer.write(get("/api/v1/status", stage.host))
        assert (b"200 OK" in await reader.read(1000)) is not secured
        writer.close()
        if not secured:
            async with (
                aiohttp.ClientSession(headers=BEARER) as session,
                session.get(f"http://{host}/api/v1/status") as answer,
            ):
                assert answer.status == 200
        await asyncio.to_thread(network.close)
        assert network.overheard
        assert (PAGE_TOKEN.encode() in network.overheard) is not secured


async def test_strangers_who_begin_no_handshake_keep_nobody_off_the_page(tmp_path: Path) -> None:
    limits = PageLimits(most_connections=8)
    context = page_context(MASTER_KEY)
    async with staged(tmp_path, limits=limits, context=context) as stage:
        silent = [await asyncio.open_connection("127.0.0.1", stage.port) for _ in range(20)]
        assert await silent[0][0].read() == b""
        assert await status(stage.url, TRUSTED) == 200
        for _, writer in silent:
            writer.close()


async def test_browsers_see_the_users_certificate_and_the_command_line_the_jobs(
    tmp_path: Path,
) -> None:
    company = Authority.new("company")
    users = company.certified_key(["training.example.com"])
    own = page_context(MASTER_KEY)
    assert own is not None
    context = server_context(users.certificate, users.key, {MASTER_NAME: own})
    async with staged(tmp_path, context=context) as stage:
        assert await status(stage.url, TRUSTED) == 200
        # The page knows its names by the Host header, which is another matter.
        assert await status(stage.url, company.certificate, "training.example.com") == 200
        with pytest.raises(aiohttp.ClientConnectorError):
            await status(stage.url, company.certificate)


def test_the_cookie_of_a_page_with_tls_travels_over_tls_only(tmp_path: Path) -> None:
    async def story(host: str) -> str:
        async with (
            staged(tmp_path, context=page_context(MASTER_KEY)) as stage,
            aiohttp.ClientSession() as session,
            session.post(
                f"{stage.url}/session",
                json={"token": PAGE_TOKEN},
                headers={"Host": host},
                ssl=client_context(TRUSTED),
                server_hostname=MASTER_NAME,
            ) as answer,
        ):
            assert answer.status == 204, await answer.text()
            return answer.headers["Set-Cookie"]

    assert "Secure" in asyncio.run(story("iris-master"))
    # There the browser speaks to the command line's relay, in clear text on loopback.
    assert "Secure" not in asyncio.run(story("127.0.0.1"))


@pytest.mark.parametrize("what", ["certificate", "key"])
def test_a_damaged_certificate_of_the_users_is_named(what: str) -> None:
    key = AUTHORITY.certified_key(["x"])
    certificate = "no certificate" if what == "certificate" else key.certificate
    private = "no key" if what == "key" else key.key
    with pytest.raises(PermanentError, match="certificate"):
        server_context(certificate, private)


def test_a_private_key_is_in_no_representation() -> None:
    key = AUTHORITY.certified_key(["x"])
    assert "PRIVATE" in key.key and "PRIVATE" not in repr(key)
    assert "PRIVATE" not in repr(KeyPair.new())


def test_a_port_that_nobody_serves_is_no_problem_of_tls() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    with client(address, TRUSTED, SHORT_S) as worker, pytest.raises(TransientError) as caught:
        worker.attach()
    assert "TLS" not in str(caught.value)


def test_browsers_may_resume_a_session_and_processes_get_no_tickets_for_it(tmp_path: Path) -> None:
    environment = MasterEnvironment(
        JobDirectory(tmp_path), "t", "127.0.0.1", 0, authority=AUTHORITY
    )
    made = certificates(environment)
    assert present(made.own).num_tickets == 0 and present(made.page).num_tickets > 0

"""A client that speaks a master's protocol by the product's `CallClient`, and computes nothing.

That of `bench.load_client` has a loop of its own instead: thousands of them fit on one core.
"""

from __future__ import annotations

import asyncio
import random
import socket
import time
from collections.abc import Coroutine, Sequence
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import Message

from bench.load_client import CALL_S, GAUGES, GIVE_UP_S, POLL_S, finished, received
from elasticdl.cluster.base import ProcessName, Role
from elasticdl.rpc import elasticdl_pb2 as pb
from elasticdl.rpc.call_client import CallClient
from elasticdl.rpc.call_frames import METHODS, CallFailed
from elasticdl.rpc.channel import Credentials
from elasticdl.rpc.elasticdl_pb2_grpc import (
    ParameterServerServicer,
    add_ParameterServerServicer_to_server,
)
from elasticdl.rpc.retry import PASSING
from elasticdl.tokens import process_token, proof_to_master

LOOK_S = 0.05
_LONGEST_PAUSE_S = 1.0


class Refused(Exception):
    """The master wants no more of this client."""


class Released(Refused):
    """The client has nothing more to do."""


class Unexpected(Refused):
    """The master has given this client up."""


class Away:
    """Tells the clients of this process when a master that was away listens again.

    Clients of a job look by themselves, each on its own machine. Thousands that look from one
    process would take the cores that the next master needs to start.
    """

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._address = host, int(port)
        self._looking: asyncio.Task[None] | None = None

    async def over(self) -> None:
        if self._looking is None or self._looking.done():
            self._looking = asyncio.ensure_future(self._look())
        await asyncio.shield(self._looking)

    async def _look(self) -> None:
        end_s = time.monotonic() + GIVE_UP_S
        while time.monotonic() < end_s:
            with socket.socket() as probe:
                if probe.connect_ex(self._address) == 0:
                    return
            await asyncio.sleep(LOOK_S)


class Client:
    """A worker; a parameter server is one that reports, and leases nothing."""

    FIRST_SHARE = (0.0, 1.2)
    """What is left of the first lease's time, as if it had begun before.

    Clients that start together do not stay in step.
    """

    def __init__(self, address: str, token: str, name: str, lease_s: float, away: Away) -> None:
        """`lease_s`: how long the client works on a lease, give or take a fifth."""
        self.name = ProcessName.parse(name)
        self._lease_s = lease_s
        self._credentials = Credentials(proof_to_master(process_token(token, name)), name)
        self._client = CallClient(address, self._credentials, None, "")
        self._away = away
        self._random = random.Random(name)
        self._attaching, self._reporting = asyncio.Lock(), asyncio.Lock()
        self._request: Any = None
        self._lease: Any = None
        self._revocation = self._reports = self._sequence = 0
        self._heartbeat_s = 2.0
        self.term = 0
        self._reported_s = time.monotonic()
        self.failure = ""
        self.error: Exception | None = None

    async def serve(self) -> None:
        """Run as a worker, or as a server that other processes can reach on this machine."""
        if self.name.role is not Role.PS:
            await self.run()
            return
        server = grpc.aio.server()
        add_ParameterServerServicer_to_server(Control(), server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        address = f"127.0.0.1:{port}"
        try:
            await self.run(pb.AttachRequest(control_address=address, bulk_address=address))
        finally:
            await server.stop(None)

    async def close(self) -> None:
        """Close the connection to the master."""
        await self._client.close()

    async def run(self, request: Any = None) -> None:
        """Attach, and work until the master says that the job is over."""
        self._request = request or pb.AttachRequest()
        try:
            reply = await self._call("Attach", self._request)
            self._attached(reply)
            parts = [self._follow_orders(), self._beat()]
            if self.name.role is Role.WORKER:
                parts.append(self._work())
            await _until_one_ends(parts)
        except (Refused, CallFailed, TimeoutError) as error:
            self.failure = str(error) or repr(error)
            self.error = error

    def _attached(self, reply: Any) -> None:
        self.term, self._heartbeat_s = reply.term, reply.heartbeat_s

    async def _work(self) -> None:
        share = self._random.uniform(*self.FIRST_SHARE)
        lease: Any = None
        while True:
            lease = self._lease = lease or await self._next_lease()
            await asyncio.sleep(self._lease_s * share)
            share = self._random.uniform(0.8, 1.2)
            if lease.revocation < self._revocation:
                lease = None
                continue
            lease = await self._report(finished(lease), asks=True)

    async def may_work(self) -> None:
        """Return when the client may ask for a lease."""

    async def _next_lease(self) -> Any:
        await self.may_work()
        while True:
            self._sequence += 1
            request = pb.LeaseRequest(wait_s=POLL_S, sequence=self._sequence)
            reply = await self._call("RequestLease", request, POLL_S + CALL_S)
            if (lease := self._leased(reply)) is not None:
                return lease

    def _leased(self, reply: Any) -> Any:
        """Return the lease of an answer; None if there is none now."""
        match reply.WhichOneof("answer"):
            case "lease":
                return reply.lease
            case "finished":
                raise Released("the job has no more records")

    async def _report(self, *progress: Any, version: int = 0, asks: bool = False) -> Any:
        """Report; return a lease if it `asks` for one and there is one now."""
        lease = None
        async with self._reporting:
            self._reports += 1
            request = pb.ReportRequest(
                progress=progress, sequence=self._reports, gauges=GAUGES, version=version
            )
            if asks:
                self._sequence += 1
                request.lease.sequence = self._sequence
            reply = await self._call("Report", request)
            if asks:
                # Before another report leaves: another master is told of this lease.
                lease = self._lease = self._leased(reply.lease)
            self._reported_s = time.monotonic()
            self._heartbeat_s = getattr(reply, "heartbeat_s", 0.0) or self._heartbeat_s
        return lease

    async def _beat(self) -> None:
        """Report whenever the last report is a heartbeat old."""
        while True:
            left_s = self._reported_s + self._heartbeat_s - time.monotonic()
            if left_s > 0:
                await asyncio.sleep(left_s)
            else:
                # A server's version grows with the pushes of its workers.
                await self._report(
                    version=int(time.monotonic()) if self.name.role is Role.PS else 0
                )

    async def _follow_orders(self) -> None:
        attempt, away_s = 0, time.monotonic()
        while True:
            term = self.term
            try:
                stream = self._client.stream(METHODS["Orders"], pb.OrdersRequest(), term=term)
                async for order in stream:
                    attempt = 0
                    match order.WhichOneof("order"):
                        case "finish" | "drain":
                            raise Released("the master ended this client")
                        case "revoke":
                            self._revocation = max(self._revocation, order.revoke.revocation)
                away_s = time.monotonic()
            except CallFailed as error:
                await self._survive(error, term, time.monotonic() - away_s if attempt else 0.0)
            away_s = away_s if attempt else time.monotonic()
            attempt += 1
            await self._pause(attempt)

    async def _call(self, method: str, request: Message, timeout_s: float = CALL_S) -> Any:
        """Call the master; repeat the call while it is away."""
        began_s, attempt = time.monotonic(), 0
        while True:
            term = self.term
            try:
                return await self._client.call(
                    METHODS[method], request, term=term, timeout_s=timeout_s
                )
            except CallFailed as error:
                await self._survive(error, term, time.monotonic() - began_s)
            attempt += 1
            await self._pause(attempt)

    async def _survive(self, error: CallFailed, term: int, away_s: float) -> None:
        if error.code() is grpc.StatusCode.ABORTED:
            await self._attach_again(term)
        elif error.code() not in PASSING or away_s > GIVE_UP_S:
            unexpected = error.code() is grpc.StatusCode.FAILED_PRECONDITION
            kind = Unexpected if unexpected else Refused
            raise kind(f"{error.code().name}: {error.details()}") from error
        elif error.code() is grpc.StatusCode.UNAVAILABLE:
            await self._away.over()

    async def _attach_again(self, term: int) -> None:
        async with self._attaching:
            if self.term != term:
                return
            request = pb.AttachRequest()
            request.CopyFrom(self._request)
            request.again, request.revocation = True, self._revocation
            if self._lease is not None:
                request.received.append(received(self._lease))
            again = self._client.call(METHODS["Attach"], request, term=term, timeout_s=CALL_S)
            self._attached(await again)

    async def _pause(self, attempt: int) -> None:
        longest_s = min(0.1 * 2.0 ** min(attempt, 10), _LONGEST_PAUSE_S)
        await asyncio.sleep(self._random.uniform(0.5, 1.0) * longest_s)


async def _until_one_ends(parts: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Run all until one raises, and raise that."""
    tasks = [asyncio.ensure_future(part) for part in parts]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Control(ParameterServerServicer):
    """A server that has no pushes of any worker."""

    async def Fence(self, request: Any, context: Any) -> Any:
        return pb.FenceReply(seen=False)

    async def Keep(self, request: Any, context: Any) -> Any:
        return pb.Done()

    async def Drop(self, request: Any, context: Any) -> Any:
        return pb.Done()

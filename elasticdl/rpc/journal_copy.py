"""A copy of the journal in the memory of a process, and the master's side of it.

A master whose directory ends with its pod has copies of its journal with other processes. The next
master reads one of them: docs/adr/0036 says why that is safe.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, final

import grpc
import grpc.aio

from elasticdl.rpc import elasticdl_pb2 as pb
from elasticdl.rpc.channel import Caller, Credentials, SyncChecks, caller_of, server_options
from elasticdl.rpc.elasticdl_pb2_grpc import (
    JournalCopiesServicer,
    JournalCopiesStub,
    add_JournalCopiesServicer_to_server,
)
from elasticdl.rpc.retry import mapped
from elasticdl.rpc.secured import bound_port, connected_async
from elasticdl.rpc.term_guard import TermGuard
from elasticdl.tls import CertifiedKey
from elasticdl.tokens import proof_to_server

_THREADS = 2
"""A master, and the one that replaces it."""


@final
@dataclass(frozen=True, slots=True)
class Change:
    """What a copy lacks. `number` is one more than that of the change before.

    The files in `removed` go first, and all of them with `anew`. `appended` has what follows at the
    end of each file. `seal` is the master's, of the whole copy after this change.
    """

    number: int
    appended: Mapping[str, bytes]
    seal: str
    removed: Sequence[str] = ()
    anew: bool = False


@final
@dataclass(frozen=True, slots=True)
class Copy:
    """A copy, with number and seal of its last change; `age_s` is the time since that.

    It is empty, and the number 0, if there was no change.
    """

    number: int
    files: Mapping[str, bytes]
    seal: str
    age_s: float


@final
class JournalCopyService(JournalCopiesServicer):
    """Has the copy of this process. Calls come from several threads."""

    def __init__(self, is_replaced: Callable[[Caller], bool]) -> None:
        """`is_replaced` tells whether a later master has called this process."""
        self._is_replaced = is_replaced
        self._lock = threading.Lock()
        self._files: dict[str, bytearray] = {}
        self._term = self._number = 0
        self._seal, self._changed_s = "", 0.0

    def ChangeCopy(self, request: pb.ChangeCopyRequest, context: grpc.ServicerContext) -> pb.Done:
        caller = caller_of(context.invocation_metadata())
        with self._lock:
            # A later master may have read the copy since the call came in.
            if self._is_replaced(caller):
                _refuse(context, "another master has replaced this one")
            at, newest = (caller.term, request.number), (self._term, self._number)
            # A whole copy may come again after a lost answer, or late.
            if at < newest if request.anew else at != (self._term, self._number + 1):
                _refuse(context, f"change {request.number} does not follow {self._number}")
            if request.anew:
                self._files.clear()
            for name in request.removed:
                self._files.pop(name, None)
            for part in request.appended:
                self._files.setdefault(part.name, bytearray()).extend(part.data)
            self._term, self._number = caller.term, request.number
            self._seal, self._changed_s = request.seal, time.monotonic()
        return pb.Done()

    def ReadCopy(
        self, request: pb.ReadCopyRequest, context: grpc.ServicerContext
    ) -> pb.JournalCopy:
        # The check of this call has noted its term: no change of an earlier one comes after it.
        with self._lock:
            parts = [
                pb.JournalPart(name=name, data=bytes(data)) for name, data in self._files.items()
            ]
            age_s = time.monotonic() - self._changed_s
            return pb.JournalCopy(number=self._number, files=parts, age_s=age_s, seal=self._seal)


def serve_copy(
    token: str, term: int, listen_address: str, certified: CertifiedKey | None
) -> tuple[grpc.Server, int]:
    """Start a server of nothing but a copy; return it with its port.

    `token` is this process's, `term` that of its master. `certified`: this process's; None: clear
    text. Keep the server: it stops when nobody refers to it. Raises RuntimeError if
    it cannot listen.
    """
    guard = TermGuard(token)
    guard.learn(term)
    server = grpc.server(
        ThreadPoolExecutor(_THREADS),
        interceptors=[SyncChecks(guard.proof, guard.check)],
        options=server_options(),
    )
    add_JournalCopiesServicer_to_server(JournalCopyService(guard.is_replaced), server)
    port = bound_port(server, listen_address, certified)
    server.start()
    return server, port


def _refuse(context: grpc.ServicerContext, why: str) -> None:
    context.abort(grpc.StatusCode.FAILED_PRECONDITION, why)


@final
class GrpcJournalCopy:
    """The copy of one process, as the master reaches it. Use it from one event loop.

    Calls raise ElasticDLError.
    """

    def __init__(
        self, name: str, address: str, token: str, term: int, authority: str | None = None
    ) -> None:
        """`token` is the process's; `term` the calling master's.

        `authority` (PEM) signs the process's certificate; None: clear text.
        """
        self._what = f"{name} ({address})"
        self._metadata = Credentials(proof_to_server(token, term), "master").metadata(term)
        certified, _, _ = name.partition(".")
        self._channel = connected_async(address, authority, certified)
        self._stub: Any = JournalCopiesStub(self._channel)

    async def change(self, change: Change, *, timeout_s: float) -> None:
        request = pb.ChangeCopyRequest(
            number=change.number,
            anew=change.anew,
            seal=change.seal,
            removed=change.removed,
            appended=[
                pb.JournalPart(name=name, data=data) for name, data in change.appended.items()
            ],
        )
        try:
            await self._stub.ChangeCopy(request, timeout=timeout_s, metadata=self._metadata)
        except grpc.RpcError as error:
            raise mapped(error, f"the copy of the journal in {self._what}") from error

    async def read(self, *, timeout_s: float) -> Copy:
        try:
            copy: pb.JournalCopy = await self._stub.ReadCopy(
                pb.ReadCopyRequest(),
                timeout=timeout_s,
                metadata=self._metadata,
                wait_for_ready=True,
            )
        except grpc.RpcError as error:
            raise mapped(error, f"the copy of the journal in {self._what}") from error
        files = {part.name: part.data for part in copy.files}
        return Copy(copy.number, files, copy.seal, copy.age_s)

    async def close(self) -> None:
        await self._channel.close(None)

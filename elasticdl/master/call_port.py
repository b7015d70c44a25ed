"""The server of a master's calls, which may listen before the master can answer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Self, final

from elasticdl.master.certificates import Certificates, certificates
from elasticdl.master.gateway.servicer import MasterService, proof_of
from elasticdl.master.platform.platform import MasterEnvironment
from elasticdl.rpc.call_server import CallServer


@final
@dataclass(frozen=True, slots=True)
class CallPort:
    """Where processes reach a master.

    Thousands of processes connect to a master that takes over, which takes them a second or more.
    They can do so while it replays the journal. Their calls wait for `serve`. As a context manager
    it closes the port at the end.
    """

    environment: MasterEnvironment
    certificates: Certificates
    server: CallServer

    @classmethod
    def of(cls, environment: MasterEnvironment) -> Self:
        """Make it; nobody listens yet."""
        made = certificates(environment)
        proof = partial(proof_of, token=environment.token)
        server = CallServer(proof, made.own, term=environment.term)
        return cls(environment, made, server)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.server.close()

    async def open(self) -> int:
        """Listen, unless it was done before, and return the port. Raises OSError."""
        if (port := self.server.port) is not None:
            return port
        environment = self.environment
        return await self.server.start(
            environment.host.strip("[]"),
            environment.port,
            reuse_port=environment.port in environment.reserved,
        )

    def serve(self, service: MasterService) -> None:
        """Answer calls from now on, also those that wait."""
        self.server.serve(service, service.refusal)

"""The server of a master's calls, which may listen before the master can answer, and its TLS."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Self, final

from elasticdl.master.gateway.servicer import MasterService, proof_of
from elasticdl.master.platform.platform import MasterEnvironment
from elasticdl.rpc.call_server import CallServer
from elasticdl.tls import MASTER_NAME
from elasticdl.tls.contexts import server_context


@dataclass(frozen=True, slots=True)
class Certificates:
    """Contexts for the master's page, and for all else that it serves; None: no TLS."""

    own: ssl.SSLContext | None
    page: ssl.SSLContext | None


def certificates(environment: MasterEnvironment) -> Certificates:
    """Make the certificates that a master serves with."""
    if environment.authority is None:
        return Certificates(None, None)
    names = (MASTER_NAME, *environment.page.names, "localhost", "127.0.0.1", "::1")
    certified = environment.authority.certified_key(names)
    own = server_context(certified.certificate, certified.key)
    # Processes resume no session, as browsers do. Tickets would be a third of a handshake's work.
    own.num_tickets = 0
    # Browsers get the user's certificate; our command line asks for the master by its name.
    shown = environment.page.certified_key or certified
    page = server_context(shown.certificate, shown.key, {MASTER_NAME: own})
    return Certificates(own, page)


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
        job_certificates = certificates(environment)
        proof = partial(proof_of, token=environment.token)
        server = CallServer(proof, job_certificates.own, term=environment.term)
        return cls(environment, job_certificates, server)

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

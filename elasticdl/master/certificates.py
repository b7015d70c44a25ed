"""The master's certificate, and the TLS contexts of its servers."""

from __future__ import annotations

import ssl
from dataclasses import dataclass

from elasticdl.master.platform.platform import MasterEnvironment
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

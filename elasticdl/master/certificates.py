"""The master's certificate, and the TLS contexts of its servers."""

from __future__ import annotations

import ssl
from dataclasses import dataclass

from elasticdl.master.platform.platform import MasterEnvironment
from elasticdl.tls import MASTER_NAME, CertifiedKey
from elasticdl.tls.contexts import server_context


@dataclass(frozen=True, slots=True)
class Certificates:
    """The master's own certificate, and contexts for its rendezvous and its page; None: no TLS."""

    own: CertifiedKey | None
    rendezvous: ssl.SSLContext | None
    page: ssl.SSLContext | None


def certificates(environment: MasterEnvironment) -> Certificates:
    """Make the certificates that a master serves with."""
    if environment.authority is None:
        return Certificates(None, None, None)
    names = (MASTER_NAME, *environment.page.names, "localhost", "127.0.0.1", "::1")
    own = environment.authority.certified_key(names)
    context = server_context(own.certificate, own.key)
    of_user = environment.page.certified_key
    if of_user is None:
        return Certificates(own, context, context)
    # Browsers get the user's certificate; our command line asks for the master by its name.
    page = server_context(of_user.certificate, of_user.key, {MASTER_NAME: context})
    return Certificates(own, context, page)

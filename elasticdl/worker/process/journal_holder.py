"""A worker's copy of the master's journal, in a job that has no better place for one."""

from __future__ import annotations

import logging

from elasticdl.cluster.role_environment import RoleEnvironment
from elasticdl.rpc.conversation import Attached
from elasticdl.rpc.journal_copy import serve_copy
from elasticdl.rpc.master_client import MasterClient
from elasticdl.tls import CertifiedKey

_log = logging.getLogger(__name__)


def hold_journal_copy(
    environment: RoleEnvironment, client: MasterClient, attached: Attached
) -> object | None:
    """Serve a copy, and tell the master where; None if the job needs none or it cannot.

    Keep what it returns as long as this worker lives. A volume is a better place for the journal,
    and so are servers: they stay, and run no code of users. Raises as `MasterClient.attach`.
    """
    if not attached.spec.workers_hold_journal:
        return None
    certified = None
    if environment.authority is not None:
        # The import takes 50 ms, and other workers need no key.
        from elasticdl.tls.authority import KeyPair

        pair = KeyPair.new()
        certificate = client.attach(starting=True, public_key=pair.public).certificate
        certified = CertifiedKey(certificate, pair.private)
    address = environment.listen_address()
    try:
        server, port = serve_copy(environment.token, attached.term, address, certified)
        reachable = environment.reachable_address(port)
    except (RuntimeError, OSError) as error:
        # gRPC raises RuntimeError for an address that it cannot listen on.
        _log.warning("this worker cannot have a copy of the journal: %s", error)
        return None
    client.attach(reachable, starting=True)
    return server

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
    """Serve a copy, and tell the master where; None if the job does not need it.

    Keep what it returns as long as this worker lives. A volume is a better place for the journal,
    and so are servers: they stay, and run no code of users. Raises as `MasterClient.attach`.
    """
    if attached.spec.keeps_checkpoints or attached.spec.cluster.num_ps_pods:
        return None
    certified = None
    if environment.authority is not None:
        # The import takes 50 ms, and other workers need no key.
        from elasticdl.tls.authority import KeyPair

        pair = KeyPair.new()
        certificate = client.attach(starting=True, public_key=pair.public).certificate
        certified = CertifiedKey(certificate, pair.private)
    address = environment.listen_address()
    server, port = serve_copy(environment.token, attached.term, address, certified)
    if not port:
        _log.warning("cannot listen on %s: this worker has no copy of the journal", address)
        return None
    client.attach(environment.reachable_address(port), starting=True)
    return server

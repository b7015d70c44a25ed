"""gRPC connections with or without TLS."""

from __future__ import annotations

from typing import Final

import grpc
import grpc.aio

from elasticdl.rpc.channel import channel_options
from elasticdl.tls import CertifiedKey

LOOK_S: Final = 0.5


def connected_async(address: str, authority: str | None, name: str) -> grpc.aio.Channel:
    """A channel to the process `name`, verified by `authority` (PEM); None: clear text."""
    if authority is None:
        return grpc.aio.insecure_channel(address, options=channel_options())
    credentials = grpc.ssl_channel_credentials(authority.encode())
    # The certificate is for the process, whatever its address.
    options = [*channel_options(), ("grpc.ssl_target_name_override", name)]
    return grpc.aio.secure_channel(address, credentials, options=options)


def bound_port(server: grpc.Server, address: str, certified: CertifiedKey | None) -> int:
    """Have a server listen with this certificate; None: in clear text. Returns the port."""
    if certified is None:
        return int(server.add_insecure_port(address))
    pair = (certified.key.encode(), certified.certificate.encode())
    return int(server.add_secure_port(address, grpc.ssl_server_credentials([pair])))

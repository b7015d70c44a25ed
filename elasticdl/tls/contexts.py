"""Both ends of a connection, for Python's `ssl`."""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Mapping

from elasticdl.errors import PermanentError

_LOOK_S = 2.0


def client_context(authority: str) -> ssl.SSLContext:
    """Trusts this authority (PEM) only, and verifies the name. Raises PermanentError."""
    # Not create_default_context: it trusts the authorities of the machine as well.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    try:
        context.load_verify_locations(cadata=authority)
    except ssl.SSLError as error:
        raise PermanentError(
            f"the certificate of the job's authority is invalid: {error}"
        ) from error
    return context


def server_context(
    certificate: str, key: str, by_name: Mapping[str, ssl.SSLContext] | None = None
) -> ssl.SSLContext:
    """Shows this certificate (PEM), or that of another context to clients that ask for its name.

    Raises PermanentError if the certificate or its key is invalid.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    # Of browsers; everything else of a job has 1.3.
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # `ssl` reads keys from files only, and this one is in memory: no disk ever has the key.
    file = os.memfd_create("certificate", os.MFD_CLOEXEC)
    try:
        os.write(file, f"{certificate}\n{key}".encode())
        context.load_cert_chain(f"/proc/self/fd/{file}")
    except ssl.SSLError as error:
        raise PermanentError(
            f"a TLS certificate is invalid, or its key does not fit: {error.reason or error}",
            hint="the Secret needs tls.crt and tls.key, as PEM, and the key without a password",
        ) from error
    finally:
        os.close(file)
    others = dict(by_name or {})

    def choose(
        connection: ssl.SSLSocket | ssl.SSLObject, name: str | None, _own: ssl.SSLContext
    ) -> None:
        if name in others:
            connection.context = others[name]

    if others:
        context.sni_callback = choose
    return context


def refusal_of(error: OSError) -> str:
    """Why a TLS handshake failed, in words."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its TLS certificate is refused: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"the TLS handshake failed: {(error.reason or str(error)).replace('_', ' ').lower()}"
    return ""


def handshake_problem(address: str, authority: str, name: str, limit_s: float = _LOOK_S) -> str:
    """Why a TLS handshake with host:port fails; '' if it does not, or nobody answers.

    Blocks for up to `limit_s`.
    """
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), limit_s) as connection:
            client_context(authority).wrap_socket(connection, server_hostname=name).close()
    except OSError as error:
        return refusal_of(error)
    return ""

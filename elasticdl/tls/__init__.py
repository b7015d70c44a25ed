"""TLS within a job: its certificate authority, and both ends of a connection.

A process is known by a name that outlives its address: `master`, or `ps-1`.
"""

from dataclasses import dataclass, field
from typing import final

MASTER_NAME = "master"
"""The name in the certificate of a job's master."""


@final
@dataclass(frozen=True, slots=True)
class CertifiedKey:
    """A certificate and its private key, as PEM."""

    certificate: str
    key: str = field(repr=False)

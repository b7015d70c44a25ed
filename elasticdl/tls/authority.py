"""A job's certificate authority: who signs the certificates that the job's processes trust.

The master has it. No other process has its key, or any other process's key.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from typing import Final, Self, final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_der_public_key,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from elasticdl.tls import CertifiedKey

_CURVE: Final = ec.SECP256R1()
"""Of the curves that gRPC and browsers accept, the fastest."""
_CLOCKS_DIFFER: Final = timedelta(days=1)
"""A node whose clock is behind must not find a certificate that is not valid yet."""
_LIFETIME: Final = timedelta(days=3650)
"""Longer than any job: nobody renews certificates. The authority ends with the job."""


@final
@dataclass(frozen=True, slots=True)
class KeyPair:
    """A process's own key: `private` as PEM, `public` as DER."""

    private: str = field(repr=False)
    public: bytes

    @classmethod
    def new(cls) -> Self:
        """Make a key that nobody else has."""
        key = ec.generate_private_key(_CURVE)
        public = key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        return cls(_pem(key), public)


@final
class Authority:
    """Signs certificates."""

    def __init__(self, own: CertifiedKey) -> None:
        """`own` is the authority's. Raises ValueError if it is invalid."""
        self.own = own
        self._certificate = x509.load_pem_x509_certificate(own.certificate.encode())
        key = load_pem_private_key(own.key.encode(), None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise ValueError("the key of the job's certificate authority has another type")
        self._key = key

    @classmethod
    def new(cls, job: str, *, now: datetime | None = None) -> Self:
        key, name = ec.generate_private_key(_CURVE), _named(f"ElasticDL job {job}"[:64])
        certificate = (
            _valid_from(now or datetime.now(UTC))
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs_certificates=True), critical=True)
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
            )
            .sign(key, hashes.SHA256())
        )
        return cls(CertifiedKey(certificate.public_bytes(Encoding.PEM).decode(), _pem(key)))

    @property
    def certificate(self) -> str:
        """What others need to verify certificates of this authority, as PEM."""
        return self.own.certificate

    def certified_key(self, names: Sequence[str], *, now: datetime | None = None) -> CertifiedKey:
        """Make a key, and certify it for these host names and addresses."""
        pair = KeyPair.new()
        return CertifiedKey(self.certify(pair.public, names, now=now), pair.private)

    def certify(self, public: bytes, names: Sequence[str], *, now: datetime | None = None) -> str:
        """Return a server's certificate, as PEM. Raises ValueError for an invalid public key."""
        key = load_der_public_key(public)
        if not isinstance(key, ec.EllipticCurvePublicKey):
            raise ValueError(f"a public key of type {type(key).__name__}; expected a curve's")
        certificate = (
            _valid_from(now or datetime.now(UTC))
            .subject_name(_named(names[0][:64]))
            .issuer_name(self._certificate.subject)
            .public_key(key)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(x509.SubjectAlternativeName(_general(names)), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
                critical=False,
            )
            .sign(self._key, hashes.SHA256())
        )
        return certificate.public_bytes(Encoding.PEM).decode()


def names_in(certificate: str) -> tuple[str, ...]:
    """The host names that a certificate (PEM) is for. Raises ValueError if it is none."""
    loaded = x509.load_pem_x509_certificate(certificate.encode())
    try:
        names = loaded.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ()
    return tuple(names.get_values_for_type(x509.DNSName))


def _general(names: Iterable[str]) -> list[x509.GeneralName]:
    general: list[x509.GeneralName] = []
    for name in names:
        try:
            general.append(x509.IPAddress(ip_address(name)))
        except ValueError:
            general.append(x509.DNSName(name))
    return general


def _valid_from(now: datetime) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCKS_DIFFER)
        .not_valid_after(now + _LIFETIME)
    )


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(key: ec.EllipticCurvePrivateKey) -> str:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()

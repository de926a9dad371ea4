"""Create a certificate authority and certificates for development and tests.

Keys use the curve P-256. Every certificate has a unique serial number and the key identifiers of
RFC 5280, which Python 3.13 and newer require. Not for production: the key of the authority is
stored next to the certificates.
"""

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

DAYS: Final = 365
_BEFORE: Final = timedelta(minutes=5)


@dataclass(frozen=True, slots=True, repr=False)
class Certificate:
    """A private key and its certificate, in PEM format."""

    key: bytes
    certificate: bytes

    @property
    def keystore(self) -> bytes:
        """Return the contents of `ssl.keystore.location`."""
        return self.key + self.certificate


@dataclass(frozen=True, slots=True, repr=False)
class Authority:
    """A certificate authority."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @classmethod
    def make(cls, name: str) -> Self:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        usage = x509.KeyUsage(
            digital_signature=True,
            key_cert_sign=True,
            crl_sign=True,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            encipher_only=False,
            decipher_only=False,
        )
        certificate = (
            _builder(subject, subject, key.public_key(), key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .sign(key, hashes.SHA256())
        )
        return cls(key, certificate)

    @property
    def pem(self) -> bytes:
        """Return the contents of `ssl.truststore.location`."""
        return self.certificate.public_bytes(Encoding.PEM)

    def issue(
        self,
        name: str,
        *,
        hosts: Sequence[str] = (),
        unit: str = "",
        password: str = "",
    ) -> Certificate:
        """Issue a certificate for servers and clients. hosts: names and addresses of a server.
        unit: the organizational unit. password: encrypts the key.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        parts = [x509.NameAttribute(NameOID.COMMON_NAME, name)]
        if unit:
            parts.insert(0, x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, unit))
        builder = (
            _builder(
                x509.Name(parts),
                self.certificate.subject,
                key.public_key(),
                self.key.public_key(),
            )
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(
                x509.ExtendedKeyUsage(
                    [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
                ),
                critical=False,
            )
        )
        if hosts:
            names = x509.SubjectAlternativeName([_host(host) for host in hosts])
            builder = builder.add_extension(names, critical=False)
        certificate = builder.sign(self.key, hashes.SHA256())
        encryption = BestAvailableEncryption(password.encode()) if password else NoEncryption()
        return Certificate(
            key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption),
            certificate.public_bytes(Encoding.PEM),
        )


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    issuer_key: ec.EllipticCurvePublicKey,
) -> x509.CertificateBuilder:
    own = x509.SubjectKeyIdentifier.from_public_key(key)
    of_issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key)
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BEFORE)
        .not_valid_after(now + timedelta(days=DAYS))
        .add_extension(own, critical=False)
        .add_extension(of_issuer, critical=False)
    )


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)

"""Create CAs and certificates for tests."""

import datetime
import ipaddress
import os
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from penstock.controller.api.tls import TlsConfig, TlsFiles

DAY = datetime.timedelta(days=1)
LOCAL = ("localhost", "127.0.0.1")


@dataclass(frozen=True)
class CertFiles:
    """PEM files of one certificate, with the CA that verifies its peers."""

    certificate: Path
    key: Path
    ca: Path

    @property
    def config(self) -> TlsConfig:
        return TlsConfig(certificate=str(self.certificate), key=str(self.key), ca=str(self.ca))

    def open(self) -> TlsFiles:
        return TlsFiles(self.config)

    @property
    def settings(self) -> dict[str, str]:
        """Return the settings by name."""
        return {
            "controller.ssl.certificate.location": str(self.certificate),
            "controller.ssl.key.location": str(self.key),
            "controller.ssl.ca.location": str(self.ca),
        }

    @property
    def environment(self) -> dict[str, str]:
        return {
            f"PENSTOCK_{name.replace('.', '_').upper()}": value
            for name, value in self.settings.items()
        }


class Authority:
    """A CA that writes its certificates into a directory."""

    def __init__(self, directory: Path, name: str = "ca") -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        now = datetime.datetime.now(datetime.UTC)
        builder = _builder(self._name, self._name, self._key, now - DAY, now + 30 * DAY)
        certificate = builder.add_extension(x509.BasicConstraints(True, None), True).sign(
            self._key, hashes.SHA256()
        )
        self.pem = certificate.public_bytes(Encoding.PEM)
        self.file = directory / f"{name}.ca.pem"
        self.file.write_bytes(self.pem)

    def make(
        self,
        name: str,
        *,
        hosts: tuple[str, ...] = LOCAL,
        file: str = "",
        ca: Path | None = None,
        days: tuple[float, float] = (-1, 10),
    ) -> CertFiles:
        """Create a certificate. name: its common name. file: the name of the files, by default
        `name`. ca: the CA for its peers, by default this one. days: its remaining validity.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        now = datetime.datetime.now(datetime.UTC)
        builder = _builder(subject, self._name, key, now + days[0] * DAY, now + days[1] * DAY)
        certificate = builder.add_extension(
            x509.SubjectAlternativeName([_host(host) for host in hosts]), False
        ).sign(self._key, hashes.SHA256())
        stem = self.directory / (file or name)
        files = CertFiles(Path(f"{stem}.pem"), Path(f"{stem}.key"), Path(f"{stem}.peers.pem"))
        replace(files.ca, (ca or self.file).read_bytes())
        replace(files.key, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        replace(files.certificate, certificate.public_bytes(Encoding.PEM))
        return files


def replace(path: Path, content: bytes) -> None:
    """Replace a file atomically, as tools that rotate certificates do."""
    new = path.with_name(path.name + ".new")
    new.write_bytes(content)
    os.replace(new, path)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    begins: datetime.datetime,
    ends: datetime.datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins)
        .not_valid_after(ends)
    )


def _host(host: str) -> x509.GeneralName:
    if "://" in host:
        return x509.UniformResourceIdentifier(host)
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)

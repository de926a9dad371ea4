"""The certificate, key and CA for the gRPC connections of a node, reloaded when their files change.
Thread-safe, because gRPC calls this module from its own threads. The module does not import grpc,
because settings and commands import it.
"""

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import structlog

from penstock.base.clock import MonotonicClock
from penstock.base.settings import Kind, Setting, SettingInvalid, check
from penstock.controller.api.errors import ControllerError

_log = structlog.get_logger(__name__)

LOOK_INTERVAL_S: Final = 5.0
"""Interval at which a node checks for changed files. New connections check as well."""

SETTLE_S: Final = 2.0
"""Files are reported only if they have been invalid for this long, because a rotation may write
them one after another.
"""

EXPIRY_LOG_INTERVAL_S: Final = 3_600.0
EXPIRY_SHARE: Final = 0.1
"""A warning is logged when less than this share of a certificate's lifetime is left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsConfig:
    """Settings of gRPC connections between nodes, the same for brokers and controllers."""

    certificate: Annotated[str, Setting("controller.ssl.certificate.location", Kind.TEXT)] = ""
    """PEM file with the certificate of this node and its intermediate certificates, for gRPC
    between nodes. Empty: no TLS. Set certificate, key and ca on all nodes or on none. Changed files
    take effect without a restart.
    """

    key: Annotated[str, Setting("controller.ssl.key.location", Kind.TEXT)] = ""
    """PEM file with the unencrypted private key of this node for gRPC between nodes."""

    ca: Annotated[str, Setting("controller.ssl.ca.location", Kind.TEXT)] = ""
    """PEM file with the CA certificates that are trusted for nodes. Use a CA that does not sign
    certificates of Kafka clients.
    """

    def __post_init__(self) -> None:
        check(self)
        given = {"certificate": self.certificate, "key": self.key, "ca": self.ca}
        if any(given.values()):
            for name, value in given.items():
                if not value:
                    raise SettingInvalid(
                        name, value, "a PEM file: TLS needs certificate, key and ca"
                    )


class TlsFilesInvalid(ControllerError):
    """Raised for unusable files. The message contains the file, the problem and the solution."""


@dataclass(frozen=True, slots=True)
class PemFiles:
    """Contents of the files. begins_s, ends_s: validity of the certificate in Unix time."""

    certificate: bytes
    key: bytes
    ca: bytes
    subject: str
    begins_s: float
    ends_s: float


class TlsFiles:
    """Reads the files of a TlsConfig. Raises TlsFilesInvalid if the files are invalid at creation.

    `current` always returns a matching certificate and key. Invalid new files are logged, and the
    last valid ones stay in use. Certificates that have expired or expire soon are logged.
    """

    def __init__(
        self,
        config: TlsConfig,
        *,
        now: MonotonicClock = time.monotonic,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        self._config = config
        self._now = now
        self._wall_s = wall_s
        self._lock = threading.Lock()
        self._seen = self._stamps()
        self._broken = ""
        """The reason why the newest files cannot be used, or "" if they are in use."""
        self._broken_at = 0.0
        self._is_reported = False
        self._expiry_logged_at = float("-inf")
        self._pem = _read(config)

    @classmethod
    def open(cls, config: TlsConfig) -> "TlsFiles | None":
        """Return the files, or None if no TLS is configured. Raises TlsFilesInvalid."""
        return cls(config) if config.certificate else None

    def current(self) -> PemFiles:
        """Return the newest valid files. This takes three `stat` calls if the files have not
        changed.
        """
        with self._lock:
            self._look()
            return self._pem

    def expiry(self) -> str:
        """Return the problem with the validity period of the current certificate, or "" if there is
        none.
        """
        return validity_problem(self._pem, self._wall_s())

    async def watch(self) -> None:
        """Check the files for changes and the certificate for expiry until cancelled."""
        while True:
            self.current()
            self._log_expiry()
            await asyncio.sleep(LOOK_INTERVAL_S)

    def _look(self) -> None:
        stamps = self._stamps()
        if stamps != self._seen:
            self._seen, self._is_reported = stamps, False
            self._take()
        if self._broken and not self._is_reported and self._now() - self._broken_at >= SETTLE_S:
            self._is_reported = True
            _log.error(
                "tls_files_rejected",
                reason=self._broken,
                in_use=self._pem.subject,
                next="the previous files stay in use until these are complete",
            )

    def _take(self) -> None:
        try:
            self._pem, self._broken = _read(self._config), ""
        except TlsFilesInvalid as error:
            self._broken, self._broken_at = str(error), self._now()
        else:
            self._expiry_logged_at = float("-inf")
            _log.info(
                "tls_files_loaded",
                subject=self._pem.subject,
                expires=_day(self._pem.ends_s),
                next="new connections use the new files",
            )

    def _log_expiry(self) -> None:
        now = self._now()
        problem = self.expiry()
        if problem and now - self._expiry_logged_at >= EXPIRY_LOG_INTERVAL_S:
            self._expiry_logged_at = now
            _log.error(
                "tls_certificate_expires",
                file=self._config.certificate,
                reason=f"this node's {problem}",
                next="replace the certificate in this file; no restart is needed",
            )

    def _stamps(self) -> tuple[tuple[int, int, int] | None, ...]:
        config = self._config
        return tuple(_stamp(path) for path in (config.certificate, config.key, config.ca))


def validity_problem(pem: PemFiles, wall_s: float) -> str:
    """Return the problem with the validity period of the certificate, or "" if there is none."""
    if wall_s < pem.begins_s:
        return f"certificate ({pem.subject}) is valid only from {_day(pem.begins_s)}"
    if wall_s >= pem.ends_s:
        return f"certificate ({pem.subject}) expired at {_day(pem.ends_s)}: peers refuse it"
    if pem.ends_s - wall_s < (pem.ends_s - pem.begins_s) * EXPIRY_SHARE:
        return f"certificate ({pem.subject}) expires at {_day(pem.ends_s)}"
    return ""


def _day(unix_s: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(unix_s))


def _stamp(path: str) -> tuple[int, int, int] | None:
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size


def _read(config: TlsConfig) -> PemFiles:
    """Read and check the files. Raises TlsFilesInvalid."""
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        PublicFormat,
        load_pem_private_key,
    )

    certificate, key, ca = (_bytes(path) for path in (config.certificate, config.key, config.ca))
    try:
        leaf = x509.load_pem_x509_certificates(certificate)[0]
    except ValueError as error:
        raise _invalid("certificate", config.certificate, f"no PEM certificate: {error}") from None
    try:
        x509.load_pem_x509_certificates(ca)
    except ValueError as error:
        raise _invalid("ca", config.ca, f"no PEM certificate: {error}") from None
    try:
        loaded = load_pem_private_key(key, None)
    except TypeError:
        raise _invalid("key", config.key, "the key is encrypted: remove its passphrase") from None
    except ValueError as error:
        raise _invalid("key", config.key, f"no PEM private key: {error}") from None
    form = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    if loaded.public_key().public_bytes(*form) != leaf.public_key().public_bytes(*form):
        raise _invalid(
            "key",
            config.key,
            f"not the key of the certificate in {config.certificate}: use a matching pair",
        )
    return PemFiles(
        certificate,
        key,
        ca,
        leaf.subject.rfc4514_string() or "no subject",
        leaf.not_valid_before_utc.timestamp(),
        leaf.not_valid_after_utc.timestamp(),
    )


def _bytes(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise TlsFilesInvalid(f"the file {path} cannot be read: {error.strerror}") from None


def _invalid(name: str, path: str, why: str) -> TlsFilesInvalid:
    return TlsFilesInvalid(f"controller.ssl.{name}.location: {path} holds {why}")

"""Create TLS contexts from PEM files. Only TLS 1.2 and 1.3 are supported, without renegotiation or
compression. A wrong or missing key password is an error, and never causes a prompt.
"""

import re
import ssl
from pathlib import Path
from typing import Final, NamedTuple

from penstock.broker.security.config import (
    AUTH_NONE,
    AUTH_REQUIRED,
    HTTPS,
    SecurityConfig,
)

_CERTIFICATE: Final = re.compile(
    rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL
)
_VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}


class SecurityFileInvalid(Exception):
    """Raised if a file in the security settings cannot be used. The message contains the setting
    and the file.
    """


class TlsContexts(NamedTuple):
    """The TLS contexts of one listener, or of all listeners without settings of their own.

    for_clients: for SSL listeners, which may request certificates. for_sasl: for SASL_SSL
    listeners. to_brokers: for connections to other brokers. to_itself: for connections to the
    broker's own address. They also trust the broker's own certificate, because its CA may not be
    among the CAs trusted for clients.
    """

    for_clients: ssl.SSLContext
    for_sasl: ssl.SSLContext
    to_brokers: ssl.SSLContext
    to_itself: ssl.SSLContext


def make_contexts(config: SecurityConfig, *, sasl_client_auth: str = AUTH_NONE) -> TlsContexts:
    """Read the PEM files and create the contexts. sasl_client_auth: `ssl.client.auth` for SASL_SSL
    listeners. Raises SecurityFileInvalid.
    """
    to_itself = _broker_context(config)
    _trust_own(to_itself, config)
    return TlsContexts(
        _server_context(config, config.ssl_client_auth),
        _server_context(config, sasl_client_auth),
        _broker_context(config),
        to_itself,
    )


def _server_context(config: SecurityConfig, client_auth: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.options |= ssl.OP_NO_RENEGOTIATION
    _limit_versions(context, config)
    _load_key(context, config)
    if client_auth != AUTH_NONE:
        is_required = client_auth == AUTH_REQUIRED
        context.verify_mode = ssl.CERT_REQUIRED if is_required else ssl.CERT_OPTIONAL
        _trust(context, config)
    return context


def _broker_context(config: SecurityConfig) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = config.ssl_endpoint_identification_algorithm == HTTPS
    _limit_versions(context, config)
    if config.ssl_truststore_location:
        _trust(context, config)
    else:
        context.load_default_certs()
    _load_key(context, config)
    return context


def _limit_versions(context: ssl.SSLContext, config: SecurityConfig) -> None:
    versions = [_VERSIONS[name] for name in config.ssl_enabled_protocols]
    context.minimum_version, context.maximum_version = min(versions), max(versions)


def _load_key(context: ssl.SSLContext, config: SecurityConfig) -> None:
    path = config.ssl_keystore_location
    try:
        context.load_cert_chain(path, password=lambda: config.ssl_key_password)
    except (OSError, ValueError) as error:
        raise SecurityFileInvalid(
            f"ssl.keystore.location={path}: {_reason(error)}; it must be a PEM file with a private"
            " key and its certificate, and ssl.key.password the password of the key if it has one"
        ) from None


def _trust(context: ssl.SSLContext, config: SecurityConfig) -> None:
    path = config.ssl_truststore_location
    try:
        context.load_verify_locations(path)
    except (OSError, ValueError) as error:
        raise SecurityFileInvalid(
            f"ssl.truststore.location={path}: {_reason(error)}; it must be a PEM file with the"
            " certificates of CAs"
        ) from None


def _trust_own(context: ssl.SSLContext, config: SecurityConfig) -> None:
    """Trust the certificates in the keystore, even without their CA."""
    path = config.ssl_keystore_location
    try:
        for certificate in _CERTIFICATE.findall(Path(path).read_bytes()):
            context.load_verify_locations(cadata=certificate.decode("ascii"))
    except (OSError, ValueError) as error:
        raise SecurityFileInvalid(f"ssl.keystore.location={path}: {_reason(error)}") from None
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return error.reason or "no PEM file that TLS can use"
    return getattr(error, "strerror", None) or str(error)

"""Make TLS contexts from PEM files.

Invariants: TLS 1.2 and 1.3 only; no renegotiation and no compression. A wrong or missing password
of a key is an error, never a question at the terminal.
"""

import ssl
from typing import Final, NamedTuple

from broker.security.config import (
    AUTH_NONE,
    AUTH_REQUIRED,
    HTTPS,
    SecurityConfig,
)

_VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}


class SecurityFileInvalid(Exception):
    """Raised when a file of the security settings cannot be used. The message names the setting and
    the file.
    """


class TlsContexts(NamedTuple):
    """for_clients: of SSL listeners, which may ask for certificates. for_sasl: of SASL_SSL
    listeners. to_brokers: of connections to other brokers.
    """

    for_clients: ssl.SSLContext
    for_sasl: ssl.SSLContext
    to_brokers: ssl.SSLContext


def make_contexts(config: SecurityConfig) -> TlsContexts:
    """Read the PEM files. Raises SecurityFileInvalid."""
    for_clients = _server_context(config)
    if config.ssl_client_auth != AUTH_NONE:
        is_required = config.ssl_client_auth == AUTH_REQUIRED
        for_clients.verify_mode = ssl.CERT_REQUIRED if is_required else ssl.CERT_OPTIONAL
        _trust(for_clients, config)
    return TlsContexts(for_clients, _server_context(config), _broker_context(config))


def _server_context(config: SecurityConfig) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.options |= ssl.OP_NO_RENEGOTIATION
    _limit_versions(context, config)
    _load_key(context, config)
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


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return error.reason or "no PEM file that TLS can use"
    return getattr(error, "strerror", None) or str(error)

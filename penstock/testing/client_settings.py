"""Connection settings for the clients of a test, with the names that their library uses.

Invariant: the settings are complete: address, protocol, login and CA, for clusters with and without
security.
"""

import ssl
from collections.abc import Callable, Mapping
from typing import Any, Final

from penstock.deploy.clients.security import PLAINTEXT, ClientSecurity
from penstock.deploy.errors import UsageError
from penstock.deploy.local import client_dialects

Settings = dict[str, Any]


def settings_of(library: str, bootstrap: str, security: ClientSecurity) -> Settings:
    """Return the settings of a library: one of LIBRARIES. Raises UsageError."""
    if library not in LIBRARIES:
        raise UsageError(f"client_settings({library!r}) is not allowed: {', '.join(LIBRARIES)}")
    return LIBRARIES[library](bootstrap, security)


def _confluent_kafka(bootstrap: str, security: ClientSecurity) -> Settings:
    return {"bootstrap.servers": bootstrap, **security.properties()}


def _java(bootstrap: str, security: ClientSecurity) -> Settings:
    given = {} if security == PLAINTEXT else client_dialects.java(security)
    return {"bootstrap.servers": bootstrap, **given}


def _kafka_python(bootstrap: str, security: ClientSecurity) -> Settings:
    given = {} if security == PLAINTEXT else client_dialects.kafka_python(security)
    return {"bootstrap_servers": bootstrap.split(","), **given}


def _aiokafka(bootstrap: str, security: ClientSecurity) -> Settings:
    given = {} if security == PLAINTEXT else client_dialects.aiokafka(security)
    tls: ssl.SSLContext | None = security.tls()
    context = {} if tls is None else {"ssl_context": tls}
    return {"bootstrap_servers": bootstrap, **given, **context}


LIBRARIES: Final[Mapping[str, Callable[[str, ClientSecurity], Settings]]] = {
    "confluent-kafka": _confluent_kafka,
    "kafka-python": _kafka_python,
    "aiokafka": _aiokafka,
    "java": _java,
}
"""The supported libraries. confluent-kafka has the settings of librdkafka."""

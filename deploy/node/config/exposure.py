"""Find the listeners that let everyone in who reaches them.

A listener is insecure if it is bound to another address than loopback and clients need not
authenticate: PLAINTEXT, SSL without required client certificates, and the gRPC port of a controller
without TLS between nodes.

The health listener is none of them: it answers probes and `/metrics`, which tell figures about a
node, never names of topics, clients or users, and changes nothing. Probes of Kubernetes could not
authenticate. With the web console it may be one: `deploy.node.console_plan` decides that.

Invariant: pure.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from base.listeners import SecurityProtocol, parse_listeners
from broker.config import BrokerConfig
from broker.security.config import AUTH_REQUIRED, SecurityConfig
from controller.api.tls import TlsConfig
from controller.config import ControllerConfig


class InsecureListener(NamedTuple):
    """A listener, why it is insecure, and what to do. listener: as operators write it."""

    listener: str
    reason: str
    remedy: str


def insecure_listeners(parts: Mapping[type[Any], Any]) -> list[InsecureListener]:
    """Return the insecure listeners of a node. parts: its config objects by class; listeners whose
    config is missing are left out.
    """
    if BrokerConfig in parts and SecurityConfig in parts:
        return _of_broker(parts[BrokerConfig], parts[SecurityConfig])
    if ControllerConfig in parts and TlsConfig in parts:
        return _of_controller(parts[ControllerConfig], parts[TlsConfig])
    return []


def _of_broker(broker: BrokerConfig, security: SecurityConfig) -> list[InsecureListener]:
    found: list[InsecureListener] = []
    for listener in broker.bound:
        protocol = security.protocol_of(listener.name)
        if listener.is_loopback or protocol.has_sasl:
            continue
        if protocol is SecurityProtocol.PLAINTEXT:
            reason = "PLAINTEXT has no authentication"
            remedy = "use SASL_SSL, or SSL with ssl.client.auth=required"
        elif security.ssl_client_auth != AUTH_REQUIRED:
            reason = f"SSL with ssl.client.auth={security.ssl_client_auth} has no authentication"
            remedy = "set ssl.client.auth=required, or use SASL_SSL"
        else:
            continue
        found.append(InsecureListener(str(listener), reason, remedy))
    return found


def _of_controller(controller: ControllerConfig, tls: TlsConfig) -> list[InsecureListener]:
    if tls.certificate:
        return []
    reason = "without TLS between nodes anyone can register brokers, commit streams and vote"
    remedy = "set controller.ssl.certificate.location, controller.ssl.key.location and"
    return [
        InsecureListener(listener.address, reason, f"{remedy} controller.ssl.ca.location")
        for listener in parse_listeners("listeners", controller.listeners)
        if not listener.is_loopback
    ]

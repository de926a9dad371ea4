"""Find insecure listeners and controller connections of a node."""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from penstock.base.listeners import Listener, SecurityProtocol, is_loopback, parse_listeners
from penstock.broker.config import BrokerConfig
from penstock.broker.security.config import AUTH_REQUIRED, SecurityConfig
from penstock.controller.api.tls import TlsConfig
from penstock.controller.config import ControllerConfig

_SET_TLS: Final = (
    "set controller.ssl.certificate.location, controller.ssl.key.location and"
    " controller.ssl.ca.location"
)


class InsecureListener(NamedTuple):
    """A listener, the reason why it is insecure, and a remedy. listener: as configured."""

    listener: str
    reason: str
    remedy: str


class InsecureControllers(NamedTuple):
    """Controllers of a broker, the reason why the connection to them is insecure, and a remedy.
    controllers: host:port of the controllers that are not on loopback.
    """

    controllers: tuple[str, ...]
    reason: str
    remedy: str


Exposure = InsecureListener | InsecureControllers


def exposures(parts: Mapping[type[Any], Any]) -> list[Exposure]:
    """Return the exposures of a node. parts: its config objects by class; checks of missing configs
    are skipped.

    A listener is insecure if it is bound to another address than loopback and clients need not
    authenticate: PLAINTEXT, SSL without required client certificates, and the gRPC port of a
    controller without TLS between nodes. The controllers of a broker are insecure if remote clients
    authenticate at the broker and it connects to controllers on other addresses than loopback
    without TLS between nodes, because users, ACLs and quotas come from the controllers. The health
    listener is exempt: it is read-only and serves probes and `/metrics`, without names of topics,
    clients or users. Kubernetes probes could not authenticate. `deploy.node.console_plan` covers
    the web console. Invariant: pure.
    """
    if BrokerConfig in parts and SecurityConfig in parts:
        broker, security = parts[BrokerConfig], parts[SecurityConfig]
        found: list[Exposure] = [*_of_broker(broker, security)]
        if TlsConfig in parts:
            found += _controllers_of(broker, security, parts[TlsConfig])
        return found
    if ControllerConfig in parts and TlsConfig in parts:
        return [*_of_controller(parts[ControllerConfig], parts[TlsConfig])]
    return []


def _of_broker(broker: BrokerConfig, security: SecurityConfig) -> list[InsecureListener]:
    found: list[InsecureListener] = []
    for listener in broker.bound:
        if listener.is_loopback or _authenticates(listener, security):
            continue
        if security.protocol_of(listener.name) is SecurityProtocol.PLAINTEXT:
            reason = "PLAINTEXT has no authentication"
            remedy = "use SASL_SSL, or SSL with ssl.client.auth=required"
        else:
            auth = security.client_auth(listener.name)
            reason = f"SSL with ssl.client.auth={auth} has no authentication"
            remedy = "set ssl.client.auth=required, or use SASL_SSL"
        found.append(InsecureListener(str(listener), reason, remedy))
    return found


def _authenticates(listener: Listener, security: SecurityConfig) -> bool:
    protocol = security.protocol_of(listener.name)
    return protocol.has_sasl or (
        protocol.has_tls and security.client_auth(listener.name) == AUTH_REQUIRED
    )


def _controllers_of(
    broker: BrokerConfig, security: SecurityConfig, tls: TlsConfig
) -> list[InsecureControllers]:
    secure = next(
        (
            listener
            for listener in broker.bound
            if not listener.is_loopback and _authenticates(listener, security)
        ),
        None,
    )
    remote = tuple(each for each in broker.controllers if not is_loopback(_host(each)))
    if tls.certificate or secure is None or not remote:
        return []
    reason = (
        f"{secure} authenticates clients, but without TLS between nodes the controllers do not"
        " know this broker, and it accepts users and ACLs from any server at that address"
    )
    return [InsecureControllers(remote, reason, _SET_TLS)]


def _host(address: str) -> str:
    return address.strip().rpartition(":")[0]


def _of_controller(controller: ControllerConfig, tls: TlsConfig) -> list[InsecureListener]:
    if tls.certificate:
        return []
    reason = "without TLS between nodes anyone can register brokers, commit streams and vote"
    return [
        InsecureListener(listener.address, reason, _SET_TLS)
        for listener in parse_listeners("listeners", controller.listeners)
        if not listener.is_loopback
    ]

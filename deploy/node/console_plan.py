"""Decide whether a node may serve the web console as configured, and with which options.

If anything in the cluster requires a login, so does the console. A SASL listener always does.
Without `allow.insecure`, it is also required on controllers, which cannot determine whether there
are users, and on addresses other than loopback (docs/design/authorization.md).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, urlsplit, urlunsplit

from penstock.base.listeners import Listener, parse_listeners
from penstock.broker.config import BrokerConfig
from penstock.broker.security.config import SecurityConfig
from penstock.controller.api.tls import TlsConfig
from penstock.controller.config import ControllerConfig
from penstock.deploy.errors import UsageError
from penstock.deploy.node.config.console import CHANGE, ConsoleConfig
from penstock.deploy.node.config.definition import ProcessConfig, variable_of
from penstock.deploy.node.config.exposure import InsecureListener

if TYPE_CHECKING:
    from penstock.deploy.node.config.effective import Effective

BASE: Final = "/console"
_ANY_HOST: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - compared, not bound
_OWN: Final = "PENSTOCK_"


@dataclass(frozen=True, slots=True)
class ConsolePlan:
    """How to start the console process. arguments: the arguments of `penstock console`. variables:
    its environment variables, where other users cannot see secrets. is_in_clear: whether passwords
    are sent unencrypted, unless a proxy in front of the node uses TLS. insecure: the health
    listener, if it is open to other machines and the console has no login.
    """

    arguments: tuple[str, ...]
    variables: Mapping[str, str]
    is_in_clear: bool
    insecure: tuple[InsecureListener, ...] = ()

    def environment(self, inherited: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of the process: the node's environment without Penstock's
        settings.
        """
        kept = {name: value for name, value in inherited.items() if not name.startswith(_OWN)}
        return kept | dict(self.variables)


def plan_console(config: "Effective") -> ConsolePlan:
    """Return the plan of a node whose `console.access` is not off. Raises UsageError."""
    console = config.part(ConsoleConfig)
    process = config.part(ProcessConfig)
    if not process.health_listener:
        raise UsageError(
            f"console.access={console.access} needs health.listener, where the console is at {BASE}"
        )
    listener = parse_listeners("health_listener", [process.health_listener])[0]
    has_login = _has_users(console.command_config)
    reason = "" if has_login else _needs_login(config, listener)
    if reason:
        raise UsageError(
            f"console.access={console.access}: {reason}: set console.command.config to a file"
            " with security.protocol=SASL_SSL (or SASL_PLAINTEXT) and a user for the console"
        )
    arguments = ["--base-path", BASE, "--behind-node"]
    arguments += ["--login"] if has_login else []
    arguments += ["--allow-changes"] if console.access == CHANGE else []
    for name in console.names:
        arguments += ["--name", name]
    is_reached = not listener.is_loopback
    return ConsolePlan(
        tuple(arguments),
        _variables(config),
        has_login and is_reached,
        (_open(listener),) if is_reached and not has_login else (),
    )


def _open(listener: Listener) -> InsecureListener:
    return InsecureListener(
        listener.address,
        f"everyone who reaches it sees the cluster at {BASE}",
        "name console.command.config with SASL, or set console.access=off",
    )


def _has_users(path: str) -> bool:
    """Return whether the console connects with SASL. Raises UsageError if the file is wrong."""
    if not path:
        return False
    from pathlib import Path

    from penstock.deploy.clients.security import read_file

    return read_file(Path(path)).protocol.has_sasl


def _needs_login(config: "Effective", listener: Listener) -> str:
    """Return the reason why the console requires a login, or "" if it does not."""
    allows = config.part(ProcessConfig).allow_insecure
    if config.role == "broker":
        security = config.part(SecurityConfig)
        bound = config.part(BrokerConfig).bound
        if any(security.protocol_of(each.name).has_sasl for each in bound):
            return "clients of this broker authenticate, and so must users of the console"
    elif not allows:
        return (
            "a controller does not know whether the cluster has users, so those of the console"
            " must authenticate, or set allow.insecure"
        )
    if listener.is_loopback or allows:
        return ""
    return (
        f"everyone who reaches {listener.address} would see the cluster, so users must"
        " authenticate, or set allow.insecure"
    )


def _variables(config: "Effective") -> dict[str, str]:
    console, tls = config.part(ConsoleConfig), config.part(TlsConfig)
    found = {
        "PENSTOCK_BOOTSTRAP": ",".join(console.bootstrap),
        "PENSTOCK_CONTROLLER": ",".join(_controllers(config)),
        "PENSTOCK_STORE": config.part(ProcessConfig).store,
        "PENSTOCK_WAL_STORE": config.part(ProcessConfig).wal_store,
        "PENSTOCK_COMMAND_CONFIG": console.command_config,
        "PENSTOCK_SCHEMA_REGISTRY": _registry(config),
    }
    if tls.certificate:
        if not console.certificate:
            raise UsageError(
                "with TLS between nodes the console needs console.ssl.certificate.location and"
                " console.ssl.key.location: a certificate with a name of"
                " controller.ssl.admin.names"
            )
        found[variable_of("controller.ssl.certificate.location")] = console.certificate
        found[variable_of("controller.ssl.key.location")] = console.key
        found[variable_of("controller.ssl.ca.location")] = tls.ca
    return {name: value for name, value in found.items() if value}


def _controllers(config: "Effective") -> list[str]:
    if config.role == "broker":
        return list(config.part(BrokerConfig).controllers)
    controller = config.part(ControllerConfig)
    others = [peer.rpartition("@")[2] for peer in controller.peers] or list(controller.join)
    texts = controller.advertised_listeners or controller.listeners
    own = [
        each._replace(host=_ANY_HOST.get(each.host, each.host)).address
        for each in parse_listeners("listeners", texts)
    ]
    return others or own


def _registry(config: "Effective") -> str:
    """Return the URL of a broker's schema registry, with its user."""
    if config.role != "broker":
        return ""
    broker = config.part(BrokerConfig)
    if broker.schema_registry_ssl_truststore_location or not broker.schema_registry_url:
        return ""
    parts = urlsplit(broker.schema_registry_url)
    user, colon, password = broker.schema_registry_basic_auth_user_info.partition(":")
    if not colon:
        return broker.schema_registry_url
    info = f"{quote(user, safe='')}:{quote(password, safe='')}@"
    return urlunsplit(parts._replace(netloc=info + parts.netloc))

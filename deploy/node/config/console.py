"""Settings of the web console that a node serves at `/console` of its health listener.

Invariant: pure. `deploy.node.console_plan` decides whether a node may serve the console as
configured.
"""

from dataclasses import dataclass
from typing import Annotated, Final

from penstock.base.settings import Kind, Setting, SettingInvalid, check

OFF: Final = "off"
READ: Final = "read"
CHANGE: Final = "change"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleConfig:
    """Whether and how a node serves the web console."""

    access: Annotated[str, Setting("console.access", Kind.ENUM, choices=(OFF, READ, CHANGE))] = OFF
    """Whether `health.listener` serves the web console at /console, and whether users can make
    changes. Its process starts with the first request. Needs the `console` extra.
    """

    bootstrap: Annotated[tuple[str, ...], Setting("console.bootstrap.servers", Kind.LIST)] = ()
    """host:port of brokers to which the console connects. Required with `console.access`."""

    command_config: Annotated[str, Setting("console.command.config", Kind.TEXT)] = ""
    """File of client properties, as of `--command-config`: how the console connects to brokers, and
    its own user. With SASL, users log in with their cluster credentials. Required if a listener of
    this broker has SASL, on controllers, and for a `health.listener` on another address than
    loopback; the last two unless `allow.insecure` is set.
    """

    names: Annotated[tuple[str, ...], Setting("console.host.names", Kind.LIST)] = ()
    """Host names of the console in browsers, besides addresses and localhost."""

    certificate: Annotated[str, Setting("console.ssl.certificate.location", Kind.TEXT)] = ""
    """PEM file with the certificate with which the console connects to controllers, with a name of
    `controller.ssl.admin.names`. Required with TLS between nodes.
    """

    key: Annotated[str, Setting("console.ssl.key.location", Kind.TEXT)] = ""
    """PEM file with its private key, without a password."""

    def __post_init__(self) -> None:
        check(self)
        if self.access != OFF and not self.bootstrap:
            raise SettingInvalid(
                "bootstrap", "", "host:port of brokers, several separated by commas"
            )
        if bool(self.certificate) != bool(self.key):
            raise SettingInvalid(
                "certificate", self.certificate, "both certificate and key, or neither"
            )

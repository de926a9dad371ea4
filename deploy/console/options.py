"""Options of a console: its cluster, address and access control. Unsafe combinations are rejected.

Invariant: pure. On addresses other than loopback, the console requires a login as a user of the
cluster, unless `allow_insecure` is set (docs/design/authorization.md).
"""

import re
from dataclasses import dataclass, field
from typing import Final

from penstock.base.listeners import is_loopback
from penstock.deploy.clients.security import PLAINTEXT, ClientSecurity
from penstock.deploy.errors import UsageError, check_port
from penstock.protocol.registry.settings import RegistrySettings

_PATH: Final = re.compile(r"(/[A-Za-z0-9_-]+)+")
PORT: Final = 9080
"""The default port."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleOptions:
    """Cluster and address of a console. controller, store: empty if unknown; pages that need them
    then display an explanation. wal_store: empty if the cluster has none or it is unknown.

    names: host names of the console, in addition to addresses and `localhost`. login: whether users
    must log in. security: how the console itself connects to brokers. file_descriptor: a listening
    socket, instead of host and port. schema_registry: used to decode records. base: path prefix of
    all pages, such as `/console`; empty for none. is_behind_node: whether a node passes connections
    to the console; the file descriptor is then a socket to the node.
    """

    bootstrap: str
    controller: str = ""
    store: str = ""
    wal_store: str = ""
    host: str = "127.0.0.1"
    port: int = PORT
    names: tuple[str, ...] = ()
    login: bool = False
    allow_changes: bool = False
    allow_insecure: bool = False
    certificate: str = ""
    key: str = ""
    security: ClientSecurity = field(default=PLAINTEXT)
    file_descriptor: int | None = None
    schema_registry: RegistrySettings | None = None
    base: str = ""
    is_behind_node: bool = False

    @property
    def has_tls(self) -> bool:
        return bool(self.certificate)

    def has(self, path: str) -> bool:
        """Return whether a path belongs to this console."""
        return not self.base or path == self.base or path.startswith(f"{self.base}/")

    def inner(self, path: str) -> str:
        """Return a path without the base."""
        return path.removeprefix(self.base) or "/"


def check(options: ConsoleOptions) -> ConsoleOptions:
    """Return the options if they are safe. Raises UsageError."""
    check_port("--port", options.port)
    if bool(options.certificate) != bool(options.key):
        raise UsageError("--ssl-certificate and --ssl-key must be set together")
    if options.base and not _PATH.fullmatch(options.base):
        raise UsageError(f"--base-path {options.base} is not allowed: use /NAME, such as /console")
    if options.login and not options.security.protocol.has_sasl:
        raise UsageError(
            "--login requires brokers with users: set --command-config to a file with"
            " security.protocol=SASL_SSL (or SASL_PLAINTEXT) and a user for the console itself"
        )
    if not (options.login or options.allow_insecure or is_loopback(options.host)):
        raise UsageError(
            f"--host {options.host} allows unauthenticated access: add --login and"
            " --command-config, so that users log in with their cluster credentials, or accept it"
            " with --allow-insecure"
        )
    return options

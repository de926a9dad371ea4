"""Create the files of a secure local cluster: certificates, initial users and client properties.

Certificates are created at each start, so they never expire; passwords are preserved. Only the
owner can read the files. `cryptography` is imported only when files are created, because insecure
clusters start without it. Not for production.
"""

import shlex
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from secrets import token_urlsafe
from typing import Final

from penstock.base.acls import STANDARD_AUTHORIZER
from penstock.base.errors import ExpectedError
from penstock.base.listeners import SecurityProtocol
from penstock.broker.security.users_file import parse_users
from penstock.deploy.clients.security import ClientSecurity
from penstock.deploy.local.client_dialects import java, properties_text
from penstock.deploy.node.config.definition import variable_of
from penstock.deploy.private_files import write_private

CLIENT_PROTOCOL: Final = SecurityProtocol.SASL_SSL
ADMIN: Final = "admin"
BROKER: Final = "broker"
NODE_ROLES: Final = ("controller", "broker", "admin")
_PASSWORD_BYTES: Final = 18
_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
_OWNER_ONLY: Final = 0o700


class SecurityFiles:
    """The files of a secure local cluster, in a given directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.truststore = directory / "ca.pem"
        self.keystore = directory / "broker.pem"
        self.users = directory / "users"
        self.client_properties = directory / "client.properties"
        self.librdkafka_properties = directory / "librdkafka.properties"
        self.environment = directory / "environment"

    def admin_variables(self) -> dict[str, str]:
        """Return the environment variables that commands need to connect to controllers."""
        return {variable_of(name): path for name, path in self.node_settings("admin").items()}

    def node_settings(self, role: str) -> dict[str, str]:
        """Return the settings for TLS between nodes. role: one of NODE_ROLES."""
        nodes = self.directory / "nodes"
        return {
            "controller.ssl.certificate.location": str(nodes / f"{role}.crt"),
            "controller.ssl.key.location": str(nodes / f"{role}.key"),
            "controller.ssl.ca.location": str(nodes / "ca.crt"),
        }

    def broker_settings(self) -> dict[str, str]:
        """Return the settings of brokers whose listeners speak CLIENT_PROTOCOL."""
        return {
            "ssl.keystore.location": str(self.keystore),
            "ssl.truststore.location": str(self.truststore),
            "sasl.users.file": str(self.users),
            "sasl.inter.broker.username": BROKER,
        }


AUTHORIZER_SETTINGS: Final = {
    "authorizer.class.name": STANDARD_AUTHORIZER,
    "super.users": f"User:{ADMIN};User:{BROKER}",
}
"""Authorizer settings of brokers and controllers."""


def new_password() -> str:
    return token_urlsafe(_PASSWORD_BYTES)


def names_of_this_machine(host: str) -> tuple[str, ...]:
    """Return the host names for clients if brokers listen on this address."""
    names = [*_LOOPBACK, host]
    if host in {"0.0.0.0", "::", ""}:  # noqa: S104 - a comparison
        names = [*_LOOPBACK, socket.gethostname()]
        with suppress(OSError):
            names += [str(found[4][0]) for found in socket.getaddrinfo(names[-1], None)]
    return tuple(dict.fromkeys(names))


def make(
    directory: Path,
    hosts: Sequence[str],
    bootstrap: str,
    *,
    password: Callable[[], str] = new_password,
) -> ClientSecurity:
    """Create the files, and return the connection settings of the super user. hosts: names of the
    brokers and controllers. password: generates a password. Raises ExpectedError.
    """
    files = SecurityFiles(directory)
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=_OWNER_ONLY)
        directory.chmod(_OWNER_ONLY)
        _write_certificates(files, hosts)
        users = _users(files, password)
        admin = ClientSecurity(
            CLIENT_PROTOCOL,
            "SCRAM-SHA-512",
            ADMIN,
            users[ADMIN],
            ca=str(files.truststore),
        )
        _write_for_clients(files, admin, bootstrap)
    except OSError as error:
        raise ExpectedError(f"{error.filename or directory}: {error.strerror}") from None
    return admin


def _write_certificates(files: SecurityFiles, hosts: Sequence[str]) -> None:
    from penstock.deploy.local.certificates import Authority

    clients = Authority.make("penstock dev clients")
    files.truststore.write_bytes(clients.pem)
    write_private(files.keystore, clients.issue("broker", hosts=hosts).keystore)
    nodes = Authority.make("penstock dev nodes")
    (files.directory / "nodes").mkdir(exist_ok=True)
    for role in NODE_ROLES:
        issued = nodes.issue(f"penstock-{role}", hosts=hosts)
        certificate, key, ca = (Path(path) for path in files.node_settings(role).values())
        certificate.write_bytes(issued.certificate)
        write_private(key, issued.key)
        ca.write_bytes(nodes.pem)


def _users(files: SecurityFiles, password: Callable[[], str]) -> dict[str, str]:
    """Return the passwords in the users file, after adding missing ones."""
    known: dict[str, str] = {}
    if files.users.exists():
        try:
            known = parse_users(files.users.read_text())
        except ValueError as error:
            raise ExpectedError(
                f"{files.users}: {error}; delete the file to create a new one"
            ) from None
    users = known | {name: password() for name in (ADMIN, BROKER) if name not in known}
    text = "".join(f"{name}:{secret}\n" for name, secret in users.items())
    write_private(files.users, text.encode())
    return users


def _write_for_clients(files: SecurityFiles, admin: ClientSecurity, bootstrap: str) -> None:
    write_private(files.client_properties, properties_text(java(admin)).encode())
    write_private(files.librdkafka_properties, properties_text(admin.properties()).encode())
    variables = {
        "PENSTOCK_BOOTSTRAP": bootstrap,
        "PENSTOCK_COMMAND_CONFIG": str(files.client_properties),
    }
    variables |= files.admin_variables()
    lines = (f"export {name}={shlex.quote(value)}\n" for name, value in variables.items())
    files.environment.write_text("".join(lines))

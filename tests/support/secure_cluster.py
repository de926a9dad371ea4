"""Clusters whose listeners authenticate clients, with generated certificates and users."""

from pathlib import Path
from typing import Any

from penstock.base.scram import ScramMechanism, credential_of, salted_password
from penstock.broker.security.config import SecurityConfig
from penstock.controller.api.scram_messages import AlterScramCredentials, ScramUpsertion
from penstock.deploy.local.certificates import Authority
from penstock.deploy.private_files import write_private
from tests.support.cluster import Cluster

BROKER_USER = "broker"
BROKER_PASSWORD = "broker secret"
ITERATIONS = 4_096


class SecureFiles:
    """A CA, the broker keystore and the user file in one directory."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.authority = Authority.make("test CA")
        self.truststore = directory / "ca.pem"
        self.truststore.write_bytes(self.authority.pem)
        self.keystore = directory / "broker.pem"
        self.renew_keystore()
        self.users = directory / "users"
        write_private(self.users, f"{BROKER_USER}:{BROKER_PASSWORD}\n".encode())

    def renew_keystore(self, authority: Authority | None = None) -> None:
        issued = (authority or self.authority).issue("broker", hosts=["127.0.0.1", "localhost"])
        write_private(self.keystore, issued.keystore)

    def client(self, name: str, *, unit: str = "", authority: Authority | None = None) -> Path:
        """Return the PEM file of a client's key and certificate."""
        path = self.directory / f"{name}.pem"
        issued = (authority or self.authority).issue(name, unit=unit)
        write_private(path, issued.keystore)
        return path

    def config(self, **settings: Any) -> SecurityConfig:
        defaults: dict[str, Any] = {
            "ssl_keystore_location": str(self.keystore),
            "ssl_truststore_location": str(self.truststore),
            "sasl_users_file": str(self.users),
            "sasl_inter_broker_username": BROKER_USER,
            "sasl_enabled_mechanisms": ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN"),
            "failed_authentication_delay_ms": 10,
            "ssl_reload_interval_ms": 100,
        }
        return SecurityConfig(**(defaults | settings))


def secure_cluster(
    directory: Path,
    *listeners: str,
    brokers: int = 1,
    security: dict[str, Any] | None = None,
    files: SecureFiles | None = None,
    **settings: Any,
) -> Cluster:
    """Return a cluster with these listeners, such as `SASL_SSL`, on free ports."""
    files = files or SecureFiles(directory / "security")
    return Cluster(
        directory,
        brokers=brokers,
        security=files.config(**(security or {})),
        listeners=tuple(f"{name}://127.0.0.1:0" for name in listeners),
        **settings,
    )


async def create_user(
    cluster: Cluster, user: str, password: str, *mechanisms: ScramMechanism
) -> None:
    """Create a user with each mechanism, by default with all."""
    for mechanism in mechanisms or ScramMechanism:
        salt = f"salt of {user}".encode()
        salted = salted_password(mechanism, password, salt, ITERATIONS)
        credential = credential_of(mechanism, salted, salt, ITERATIONS)
        altered = await cluster.broker.client.alter_scram_credentials(
            AlterScramCredentials(
                upsertions=[
                    ScramUpsertion(
                        user=user,
                        mechanism=mechanism,
                        salt=credential.salt,
                        stored_key=credential.stored_key,
                        server_key=credential.server_key,
                        iterations=ITERATIONS,
                    )
                ]
            )
        )
        assert not altered.results[0].status, altered.results

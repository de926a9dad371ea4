"""Connect to the brokers of the selected cluster, for requests that confluent-kafka does not
support.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from penstock.deploy.clients.restarts import has_restarted
from penstock.deploy.clients.security import ClientSecurity, current_security
from penstock.deploy.clients.target import Target, find_brokers, no_broker
from penstock.protocol import apis
from penstock.protocol.client.brokers import BY_NAME
from penstock.protocol.client.connection import Connection
from penstock.protocol.client.errors import KafkaFailed, NoBroker
from penstock.protocol.gen import metadata

_T = TypeVar("_T")


class WireClient(Connection):
    """Connects to the first bootstrap server that responds. Use it as a context manager."""

    def __init__(self, bootstrap: str, security: ClientSecurity | None = None) -> None:
        """security: how to connect; None for the settings of `--command-config`."""
        target, connect = find_brokers(bootstrap), super().__init__
        reached(target, lambda: connect(target.bootstrap, security or current_security()))
        check_cluster(target, self)


def reached(target: Target, connect: Callable[[], _T]) -> _T:
    """Return the result of `connect`, retrying while the brokers restart. Raises KafkaFailed."""
    try:
        return connect()
    except NoBroker as error:
        reason = error.reason
    if has_restarted(target.bootstrap):
        with suppress(NoBroker):
            return connect()
    raise no_broker(target, reason)


def check_reachable(target: Target, security: ClientSecurity) -> None:
    """Connect and log in with the settings of the client. Raises KafkaFailed if no broker responds,
    none accepts the client's TLS settings or login, or one belongs to another cluster.
    """
    with reached(target, lambda: Connection(target.bootstrap, security)) as connection:
        check_cluster(target, connection)


def check_cluster(target: Target, connection: Connection) -> None:
    """Close the connection and raise KafkaFailed if a broker does not belong to the cluster of the
    state file, for example because another process has taken the port of a dead broker.
    """
    if not target.cluster_id:
        return
    nothing = metadata.MetadataRequest(topics=[])
    try:
        found = connection.send_request(
            apis.METADATA, nothing, metadata.MetadataResponse, version=BY_NAME[apis.METADATA]
        ).cluster_id
    except BaseException:
        connection.close()
        raise
    if found != target.cluster_id:
        connection.close()
        raise KafkaFailed(
            f"the broker that responds at {target.bootstrap} belongs to cluster {found}, not to"
            f" {target.origin}, which is cluster {target.cluster_id}: another process has one of"
            " its ports; restart `penstock dev`, or specify the other cluster with --bootstrap"
        )

"""The brokers of the selected cluster."""

from collections.abc import Collection, Iterable, Sequence

from penstock.deploy.clients.security import ClientSecurity, current_security
from penstock.deploy.clients.target import find_brokers
from penstock.deploy.clients.wire import check_cluster, reached
from penstock.deploy.errors import near_hint
from penstock.protocol.client import brokers
from penstock.protocol.client.connection import Connection
from penstock.protocol.client.errors import DoesNotExist


def no_topic(name: str, known: Iterable[str]) -> DoesNotExist:
    """Return the error for a topic that does not exist, with similar names."""
    hint = near_hint(name, known, "`penstock topics list` lists the topics")
    return DoesNotExist(f"topic {name!r} does not exist; {hint}")


class Brokers(brokers.Brokers):
    """A client of the selected cluster. Use it as a context manager."""

    def __init__(
        self,
        bootstrap: str,
        skipped: Collection[int] = (),
        *,
        security: ClientSecurity | None = None,
    ) -> None:
        """skipped: see the base class. security: how to connect; None for the settings of
        `--command-config`.
        """
        self._target = find_brokers(bootstrap)
        super().__init__(self._target.bootstrap, security or current_security(), skipped=skipped)

    def connect(self) -> Connection:
        connection = reached(self._target, super().connect)
        check_cluster(self._target, connection)
        return connection

    def partitions(self, topics: Sequence[str]) -> dict[str, list[int]]:
        """Return the partitions of topics. Raises KafkaFailed, with similar topic names if there
        are any.
        """
        found = {
            topic.name or "": sorted(part.partition_index for part in topic.partitions)
            for topic in self.metadata(topics).topics
            if not topic.error_code
        }
        for name in topics:
            if name not in found:
                raise no_topic(name, [topic.name or "" for topic in self.metadata(None).topics])
        return found

"""Select the connection to close when there are too many: the oldest one of the address with the
most connections, so that a flood affects only its own connections. Pure. Each change takes O(1).

IPv6 addresses in the same /64 count as one, because a /64 usually belongs to a single host.
"""

from collections import OrderedDict
from collections.abc import Iterator
from ipaddress import IPv6Address
from typing import Final, Generic, TypeVar

_Connection = TypeVar("_Connection")
_SUBNET_BITS: Final = 64


class ConnectionsByAddress(Generic[_Connection]):
    """Connections by client address, in the order in which they were added."""

    def __init__(self) -> None:
        self._hosts: dict[_Connection, str] = {}
        self._by_host: dict[str, OrderedDict[_Connection, None]] = {}
        self._hosts_by_count: dict[int, OrderedDict[str, None]] = {}
        self._count_max = 0

    def __len__(self) -> int:
        return len(self._hosts)

    def __iter__(self) -> Iterator[_Connection]:
        return iter(self._hosts)

    def __contains__(self, connection: object) -> bool:
        return connection in self._hosts

    @property
    def count_max(self) -> int:
        """Return the number of connections of the address with the most connections."""
        return self._count_max

    def count(self, address: str) -> int:
        return len(self._by_host.get(_host_of(address), ()))

    def add(self, connection: _Connection, address: str) -> None:
        host = _host_of(address)
        self._hosts[connection] = host
        connections = self._by_host.setdefault(host, OrderedDict())
        connections[connection] = None
        self._move(host, len(connections) - 1, len(connections))

    def discard(self, connection: _Connection) -> None:
        host = self._hosts.pop(connection, None)
        if host is None:
            return
        connections = self._by_host[host]
        del connections[connection]
        if not connections:
            del self._by_host[host]
        self._move(host, len(connections) + 1, len(connections))

    def pop(self) -> _Connection:
        """Remove the oldest connection of the address with the most connections. If several
        addresses have the same number, choose the one whose newest connection is oldest. Raises
        IndexError if there are none.
        """
        if not self._hosts:
            raise IndexError("there are no connections")
        host = next(iter(self._hosts_by_count[self._count_max]))
        connection = next(iter(self._by_host[host]))
        self.discard(connection)
        return connection

    def _move(self, host: str, before: int, after: int) -> None:
        if before:
            hosts = self._hosts_by_count[before]
            del hosts[host]
            if not hosts:
                del self._hosts_by_count[before]
        if after:
            self._hosts_by_count.setdefault(after, OrderedDict())[host] = None
        # Counts change by one, so after the removal this address still has the second largest
        # count.
        if after > self._count_max or self._count_max not in self._hosts_by_count:
            self._count_max = after


def _host_of(address: str) -> str:
    if ":" not in address:
        return address
    try:
        return str(int(IPv6Address(address.partition("%")[0])) >> _SUBNET_BITS)
    except ValueError:
        return address

"""Detect late requests of a transactional producer: those on an older connection than one that the
producer has used since.

A client without an answer closes the connection, opens another one and repeats the request. The
first copy may still be in flight and arrive when the producer's next transaction is open. Requests
of transaction version 1 do not name their transaction (version 2, KIP-890, does), but the
connection tells the copies apart: a broker numbers connections as it accepts them, and a client
opens the next one after it has used the previous one (ApiVersions).

Invariant: no client is locked out. The caller closes the connection of a `LateRequest`, and a new
connection is never late. So a client that alternates between connections, or two clients with one
producer, reconnect and continue.
Limits: ENTRIES_MAX producers. Beyond that the least recently used one is dropped, and its late
requests are executed.
Must not: know the state of a transaction, or compare producers of different epochs (the epoch
decides there).
Source: KAFKA-17754; KIP-890.
"""

from collections import OrderedDict
from typing import Final

ENTRIES_MAX: Final = 50_000
"""About 300 bytes each."""


class LateRequest(Exception):
    """Raised for a request that the client has given up. Close its connection, which the client no
    longer reads, and change nothing.
    """


class ConnectionOrder:
    __slots__ = ("_entries_max", "_newest")

    def __init__(self, entries_max: int = ENTRIES_MAX) -> None:
        self._newest: OrderedDict[tuple[str, int, int], int] = OrderedDict()
        self._entries_max = entries_max

    def __len__(self) -> int:
        return len(self._newest)

    def admit(self, name: str, producer_id: int, producer_epoch: int, connection_id: int) -> None:
        """Record a request that is about to be executed. name: its transactional id or group.
        Raises LateRequest.
        """
        key = (name, producer_id, producer_epoch)
        newest = self._newest.get(key, connection_id)
        if connection_id < newest:
            raise LateRequest(
                f"a request for {name} of producer {producer_id} epoch {producer_epoch} is late:"
                f" its connection ({connection_id}) is older than the producer's current one"
                f" ({newest}); reconnect and retry"
            )
        self._newest[key] = connection_id
        self._newest.move_to_end(key)
        if len(self._newest) > self._entries_max:
            self._newest.popitem(last=False)

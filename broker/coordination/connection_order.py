"""Which requests of a transactional producer are late: those on an older connection than one that
the producer has used since.

A client that gets no answer closes the connection, opens another one, and repeats the request. The
first copy may still be under way and arrive when the producer's next transaction is open. Requests
of transaction version 1 do not say which transaction they mean (version 2, KIP-890, does), but the
connection tells the copies apart: a broker numbers connections as it accepts them, and a client
opens the next one after it has spoken (ApiVersions) on the one before.

Invariant: no client is shut out: the caller closes the connection of a `LateRequest`, and a new
connection is never late. So a client that uses several connections in turn, or two that share a
producer, connect again and go on.
Limits: ENTRIES_MAX producers; beyond that the one that asked longest ago is forgotten, and its late
requests are carried out.
Must not: know the state of a transaction, or compare producers of different epochs (the epoch
decides there).
Source: KAFKA-17754; KIP-890.
"""

from collections import OrderedDict
from typing import Final

ENTRIES_MAX: Final = 50_000
"""About 300 bytes each."""


class LateRequest(Exception):
    """The client has given this request up. Close its connection, which the client does not read
    any more, and change nothing.
    """


class ConnectionOrder:
    __slots__ = ("_entries_max", "_newest")

    def __init__(self, entries_max: int = ENTRIES_MAX) -> None:
        self._newest: OrderedDict[tuple[str, int, int], int] = OrderedDict()
        self._entries_max = entries_max

    def __len__(self) -> int:
        return len(self._newest)

    def admit(self, name: str, producer_id: int, producer_epoch: int, connection_id: int) -> None:
        """Note a request that is about to be carried out. name: the transactional id or the group
        that it is for. Raises LateRequest.
        """
        key = (name, producer_id, producer_epoch)
        newest = self._newest.get(key, connection_id)
        if connection_id < newest:
            raise LateRequest(
                f"a request for {name} of producer {producer_id} epoch {producer_epoch} came late:"
                f" its connection ({connection_id}) is older than the one that the producer uses"
                f" now ({newest}); connect again and repeat it"
            )
        self._newest[key] = connection_id
        self._newest.move_to_end(key)
        if len(self._newest) > self._entries_max:
            self._newest.popitem(last=False)

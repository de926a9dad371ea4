"""This broker's fetch session at a leader (KIP-227). Each request contains only partitions whose
position has changed.
"""

from collections.abc import Mapping
from typing import Final, TypeAlias
from uuid import UUID

from penstock.base.ids import Offset, StreamEpoch
from penstock.broker.tail.partition import TailPartition
from penstock.controller.metadata.topics import PartitionKey
from penstock.protocol.gen.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    ReplicaState,
)
from penstock.stream.ports import BrokerIncarnation

_NO_SESSION: Final = 0
_FIRST_EPOCH: Final = 0
_FINAL_EPOCH: Final = -1
_EPOCH_MAX: Final = 2**31 - 1
WAIT_MS: Final = 500
_RESPONSE_BYTES_MAX: Final = 1 << 20
"""Maximum size of a response for all partitions, enough for about 25,000 slots."""

LEAVES_BYTES: Final = 0
"""The `max_bytes` value by which a broker indicates that it currently cannot serve consumers. The
response is ignored.
"""

Position: TypeAlias = tuple[Offset, StreamEpoch]
"""The offset at which the next response starts, and the leader epoch."""


class TailSession:
    def __init__(self, me: BrokerIncarnation) -> None:
        self._replica = ReplicaState(me.node_id, me.node_epoch)
        self._session_id = _NO_SESSION
        self._epoch = _FIRST_EPOCH
        self._requested: dict[PartitionKey, Position] = {}
        """The position of each partition in the leader's session."""

    def request(
        self, tails: Mapping[PartitionKey, TailPartition], *, leaves: bool = False
    ) -> FetchRequest:
        """Return the next request. Call this after the previous response or an error. leaves:
        whether to ask the leader not to redirect consumers here for now.

        A request without partitions ends the session, and receives an immediate response.
        """
        session_id = self._session_id
        if not tails:
            self.reset()
        wanted = _wanted(tails)
        changed = [key for key, state in wanted.items() if self._requested.get(key) != state]
        gone = [key for key in self._requested if key not in wanted]
        self._requested = wanted
        return FetchRequest(
            replica_state=self._replica,
            max_wait_ms=WAIT_MS,
            min_bytes=1,
            max_bytes=LEAVES_BYTES if leaves else _RESPONSE_BYTES_MAX,
            session_id=session_id,
            session_epoch=self._epoch if tails else _FINAL_EPOCH,
            topics=_topics({key: wanted[key] for key in changed}),
            forgotten_topics_data=[
                ForgottenTopic(topic_id=key.topic_id, partitions=[key.partition]) for key in gone
            ],
        )

    def take_response(self, response: FetchResponse) -> bool:
        """Continue the session. Return False if the session no longer exists, in which case the
        response is empty.
        """
        if response.error_code:
            self.reset()
            return False
        if response.session_id == _NO_SESSION:
            self.reset()  # the leader has no room for another session
            return True
        self._session_id = response.session_id
        self._epoch = self._epoch % _EPOCH_MAX + 1
        return True

    def reset(self) -> None:
        """Start a new session after an error."""
        self._session_id, self._epoch = _NO_SESSION, _FIRST_EPOCH
        self._requested.clear()


def first_request(
    me: BrokerIncarnation, tails: Mapping[PartitionKey, TailPartition]
) -> FetchRequest:
    """Return a request without a session, to which the leader responds immediately."""
    return FetchRequest(
        replica_state=ReplicaState(me.node_id, me.node_epoch),
        max_bytes=_RESPONSE_BYTES_MAX,
        topics=_topics(_wanted(tails)),
    )


def _wanted(tails: Mapping[PartitionKey, TailPartition]) -> dict[PartitionKey, Position]:
    return {key: (tail.end_offset, tail.leader_epoch) for key, tail in tails.items()}


def _topics(wanted: Mapping[PartitionKey, Position]) -> list[FetchTopic]:
    topics: dict[UUID, list[FetchPartition]] = {}
    for key, (offset, leader_epoch) in wanted.items():
        topics.setdefault(key.topic_id, []).append(
            FetchPartition(
                key.partition, leader_epoch, offset, partition_max_bytes=_RESPONSE_BYTES_MAX
            )
        )
    return [FetchTopic(topic_id, partitions=items) for topic_id, items in topics.items()]

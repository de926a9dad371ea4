"""Incremental fetch sessions (KIP-227).

A full request (epoch 0) creates a session. Later requests contain only changed partitions, and
responses contain only partitions with records, errors, or a changed high watermark or log start.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final

from msgspec import Struct

from penstock.broker.errors import ErrorCode
from penstock.controller.metadata.topic_names import NAME_CHARS_MAX
from penstock.protocol import apis
from penstock.protocol.fetch import FetchPartitionResult
from penstock.protocol.gen.fetch import FetchPartition, FetchRequest, ForgottenTopic
from penstock.protocol.request_limits import elements_max
from penstock.protocol.topic_key import NO_TOPIC_ID, TopicKey

PARTITIONS_MAX: Final = 500_000
"""Maximum number of partitions in all sessions of a broker. Each uses about 400 bytes."""
SESSION_PARTITIONS_MAX: Final = elements_max(apis.FETCH.key)
"""Maximum number of partitions in one session, which is the same as in one request."""
EVICTION_S: Final = 120.0
"""As in Kafka, sessions that were created or used more recently than this are not evicted."""

_FINAL_EPOCH: Final = -1
_FIRST_EPOCH: Final = 0
_NO_SESSION: Final = 0
_ID_MAX: Final = 2**31 - 1
_SESSIONS_FROM: Final = 7
_BY_TOPIC_ID_FROM: Final = 13
_UNKNOWN: Final = -1

PartitionKey = tuple[TopicKey, int]


class SessionPartition(Struct, eq=False):
    """The fetch parameters of one partition, and the offsets in the last response."""

    key: TopicKey
    wanted: FetchPartition
    high_watermark: int = _UNKNOWN
    log_start_offset: int = _UNKNOWN

    def is_news(self, result: FetchPartitionResult) -> bool:
        """Return whether the response must contain `result`, and record that it was sent. After an
        error, the next successful result must always be sent.
        """
        is_news = bool(
            result.records
            or result.error_code
            or result.diverging_epoch
            or result.preferred_read_replica >= 0
        )
        if (
            result.high_watermark != self.high_watermark
            or result.log_start_offset != self.log_start_offset
        ):
            is_news = True
            self.log_start_offset = result.log_start_offset
            self.high_watermark = result.high_watermark
        if result.error_code:
            self.high_watermark = _UNKNOWN
        return is_news


@dataclass(slots=True)
class FetchSession:
    session_id: int
    by_topic_id: bool
    partitions: dict[PartitionKey, SessionPartition]
    created_at: float
    used_at: float
    epoch: int = _FIRST_EPOCH + 1
    """The session epoch of the next request."""


class SessionCall(Struct, eq=False):
    """One Fetch request: its partitions, and the state of its session."""

    partitions: Sequence[SessionPartition]
    error_code: ErrorCode = ErrorCode.NONE
    session: FetchSession | None = None
    """The session that the request continues."""
    epoch: int = 0
    """Equal to `session.epoch` unless a later request has continued the session."""
    creates: bool = False
    """Whether the response creates a session."""
    by_topic_id: bool = False


@dataclass(slots=True)
class FetchSessions:
    """The sessions of one broker. slots_max: the maximum number of sessions; 0 disables them. Times
    are event loop seconds.

    The epoch of a session increases with each request; a request with another epoch fails with
    INVALID_FETCH_SESSION_EPOCH and changes nothing. Partitions with records move to the end of the
    session, so that each partition gets its turn. If there is no room, the least recently used
    session is evicted if it has been idle for 2 minutes; otherwise, the smallest session that is 2
    minutes old is evicted if the new one is larger.
    """

    slots_max: int
    rng: Random
    partitions_max: int = PARTITIONS_MAX
    evicted_count: int = 0
    partition_count: int = 0
    _sessions: dict[int, FetchSession] = field(default_factory=dict[int, FetchSession])
    """Sessions in last-use order."""

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(self, request: FetchRequest, version: int, now: float) -> SessionCall:
        """Return the partitions to fetch: those in the request, or all partitions of the session
        that it continues.
        """
        by_topic_id = version >= _BY_TOPIC_ID_FROM
        if version < _SESSIONS_FROM:
            return SessionCall(_requested(request, by_topic_id=by_topic_id))
        if request.session_epoch in {_FINAL_EPOCH, _FIRST_EPOCH}:
            self._remove(self._sessions.get(request.session_id))
            return SessionCall(
                _requested(request, by_topic_id=by_topic_id),
                creates=request.session_epoch == _FIRST_EPOCH,
                by_topic_id=by_topic_id,
            )
        session = self._sessions.get(request.session_id)
        if session is None:
            return SessionCall((), ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != request.session_epoch:
            return SessionCall((), ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if session.by_topic_id != by_topic_id:
            return SessionCall((), ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        added = _requested(request, by_topic_id=by_topic_id)
        self._update(session, added, request.forgotten_topics_data)
        if self._is_too_large(session) or _has_long_name(added):
            self._remove(session)  # the client continues with full requests
            return SessionCall((), ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if not session.partitions:
            self._remove(session)
            return SessionCall(())
        session.epoch = session.epoch % _ID_MAX + 1
        session.used_at = now
        self._sessions[session.session_id] = self._sessions.pop(session.session_id)
        return SessionCall(tuple(session.partitions.values()), session=session, epoch=session.epoch)

    def finish(
        self, call: SessionCall, results: Sequence[FetchPartitionResult], now: float
    ) -> tuple[ErrorCode, int, Sequence[int]]:
        """Return the error and the session id of the response, and the indexes of the included
        results.

        results: the results for `call.partitions`, in the same order.
        """
        session = call.session
        if session is not None and session.epoch != call.epoch:
            return ErrorCode.INVALID_FETCH_SESSION_EPOCH, session.session_id, []
        if session is None:
            created = self._create(call, results, now) if call.creates else _NO_SESSION
            return ErrorCode.NONE, created, range(len(results))
        held: list[int] = []
        for at, (partition, result) in enumerate(zip(call.partitions, results, strict=True)):
            if partition.is_news(result):
                held.append(at)
                if result.records:
                    key = partition.key, partition.wanted.partition
                    session.partitions[key] = session.partitions.pop(key)
        return ErrorCode.NONE, session.session_id, held

    def throttled(self, call: SessionCall) -> tuple[ErrorCode, int]:
        """Return the error and the session id of a response without results. It does not create a
        session, and the omitted results must still be sent later.
        """
        session = call.session
        if session is None:
            return ErrorCode.NONE, _NO_SESSION
        is_current = session.epoch == call.epoch
        code = ErrorCode.NONE if is_current else ErrorCode.INVALID_FETCH_SESSION_EPOCH
        return code, session.session_id

    def _create(
        self, call: SessionCall, results: Sequence[FetchPartitionResult], now: float
    ) -> int:
        """Create a session and return its id, or 0 if there is no room."""
        if not call.partitions or _has_long_name(call.partitions):
            return _NO_SESSION
        if not self._make_room(len(call.partitions), now):
            return _NO_SESSION
        session_id = self.rng.randint(1, _ID_MAX)
        while session_id in self._sessions:
            session_id = self.rng.randint(1, _ID_MAX)
        for partition, result in zip(call.partitions, results, strict=True):
            partition.is_news(result)
        partitions = {(item.key, item.wanted.partition): item for item in call.partitions}
        self._sessions[session_id] = FetchSession(
            session_id, call.by_topic_id, partitions, now, now
        )
        self.partition_count += len(partitions)
        return session_id

    def _make_room(self, count: int, now: float) -> bool:
        """Return whether there is room for a session with this many partitions. Evicts at most one
        session.
        """
        if len(self._sessions) >= self.slots_max:
            victim = self._victim(count, now)
            if victim is None:
                return False
            self._remove(victim)
            self.evicted_count += 1
        return self.partition_count + count <= self.partitions_max

    def _victim(self, count: int, now: float) -> FetchSession | None:
        oldest = next(iter(self._sessions.values()), None)
        if oldest is None or now - oldest.used_at > EVICTION_S:
            return oldest
        smaller = [
            session
            for session in self._sessions.values()
            if len(session.partitions) < count and now - session.created_at > EVICTION_S
        ]
        return min(smaller, key=lambda session: len(session.partitions), default=None)

    def _update(
        self,
        session: FetchSession,
        added: Iterable[SessionPartition],
        forgotten: Iterable[ForgottenTopic],
    ) -> None:
        before = len(session.partitions)
        for item in added:
            known = session.partitions.setdefault((item.key, item.wanted.partition), item)
            known.wanted = item.wanted
        for topic in forgotten:
            key: TopicKey = (topic.topic_id or NO_TOPIC_ID) if session.by_topic_id else topic.topic
            for index in topic.partitions:
                session.partitions.pop((key, index), None)
        self.partition_count += len(session.partitions) - before

    def _is_too_large(self, session: FetchSession) -> bool:
        return (
            len(session.partitions) > SESSION_PARTITIONS_MAX
            or self.partition_count > self.partitions_max
        )

    def _remove(self, session: FetchSession | None) -> None:
        if session is not None and self._sessions.pop(session.session_id, None) is not None:
            self.partition_count -= len(session.partitions)


def _requested(request: FetchRequest, *, by_topic_id: bool) -> list[SessionPartition]:
    return [
        SessionPartition((topic.topic_id or NO_TOPIC_ID) if by_topic_id else topic.topic, wanted)
        for topic in request.topics
        for wanted in topic.partitions
    ]


def _has_long_name(partitions: Iterable[SessionPartition]) -> bool:
    """Return whether a name is too long for a topic. Sessions do not keep such names."""
    return any(isinstance(item.key, str) and len(item.key) > NAME_CHARS_MAX for item in partitions)

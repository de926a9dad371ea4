"""The share sessions of members: epochs, limits, connections."""

import tracemalloc
from uuid import UUID

import pytest

from penstock.broker.coordination.connection_order import LateRequest
from penstock.broker.groups.share.partitions.sessions import (
    FINAL_EPOCH,
    ShareSession,
    ShareSessionKey,
    ShareSessionRefused,
    ShareSessions,
    TopicIdPartition,
)
from penstock.protocol import apis
from penstock.protocol.error_codes import ErrorCode

TOPIC = UUID(int=1)
A, B = ShareSessionKey("g", "a"), ShareSessionKey("g", "b")
P = [TopicIdPartition(TOPIC, index) for index in range(5)]


def code_of(sessions: ShareSessions, key: ShareSessionKey, epoch: int) -> ErrorCode:
    with pytest.raises(ShareSessionRefused) as refused:
        sessions.resume(key, epoch)
    return refused.value.code


def test_each_request_must_have_the_next_session_epoch() -> None:
    sessions = ShareSessions(10)
    assert code_of(sessions, A, 1) is ErrorCode.SHARE_SESSION_NOT_FOUND
    sessions.open(A, 1, P[:2])
    assert code_of(sessions, A, 2) is ErrorCode.INVALID_SHARE_SESSION_EPOCH
    sessions.resume(A, 1)
    assert code_of(sessions, A, 1) is ErrorCode.INVALID_SHARE_SESSION_EPOCH
    sessions.resume(A, FINAL_EPOCH)
    session = sessions.resume(A, 2)
    session.epoch = 2**31 - 1
    sessions.resume(A, 2**31 - 1)
    sessions.resume(A, 1)


def test_partitions_are_added_and_removed() -> None:
    sessions = ShareSessions(10)
    sessions.open(A, 1, P[:2])
    session = sessions.resume(A, 1, P[1:4], P[:1])
    assert list(session.partitions) == P[1:4]
    assert sessions.partition_count == 3
    assert sessions.close(session)
    assert sessions.partition_count == 0


def test_a_new_session_replaces_the_old_one() -> None:
    sessions = ShareSessions(1)
    sessions.open(A, 1, P[:2])
    sessions.resume(A, 1)
    old = sessions.get(A)
    assert old is not None
    session = sessions.open(A, 2, P[:1])
    assert (session.epoch, len(sessions), sessions.partition_count) == (1, 1, 1)
    assert not sessions.close(old), "it was replaced"
    assert sessions.close_connection(1) == []
    assert sessions.close_connection(2) == [session]


def test_an_owner_with_few_sessions_evicts_one_of_the_owner_with_the_most() -> None:
    evicted: list[ShareSession] = []
    sessions = ShareSessions(4, partitions_max=8, on_evicted=evicted.append)
    keys = [ShareSessionKey("g", f"m{number}") for number in range(6)]
    flood = [sessions.open(key, 1, P[:1], "User:mallory 10.0.0.1") for key in keys[:4]]
    sessions.open(keys[4], 2, P[:1], "User:alice 10.0.0.2")
    assert (evicted, len(sessions), sessions.partition_count) == (flood[:1], 4, 4)
    with pytest.raises(ShareSessionRefused) as refused:
        sessions.resume(keys[0], 1)
    assert refused.value.code is ErrorCode.SHARE_SESSION_NOT_FOUND
    with pytest.raises(ShareSessionRefused):
        sessions.open(keys[0], 1, P[:1], "User:mallory 10.0.0.1")
    sessions.open(keys[5], 2, P[:1], "User:alice 10.0.0.2")
    with pytest.raises(ShareSessionRefused):  # now both have two
        sessions.open(B, 2, P[:1], "User:alice 10.0.0.2")
    sessions.close_connection(1)
    many = [TopicIdPartition(TOPIC, index) for index in range(7)]
    with pytest.raises(ShareSessionRefused):  # many partitions evict no session
        sessions.open(B, 3, many, "User:bob 10.0.0.3")
    assert (evicted, len(sessions)) == (flood[:2], 2)


def test_sessions_and_their_partitions_are_limited() -> None:
    sessions = ShareSessions(1)
    sessions.open(A, 1, P)
    with pytest.raises(ShareSessionRefused) as refused:
        sessions.open(B, 1, P)
    assert refused.value.code is ErrorCode.SHARE_SESSION_LIMIT_REACHED
    sessions = ShareSessions(10, partitions_max=4)
    sessions.open(A, 1, P[:3])
    with pytest.raises(ShareSessionRefused):
        sessions.open(B, 1, P[:2])
    sessions.resume(A, 1, P[3:4])
    with pytest.raises(ShareSessionRefused):
        sessions.resume(A, 2, P[4:5])
    assert sessions.partition_count == 4


def test_a_closed_connection_ends_its_sessions() -> None:
    sessions = ShareSessions(10)
    sessions.open(A, 1, P[:1])
    sessions.open(B, 1, P[:1])
    assert [session.key for session in sessions.close_connection(1)] == [A, B]
    assert not sessions.has_group("g")
    assert (len(sessions), sessions.partition_count) == (0, 0)


def test_a_session_moves_to_the_newest_connection_of_its_fetches() -> None:
    sessions = ShareSessions(10)
    session = sessions.open(A, 5, P[:1])
    for epoch, connection in ((1, 7), (2, 7), (3, 6)):
        assert sessions.resume(A, epoch, connection_id=connection) is session
    assert sessions.close_connection(5) == sessions.close_connection(6) == []
    assert sessions.close_connection(7) == [session]


def test_a_rejected_session_leaves_the_earlier_one_open() -> None:
    sessions = ShareSessions(10, partitions_max=4)
    session = sessions.open(A, 1, P[:4])
    with pytest.raises(ShareSessionRefused):
        sessions.open(A, 2, P)
    assert sessions.is_open(session)
    assert sessions.close_connection(1) == [session]
    assert (len(sessions), sessions.partition_count) == (0, 0)


def test_ended_sessions_with_long_names_do_not_occupy_memory() -> None:
    sessions = ShareSessions(10)
    tracemalloc.start()
    for number in range(100):
        key = ShareSessionKey("g", f"{number:03}" * 10_000)
        sessions.admit(apis.SHARE_FETCH.key, key, 1)
        sessions.close(sessions.open(key, 1, P[:2]))
    assert tracemalloc.get_traced_memory()[0] < 1_000_000
    tracemalloc.stop()
    moved = sessions.open(key, 2, P[:2])
    sessions.resume(key, 1, connection_id=3)
    assert moved.connection_id == 3
    with pytest.raises(LateRequest):
        sessions.admit(apis.SHARE_ACKNOWLEDGE.key, key, 1)

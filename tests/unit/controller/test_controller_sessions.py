"""Sessions and leases: which brokers are alive, from the view of both ends of the
metadata stream.
"""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.base.ids import NodeEpoch, NodeId
from penstock.controller.active.sessions import Sessions
from penstock.controller.api.errors import InvalidConfig
from penstock.controller.api.lease import HEARTBEAT_SHARE, Lease
from penstock.controller.api.load_messages import BrokerSession
from penstock.controller.config import ControllerConfig

TIMEOUT_MS, GRACE_MS, TICK_MS = 6_000, 1_000, 100
NODE, EPOCH = NodeId(1), NodeEpoch(4)


@pytest.fixture
def sessions() -> Sessions:
    return Sessions(timeout_ms=TIMEOUT_MS, grace_ms=GRACE_MS, lag_limit_ms=1_000)


def fenced_at(sessions: Sessions, start_ms: int, end_ms: int) -> int | None:
    """Return the time at which the node is reported as expired, with a tick every 100 ms; None:
    never.
    """
    for now_ms in range(start_ms, end_ms, TICK_MS):
        if sessions.expired(now_ms, TICK_MS):
            return now_ms
    return None


def open_stream(sessions: Sessions, now_ms: int) -> int:
    stream = sessions.opened(NODE, EPOCH, now_ms)
    assert stream is not None
    return stream


def test_a_registered_node_has_one_session_timeout_to_open_its_stream(sessions: Sessions) -> None:
    sessions.registered(NODE, EPOCH, 0)
    assert fenced_at(sessions, 0, 20_000) == TIMEOUT_MS


def test_a_session_lasts_the_timeout_if_silent_and_the_grace_period_if_broken(
    sessions: Sessions,
) -> None:
    sessions.registered(NODE, EPOCH, 0)
    stream = open_stream(sessions, 0)
    assert sessions.heard(NODE, EPOCH, stream, 2_000)
    assert fenced_at(sessions, 2_000, 7_900) is None
    sessions.heard(NODE, EPOCH, stream, 7_900)
    sessions.broken(NODE, EPOCH, stream, 8_000)
    assert fenced_at(sessions, 8_000, 20_000) == 8_000 + GRACE_MS


def test_the_next_check_is_when_the_next_session_ends(sessions: Sessions) -> None:
    assert sessions.next_end_in_ms(0, TICK_MS) == TICK_MS
    sessions.registered(NODE, EPOCH, 0)
    stream = open_stream(sessions, 0)
    assert sessions.next_end_in_ms(0, TICK_MS) == TICK_MS
    sessions.broken(NODE, EPOCH, stream, 0)
    assert sessions.next_end_in_ms(GRACE_MS - 30, TICK_MS) == 30
    assert sessions.expired(GRACE_MS, TICK_MS)
    assert sessions.next_end_in_ms(GRACE_MS, TICK_MS) == TICK_MS, "its fence is being committed"


def test_a_new_stream_within_the_grace_period_keeps_the_session(
    sessions: Sessions,
) -> None:
    sessions.registered(NODE, EPOCH, 0)
    old = open_stream(sessions, 0)
    new = open_stream(sessions, 100)
    sessions.broken(NODE, EPOCH, old, 200)
    assert not sessions.heard(NODE, EPOCH, old, 300)
    assert sessions.heard(NODE, EPOCH, new, 300)
    assert fenced_at(sessions, 300, 20_000) == 300 + TIMEOUT_MS


@pytest.mark.parametrize("is_broken", [False, True])
def test_an_abandoned_stream_does_not_take_over_the_session(
    sessions: Sessions, is_broken: bool
) -> None:
    sessions.registered(NODE, EPOCH, 0)
    assert not sessions.is_overtaken(NODE, EPOCH, 0)
    stream = sessions.opened(NODE, EPOCH, 0, 2)
    assert stream is not None
    if is_broken:
        sessions.broken(NODE, EPOCH, stream, 100)
    assert [sessions.is_overtaken(NODE, EPOCH, attempt) for attempt in (1, 2, 3)] == [
        True,
        False,
        False,
    ]
    assert sessions.heard(NODE, EPOCH, stream, 200) != is_broken
    sessions.registered(NODE, NodeEpoch(9), 300)
    assert not sessions.is_overtaken(NODE, NodeEpoch(9), 1), "the next start counts from 1"


def test_a_broken_stream_never_extends_a_silent_session(sessions: Sessions) -> None:
    sessions.registered(NODE, EPOCH, 0)
    stream = open_stream(sessions, 0)
    sessions.broken(NODE, EPOCH, stream, 5_900)
    assert fenced_at(sessions, 5_900, 20_000) == TIMEOUT_MS


def test_a_later_start_of_the_node_takes_over_the_session(sessions: Sessions) -> None:
    sessions.registered(NODE, EPOCH, 0)
    sessions.registered(NODE, NodeEpoch(9), 100)
    assert sessions.opened(NODE, EPOCH, 200) is None
    assert sessions.opened(NODE, NodeEpoch(9), 200) is not None


def test_an_expired_session_is_reported_until_it_is_removed(sessions: Sessions) -> None:
    sessions.registered(NODE, EPOCH, 0)
    assert fenced_at(sessions, 0, 20_000) is not None
    assert sessions.expired(TIMEOUT_MS + TICK_MS, TICK_MS)
    sessions.removed(NODE, EPOCH)
    assert not sessions.expired(TIMEOUT_MS + 2 * TICK_MS, TICK_MS)
    assert sessions.alive() == frozenset()


def test_a_heartbeat_during_the_commit_of_the_fence_does_not_renew_the_session(
    sessions: Sessions,
) -> None:
    sessions.registered(NODE, EPOCH, 0)
    stream = open_stream(sessions, 0)
    ended_ms = fenced_at(sessions, 0, 20_000)
    assert ended_ms is not None
    assert not sessions.heard(NODE, EPOCH, stream, ended_ms)
    assert sessions.opened(NODE, EPOCH, ended_ms) is None
    assert sessions.expired(ended_ms + 30_000, TICK_MS), "not even our own lag brings it back"


def test_a_node_in_its_grace_period_is_assigned_no_new_work(sessions: Sessions) -> None:
    sessions.registered(NODE, EPOCH, 0)
    assert sessions.alive() == {NODE}
    sessions.broken(NODE, EPOCH, open_stream(sessions, 0), 10)
    assert sessions.alive() == frozenset()


def test_each_session_state_is_visible_to_operators(sessions: Sessions) -> None:
    assert sessions.describe(NODE, 0) is None
    sessions.registered(NODE, EPOCH, 0)
    assert sessions.describe(NODE, 100) == BrokerSession(
        state="awaited", heartbeat_age_ms=None, ends_in_ms=TIMEOUT_MS - 100
    )
    stream = open_stream(sessions, 200)
    sessions.heard(NODE, EPOCH, stream, 700)
    assert sessions.describe(NODE, 900) == BrokerSession(
        state="open", heartbeat_age_ms=200, ends_in_ms=TIMEOUT_MS - 200
    )
    sessions.broken(NODE, EPOCH, stream, 1_000)
    assert sessions.describe(NODE, 1_000) == BrokerSession(
        state="broken", heartbeat_age_ms=300, ends_in_ms=GRACE_MS
    )
    assert sessions.expired(5_000, TICK_MS)
    assert sessions.describe(NODE, 5_000) == BrokerSession(
        state="over", heartbeat_age_ms=4_300, ends_in_ms=0
    )
    sessions.removed(NODE, EPOCH)
    assert sessions.describe(NODE, 5_000) is None


def test_an_overloaded_controller_does_not_fence_brokers(sessions: Sessions) -> None:
    sessions.registered(NODE, EPOCH, 0)
    stream = open_stream(sessions, 0)
    assert sessions.expired(0, TICK_MS) == []
    sessions.broken(NODE, EPOCH, stream, 50)
    assert sessions.expired(30_000, TICK_MS) == [], (
        "the heartbeats of 30 s may be waiting in our socket"
    )
    assert fenced_at(sessions, 30_100, 60_000) == 30_000 + TIMEOUT_MS


@given(
    sent_s=st.lists(st.floats(0.0, 1.0), min_size=1, max_size=20),
    delay_s=st.floats(0.0, 10.0),
    lost=st.integers(0, 19),
)
def test_the_lease_of_a_silent_follower_ends_before_the_controller_may_fence_it(
    sent_s: list[float], delay_s: float, lost: int
) -> None:
    """The lease ends before the session, for any delays and any number of lost responses."""
    sessions, lease = (
        Sessions(timeout_ms=TIMEOUT_MS, grace_ms=GRACE_MS, lag_limit_ms=1_000),
        Lease(),
    )
    sessions.registered(NODE, EPOCH, 0)
    stream = open_stream(sessions, 0)
    lease.set_limits(TIMEOUT_MS, GRACE_MS)
    now_s = last_heard_s = 0.0
    for number, gap_s in enumerate(sent_s, start=1):
        now_s += gap_s
        lease.sent(number, now_s)
        last_heard_s = max(last_heard_s, now_s + delay_s)
        sessions.heard(NODE, EPOCH, stream, int(last_heard_s * 1_000))
        if number > lost:
            lease.acknowledged(number)
    fenced_ms = fenced_at(sessions, int(last_heard_s * 1_000), int(last_heard_s * 1_000) + 20_000)
    assert fenced_ms is not None
    assert not lease.is_alive(fenced_ms / 1_000)
    assert lease.until * 1_000 < fenced_ms


def lease_at_zero() -> Lease:
    lease = Lease()
    lease.stream_began()
    lease.set_limits(TIMEOUT_MS, GRACE_MS)
    lease.sent(1, 0.0)
    lease.acknowledged(1)
    return lease


def test_a_broken_stream_shortens_the_lease_until_a_new_stream_is_confirmed() -> None:
    lease = lease_at_zero()
    lease.stream_broke(1.0)
    assert lease.is_alive(1.3)
    assert not lease.is_alive(1.0 + GRACE_MS / 1_000 - 0.5)
    lease.stream_began()
    lease.sent(1, 2.0)
    assert not lease.is_alive(2.0)
    lease.acknowledged(1)
    assert lease.is_alive(2.0)


def test_the_lease_keeps_its_length_while_the_controller_is_dead() -> None:
    lease = lease_at_zero()
    lease.stream_broke(1.0)
    lease.stream_broke(1.1, nobody_fences=True)
    assert lease.is_alive(5.0)
    assert not lease.is_alive(TIMEOUT_MS / 1_000)


def test_a_refused_connection_does_not_prove_that_the_controller_is_dead() -> None:
    """A firewall that rejects connections looks the same while the controller is alive. Operations
    protected by the WAL continue, all others stop in time.
    """
    lease = lease_at_zero()
    lease.stream_broke(1.0)
    lease.stream_broke(1.1, fence_unlikely=True)
    assert lease.is_alive(5.0)
    assert 1.0 < lease.alone_until < 1.0 + GRACE_MS / 1_000 * (1 - HEARTBEAT_SHARE)
    lease.stream_broke(1.2, nobody_fences=True)
    assert lease.alone_until == lease.until
    lease.stream_broke(1.3, fence_unlikely=True)
    lease.stream_began()
    lease.sent(1, 3.0)
    lease.acknowledged(1)
    assert lease.alone_until == lease.until > 7.0


def test_a_silent_stream_does_not_shorten_the_time_for_acknowledgements() -> None:
    lease = lease_at_zero()
    lease.stream_fell_silent(2.0)
    assert lease.is_alive(5.0)
    assert 2.0 < lease.alone_until < 2.0 + GRACE_MS / 1_000 * (1 - HEARTBEAT_SHARE)
    lease.stream_broke(3.0)
    until = lease.until
    assert until < 3.0 + GRACE_MS / 1_000
    lease.stream_fell_silent(3.1)
    assert lease.until == until, "a silent attempt does not prove that no controller fences"


@pytest.mark.parametrize("proof", ["nobody_fences", "fence_unlikely"])
def test_messages_after_the_end_of_the_lease_do_not_renew_it(proof: str) -> None:
    """The controller fenced the broker after the grace period and replicated the record; only then
    did it stop or lose its leadership.
    """
    lease = lease_at_zero()
    lease.stream_broke(1.0)
    lease.stream_broke(1.0 + GRACE_MS / 1_000, **{proof: True})
    assert not lease.is_alive(2.0)
    assert lease.alone_until <= lease.until < 2.0


def test_an_ended_lease_is_never_renewed() -> None:
    lease = lease_at_zero()
    lease.end()
    lease.sent(2, 0.1)
    lease.acknowledged(2)
    assert lease.ended
    assert not lease.is_alive(0.1)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("session_timeout_ms", 1_400),
        ("session_grace_ms", 50),
        ("session_grace_ms", 7_000),
        ("listeners", ("127.0.0.1:70000",)),
        ("cluster_id", "a/b"),
        ("snapshots_kept", 1),
        ("queue_count_max", 0),
        ("default_replication_factor", 0),
        ("manifest_interval_ms", -1),
        ("manifest_grace_ms", 60_000),
    ],
)
def test_the_error_of_an_invalid_setting_contains_its_name(
    setting: str, value: object, tmp_path: Path
) -> None:
    with pytest.raises(InvalidConfig) as refused:
        ControllerConfig(data_dir=tmp_path, **{setting: value})
    assert refused.value.name == setting


def test_a_repeated_registration_response_does_not_revive_a_fenced_node(
    sessions: Sessions,
) -> None:
    sessions.registered(NODE, EPOCH, 0)
    assert sessions.expired(TIMEOUT_MS, TICK_MS)
    sessions.removed(NODE, EPOCH)
    sessions.registered(NODE, EPOCH, TIMEOUT_MS)
    assert sessions.opened(NODE, EPOCH, TIMEOUT_MS) is None
    assert fenced_at(sessions, TIMEOUT_MS, 30_000) is None, "fenced once"
    sessions.registered(NODE, NodeEpoch(EPOCH + 1), TIMEOUT_MS)
    assert sessions.opened(NODE, NodeEpoch(EPOCH + 1), TIMEOUT_MS) is not None

"""Group commit rules, as lists of events at given times."""

from dataclasses import replace

import pytest

from penstock.base.ids import WalSequence
from penstock.stream.config import StreamConfig
from penstock.stream.errors import WalClosed
from penstock.stream.wal.core import Bulk, WalCore
from penstock.stream.wal.sender import Sender
from penstock.stream.wal.wal_defaults import LOCAL_STORE

MIB = 1 << 20
CONFIG = StreamConfig()
LOCAL = replace(CONFIG, **LOCAL_STORE.values)


def started(core: WalCore[str], now: float) -> list[Bulk[str]]:
    bulks: list[Bulk[str]] = []
    while (bulk := core.next_bulk(now)) is not None:
        bulks.append(bulk)
        core.check_invariants()
    return bulks


def groups(bulks: list[Bulk[str]]) -> list[list[str]]:
    return [bulk.groups for bulk in bulks]


def test_an_idle_wal_writes_at_once() -> None:
    core: WalCore[str] = WalCore(CONFIG)
    core.append("a", 100, 10.0)
    assert core.wake_at(10.0) == 10.0
    assert groups(started(core, 10.0)) == [["a"]]


def test_below_the_rate_a_slot_waits_for_the_short_linger_or_the_previous_put() -> None:
    core: WalCore[str] = WalCore(CONFIG)
    core.append("a", 100, 10.0)
    (first,) = started(core, 10.0)
    core.append("b", 100, 10.001)
    core.append("c", 100, 10.002)
    assert started(core, 10.030) == []
    assert core.wake_at(10.030) == pytest.approx(10.041)
    assert groups(started(core, 10.0411)) == [["b", "c"]]
    core.append("d", 100, 10.065)
    core.put_succeeded(first.sequence, 10.065)
    core.put_succeeded(WalSequence(1), 10.065)
    assert started(core, 10.066) == [], "those that were acknowledged may share its PUT"
    assert groups(started(core, 10.0701)) == [["d"]]


def test_small_puts_to_a_fast_store_are_batched() -> None:
    core: WalCore[str] = WalCore(CONFIG)
    puts = 0
    for step in range(1_000):  # one small append per millisecond, PUTs that succeed at once
        now = 10.0 + step * 0.001
        core.append(str(step), 100, now)
        for bulk in started(core, now):
            core.put_succeeded(bulk.sequence, now)
            puts += 1
    assert puts <= 1_000 / CONFIG.wal_put_interval_ms + 1
    assert core.flush() == puts + 1, "a flush waits for nothing"
    assert len(started(core, 11.0)) == 1


def test_with_a_local_store_requests_share_the_next_put() -> None:
    core: WalCore[str] = WalCore(LOCAL)
    core.append("a", 100, 10.0)
    (first,) = started(core, 10.0)
    core.append("b", 100, 10.0001)
    core.append("c", 100, 10.0009)
    assert started(core, 10.001) == []
    core.put_succeeded(first.sequence, 10.001)
    core.append("a again", 100, 10.0012)
    assert groups(started(core, 10.0012)) == [["b", "c", "a again"]], "a PUT every millisecond"
    core.append("d", 100, 10.002)
    assert groups(started(core, 10.0071)) == [["d"]], "a slow PUT is not waited for"


def test_clients_that_wait_for_each_response_share_each_put() -> None:
    """Without a wait for producers that were just acknowledged, PUTs of 1 and of 7 requests would
    alternate.
    """
    core: WalCore[str] = WalCore(LOCAL)
    now, sizes = 10.0, list[int]()
    waiting = [f"client {number}" for number in range(8)]
    for _ in range(20):
        for client in waiting:
            core.append(client, 100, now)
            now += 0.000_02
            for bulk in started(core, now):
                sizes.append(len(bulk.groups))
        now += 0.001
        waiting = [client for bulk in core._started for client in bulk.groups]
        for bulk in list(core._started):
            core.put_succeeded(bulk.sequence, now)
    assert sizes[:2] == [1, 8]
    assert set(sizes[2:]) == {8}


def test_the_wal_waits_for_a_missing_client_only_once_for_a_millisecond() -> None:
    core: WalCore[str] = WalCore(LOCAL)
    for name in "abc":
        core.append(name, 100, 10.0)
    (first,) = started(core, 10.0)
    core.put_succeeded(first.sequence, 10.002)
    core.append("a", 100, 10.0022)
    core.append("b", 100, 10.0023)
    assert started(core, 10.0029) == []
    assert core.wake_at(10.0029) == pytest.approx(10.003)
    (second,) = started(core, 10.0031)
    core.put_succeeded(second.sequence, 10.005)
    core.append("a", 100, 10.0051)
    core.append("b", 100, 10.0052)
    assert groups(started(core, 10.0052)) == [["a", "b"]]


def test_large_batches_do_not_wait_for_clients() -> None:
    core: WalCore[str] = WalCore(LOCAL)
    for name in "ab":
        core.append(name, 100_000, 10.0)
    (first,) = started(core, 10.0)
    core.put_succeeded(first.sequence, 10.002)
    core.append("a", 100_000, 10.0021)
    assert groups(started(core, 10.0021)) == [["a"]]


def test_with_a_local_store_at_a_high_rate_a_batch_waits_only_for_the_put_in_flight() -> None:
    core: WalCore[str] = WalCore(LOCAL)
    for step in range(1_000):  # 100 MB/s in appends of 100 kB, PUTs of 0.5 ms
        now = 10.0 + step * 0.001
        core.append(str(step), 100_000, now)
        (bulk,) = started(core, now)
        assert bulk.groups == [str(step)]
        core.put_succeeded(bulk.sequence, now)


def test_full_batches_do_not_wait_for_the_interval() -> None:
    core: WalCore[str] = WalCore(CONFIG)
    for number in range(4):
        core.append(str(number), CONFIG.bulk_bytes_max, 10.0)
    assert len(started(core, 10.0)) == 4


def test_above_the_rate_slots_are_filled_for_the_long_linger() -> None:
    core: WalCore[str] = WalCore(CONFIG)
    now, puts = 10.0, 0
    for step in range(1_200):  # 20 MB/s for 6 s, in appends of 100 kB; the first second is the ramp
        now = 10.0 + step * 0.005
        core.append(str(step), 100_000, now)
        for bulk in started(core, now):
            core.put_succeeded(bulk.sequence, now)
            puts += step >= 200
    assert puts / 100 < 0.5  # per MB


def test_above_the_rate_a_pause_with_nothing_in_flight_closes_the_slot() -> None:
    core: WalCore[str] = WalCore(CONFIG)
    for step in range(7):
        core.append(str(step), MIB, 10.0 + step * 0.001)
    assert started(core, 10.006) == []
    wake_at = core.wake_at(10.006)
    assert wake_at is not None
    assert wake_at < 10.1
    assert len(started(core, wake_at)) == 1


def test_a_slot_closes_at_its_size_and_a_group_is_never_split() -> None:
    core: WalCore[str] = WalCore(CONFIG)
    core.append("a", 100, 10.0)
    started(core, 10.0)
    core.append("b", 7 * MIB, 10.0)
    core.append("c", 2 * MIB, 10.0)
    core.append("d", 30 * MIB, 10.0)
    assert groups(started(core, 10.0)) == [["b"], ["c"], ["d"]]


def test_acknowledgements_are_in_slot_order_whatever_the_store_does() -> None:
    core: WalCore[str] = WalCore(CONFIG)
    for name in "abc":
        core.append(name, 8 * MIB, 10.0)
    bulks = started(core, 10.0)
    assert [bulk.sequence for bulk in bulks] == [0, 1, 2]
    assert core.put_succeeded(WalSequence(2), 10.1) == []
    assert core.put_succeeded(WalSequence(1), 10.1) == []
    core.check_invariants()
    assert groups(core.put_succeeded(WalSequence(0), 10.1)) == [["a"], ["b"], ["c"]]
    assert core.unacknowledged_bytes == 0
    assert core.acknowledged_end == 3


def test_puts_in_flight_are_limited_and_the_open_slot_fills_meanwhile() -> None:
    core: WalCore[str] = WalCore(replace(CONFIG, wal_in_flight_max=2, wal_linger_ms=0))
    for name in "ab":
        core.append(name, 10, 10.0)
        assert len(started(core, 10.0)) == 1
    for name in "cde":
        core.append(name, 10, 10.0)
    assert started(core, 99.0) == []
    assert core.wake_at(99.0) is None
    core.put_succeeded(WalSequence(1), 99.0)
    assert groups(started(core, 99.0)) == [["c", "d", "e"]]


def test_flush_closes_the_open_slot() -> None:
    core: WalCore[str] = WalCore(CONFIG)
    core.append("a", 10, 10.0)
    started(core, 10.0)
    core.append("b", 10, 10.0)
    assert core.flush() == 2
    assert core.flush() == 2
    assert groups(started(core, 10.0)) == [["b"]]
    assert core.acknowledged_end == 0


def test_after_a_failure_nothing_is_acknowledged() -> None:
    core: WalCore[str] = WalCore(CONFIG)
    for name in "abc":
        core.append(name, 8 * MIB, 10.0)
    started(core, 10.0)
    core.append("d", 10, 10.0)
    core.put_succeeded(WalSequence(1), 10.1)
    assert groups(core.fail()) == [["a"], ["b"], ["c"], ["d"]]
    core.check_invariants()
    assert core.put_succeeded(WalSequence(0), 10.1) == []
    assert core.next_bulk(11.0) is None
    with pytest.raises(WalClosed):
        core.append("e", 1, 11.0)


def test_changed_settings_apply_to_the_open_batch() -> None:
    core: WalCore[str] = WalCore(CONFIG)
    core.append("a", 100, 10.0)
    started(core, 10.0)
    core.append("b", 100, 10.001)
    assert core.wake_at(10.002) == pytest.approx(10.041)
    core.reconfigure(replace(CONFIG, wal_linger_idle_ms=30, bulk_bytes_max=250))
    assert core.wake_at(10.002) == pytest.approx(10.031)
    core.append("c", 100, 10.003)
    core.append("d", 100, 10.004)
    assert groups(started(core, 10.005)) == [["b", "c"]], "it has its new size"


# --- clients that wait for each response ----------------------------------------------------------


def one_at_a_time(core: WalCore[str], sender: Sender, now: float, times: int) -> float:
    """Append a record whenever the previous one is acknowledged, with PUTs of 6 ms. Return the time
    at the end.
    """
    for _ in range(times):
        core.append("record", 100, now, sender)
        (bulk,) = started(core, now)
        now += 0.006
        core.put_succeeded(bulk.sequence, now)
        now += 0.000_5
    return now


def test_a_client_that_sends_one_record_at_a_time_waits_only_for_its_puts() -> None:
    one_at_a_time(WalCore(CONFIG), Sender(), 10.0, 20)


def test_a_lower_number_of_requests_in_flight_is_soon_recognized() -> None:
    core: WalCore[str] = WalCore(CONFIG)
    sender, now = Sender(), 10.0
    for _ in range(5):
        core.append("burst", 100, now, sender)
    now, waits = 10.1, 0
    for bulk in started(core, now):
        core.put_succeeded(bulk.sequence, now)
    for _ in range(130):
        core.append("record", 100, now, sender)
        due = core.wake_at(now)
        assert due is not None
        waits += due > now
        (bulk,) = started(core, max(due, now))
        now = max(due, now) + 0.006
        core.put_succeeded(bulk.sequence, now)
    assert 0 < waits < 130
    one_at_a_time(core, sender, now, 20)


def test_a_client_with_five_requests_in_flight_shares_a_put_once_it_has_sent_all() -> None:
    core: WalCore[str] = WalCore(CONFIG)
    sender, now = Sender(), 10.0
    sizes: list[int] = []
    for _ in range(10):
        bulks: list[Bulk[str]] = []
        for _ in range(5):
            core.append("record", 100, now, sender)
            bulks += started(core, now)
            now += 0.000_2
        now += 0.025
        bulks += started(core, now)
        sizes += [len(bulk.groups) for bulk in bulks]
        for bulk in bulks:
            core.put_succeeded(bulk.sequence, now)
    assert set(sizes[3:]) == {5}, "no PUT for a part of them"


@pytest.mark.parametrize("in_flight", [2, 5])
def test_the_last_requests_of_a_client_are_not_delayed_by_a_put_in_flight(in_flight: int) -> None:
    """On S3 Standard, the delay would add 40 ms to the latency of most of its requests."""
    core: WalCore[str] = WalCore(CONFIG)
    sender = Sender()
    for _ in range(in_flight):
        core.append("warm", 100, 10.0, sender)
    (first,) = started(core, 10.0)
    core.put_succeeded(first.sequence, 10.06)
    core.append("a", 100, 10.061, sender)
    assert len(started(core, 10.07)) == 1, "after those that may still come"
    for at in range(in_flight - 1):
        core.append("b", 100, 10.071 + at / 1_000, sender)
    assert core.wake_at(10.08) == pytest.approx(10.09)
    assert len(started(core, 10.0901)) == 1


def test_a_batch_waits_for_clients_that_may_still_add_to_it() -> None:
    """Each additional PUT costs money, and delays the following acknowledgements if it is slow."""
    core: WalCore[str] = WalCore(CONFIG)
    one, other, third = Sender(), Sender(), Sender()
    core.append("one", 100, 10.0, one)
    (first,) = started(core, 10.0)
    core.append("other", 100, 10.030, other)
    (second,) = started(core, 10.030)
    core.put_succeeded(first.sequence, 10.060)
    core.append("third", 100, 10.062, third)
    assert core.wake_at(10.062) == pytest.approx(10.100), "one was acknowledged 40 ms before"
    core.append("one", 100, 10.064, one)
    assert core.wake_at(10.064) == 10.062, "now all of them wait"
    assert groups(started(core, 10.064)) == [["third", "one"]]
    core.put_succeeded(second.sequence, 10.07)
    core.append("offsets", 100, 10.071)
    assert core.wake_at(10.072) == pytest.approx(10.111), "of no client that is known to wait"


def test_clients_in_different_phases_cause_no_more_puts_than_the_interval_allows() -> None:
    core: WalCore[str] = WalCore(CONFIG)
    senders = [Sender() for _ in range(50)]
    now, puts = 10.0, 0
    ends: list[tuple[float, WalSequence]] = []
    for step in range(2_000):
        now = 10.0 + step / 1_000
        while ends and ends[0][0] <= now:
            core.put_succeeded(ends.pop(0)[1], now)
        core.append(str(step), 100, now, senders[step % 50])
        for bulk in started(core, now):
            puts += 1
            ends.append((now + 0.060, bulk.sequence))
    assert puts <= 2_000 / CONFIG.wal_put_interval_ms + 1


def test_a_failure_ends_the_wait_for_its_clients() -> None:
    core: WalCore[str] = WalCore(CONFIG)
    sender = Sender()
    core.append("a", 100, 10.0, sender)
    started(core, 10.0)
    core.append("b", 100, 10.0, sender)
    assert sender.in_flight_count == 2
    core.fail()
    assert sender.in_flight_count == 0

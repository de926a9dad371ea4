"""The list of damaged objects is limited, logs each object once a minute, and drops objects that
reads no longer encounter.
"""

from penstock.stream.read.damage import (
    CERTAIN_S,
    KEPT_S,
    KNOWN_S,
    LOG_EVERY_S,
    OBJECTS_MAX,
    DamageLog,
)


def record(log: DamageLog, key: str, now_s: float) -> bool:
    """Record the damage; return whether it must be logged."""
    return log.record(key, "gone", "it is gone", stream_id=1, offset=5, now_s=now_s)[1]


def test_each_object_is_logged_once_a_minute() -> None:
    log = DamageLog()
    assert [record(log, "a", 0.0), record(log, "a", 1.0), record(log, "b", 2.0)] == [
        True,
        False,
        True,
    ]
    assert [
        record(log, "a", LOG_EVERY_S - 0.1),
        record(log, "a", LOG_EVERY_S),
        record(log, "a", LOG_EVERY_S + 1),
    ] == [False, True, False]
    assert log.reads == {"gone": 6}


def test_damage_is_remembered_for_a_minute_and_listed_for_an_hour() -> None:
    log = DamageLog()
    record(log, "a", 0.0)
    assert log.is_known("a", "gone", KNOWN_S - 1)
    assert not log.is_known("a", "corrupt", 1.0)
    assert not log.is_known("a", "gone", KNOWN_S)
    record(log, "b", 10.0)
    assert [item.key for item in log.listed(20.0)] == ["b", "a"]
    assert [item.key for item in log.listed(KEPT_S + 1)] == ["b"]
    assert log.listed(KEPT_S + 10) == []


def test_an_object_counts_as_lost_after_being_missing_for_a_while_without_interruption() -> None:
    log = DamageLog()

    def certain(now_s: float) -> bool:
        return log.record("a", "gone", "it is gone", stream_id=1, offset=5, now_s=now_s)[
            0
        ].is_certain

    assert [certain(0.0), certain(CERTAIN_S - 1), certain(CERTAIN_S)] == [False, False, True]
    later = CERTAIN_S + KNOWN_S
    assert [certain(later), certain(later + CERTAIN_S)] == [False, True]


def test_damage_is_cleared_when_a_read_at_the_same_place_succeeds() -> None:
    log = DamageLog()
    record(log, "a", 0.0)
    for stream_id, start, end in ((2, 0, 9), (1, 0, 5), (1, 6, 9)):
        log.forget_range(stream_id, start, end)
        assert log.is_known("a", "gone", 1.0)
    log.forget_range(1, 5, 6)
    assert log.listed(1.0) == []


def test_the_number_of_remembered_objects_is_limited() -> None:
    log = DamageLog()
    for number in range(OBJECTS_MAX + 5):
        record(log, str(number), 0.0)
    assert len(log.listed(0.0)) == OBJECTS_MAX
    assert not log.is_known("4", "gone", 0.0)
    assert log.is_known("5", "gone", 0.0)

"""Ages of metadata log records, by the monotonic clock of a single process."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.controller.active.record_ages import GAP_MAX, MOMENTS_MAX, Timeline
from penstock.controller.metadata.records import MetadataOffset


def test_an_age_is_measured_from_the_first_sample_after_the_record() -> None:
    timeline = Timeline()
    assert timeline.age_s(MetadataOffset(0), 5.0) == 0.0
    timeline.note(MetadataOffset(10), 100.0)
    timeline.note(MetadataOffset(10), 105.0)
    timeline.note(MetadataOffset(12), 110.0)
    ages = [timeline.age_s(MetadataOffset(offset), 120.0) for offset in (0, 9, 10, 11, 12)]
    assert ages == [20.0, 20.0, 10.0, 10.0, 0.0]


@given(
    st.lists(st.tuples(st.integers(1, 5), st.floats(0.01, 5.0)), max_size=60), st.integers(0, 300)
)
def test_ages_are_never_overestimated(steps: list[tuple[int, float]], offset: int) -> None:
    timeline, end, now, true_s = Timeline(), 0, 0.0, None
    for records, pause_s in steps:
        end, now = end + records, now + pause_s
        timeline.note(MetadataOffset(end), now)
        if true_s is None and end > offset:
            true_s = now
    assert timeline.age_s(MetadataOffset(offset), now) == (0.0 if true_s is None else now - true_s)


def test_the_timeline_is_limited_and_thinning_only_underestimates_ages() -> None:
    timeline = Timeline()
    for second in range(1, 5 * MOMENTS_MAX):
        timeline.note(MetadataOffset(second), float(second))
        assert len(timeline) <= MOMENTS_MAX
    now = float(5 * MOMENTS_MAX)
    for offset in range(0, 5 * MOMENTS_MAX - 1, 97):
        age_s = timeline.age_s(MetadataOffset(offset), now)
        assert 0 < age_s <= now - (offset + 1)


def test_long_grace_periods_end_on_a_busy_controller() -> None:
    """`delete.grace.ms` may be days, and the log grows every second."""
    timeline, seconds = Timeline(), 100_000
    for second in range(1, seconds):
        timeline.note(MetadataOffset(second), float(second))
        assert len(timeline) <= MOMENTS_MAX
    for offset in range(0, seconds - 1, 97):
        true_s = seconds - (offset + 1)
        age_s = timeline.age_s(MetadataOffset(offset), float(seconds))
        assert true_s * (1 - GAP_MAX) - 1 <= age_s <= true_s

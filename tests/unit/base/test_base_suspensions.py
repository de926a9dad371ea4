"""A failed item is skipped for pauses that double; a success resets them."""

from penstock.base.suspensions import Suspensions


def test_pauses_double_up_to_an_hour_and_are_reset_by_a_success() -> None:
    now_s = [100.0]
    suspensions = Suspensions[str](lambda: now_s[0])
    assert "a" not in suspensions
    for pause_s in (10, 20, 40, 80, 160, 320, 640, 1_280, 2_560, 3_600, 3_600):
        assert suspensions.add("a") == pause_s
        assert "a" in suspensions
        assert "b" not in suspensions
        now_s[0] += pause_s
        assert "a" not in suspensions
    suspensions.discard("a")
    assert suspensions.add("a") == 10

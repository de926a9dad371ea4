"""The clock includes the time during which its machine was suspended."""

from penstock.base.clock import SUSPENSION_MIN_S, counting_suspensions
from penstock.base.ids import Millis

HOUR_S = 3_600


class Machine:
    """A machine with an arbitrary wall clock time at boot."""

    def __init__(self) -> None:
        self.monotonic_s = 100.0
        self.wall_s = 1_700_000_000.0
        self.read = counting_suspensions(
            lambda: Millis(int(self.wall_s * 1_000)), lambda: self.monotonic_s
        )

    def run(self, duration_s: float) -> None:
        self.monotonic_s += duration_s
        self.wall_s += duration_s


def test_a_suspension_counts_once_even_if_the_wall_clock_catches_up_in_steps() -> None:
    machine = Machine()
    machine.run(5)
    assert machine.read() == 105
    machine.wall_s += 8 * HOUR_S
    assert machine.read() == 105
    machine.wall_s += 160 * HOUR_S
    assert machine.read() == 105 + 168 * HOUR_S
    machine.run(5)
    assert machine.read() == 110 + 168 * HOUR_S


def test_wall_clock_corrections_are_not_counted_as_suspensions() -> None:
    machine = Machine()
    for step_s in (HOUR_S, -HOUR_S, -100 * HOUR_S, SUSPENSION_MIN_S - 1, -HOUR_S, HOUR_S):
        machine.wall_s += step_s
        machine.run(1)
        machine.read()
    assert machine.read() == 106

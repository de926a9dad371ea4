"""The unacknowledged WAL appends of one client, from which the WAL infers whether the client can
send more before it receives a response. Pure.
"""

from typing import Final

_WINDOW_GROUPS: Final = 64
"""Number of groups in one measuring window. The peak covers the current and the previous window, so
a reduction of a client's requests in flight is detected after at most twice this many groups.
"""


class Sender:
    """The unacknowledged groups of one connection, and their recent peak, which estimates how many
    requests the client keeps in flight.
    """

    __slots__ = ("_group_count", "_peak", "_previous_peak", "bulk_number", "in_flight_count")

    def __init__(self) -> None:
        self.in_flight_count = 0
        self.bulk_number = 0
        """The bulk that contains the client's newest group."""
        self._group_count = 0
        self._peak = 0
        self._previous_peak = 0

    @property
    def awaits_response(self) -> bool:
        """Whether the client will probably send nothing before one of its groups is
        acknowledged.
        """
        return self.in_flight_count >= max(self._peak, self._previous_peak)

    def appended(self) -> None:
        """Count another group. This takes 0.2 us."""
        self.in_flight_count += 1
        if self._group_count == _WINDOW_GROUPS:
            self._previous_peak, self._peak, self._group_count = self._peak, 0, 0
        self._group_count += 1
        self._peak = max(self._peak, self.in_flight_count)

    def settled(self) -> None:
        """Count a group as acknowledged or failed."""
        self.in_flight_count -= 1

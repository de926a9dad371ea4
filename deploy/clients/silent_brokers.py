"""Report brokers that do not respond to the client of a command, and the loss of all connections.

Invariant: only librdkafka's statistics are read, so an idle client does not send additional
requests.
"""

import time
from collections.abc import Callable
from typing import Final

import msgspec

from penstock.deploy.output import remark

SILENT_S: Final = 3.0
INTERVAL_MS: Final = 1_000
CUT_OFF_S: Final = 5.0
_CONNECTED: Final = "UP"
_COORDINATOR: Final = "logical"
"""Source of connections on which responses may be delayed until other members of the group
respond.
"""


class _Broker(msgspec.Struct):
    """nodeid: -1 for a bootstrap server that is not known yet. rx: responses received."""

    nodename: str
    nodeid: int
    source: str
    waitresp_cnt: int
    rx: int
    state: str = _CONNECTED


class _Statistics(msgspec.Struct):
    brokers: dict[str, _Broker]


class SilentBrokers:
    """Pass `read` as `stats_cb`, with a `statistics.interval.ms` of INTERVAL_MS. names: the brokers
    that do not respond.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._decoder = msgspec.json.Decoder(_Statistics)
        self._waiting: dict[str, tuple[int, float]] = {}
        """For each broker, the number of responses received, and the time since which the next one
        has been awaited.
        """
        self._connected_at = now()
        self._is_cut_off = False
        self.names: dict[str, str] = {}

    def read(self, statistics: str) -> None:
        """Print a line for each broker whose response has been awaited for SILENT_S, and one if no
        broker has been connected for CUT_OFF_S.
        """
        now = self._now()
        brokers = self._decoder.decode(statistics).brokers
        if any(broker.state == _CONNECTED for broker in brokers.values()):
            self._connected_at, self._is_cut_off = now, False
        elif now - self._connected_at >= CUT_OFF_S and not self._is_cut_off:
            self._is_cut_off = True
            remark(
                f"penstock: no broker has been connected for {CUT_OFF_S:g} s; trying again;"
                " `penstock nodes` shows which are alive"
            )
        for name, broker in brokers.items():
            if broker.source == _COORDINATOR:
                continue
            received, since = self._waiting.get(name, (broker.rx, now))
            if broker.rx != received:
                self.names.pop(name, None)
            if broker.rx != received or not broker.waitresp_cnt:
                since = now
            self._waiting[name] = broker.rx, since
            if now - since >= SILENT_S and name not in self.names:
                number = f" {broker.nodeid}" if broker.nodeid >= 0 else ""
                self.names[name] = f"broker{number} at {broker.nodename}"
                remark(
                    f"penstock: waiting for {self.names[name]}, which has not responded for"
                    f" {SILENT_S:g} s; `penstock nodes` shows whether it is alive"
                )

    def reason(self) -> str:
        """Return a clause with the brokers that do not respond, for the end of an error message."""
        return f"; {' and '.join(self.names.values())} did not respond" if self.names else ""

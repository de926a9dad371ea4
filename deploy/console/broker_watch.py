"""Measure brokers for the console in separate threads, and track which of them respond.

Invariants: the time of a value is the time of its request, so that a response that arrived during a
pause of the process does not appear newer than it is. Belongs to one event loop. Limits: AT_ONCE
threads, and one request at a time to each broker.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from penstock.deploy.top.offsets import Led, Measured

AT_ONCE: Final = 16
REQUEST_S: Final = 3.0
"""Maximum wait for a response from a broker, for `measure`."""
GRACE_S: Final = 0.5
"""How long a measurement waits for brokers. Later responses are used in the next measurement."""
REFUSED_S: Final = 10.0
"""Pause before the next request to a broker that rejects the console."""


class BrokerWatch:
    """measure: blocking function that requests the end offsets of partitions from the broker at an
    address.
    """

    def __init__(
        self,
        measure: Callable[[str, Led], Measured],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._measure = measure
        self._now = now
        self._threads = ThreadPoolExecutor(AT_ONCE, "console-ends")
        self._asking: dict[int, asyncio.Future[Measured]] = {}
        self._asked_at: dict[int, float] = {}
        """Start times of pending requests."""
        self._values_at: dict[int, float] = {}
        self._refusals: dict[int, Measured] = {}

    def restart(self) -> None:
        """Restart after a pause without measurements."""
        self._values_at.clear()
        self._refusals.clear()

    async def measured(
        self, addresses: Mapping[int, str], led: Mapping[int, Led]
    ) -> list[Measured]:
        """Return the responses that arrived within GRACE_S, and late responses since the last
        measurement. addresses, led: by broker.
        """
        loop, now = asyncio.get_running_loop(), self._now()
        for known in (self._values_at, self._refusals, self._asked_at):
            for gone in known.keys() - addresses.keys():
                known.pop(gone, None)
        for node_id, address in addresses.items():
            self._values_at.setdefault(node_id, now)
            refused = self._refusals.get(node_id)
            if node_id in self._asking or (refused and now - refused.requested_at < REFUSED_S):
                continue
            self._asking[node_id] = loop.run_in_executor(
                self._threads, self._send_request, node_id, address, led.get(node_id, {})
            )
        if self._asking:
            await asyncio.wait(self._asking.values(), timeout=GRACE_S)
        done = [node_id for node_id, asking in self._asking.items() if asking.done()]
        return [self._responded(node_id, self._asking.pop(node_id).result()) for node_id in done]

    def waiting_s(self, node_id: int) -> float:
        """Return how long a request has been waiting for a response from the broker."""
        requested_at = self._asked_at.get(node_id)
        return 0.0 if requested_at is None else max(0.0, self._now() - requested_at)

    def age_s(self, node_id: int) -> float | None:
        """Return the age of the last values from the broker, or None if nothing was requested."""
        values_at = self._values_at.get(node_id)
        return None if values_at is None else self._now() - values_at

    def refusal(self, node_id: int) -> str:
        """Return the reason why the broker rejects the console, or "" if it does not."""
        found = self._refusals.get(node_id)
        return "" if found is None else found.refusal

    async def close(self) -> None:
        """Wait for pending requests. Their connections must already be closed."""
        await asyncio.gather(*self._asking.values(), return_exceptions=True)
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _send_request(self, node_id: int, address: str, led: Led) -> Measured:
        # For a broker that does not respond, the time of the first request is kept.
        self._asked_at.setdefault(node_id, self._now())
        return self._measure(address, led)

    def _responded(self, node_id: int, found: Measured) -> Measured:
        if found.responded or found.refusal:
            self._asked_at.pop(node_id, None)
        if found.responded:
            self._values_at[node_id] = found.requested_at
        if found.refusal:
            self._refusals[node_id] = found
        else:
            self._refusals.pop(node_id, None)
        return found

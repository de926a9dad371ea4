"""TLS handshakes run one after another and use a limited share of the event loop's time."""

from collections.abc import Callable

from penstock.broker.network.handshake_order import BURST_S, SHARE, STEP_S_MAX, HandshakeOrder

STEP_S = 0.000_2


class Loop:
    """An event loop whose time passes only in steps and in timers."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.turns_count = 0
        self.hosts: list[str] = []
        """The connections whose steps ran."""
        self._next: list[tuple[float, Callable[[], None]]] = []
        self.order = HandshakeOrder(self.call_soon, self.call_later, lambda: self.now_s)

    def call_soon(self, call: Callable[[], None]) -> None:
        self._next.append((self.now_s, call))

    def call_later(self, wait_s: float, call: Callable[[], None]) -> None:
        self._next.append((self.now_s + wait_s, call))

    def run(self) -> None:
        while self._next:
            self.turns_count += 1
            self._next.sort(key=lambda item: item[0])
            at_s, call = self._next.pop(0)
            self.now_s = max(self.now_s, at_s)
            call()

    def add(self, count: int, step_s: float, host: str = "10.0.0.1") -> None:
        def step() -> None:
            self.now_s += step_s
            self.hosts.append(host)

        for _ in range(count):
            self.order.add(host, step)


def test_a_few_handshakes_do_not_wait() -> None:
    loop = Loop()
    few = int(BURST_S / (STEP_S / SHARE))
    for _ in range(3):
        began_s = loop.now_s
        loop.add(few, STEP_S)
        loop.run()
        assert loop.now_s - began_s <= 1.01 * few * STEP_S
        loop.now_s += 2 * BURST_S
    assert loop.turns_count == 3 * few


def test_many_handshakes_use_only_their_share_of_the_time() -> None:
    loop = Loop()
    began_s, count = loop.now_s, 2_000
    loop.add(count, STEP_S)
    loop.run()
    took_s = loop.now_s - began_s
    assert count * STEP_S <= SHARE * (took_s + 2 * BURST_S)
    assert took_s <= count * STEP_S / SHARE
    assert len(loop.order) == 0


def test_slow_handshakes_wait_for_a_limited_time() -> None:
    loop = Loop()
    began_s, count = loop.now_s, 100
    loop.add(count, 2 * SHARE * STEP_S_MAX)
    loop.run()
    assert loop.now_s - began_s <= 1.01 * count * STEP_S_MAX


def test_a_flood_from_one_address_does_not_block_handshakes_of_others() -> None:
    loop = Loop()
    loop.add(1_000, STEP_S, "10.0.0.1")
    loop.add(2, STEP_S, "10.0.0.2")
    loop.run()
    assert loop.hosts[:5] == ["10.0.0.1", "10.0.0.2"] * 2 + ["10.0.0.1"]
    assert loop.hosts.count("10.0.0.1") == 1_000

"""Client quotas: sharing, usage that survives changes, and memory limits."""

import pytest

from penstock.broker.quotas import clients
from penstock.broker.quotas.clients import Client, ClientQuotas, RequestQuota
from penstock.broker.quotas.rates import Window
from penstock.controller.metadata.quotas import QuotasImage
from penstock.controller.metadata.records import QuotaRecord, QuotaTarget


class Time:
    now_ms = 0
    busy_s = 0.0


def entity(user: str | None = "", client_id: str | None = "") -> tuple[QuotaTarget, ...]:
    """Return a quota entity without its empty parts; None stands for the default entity."""
    parts = [("client-id", client_id), ("user", user)]
    return tuple(QuotaTarget(kind, name) for kind, name in parts if name != "")


class Quotas:
    def __init__(self) -> None:
        self.image = QuotasImage()
        self.clients = ClientQuotas(Window())
        self.time = Time()

    def set(
        self, of: tuple[QuotaTarget, ...], key: str = "producer_byte_rate", value: float | None = 1
    ) -> None:
        self.image.set(QuotaRecord(of, key, value))
        self.clients.change(self.image, {of})

    def client(self, user: str = "u", client_id: str = "c") -> Client:
        return self.clients.client(user, client_id, self.time.now_ms)

    def request(self, user: str = "u", client_id: str = "c") -> RequestQuota:
        return RequestQuota(
            self.clients,
            self.client(user, client_id),
            lambda: self.time.now_ms / 1_000,
            lambda: self.time.busy_s,
        )

    def produce(self, size_bytes: int, user: str = "u", client_id: str = "c") -> int:
        return self.request(user, client_id).produced(size_bytes)


@pytest.fixture
def quotas() -> Quotas:
    return Quotas()


def test_without_a_quota_nothing_is_counted(quotas: Quotas) -> None:
    assert not quotas.clients.is_active
    quotas.set(entity("other"))
    assert quotas.clients.is_active
    assert not quotas.client().is_limited
    quotas.set(entity("other"), value=None)
    assert not quotas.clients.is_active
    assert len(quotas.clients) == 0


def test_address_quotas_are_not_client_quotas(quotas: Quotas) -> None:
    quotas.set((QuotaTarget("ip", "127.0.0.1"),), "connection_creation_rate", 5)
    assert not quotas.clients.is_active


@pytest.mark.parametrize(
    ("of", "is_shared_by_clients", "is_shared_by_users"),
    [
        (entity("u", "c"), False, False),
        (entity("u", None), False, False),
        (entity("u"), True, False),
        (entity(None), True, False),
        (entity(None, None), False, False),
        (entity(client_id="c"), False, True),
        (entity(client_id=None), False, True),
    ],
    ids=str,
)
def test_which_clients_share_a_quota(
    quotas: Quotas,
    of: tuple[QuotaTarget, ...],
    is_shared_by_clients: bool,
    is_shared_by_users: bool,
) -> None:
    quotas.set(of, value=1_000)
    assert quotas.produce(20_000) == 10_000
    assert bool(quotas.produce(1, client_id="d")) is is_shared_by_clients
    assert bool(quotas.produce(1, user="v")) is is_shared_by_users


def test_a_quota_change_keeps_the_usage(quotas: Quotas) -> None:
    quotas.set(entity("u"), value=1_000)
    assert quotas.produce(20_000) == 10_000
    quotas.set(entity("u"), value=2_000)
    assert quotas.produce(0) == 0
    assert quotas.produce(10_000) == 5_000
    quotas.set(entity("u"), value=1_000)
    assert quotas.produce(0) == 20_000


def test_a_more_specific_quota_takes_precedence(quotas: Quotas) -> None:
    quotas.set(entity(None), value=1)
    assert quotas.produce(1_000) > 0
    quotas.set(entity("u", "c"), value=1_000_000)
    assert quotas.produce(1_000) == 0


def test_only_the_longest_throttle_time_is_counted(quotas: Quotas) -> None:
    quotas.set(entity("u"), "producer_byte_rate", 1_000)
    quotas.set(entity("u"), "request_percentage", 1)
    request = quotas.request()
    quotas.time.busy_s += 0.5
    request.leave()
    assert [request.produced(20_000), request.settle()] == [10_000, 10_000]
    throttles = quotas.clients.throttles
    assert (throttles["producer_byte_rate"].count, throttles["request_percentage"].count) == (1, 0)
    assert throttles["producer_byte_rate"].total_ms == 10_000


def test_request_time_quotas_throttle_for_at_most_one_sample(quotas: Quotas) -> None:
    quotas.set(entity("u"), "request_percentage", 1)
    request = quotas.request()
    quotas.time.busy_s += 0.101
    assert request.settle() == 100  # 10.1 % of a second in 10 s: 1 % above the quota, of 10 s
    request = quotas.request()
    quotas.time.busy_s += 5.0
    assert request.settle() == 1_000


def test_the_time_of_requests_without_a_response_is_not_counted(quotas: Quotas) -> None:
    quotas.set(entity("u"), "request_percentage", 1)
    request = quotas.request()
    quotas.time.busy_s += 5.0
    assert request.produced(1, has_response=False) == 0
    assert quotas.request().settle() == 0


def test_waiting_time_within_a_request_is_not_counted(quotas: Quotas) -> None:
    quotas.set(entity("u"), "request_percentage", 1)
    request = quotas.request()
    for _ in range(2):
        request.enter()
        quotas.time.busy_s += 0.04
        request.leave()
        quotas.time.busy_s += 9.0
    assert request.settle() == 0


def test_bytes_of_a_throttled_fetch_are_not_counted(quotas: Quotas) -> None:
    quotas.set(entity("u"), "consumer_byte_rate", 1_000)
    assert quotas.request().fetch_bytes_max(1 << 20) == 10_000
    assert quotas.request().fetched(10_000) == 0
    assert quotas.request().fetched(1_000) == 1_000
    assert quotas.request().fetched(0) == 0
    request = quotas.request()
    request.sent(2_000)
    assert request.settle() == 2_000


def test_the_throttle_time_of_mutations_comes_from_the_controller(quotas: Quotas) -> None:
    quotas.set(entity("u"), "controller_mutation_rate", 1)
    assert quotas.client().is_limited
    assert not quotas.client(user="other").is_limited
    request = quotas.request()
    assert request.has_mutation_rate
    request.changed(9_000)
    request.changed(0)
    assert request.settle() == 9_000
    throttles = quotas.clients.throttles["controller_mutation_rate"]
    assert (throttles.count, throttles.total_ms) == (1, 9_000)


def test_the_number_of_tracked_clients_is_limited(
    quotas: Quotas, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client that was idle for longest is dropped first, with its usage."""
    monkeypatch.setattr(clients, "CLIENTS_MAX", 3)
    quotas.set(entity(client_id=None), value=1_000)
    for at, name in enumerate("abcabd"):
        quotas.time.now_ms = at * 1_000
        quotas.produce(100_000, client_id=name)
        assert len(quotas.clients) <= 3
    assert quotas.produce(0, client_id="a") > 0
    assert quotas.produce(0, client_id="c") == 0


def test_long_client_ids_do_not_occupy_memory(quotas: Quotas) -> None:
    """They share their quotas."""
    quotas.set(entity(client_id=None), value=1_000)
    long = "c" * clients.CLIENT_ID_CHARS_MAX
    assert quotas.client(client_id=long + "1") is quotas.client(client_id=long + "2")
    assert quotas.client(client_id=long[1:]) is not quotas.client(client_id=long)


def test_idle_clients_are_dropped(quotas: Quotas) -> None:
    quotas.set(entity(client_id=None), value=1_000)
    for at in range(10):
        quotas.client(client_id=str(at))
    assert len(quotas.clients) == 10
    for at in range(10):
        quotas.time.now_ms = clients.IDLE_MS + at
        quotas.client(client_id="new" + str(at % 2))
    assert len(quotas.clients) <= 8
    quotas.time.now_ms = 2 * clients.IDLE_MS + 100
    for at in range(10):
        quotas.client(client_id="newest" + str(at))
    assert len(quotas.clients) == 10

"""Diagnose a cluster from the last responses of its brokers, controllers and store.

Invariant: pure. A source is stale if it has not responded for STALE_S; its values are as old as its
last response.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

STALE_S: Final = 2.6
"""Age from which a source is stale. It is longer than the time between two measurements, so that a
healthy cluster is never stale.
"""
SILENT_S: Final = 1.75
"""Silence after which pages do not send requests to a broker. Heartbeats are sent every 0.5 s."""
WAITING_S: Final = 1.0
"""Age of a pending request from which its broker counts as silent."""
SLOW_APPEND_MS: Final = 5_000.0
CONTROLLERS: Final = "controllers"
BROKERS: Final = "brokers"
STORE: Final = "store"
_PUBLIC: Final = {BROKERS: "A part of the cluster does not respond"}


@dataclass(frozen=True, slots=True)
class BrokerHealth:
    """heartbeat_age_s: age of the last heartbeat if the next one is late, otherwise None.
    ends_in_s: time until the broker is fenced if it stays silent. waiting_s: how long a request of
    the console has been pending. age_s: age of the last values from the broker; None if nothing was
    requested. append_ms: age of the slowest append. refusal: the reason why the broker rejects the
    console; empty if it does not.
    """

    node_id: int
    is_fenced: bool
    heartbeat_age_s: float | None = None
    ends_in_s: float | None = None
    waiting_s: float = 0.0
    age_s: float | None = None
    append_ms: float | None = None
    refusal: str = ""

    @property
    def is_silent(self) -> bool:
        """Return whether the broker is not expected to respond."""
        return (
            self.is_fenced or (self.heartbeat_age_s or 0.0) > SILENT_S or self.waiting_s > WAITING_S
        )


@dataclass(frozen=True, slots=True)
class StoreHealth:
    """silent_s: time since the last response. refusal: the reason why it rejects requests; empty if
    it does not.
    """

    silent_s: float
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class Problem:
    """cause: "controllers", "brokers" or "store". is_bad: whether clients are currently
    affected.
    """

    cause: str
    title: str
    text: str
    is_bad: bool = True

    @property
    def public_title(self) -> str:
        """Return the title for users who may not describe the cluster: without ids."""
        return _PUBLIC.get(self.cause, self.title)


@dataclass(frozen=True, slots=True)
class Health:
    """ages_s: seconds since the last response, by watched source."""

    problems: tuple[Problem, ...]
    ages_s: Mapping[str, float]

    @property
    def stale_s(self) -> float:
        """Return the age of the oldest stale values, or 0 if there are none."""
        return max((age for age in self.ages_s.values() if age > STALE_S), default=0.0)


def diagnose(
    controllers_silent_s: float,
    brokers: Mapping[int, BrokerHealth],
    store: StoreHealth | None,
    leaderless: int,
) -> Health:
    """Return the problems. store: None if it is not watched. leaderless: partitions without a
    leader.
    """
    live = [broker for broker in brokers.values() if not broker.is_fenced]
    ages = {CONTROLLERS: controllers_silent_s}
    requested = [broker.age_s for broker in live if broker.age_s is not None]
    if requested:
        ages[BROKERS] = max(requested)
    if store is not None:
        ages[STORE] = store.silent_s
    is_refused = any(broker.refusal for broker in live)
    if controllers_silent_s > STALE_S and requested and min(requested) > STALE_S and not is_refused:
        return Health((_no_cluster(controllers_silent_s), *_store(store, [])), ages)
    problems: list[Problem] = []
    if controllers_silent_s > STALE_S:
        problems.append(_no_controllers(controllers_silent_s))
    problems += [
        problem
        for broker in sorted(brokers.values(), key=lambda item: item.node_id)
        if (problem := _broker(broker)) is not None
    ]
    if leaderless:
        problems.append(
            Problem(
                BROKERS,
                f"{leaderless:,} partitions have no leader"
                if leaderless > 1
                else "1 partition has no leader",
                "Producers and consumers of them wait until a broker is elected.",
            )
        )
    problems += _store(store, live)
    return Health(tuple(problems), ages)


def _no_cluster(silent_s: float) -> Problem:
    return Problem(
        CONTROLLERS,
        "The cluster does not respond",
        f"Neither controllers nor brokers have responded for {silent_s:.0f} s."
        " Start them, or check the network between this console and the cluster.",
    )


def _no_controllers(silent_s: float) -> Problem:
    return Problem(
        CONTROLLERS,
        "The controllers do not respond",
        f"None has responded for {silent_s:.0f} s; topics, leaders and states of brokers may have"
        " changed since."
        " Brokers stop accepting records when their sessions end.",
    )


def _broker(broker: BrokerHealth) -> Problem | None:
    name = f"Broker {broker.node_id}"
    if broker.is_fenced:
        return Problem(
            BROKERS,
            f"{name} is fenced",
            "The controllers received no heartbeat within its session timeout. Other brokers"
            " take over its partitions, if any is alive. Restart it, or remove it with"
            f" `penstock nodes unregister {broker.node_id}`.",
            is_bad=False,
        )
    age = broker.heartbeat_age_s
    if age is not None and age > SILENT_S:
        left = "" if broker.ends_in_s is None else f" in {max(0.0, broker.ends_in_s):.0f} s"
        return Problem(
            BROKERS,
            f"{name} is silent",
            f"Its last heartbeat was {age:.0f} s ago. The controllers fence it{left}, and others"
            " take over its partitions and groups.",
        )
    if broker.refusal:
        return Problem(
            BROKERS,
            f"{name} rejects this console",
            f"{broker.refusal}. The end offsets of its partitions are not known now.",
            is_bad=False,
        )
    if broker.waiting_s > WAITING_S and broker.age_s is not None:
        return Problem(
            BROKERS,
            f"{name} does not respond",
            f"This console has received no response for {broker.age_s:.0f} s. The values of its"
            " partitions and groups are as old.",
        )
    return None


def _store(store: StoreHealth | None, live: list[BrokerHealth]) -> list[Problem]:
    if store is not None and store.refusal:
        return [
            Problem(
                STORE,
                "The object store refuses this console",
                f"Records and objects cannot be shown: {store.refusal}",
                is_bad=False,
            )
        ]
    if store is not None and store.silent_s > STALE_S:
        return [
            Problem(
                STORE,
                "The object store does not respond",
                f"It has not responded for {store.silent_s:.0f} s. Producers wait, because brokers"
                " acknowledge records when they are in the store.",
            )
        ]
    slow = [broker for broker in live if (broker.append_ms or 0.0) > SLOW_APPEND_MS]
    if not slow:
        return []
    slowest = max(slow, key=lambda broker: broker.append_ms or 0.0)
    return [
        Problem(
            STORE,
            "Appends are slow",
            f"Broker {slowest.node_id} waits {(slowest.append_ms or 0) / 1_000:.0f} s for the"
            " object store.",
        )
    ]

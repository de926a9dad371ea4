"""Settings of one broker process. Each names the Kafka property it answers to, and what it costs when changed.

Invariant: a `BrokerConfig` that exists is valid; `__post_init__` refuses the rest with a message that says what is allowed.
Must not: read files or the environment (that is `from_environment`, called by process entries only) or hold objects that live.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Final

ENVIRONMENT_PREFIX: Final = "PENSTOCK_"


class ConfigInvalid(ValueError):
    """A setting that can not be used; the message names it, its value and what is allowed."""

    def __init__(self, name: str, value: object, allowed: str) -> None:
        super().__init__(f"{name}={value!r} is not allowed: {allowed}")
        self.name = name


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """All sizes in bytes, all times in milliseconds. Kafka's property name stands behind each field where there is one."""

    node_id: int = -1
    """`node.id`. -1: the controller gives the lowest free one."""

    listen_host: str = "127.0.0.1"
    """`listeners`: the address to bind. 0.0.0.0 in containers."""

    listen_port: int = 9092
    """`listeners`: 0 takes a free port, which is then the registered one."""

    advertised_host: str = ""
    """`advertised.listeners`: what clients are told. Empty: the address at which each client already reached us."""

    advertised_port: int = 0
    """`advertised.listeners`: 0 means the port that was bound."""

    rack: str | None = None
    """`broker.rack`."""

    controllers: tuple[str, ...] = ("127.0.0.1:9093",)
    """`controller.quorum.bootstrap.servers`: host:port of each controller."""

    registration_timeout_ms: int = 60_000
    """How long a starting broker looks for a controller before it gives up (exit code 1)."""

    shutdown_timeout_ms: int = 25_000
    """Longest graceful stop; below Kubernetes' default grace of 30 s. Then the process leaves and its WAL is recovered by others."""

    request_bytes_max: int = 100 * 1024 * 1024
    """`socket.request.max.bytes`: a larger frame closes the connection."""

    connections_max: int = 10_000
    """`max.connections`: more are closed at once. Each costs about 10 KB idle."""

    connections_idle_ms: int = 600_000
    """`connections.max.idle.ms`: no complete request for so long closes the connection; also what bounds a slow sender."""

    request_stall_ms: int = 30_000
    """A request that began to arrive and brings no byte for so long closes the connection."""

    requests_in_flight_max: int = 256
    """Requests of one connection that may wait for answers; reading pauses above (clients pipeline without any limit)."""

    response_bytes_max: int = 4 * 1024 * 1024
    """Answers of one connection that are ready or unsent; above, no further request of it starts, so a client that does not read stops
    itself. One answer may be larger (`fetch.max.bytes`)."""

    buffered_request_bytes_max: int = 512 * 1024 * 1024
    """`queued.max.request.bytes`: requests in memory over all connections, half-received ones too; all reading pauses above."""

    auto_create_topics_enable: bool = True
    """`auto.create.topics.enable`."""

    num_partitions: int = 1
    """`num.partitions` for topics that are created without a count; -1 leaves it to the controller."""

    default_replication_factor: int = -1
    """`default.replication.factor`; -1 leaves it to the controller."""

    offsets_topic_num_partitions: int = 50
    """`offsets.topic.num.partitions`: can not be changed once `__consumer_offsets` exists."""

    transaction_state_log_num_partitions: int = 50
    """`transaction.state.log.num.partitions`: can not be changed once `__transaction_state` exists."""

    transaction_max_timeout_ms: int = 900_000
    """`transaction.max.timeout.ms`: an open transaction holds back its readers for as long."""

    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = 10_000
    """`transaction.abort.timed.out.transaction.cleanup.interval.ms`: how late an abort for timeout may come."""

    group_initial_rebalance_delay_ms: int = 3_000
    """`group.initial.rebalance.delay.ms`: how long the first member of an empty group waits for company. 0 in development and tests."""

    group_min_session_timeout_ms: int = 6_000
    """`group.min.session.timeout.ms`."""

    group_max_session_timeout_ms: int = 1_800_000
    """`group.max.session.timeout.ms`."""

    group_max_size: int = 1_000
    """`group.max.size`."""

    topic_create_timeout_ms: int = 30_000
    """Limit for one metadata change at the controller when the client gives none."""

    load_report_interval_ms: int = 2_000
    """How often the controller is told what is led here and how fast it answers; balancing is as quick as this."""

    def __post_init__(self) -> None:
        _check_range("load_report_interval_ms", self.load_report_interval_ms, 50, 5_000)
        _check_range("listen_port", self.listen_port, 0, 65_535)
        _check_range("advertised_port", self.advertised_port, 0, 65_535)
        _check_range("request_bytes_max", self.request_bytes_max, 1_024, 2**31 - 1)
        _check_range("buffered_request_bytes_max", self.buffered_request_bytes_max, self.request_bytes_max, 2**40)
        _check_range("requests_in_flight_max", self.requests_in_flight_max, 1, 100_000)
        _check_range("node_id", self.node_id, -1, 2**31 - 1)
        for name in ("connections_idle_ms", "shutdown_timeout_ms", "response_bytes_max", "connections_max"):
            _check_range(name, getattr(self, name), 1, 2**40)
        for name in ("transaction_state_log_num_partitions", "transaction_max_timeout_ms"):
            _check_range(name, getattr(self, name), 1, 2**31 - 1)
        _check_range(
            "transaction_abort_timed_out_transaction_cleanup_interval_ms",
            self.transaction_abort_timed_out_transaction_cleanup_interval_ms,
            10,
            3_600_000,
        )
        if not self.controllers:
            raise ConfigInvalid("controllers", self.controllers, "name at least one controller as host:port")

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None, **overrides: object) -> "BrokerConfig":
        """`PENSTOCK_<FIELD>` for each field (`PENSTOCK_LISTEN_PORT=9092`); `overrides` win. Raises ConfigInvalid."""
        source = os.environ if environment is None else environment
        values: dict[str, object] = {}
        for field in fields(cls):
            text = source.get(ENVIRONMENT_PREFIX + field.name.upper())
            if text is not None:
                values[field.name] = _parse(field.name, str(field.type), text)
        values.update(overrides)
        return cls(**values)  # type: ignore[arg-type]  # checked field by field above


def _check_range(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise ConfigInvalid(name, value, f"{low} to {high}")


def _parse_bool(text: str) -> bool:
    return {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}[text.strip().lower()]


def _parse_list(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


_PARSERS: Final[dict[str, tuple[Callable[[str], object], str]]] = {
    "int": (int, "a whole number"),
    "bool": (_parse_bool, "true or false"),
    "str": (str, "text"),
    "str | None": (str, "text"),
    "tuple[str, ...]": (_parse_list, "a list separated by commas"),
}


def _parse(name: str, kind: str, text: str) -> object:
    # `str(field.type)` of a class is "<class 'int'>", of a generic alias its source form.
    parse, allowed = _PARSERS[kind.removeprefix("<class '").removesuffix("'>")]
    try:
        return parse(text)
    except (ValueError, KeyError):
        raise ConfigInvalid(name, text, allowed) from None

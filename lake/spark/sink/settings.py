"""Translate producer settings from the names of Kafka's Java client, which `kafka.*` options use,
to librdkafka's names.

Source: Kafka `ProducerConfig`, librdkafka `CONFIGURATION.md`.
"""

from collections.abc import Mapping
from typing import Final

from penstock.lake.spark.errors import InvalidOption
from penstock.lake.spark.sink.security import NAMES as SECURITY_NAMES
from penstock.lake.spark.sink.security import security_settings

_DEFAULTS: Final = {
    "acks": "all",
    "delivery.timeout.ms": "120000",
    "partitioner": "murmur2_random",
    "queue.buffering.max.kbytes": "32768",  # buffer size of a task; librdkafka's default is 1 GiB
    "client.id": "penstock-spark",
}
_RENAMED: Final = {
    "max.request.size": "message.max.bytes",
    "receive.buffer.bytes": "socket.receive.buffer.bytes",
    "send.buffer.bytes": "socket.send.buffer.bytes",
    "message.timeout.ms": "delivery.timeout.ms",
    "request.required.acks": "acks",
    "ssl.truststore.certificates": "ssl.ca.pem",
    "ssl.keystore.certificate.chain": "ssl.certificate.pem",
    "ssl.keystore.key": "ssl.key.pem",
}
_WITHOUT_EFFECT: Final = frozenset(
    {
        "max.block.ms",
        "metadata.max.idle.ms",
        "metric.reporters",
        "metrics.num.samples",
        "metrics.recording.level",
        "metrics.sample.window.ms",
        "auto.include.jmx.reporter",
        "partitioner.adaptive.partitioning.enable",
        "partitioner.availability.timeout.ms",
        "security.providers",
    }
)
"""Settings that are not passed to librdkafka: `max.block.ms` is applied elsewhere, and librdkafka
does not support the others.
"""

_INSTEAD: Final = {
    "transactional.id": "set the option exactlyOnce to true, which names transactions itself",
    "partitioner.class": (
        "Java classes cannot be loaded: use kafka.partitioner (murmur2_random is what Java does),"
        " or a column partition"
    ),
    "interceptor.classes": (
        "Java classes cannot be loaded: change the rows with DataFrame operations"
    ),
    "delivery.report.only.error": "it is always true here",
}
MAX_BLOCK_MS: Final = 60_000


def producer_settings(given: Mapping[str, str]) -> dict[str, str]:
    """Return librdkafka's settings for `kafka.*` options, given without that prefix. Raise
    InvalidOption.

    Invariant: a setting either takes effect or causes an error or a warning. Names that both
    clients share are passed unchanged, and librdkafka rejects unknown names. Where the defaults
    differ (partitioner, idempotence, buffer, delivery timeout), those of the Java client apply.
    """
    _check(given)
    found = _DEFAULTS | security_settings(given)
    for name, value in given.items():
        if name == "buffer.memory":
            found["queue.buffering.max.kbytes"] = str(max(1, number(name, value) // 1_024))
        elif name not in _WITHOUT_EFFECT | SECURITY_NAMES:
            found[_RENAMED.get(name, name)] = value.strip()
    found.setdefault("enable.idempotence", str(_may_be_idempotent(found)).lower())
    return found


def without_effect(given: Mapping[str, str]) -> list[str]:
    return sorted(
        f"kafka.{name}" for name in given if name in _WITHOUT_EFFECT and name != "max.block.ms"
    )


def number(name: str, value: str) -> int:
    """Parse a setting that this module interprets. Raise InvalidOption."""
    try:
        found = int(value)
    except ValueError:
        found = -1
    if found < 0:
        raise InvalidOption(f"kafka.{name} must be a non-negative number, got {value!r}")
    return found


def _check(given: Mapping[str, str]) -> None:
    for what in ("key", "value"):
        if f"{what}.serializer" in given:
            raise InvalidOption(
                f"Kafka option '{what}.serializer' is not supported as {what}s are serialized with"
                " ByteArraySerializer."
            )
    if not given.get("bootstrap.servers", "").strip():
        raise InvalidOption(
            "Option 'kafka.bootstrap.servers' must be specified for configuring Kafka producer"
        )
    for name in sorted(_INSTEAD.keys() & given.keys()):
        raise InvalidOption(f"Kafka option '{name}' is not supported: {_INSTEAD[name]}")


def _may_be_idempotent(settings: Mapping[str, str]) -> bool:
    """Return whether these settings allow idempotence, as in the Java client; used only if
    idempotence is not set.
    """
    in_flight = settings.get(
        "max.in.flight.requests.per.connection", settings.get("max.in.flight", "5")
    )
    return (
        settings["acks"] in {"all", "-1"}
        and settings.get("retries") != "0"
        and in_flight in {"1", "2", "3", "4", "5"}
    )

"""Parse the options of a write: the options of `format("kafka")`, with the same checks and error
texts, and the options for exactly-once writes.

Source: Spark `KafkaSourceProvider#kafkaParamsForProducer`; Delta's `txnAppId` and `txnVersion`;
`docs/reference/spark.md`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final

from penstock.lake.spark.errors import InvalidOption
from penstock.lake.spark.options import check_name, flag
from penstock.lake.spark.sink.settings import (
    MAX_BLOCK_MS,
    number,
    producer_settings,
    without_effect,
)

_OURS: Final = ("topic", "exactlyonce", "store", "txnappid", "txnversion")
_ELSEWHERE: Final = frozenset(
    {"path", "checkpointlocation", "queryname", "includeheaders", "cluster"}
)
_INT64_MAX: Final = (1 << 63) - 1
_TRANSACTION_TIMEOUT_MS: Final = 900_000
"""Kafka's `transaction.max.timeout.ms`. After a driver is killed, its open transaction blocks
read_committed consumers for this long, or until the query starts again. A transaction that takes
longer is aborted.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    topic: str | None
    producer: Mapping[str, str]
    """Producer settings with librdkafka's names."""

    delivery_timeout_ms: int
    max_block_ms: int
    """Maximum time that `send` waits for room in a full buffer."""

    exactly_once: bool
    store: str
    """URL of the store in which rows are staged for their transaction; empty unless
    `exactly_once`.
    """

    write_name: str
    """txnAppId, or empty."""

    write_version: int


def parse_write(options: Mapping[str, str], *, streaming: bool, overwrite: bool) -> WriteOptions:
    """Parse the options. Raise InvalidOption.

    Invariant: the result depends only on the options; names are case-insensitive. Options of the
    source are also accepted, so that a job can use the same options for both.
    """
    given = {name.lower(): value for name, value in options.items()}
    if overwrite and not streaming:
        raise InvalidOption(
            "Save mode Overwrite not allowed for Kafka. A topic can only be appended to: use"
            " mode('append')."
        )
    kafka = _kafka(given)
    settings = producer_settings(kafka)
    exactly_once = flag(given, "exactlyOnce")
    name, version = _write_id(given, exactly_once=exactly_once, streaming=streaming)
    store = given.get("store", "").strip()
    if exactly_once:
        if not store:
            raise InvalidOption(
                "exactlyOnce needs the option 'store', as in s3://bucket/prefix: rows are "
                "staged there until the driver commits them in one transaction"
            )
        if settings.get("enable.idempotence") != "true":
            raise InvalidOption(
                "exactlyOnce needs an idempotent producer: do not set kafka.acks, "
                "kafka.retries and kafka.enable.idempotence"
            )
        settings.setdefault("transaction.timeout.ms", str(_TRANSACTION_TIMEOUT_MS))
    topic = given.get("topic")
    return WriteOptions(
        topic=None if topic is None else topic.strip(),
        producer=settings,
        delivery_timeout_ms=number("delivery.timeout.ms", settings["delivery.timeout.ms"]),
        max_block_ms=number("max.block.ms", kafka.get("max.block.ms", str(MAX_BLOCK_MS))),
        exactly_once=exactly_once,
        store=store if exactly_once else "",
        write_name=name,
        write_version=version,
    )


def write_warnings(options: Mapping[str, str]) -> list[str]:
    """Return warnings about options that are accepted but have no effect."""
    given = {name.lower(): value for name, value in options.items()}
    found: list[str] = []
    if ignored := without_effect(_kafka(given)):
        found.append(f"options that the producer does not have: {', '.join(ignored)}")
    for name in sorted(given.keys() - _ELSEWHERE - {*_OURS}):
        near = [] if name.startswith("kafka.") else get_close_matches(name, _OURS, n=1)
        found += [f"unknown option {name}: did you mean {item}?" for item in near]
    return found


def _kafka(given: Mapping[str, str]) -> dict[str, str]:
    return {
        name.removeprefix("kafka."): value
        for name, value in given.items()
        if name.startswith("kafka.")
    }


def _write_id(given: Mapping[str, str], *, exactly_once: bool, streaming: bool) -> tuple[str, int]:
    name, version = given.get("txnappid"), given.get("txnversion")
    if name is None and version is None:
        return "", 0
    if streaming:
        raise InvalidOption(
            "txnAppId and txnVersion are for df.write: a streaming query identifies its "
            "micro-batches itself"
        )
    if not exactly_once or name is None or version is None:
        raise InvalidOption(
            "txnAppId, txnVersion and exactlyOnce=true must be used together: the name of a "
            "series of writes, and the number of this write"
        )
    check_name("txnAppId", name)
    if not version.isascii() or not version.isdigit() or int(version) >= _INT64_MAX:
        raise InvalidOption(
            "txnVersion must be a non-negative number that increases with each write, got"
            f" {version!r}"
        )
    return name, int(version)

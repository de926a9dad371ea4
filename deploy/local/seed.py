"""Parse the first contents of a local cluster: topics from `--topics`, records from the lines of
`--seed-from`.

Invariant: errors are reported before any process starts, with their line. Pure.
"""

from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import Final, NamedTuple

import msgspec

from penstock.deploy.errors import UsageError

PARTITIONS_MAX: Final = 1_000
_FIELDS: Final = ("topic", "key", "value", "headers", "partition", "timestamp_ms")
_INT64_MAX: Final = (1 << 63) - 1


class SeedRecord(NamedTuple):
    """One record. partition: -1 to choose it by key, or any partition without a key. timestamp_ms:
    0 means now.
    """

    topic: str
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    partition: int
    timestamp_ms: int


def parse_topics(text: str) -> dict[str, int]:
    """Parse `orders:3,clicks:12`; a bare name means one partition. Raises UsageError."""
    topics: dict[str, int] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, colon, count = part.partition(":")
        if not name or (colon and not (count.isdecimal() and 1 <= int(count) <= PARTITIONS_MAX)):
            raise UsageError(
                f"--topics {part!r} is not allowed: NAME:PARTITIONS (1 to {PARTITIONS_MAX}), as in"
                " orders:3,clicks:12"
            )
        if name in topics:
            raise UsageError(f"--topics contains {name!r} twice")
        topics[name] = int(count or 1)
    return topics


def parse_seed(
    lines: Iterable[bytes], topics: Mapping[str, int], source: str
) -> Iterator[SeedRecord]:
    """Parse one record per line; skip empty lines. topics: those of `--topics`; other topics get
    one partition. Raises UsageError.

    A JSON object with `value` or `topic` is a record with the fields topic, key, value, headers,
    partition, timestamp_ms. Any other line is a value. Records without a topic are sent to the
    first topic of `--topics`.
    """
    default = next(iter(topics), "")
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if text:
            yield _record(text, default, topics, f"{source}, line {number}")


def _record(text: bytes, default: str, topics: Mapping[str, int], where: str) -> SeedRecord:
    found = _parsed(text, where)
    fields = {"value": text.decode(errors="surrogateescape")} if found is None else found
    for name in fields:
        if name not in _FIELDS:
            near = get_close_matches(name, _FIELDS, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(_FIELDS)}"
            raise UsageError(f"{where}: unknown field {name!r}; {hint}")
    topic = fields.get("topic", default)
    if not isinstance(topic, str) or not topic:
        raise UsageError(
            f"{where}: no topic: add the field 'topic', or pass --topics, whose first topic"
            " is the default"
        )
    return SeedRecord(
        topic,
        _data(fields.get("key")),
        _data(fields.get("value")) if found is not None else text,
        _headers(fields.get("headers") or {}, where),
        _whole(fields, "partition", -1, topics.get(topic, 1) - 1, f"{where}: {topic!r}"),
        _whole(fields, "timestamp_ms", 0, _INT64_MAX, where),
    )


def _parsed(text: bytes, where: str) -> dict[str, object] | None:
    """Return the fields of a record, or None for a plain value."""
    if not text.startswith(b"{"):
        return None
    try:
        found = msgspec.json.decode(text, type=dict[str, object])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{where}: not JSON: {error}") from None
    return found if "value" in found or "topic" in found else None


def _data(value: object) -> bytes | None:
    """Return text as UTF-8, null as None, and other values as compact JSON."""
    if value is None:
        return None
    return value.encode() if isinstance(value, str) else msgspec.json.encode(value)


def _headers(value: object, where: str) -> tuple[tuple[str, bytes | None], ...]:
    try:
        return tuple(
            (name, _data(data))
            for name, data in msgspec.convert(value, dict[str, str | None]).items()
        )
    except msgspec.ValidationError:
        raise UsageError(f"{where}: headers must be an object with string values") from None


def _whole(fields: Mapping[str, object], name: str, low: int, high: int, where: str) -> int:
    """Return the field as a number, by default the lowest one."""
    value = fields.get(name, low)
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise UsageError(f"{where}: {name}={value!r} is not allowed: {low} to {high}")
    return value

"""A small cluster for the console pages, without a network: metadata and objects of
`tests/formats/1.0`, records that attack a page, and a broker that responds to each request with
hostile text.
"""

import asyncio
import itertools
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Final

from penstock.controller.backup.snapshots import SnapshotStore
from penstock.controller.metadata.image import MetadataImage
from penstock.deploy.admin.views import view_cluster
from penstock.deploy.console.formats import shown_bytes
from penstock.deploy.console.records import (
    RecordSelection,
    RecordsFound,
    RecordView,
    Show,
    find_records,
)
from penstock.deploy.top.view import TopicCount, TopView, stored_topics, view_top
from penstock.objectstore.directory import DirectoryStore
from penstock.protocol import apis
from penstock.protocol.apis import ApiSpec
from penstock.protocol.codecs import CODECS
from penstock.protocol.framing import SIZE_BYTES, encode_response_frame, parse_header
from penstock.protocol.frozen_topics import FrozenPartition, FrozenTopicInfo, encode_frozen_topic
from tests.formats import batches
from tests.fuzz.protocol_messages import built_message
from tools.protocol.kio_schema import Field, Kind, Struct

TOPIC: Final = "payments"
"""A topic of the stored cluster."""

HOSTILE: Final = '"><img src=x onerror=alert(1)>&`{{7*7}}\x00\x1b[31m\u202e\ud7ff'
"""Text that could turn into a script, a template, a line or a color."""

_BUCKET: Final = Path(__file__).parents[1] / "formats" / "1.0" / "bucket"
STORE: Final = f"file:{_BUCKET}"
_CLUSTER_ID: Final = "d97d5557b4474a418ba0ed"
_BYTES: Final = (
    None,
    b"",
    HOSTILE.encode(),
    bytes(range(256)),
    b"\x00\x00\x00\x00\x07" + b"\xff" * 9,
    b'{"a": ' * 2_000,
    b"\xed\xa0\x80 half a character",
    b"9" * 5_000,
)
_TEXTS: Final = {
    "host": "localhost",
    "topic": TOPIC,
    "topic_name": TOPIC,
    "group_type": "Classic",
    "protocol_type": "consumer",
    "transaction_state": "Ongoing",
}
"""Text in fields that only brokers write, by field name."""
_NONE: Final = frozenset({"unknown_state_filters"})
"""Fields that a broker leaves empty."""
_NUMBERS: Final = {"error_code": 0, "partition_index": 0, "partition": 0, "node_id": 0}
_SCALARS: Final[dict[Kind, Any]] = {
    Kind.BOOL: True,
    Kind.INT8: 1,
    Kind.INT16: 1,
    Kind.UINT16: 1,
    Kind.INT32: 0,
    Kind.INT64: 1,
    Kind.FLOAT64: 1e300,
    Kind.STRING: HOSTILE,
    Kind.BYTES: b"\x00\x03\xff\xff\xff\x7f" + HOSTILE.encode(),
    Kind.RECORDS: batches.run(0, 1).payload,
}


def _value(struct: Struct, field: Field) -> Any:
    if field.kind is Kind.UUID:
        return next(iter(IMAGE.topics)).topic_id
    if field.name in _NUMBERS:
        return _NUMBERS[field.name]
    if field.kind is Kind.STRING and field.name == "name" and "Topic" in struct.name:
        return TOPIC
    return _TEXTS.get(field.name, _SCALARS[field.kind])


class BrokerSocket:
    """A connection to a broker that responds to every request."""

    def __init__(self) -> None:
        self._responses = bytearray()

    def settimeout(self, _seconds: float) -> None: ...

    def close(self) -> None: ...

    def sendall(self, frame: bytes) -> None:
        header = parse_header(frame[SIZE_BYTES:])
        api, version = header.api, header.api_version
        encode = CODECS[api.key].encode_response
        self._responses += encode_response_frame(
            api, version, header.correlation_id, encode, _response(api, version)
        )

    def recv(self, count: int) -> bytes:
        found = bytes(self._responses[:count])
        del self._responses[:count]
        return found


@cache
def _response(api: ApiSpec, version: int) -> Any:
    """Return a response. The first one of each API takes 0.1 s, which is not a finding."""
    response = built_message(api, "response", version, _value, _NONE)
    if api is apis.METADATA:
        response.topics[0].frozen_topic = encode_frozen_topic(_FROZEN)
    return response


async def _load_image() -> MetadataImage:
    store = DirectoryStore(str(_BUCKET))
    loaded = await SnapshotStore(store, _CLUSTER_ID, kept=2).load_newest()
    await store.close()
    assert loaded is not None
    return loaded.image


IMAGE: Final = asyncio.run(_load_image())
ENDS: Final = {topic.name: dict.fromkeys(range(len(topic.partitions)), 9) for topic in IMAGE.topics}


_FROZEN: Final = FrozenTopicInfo(
    TOPIC,
    HOSTILE,
    next(iter(IMAGE.topics)).topic_id,
    1,
    -1,
    {"retention.ms": HOSTILE},
    [FrozenPartition(0, 9, 900, 9)],
    {HOSTILE: {0: 3}},
)


def top() -> TopView:
    """Return the metrics of the cluster."""
    counts = {name: TopicCount(sum(ends.values()), 0.0, 0.0) for name, ends in ENDS.items()}
    return view_top(view_cluster(IMAGE, "", {}), stored_topics(IMAGE), counts)


def hostile_records(store: str, query: RecordSelection, show: Show) -> RecordsFound:
    """Find records, including ones that none of our clients write."""
    found = find_records(store, query, show)
    return replace(found, records=[*found.records, *_hostile(show, query.value.encode())])


def _hostile(show: Show, given: bytes) -> Iterator[RecordView]:
    pairs = itertools.chain(itertools.pairwise((*_BYTES, given)), ((given, given),))
    for offset, (key, value) in enumerate(pairs):
        headers = [(HOSTILE, shown_bytes(value)), ("", shown_bytes(None))]
        shown = (show("key", key, None), show("value", value, given if offset % 2 else None))
        yield RecordView(0, offset, (-1, 2**62, 0)[offset % 3], *shown, headers)


for _api in (
    *(apis.METADATA, apis.FIND_COORDINATOR, apis.LIST_OFFSETS, apis.DESCRIBE_CONFIGS),
    *(apis.LIST_GROUPS, apis.DESCRIBE_GROUPS, apis.DESCRIBE_CLUSTER, apis.DESCRIBE_ACLS),
    *(apis.LIST_TRANSACTIONS, apis.DESCRIBE_TRANSACTIONS, apis.DESCRIBE_CLIENT_QUOTAS),
    *(apis.DESCRIBE_USER_SCRAM_CREDENTIALS, apis.CREATE_ACLS, apis.DELETE_ACLS),
):
    _response(_api, _api.max)
hostile_records(STORE, RecordSelection(topic=TOPIC), lambda _part, data, _header: shown_bytes(data))
"""The first request loads Arrow and prepares the broker's responses. It takes a second, which is
not a finding.
"""

"""Attack a broker: each function gets the port of a listener and attacks until it is killed."""

import asyncio
import contextlib
import itertools
import json
import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import jwt
from crc32c import crc32c
from cryptography.hazmat.primitives.asymmetric import rsa

from penstock.base.scram import ScramMechanism
from penstock.broker.groups.common.matched_topics import EXPRESSIONS_MAX
from penstock.controller.api.messages import PARTITIONS_PER_REQUEST_MAX
from penstock.controller.metadata.configs import TOPIC_RESOURCE
from penstock.controller.metadata.topic_configs import SCHEMA_CHARS_MAX, VALUE_SCHEMA
from penstock.protocol import apis, framing
from penstock.protocol.batch.compression import Compression, compress
from penstock.protocol.batch.header import CRC_START, HEADER, HEADER_BYTES
from penstock.protocol.batch.records import Record, encode_batch
from penstock.protocol.codecs import CODECS
from penstock.protocol.gen import (
    api_versions,
    consumer_group_heartbeat,
    create_topics,
    delete_topics,
    describe_groups,
    describe_topic_partitions,
    heartbeat,
    incremental_alter_configs,
    list_offsets,
    metadata,
    produce,
    sasl_authenticate,
    sasl_handshake,
)
from penstock.protocol.primitives import Reader
from penstock.protocol.request_limits import elements_max
from penstock.protocol.sasl.mechanisms import OAUTHBEARER, bearer_message
from penstock.protocol.sasl.scram import ScramClient

COMPACTED: Final = "compacted"
"""A topic with log compaction, which some attacks need."""

WIDE: Final = "wide"
"""A topic with WIDE_COUNT partitions."""

WIDE_COUNT: Final = 1_000

USER: Final = "bench"
"""A user with a SCRAM credential."""

KEY_ID: Final = "key"
"""The id of the issuer's key, which is public."""

_CONNECTIONS: Final = 4
_FLOOD: Final = 500
_LOGINS_AT_ONCE: Final = 64
_RESPONSE_HEADER_BYTES: Final = 5
_RESET_AT_ONCE: Final = 300
_TOPICS_MADE: Final = 20
_PARTITIONS_MADE: Final = 100
_MEMBERS: Final = 32
_REPEATED: Final = 1_000
"""Number of repetitions in a regular expression, about as large as INSTRUCTIONS_MAX allows."""

_BOMB_BYTES: Final = 64 << 20
_TOKEN_BYTES: Final = (22_000, 350_000)
"""Before base64: slightly below the limits of OAUTHBEARER and of `sasl.server.max.receive.size`."""

_DOUBLINGS: Final = 60
_DEPTH: Final = 100_000
_TREE_AVRO: Final = json.dumps(
    {"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}]}
)
_TREE_PROTO: Final = 'syntax = "proto3"; message Node { Node next = 1; }'


def _doubling() -> str:
    """Return a schema that validates a value 2 ** 60 times."""
    levels: dict[str, object] = {"0": {"type": "integer"}}
    for level in range(1, _DOUBLINGS + 1):
        levels[str(level)] = {"allOf": [{"$ref": f"#/$defs/{level - 1}"}] * 2}
    return json.dumps({"$defs": levels, "$ref": f"#/$defs/{_DOUBLINGS}"})


def _nested_message() -> bytes:
    nested = b""
    for _ in range(3_000):
        nested = b"\x0a" + _varint(len(nested)) + nested
    return nested


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


HOSTILE_SCHEMAS: Final[dict[str, tuple[str, str, bytes]]] = {
    "doubling": ("json", _doubling(), b"1"),
    "pattern": ("json", '{"pattern": "^(a+)+$"}', json.dumps("a" * 500_000 + "b").encode()),
    "items": ("json", '{"items": {"$ref": "#"}}', b"[" * _DEPTH + b"]" * _DEPTH),
    "tree": ("avro", _TREE_AVRO, b"\x02" * _DEPTH),
    "nulls": ("avro", '{"type": "array", "items": "null"}', b"\xfe" + b"\xff" * 7 + b"\x7f\x00"),
    "message": ("protobuf", _TREE_PROTO, _nested_message()),
}
"""By topic: the type of its value schema, the schema, and a value that is costly to validate."""


def _settings() -> Iterator[tuple[str, str]]:
    """Yield types and texts of schemas that are costly to compile, up to the maximum length of a
    config.
    """
    count = SCHEMA_CHARS_MAX // 16
    yield "json", '{"not":' * count + "{}" + "}" * count
    yield "json", "[" * SCHEMA_CHARS_MAX
    yield "avro", '{"type":' * count + '"null"' + "}" * count
    yield "protobuf", 'syntax = "proto3"; ' + "message A{" * count + "}" * count
    messages = "".join(f"message A{number}{{A{number} a=1;}}" for number in range(1_300))
    yield "protobuf", 'syntax = "proto3"; ' + messages[: messages.rindex("}", 0, 32_000) + 1]
    yield "json", json.dumps({"pattern": "(((a{1,99}){1,99}){1,99}){1,99}"})


def _long(api: apis.ApiSpec, version: int, request: object) -> bytes:
    encode = CODECS[api.key].encode_request
    return bytes(framing.encode_request_frame(api, version, 1, encode, request))


def _repeat(port: int, *frames: bytes) -> None:
    """Send the requests in turn on a few connections, each after the response to the previous
    one.
    """

    async def one(begin: int) -> None:
        turns = itertools.islice(itertools.cycle(frames), begin, None)
        while True:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                for frame in turns:
                    writer.write(frame)
                    (size,) = struct.unpack(">i", await reader.readexactly(4))
                    await reader.readexactly(size)
            writer.close()

    async def every() -> None:
        await asyncio.gather(*(one(number) for number in range(_CONNECTIONS)))

    asyncio.run(every())


def _names_groups(port: int) -> None:
    names = [f"g{number}" for number in range(elements_max(apis.DESCRIBE_GROUPS.key))]
    _repeat(port, _long(apis.DESCRIBE_GROUPS, 5, describe_groups.DescribeGroupsRequest(names)))


def _names_topics(port: int) -> None:
    count = elements_max(apis.METADATA.key)
    topics = [metadata.MetadataRequestTopic(name=f"n{number}") for number in range(count)]
    request = metadata.MetadataRequest(topics, allow_auto_topic_creation=False)
    _repeat(port, _long(apis.METADATA, 12, request))


def _creates_topics(port: int) -> None:
    topics = [
        create_topics.CreatableTopic(f"a/{number}", 1, 1)
        for number in range(PARTITIONS_PER_REQUEST_MAX)
    ]
    request = create_topics.CreateTopicsRequest(topics, timeout_ms=30_000)
    _repeat(port, _long(apis.CREATE_TOPICS, 7, request))


def _describes_topics(port: int) -> None:
    """With authorization, the broker checks eight rights per topic."""
    count = elements_max(apis.DESCRIBE_TOPIC_PARTITIONS.key)
    topics = [describe_topic_partitions.TopicRequest(f"n{number}") for number in range(count)]
    request = describe_topic_partitions.DescribeTopicPartitionsRequest(topics)
    _repeat(port, _long(apis.DESCRIBE_TOPIC_PARTITIONS, 0, request))


def _creates_and_deletes_topics(port: int) -> None:
    """Repeatedly create and delete topics with 2,000 partitions per request. The cluster contains
    as many partitions in other topics.
    """
    names = [f"attack-{number}" for number in range(_TOPICS_MADE)]
    made = [create_topics.CreatableTopic(name, _PARTITIONS_MADE, 1) for name in names]
    create = create_topics.CreateTopicsRequest(made, timeout_ms=30_000)
    delete = delete_topics.DeleteTopicsRequest(
        [delete_topics.DeleteTopicState(name) for name in names], timeout_ms=30_000
    )
    _repeat(port, _long(apis.CREATE_TOPICS, 7, create), _long(apis.DELETE_TOPICS, 6, delete))


def _subscribes_by_expressions(port: int) -> None:
    """Let members change their regular expression with each heartbeat, cycling through more than
    brokers cache. The expressions are as large as brokers allow.
    """
    requests = [
        consumer_group_heartbeat.ConsumerGroupHeartbeatRequest(
            f"regex-{number % _CONNECTIONS}",
            f"member-{number % _MEMBERS}",
            rebalance_timeout_ms=60_000,
            subscribed_topic_names=[],
            subscribed_topic_regex=f"{number}|([a-z]?x?){{{_REPEATED}}}",
            topic_partitions=[],
        )
        for number in range(2 * EXPRESSIONS_MAX)
    ]
    _repeat(port, *(_long(apis.CONSUMER_GROUP_HEARTBEAT, 1, request) for request in requests))


def _looks_up_offsets(port: int, topic: str, count: int, timestamp: int) -> None:
    partitions = [
        list_offsets.ListOffsetsPartition(index, timestamp=timestamp) for index in range(count)
    ]
    request = list_offsets.ListOffsetsRequest(
        -1, topics=[list_offsets.ListOffsetsTopic(topic, partitions)]
    )
    _repeat(port, _long(apis.LIST_OFFSETS, 7, request))


def _looks_up_missing(port: int) -> None:
    _looks_up_offsets(port, WIDE, elements_max(apis.LIST_OFFSETS.key) - 1, -1)


def _looks_up_times(port: int) -> None:
    _looks_up_offsets(port, WIDE, WIDE_COUNT, 1)


def _declares_elements(port: int) -> None:
    """Send an array that declares two billion elements, with a megabyte of them."""
    head = apis.DESCRIBE_GROUPS.key.to_bytes(2, "big") + struct.pack(">hihi", 0, 1, -1, 2**31 - 1)
    body = head + b"\x00\x00" * (1 << 19)
    _repeat(port, len(body).to_bytes(4, "big") + body)


def _sends_tags(port: int) -> None:
    """Send a request with the maximum number of tagged fields, which no version defines."""
    request = _long(apis.HEARTBEAT, 4, heartbeat.HeartbeatRequest("g", 1, "m"))
    count = elements_max(apis.HEARTBEAT.key)
    varint = bytes([count & 0x7F | 0x80, count >> 7 & 0x7F | 0x80, count >> 14])
    body = request[4:-1] + varint + b"\x63\x00" * count
    _repeat(port, len(body).to_bytes(4, "big") + body)


def _produce(topic: str, batch: bytes) -> bytes:
    part = produce.PartitionProduceData(index=0, records=batch)
    data = produce.TopicProduceData(name=topic, partition_data=[part])
    return _long(apis.PRODUCE, 9, produce.ProduceRequest(None, -1, 5_000, [data]))


def _sends_bombs(port: int) -> None:
    """Send batches of 64 MiB, compressed to kilobytes, to a topic with record validation."""
    records = encode_batch([Record(0, int(time.time() * 1_000), b"k", bytes(_BOMB_BYTES))])
    payload = compress(Compression.ZSTD, memoryview(records)[HEADER_BYTES:])
    batch = bytearray(records[:HEADER_BYTES]) + payload
    fields = list(HEADER.unpack_from(batch))
    fields[1], fields[5] = len(batch) - 12, int(Compression.ZSTD)
    HEADER.pack_into(batch, 0, *fields)
    fields[4] = crc32c(memoryview(batch)[CRC_START:])
    HEADER.pack_into(batch, 0, *fields)
    _repeat(port, _produce(COMPACTED, bytes(batch)))


def _sets_schemas(port: int) -> None:
    """Set schemas that are nested, huge, or slow to compile."""
    frames: list[bytes] = []
    for kind, text in _settings():
        configs = [
            incremental_alter_configs.AlterableConfig(name, 0, value)
            for name, value in ((VALUE_SCHEMA.schema, text), (VALUE_SCHEMA.type, kind))
        ]
        resource = incremental_alter_configs.AlterConfigsResource(
            TOPIC_RESOURCE, COMPACTED, configs
        )
        request = incremental_alter_configs.IncrementalAlterConfigsRequest([resource], True)
        frames.append(_long(apis.INCREMENTAL_ALTER_CONFIGS, 1, request))
    _repeat(port, *frames)


def _sends_hostile_records(port: int) -> None:
    """Send the records that take longest to validate."""
    now_ms = int(time.time() * 1_000)
    _repeat(
        port,
        *(
            _produce(name, bytes(encode_batch([Record(0, now_ms, None, value)])))
            for name, (_, _, value) in HOSTILE_SCHEMAS.items()
        ),
    )


def _asks_versions(port: int) -> None:
    """Repeat the only request that is allowed without authentication."""
    request = api_versions.ApiVersionsRequest("attacker", "1")
    _repeat(port, _long(apis.API_VERSIONS, 3, request))


def _flood(port: int, data: bytes = b"") -> None:
    """Open connections as fast as possible, send `data` on each, and close them."""
    while True:
        opened = list[socket.socket]()
        for _ in range(_FLOOD):
            with contextlib.suppress(OSError):
                opened.append(socket.create_connection(("127.0.0.1", port), 5))
                opened[-1].sendall(data)
        for connection in opened:
            connection.close()


def _guesses(port: int) -> None:
    """Start authentication on many connections without sending a token."""
    request = sasl_handshake.SaslHandshakeRequest("SCRAM-SHA-256")
    _flood(port, _long(apis.SASL_HANDSHAKE, 1, request))


def _begins_handshakes(port: int) -> None:
    """Start TLS on many connections, so that the broker signs for each, then disconnect."""
    outgoing = ssl.MemoryBIO()
    context = ssl.create_default_context()
    client = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    _flood(port, outgoing.read())


def _resets_connections(port: int) -> None:
    """Complete TLS handshakes on many connections, and reset all of them at once."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE

    async def open_one() -> asyncio.StreamWriter:
        return (await asyncio.open_connection("127.0.0.1", port, ssl=context))[1]

    async def every() -> None:
        while True:
            found = await asyncio.gather(
                *(open_one() for _ in range(_RESET_AT_ONCE)), return_exceptions=True
            )
            writers = [writer for writer in found if not isinstance(writer, BaseException)]
            for writer in writers:
                connection = writer.get_extra_info("socket")
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            for writer in writers:
                writer.transport.abort()

    asyncio.run(every())


def _log_in(port: int, tokens: Sequence[str]) -> None:
    """Log in with these tokens on many connections, again after each rejection."""
    handshake = _long(apis.SASL_HANDSHAKE, 1, sasl_handshake.SaslHandshakeRequest(OAUTHBEARER))
    logins = [
        handshake
        + _long(
            apis.SASL_AUTHENTICATE,
            2,
            sasl_authenticate.SaslAuthenticateRequest(bearer_message(token)),
        )
        for token in tokens
    ]

    async def one() -> None:
        for login in itertools.cycle(logins):
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(login)
                for _ in range(2):
                    (size,) = struct.unpack(">i", await reader.readexactly(4))
                    await reader.readexactly(size)
                writer.close()

    async def every() -> None:
        await asyncio.gather(*(one() for _ in range(_LOGINS_AT_ONCE)))

    asyncio.run(every())


def _guesses_passwords(port: int) -> None:
    """Complete SCRAM logins with wrong passwords of an existing user."""
    handshake = _long(apis.SASL_HANDSHAKE, 1, sasl_handshake.SaslHandshakeRequest("SCRAM-SHA-256"))

    async def exchange(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, frame: bytes
    ) -> bytes:
        writer.write(frame)
        (size,) = struct.unpack(">i", await reader.readexactly(4))
        return await reader.readexactly(size)

    def token(data: bytes) -> bytes:
        request = sasl_authenticate.SaslAuthenticateRequest(data)
        return _long(apis.SASL_AUTHENTICATE, 2, request)

    async def one(number: int) -> None:
        for attempt in itertools.count():
            nonce = f"{number}-{attempt}"
            client = ScramClient(
                ScramMechanism.SCRAM_SHA_256, USER, f"guess {attempt}", nonce=nonce
            )
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                await exchange(reader, writer, handshake)
                frame = await exchange(reader, writer, token(client.first()))
                decoder = Reader(memoryview(frame)[_RESPONSE_HEADER_BYTES:])
                challenge = sasl_authenticate.decode_response(decoder, 2)
                await exchange(reader, writer, token(client.final(bytes(challenge.auth_bytes))))
                writer.close()

    async def every() -> None:
        await asyncio.gather(*(one(number) for number in range(_LOGINS_AT_ONCE)))

    asyncio.run(every())


def _forges_tokens(port: int) -> None:
    """Present forged tokens with a valid key id, signed by another key."""
    _log_in(port, [_forged({"sub": "admin", "aud": "kafka", "iat": 0, "exp": 2**32}, {})])


def _forges_long_tokens(port: int) -> None:
    """Present forged tokens with a long payload."""
    claims = [_forged({"sub": "a" * size}, {}) for size in _TOKEN_BYTES]
    _log_in(port, claims + [_forged({}, {"x": [{}] * (size // 4)}) for size in _TOKEN_BYTES])


def _forged(claims: dict[str, object], header: dict[str, object]) -> str:
    key = rsa.generate_private_key(public_exponent=65_537, key_size=2_048)
    return jwt.encode(claims, key, "RS256", headers={"kid": KEY_ID, **header})


def _never_ends(port: int) -> None:
    """Declare requests of 100 MB on many connections, and send one byte at a time."""
    opened = [socket.create_connection(("127.0.0.1", port), 5) for _ in range(_FLOOD)]
    for connection in opened:
        connection.sendall((100_000_000).to_bytes(4, "big"))
    while True:
        for connection in opened:
            with contextlib.suppress(OSError):
                connection.sendall(b"\x00")
        time.sleep(0.1)


Attack = Callable[[int], None]

OF_CLIENTS: Final[dict[str, Attack]] = {
    "Metadata of 14,000 topics": _names_topics,
    "DescribeGroups of 6,000 groups": _names_groups,
    "CreateTopics of 10,000 bad names": _creates_topics,
    "DescribeTopicPartitions of 35,000 topics": _describes_topics,
    "subscriptions by regular expressions": _subscribes_by_expressions,
    "ListOffsets of 30,000 partitions that do not exist": _looks_up_missing,
    "ListOffsets by time of 1,000 partitions": _looks_up_times,
    "arrays that declare 2 billion elements": _declares_elements,
    "a flood of connections": _flood,
    "500 slow senders of 100 MB": _never_ends,
    "35,000 tagged fields": _sends_tags,
    "bombs of 64 MiB": _sends_bombs,
    "hostile schemas": _sets_schemas,
    "records for hostile schemas": _sends_hostile_records,
    "creating and deleting 2,000 partitions": _creates_and_deletes_topics,  # continues for seconds
}
"""Attacks on a listener without authentication."""

OF_STRANGERS: Final[dict[str, Attack]] = {
    "ApiVersions of strangers": _asks_versions,
    "strangers who begin to authenticate": _guesses,
    "500 slow strangers": _never_ends,
    "wrong passwords": _guesses_passwords,
    "forged tokens": _forges_tokens,
    "forged tokens of 30 and 470 KB": _forges_long_tokens,
}
"""Attacks on a listener with SASL, without authenticating."""

OF_TLS: Final[dict[str, Attack]] = {
    "TLS handshakes that are abandoned": _begins_handshakes,
    "resets of 300 TLS connections at once": _resets_connections,
}
"""Attacks on a listener with TLS."""

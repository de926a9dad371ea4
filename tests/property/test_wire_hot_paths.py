"""Check that the hand-written codecs of Produce and Fetch match the generated ones byte for byte,
in every served version.
"""

import struct
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.protocol.apis import FETCH, PRODUCE
from penstock.protocol.errors import UnencodableValue, WireError
from penstock.protocol.fetch import FetchPartitionResult, encode_fetch_response
from penstock.protocol.framing import encode_response_frame
from penstock.protocol.gen import fetch, produce
from penstock.protocol.leader_hint import CurrentLeader, NodeEndpoint
from penstock.protocol.primitives import Writer
from penstock.protocol.produce import (
    ProducePartitionResult,
    decode_produce_request,
    encode_produce_response,
)
from penstock.protocol.topic_key import NO_TOPIC_ID, TopicKey
from tests.property.test_wire_strategies import messages

TOPIC_ID = UUID(int=7)
VERSIONS_PRODUCE = st.integers(PRODUCE.served_min, PRODUCE.max)
VERSIONS_FETCH = st.integers(FETCH.served_min, FETCH.max)
SETTINGS = settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def _leader(
    leader: produce.LeaderIdAndEpoch | fetch.LeaderIdAndEpoch | None,
) -> CurrentLeader | None:
    return None if leader is None else CurrentLeader(leader.leader_id, leader.leader_epoch)


def _key(topic: produce.TopicProduceData | produce.TopicProduceResponse, version: int) -> TopicKey:
    return topic.name if version < 13 else topic.topic_id or NO_TOPIC_ID


def _endpoints(message: produce.ProduceResponse | fetch.FetchResponse) -> list[NodeEndpoint]:
    return [
        NodeEndpoint(one.node_id, one.host, one.port, one.rack) for one in message.node_endpoints
    ]


@SETTINGS
@given(data=st.data(), version=VERSIONS_PRODUCE, records=st.none() | st.binary(max_size=20_000))
def test_produce_requests_decode_like_the_generated_codec(
    data: st.DataObject, version: int, records: bytes | None
) -> None:
    message: produce.ProduceRequest = data.draw(messages(PRODUCE, "request", version))
    message.topic_data = [
        *message.topic_data,
        produce.TopicProduceData(
            TOPIC_ID if version >= 13 else None,
            "" if version >= 13 else "t",
            [produce.PartitionProduceData(7, records)],
        ),
    ]
    body = Writer(b"head")
    produce.encode_request(body, message, version)
    request = decode_produce_request(memoryview(body), 4, version)
    assert (
        request.transactional_id,
        request.acks,
        request.timeout_ms,
        request.mirror_source,
    ) == (
        message.transactional_id,
        message.acks,
        message.timeout_ms,
        message.mirror_source if version >= 9 else "",
    )
    assert [
        (topic.key, [(one.index, one.records) for one in topic.partitions])
        for topic in request.topics
    ] == [
        (_key(topic, version), [(one.index, one.records) for one in topic.partition_data])
        for topic in message.topic_data
    ]


def test_records_are_writable_views_of_the_frame() -> None:
    body = Writer()
    records = b"\x00" * 61
    message = produce.ProduceRequest(
        topic_data=[
            produce.TopicProduceData(
                name="t", partition_data=[produce.PartitionProduceData(0, records)]
            )
        ]
    )
    produce.encode_request(body, message, 9)
    frame = bytearray(body)
    view = decode_produce_request(memoryview(frame), 0, 9).topics[0].partitions[0].records
    assert view is not None
    struct.pack_into(">q", view, 0, 4711)
    assert struct.pack(">q", 4711) in frame


@SETTINGS
@given(data=st.data(), version=VERSIONS_PRODUCE, correlation_id=st.integers(-(2**31), 2**31 - 1))
def test_produce_responses_encode_like_the_generated_codec(
    data: st.DataObject, version: int, correlation_id: int
) -> None:
    message: produce.ProduceResponse = data.draw(messages(PRODUCE, "response", version))
    topics = [
        (
            _key(topic, version),
            [
                ProducePartitionResult(
                    one.index,
                    one.error_code,
                    one.base_offset,
                    one.log_append_time_ms,
                    one.log_start_offset,
                    [
                        (error.batch_index, error.batch_index_error_message)
                        for error in one.record_errors
                    ],
                    one.error_message,
                    _leader(one.current_leader),
                )
                for one in topic.partition_responses
            ],
        )
        for topic in message.responses
    ]
    expected = encode_response_frame(
        PRODUCE, version, correlation_id, produce.encode_response, message
    )
    assert (
        encode_produce_response(
            correlation_id, version, topics, message.throttle_time_ms, _endpoints(message)
        )
        == expected
    )


@SETTINGS
@given(
    data=st.data(),
    version=VERSIONS_FETCH,
    batch=st.sampled_from([1, 61, 126, 127, 128, 16382, 16383, 16384, 70_000]),
)
def test_fetch_responses_encode_like_the_generated_codec(
    data: st.DataObject, version: int, batch: int
) -> None:
    message: fetch.FetchResponse = data.draw(messages(FETCH, "response", version))
    if message.responses and message.responses[0].partitions:
        message.responses[0].partitions[0].records = bytes(batch)
    responses = []
    for topic in message.responses:
        results = []
        for one in topic.partitions:
            one.snapshot_id = None
            one.records = one.records or b""
            half = len(one.records) // 2
            chunks = (
                [memoryview(one.records)[:half], memoryview(one.records)[half:]]
                if half
                else [one.records]
            )
            results.append(
                FetchPartitionResult(
                    one.partition_index,
                    one.error_code,
                    one.high_watermark,
                    one.last_stable_offset,
                    one.log_start_offset,
                    None
                    if one.aborted_transactions is None
                    else [
                        (aborted.producer_id, aborted.first_offset)
                        for aborted in one.aborted_transactions
                    ],
                    one.preferred_read_replica,
                    chunks if one.records else (),
                    None
                    if one.diverging_epoch is None
                    else (one.diverging_epoch.epoch, one.diverging_epoch.end_offset),
                    _leader(one.current_leader),
                )
            )
        key = topic.topic if version <= 12 else topic.topic_id
        responses.append((key, results))
    expected = encode_response_frame(FETCH, version, 77, fetch.encode_response, message)
    frame = encode_fetch_response(
        77,
        version,
        responses,
        throttle_ms=message.throttle_time_ms,
        error_code=message.error_code,
        session_id=message.session_id,
        node_endpoints=_endpoints(message),
    )
    assert b"".join(frame) == expected


def test_fetch_responses_do_not_copy_record_batches() -> None:
    batches = [memoryview(bytes(61)), memoryview(bytes(100))]
    frame = encode_fetch_response(1, 12, [("t", [FetchPartitionResult(0, records=batches)])])
    assert frame[1] is batches[0]
    assert frame[2] is batches[1]


def test_topic_names_and_ids_are_unencodable_in_versions_without_them() -> None:
    with pytest.raises(UnencodableValue, match="Fetch v13 identifies topics by id"):
        encode_fetch_response(1, 13, [("name", [])])
    with pytest.raises(UnencodableValue, match="Produce v13 identifies topics by id"):
        encode_produce_response(1, 13, [("name", [])])
    with pytest.raises(UnencodableValue, match="Produce v12 identifies topics by name"):
        encode_produce_response(1, 12, [(TOPIC_ID, [])])


def test_numbers_out_of_range_are_unencodable() -> None:
    with pytest.raises(UnencodableValue, match="out of range"):
        encode_produce_response(1, 9, [("t", [ProducePartitionResult(2**31)])])
    with pytest.raises(UnencodableValue, match="out of range"):
        encode_fetch_response(1, 12, [("t", [FetchPartitionResult(0, high_watermark=2**63)])])


@SETTINGS
@given(data=st.data(), version=VERSIONS_PRODUCE)
def test_truncated_produce_requests_are_rejected(data: st.DataObject, version: int) -> None:
    body = Writer()
    produce.encode_request(body, data.draw(messages(PRODUCE, "request", version)), version)
    cut = data.draw(st.integers(0, len(body) - 1))
    with pytest.raises(WireError):
        decode_produce_request(memoryview(body)[:cut], 0, version)

"""Measure how many transactions per second one producer commits.

For each version (KIP-890), single requests are sent in the order of the Java producer.
confluent-kafka, which uses version 1 and sends a request for each partition, is compared with
Apache Kafka.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from confluent_kafka import KafkaError, Message

from benchmarks import clients, harness
from benchmarks.harness import Measure
from benchmarks.kafka import KafkaMissing, kafka
from penstock.deploy.clients.wire import WireClient
from penstock.protocol import apis
from penstock.protocol.apis import ApiSpec
from penstock.protocol.batch.header import TRANSACTIONAL_MASK
from penstock.protocol.batch.records import Record, encode_batch
from penstock.protocol.error_codes import ErrorCode, known_code
from penstock.protocol.gen import (
    add_partitions_to_txn,
    end_txn,
    find_coordinator,
    init_producer_id,
    produce,
)

_PRODUCE: Final = replace(apis.PRODUCE, max=12)
"""The last version with topic names."""
_PRODUCE_1: Final = replace(apis.PRODUCE, max=11)
_ADD_PARTITIONS: Final = replace(apis.ADD_PARTITIONS_TO_TXN, max=3)
_END_1: Final = replace(apis.END_TXN, max=4)
"""The APIs that transaction version 1 uses."""
_PARTITIONS: Final = 3
_RECORDS: Final = 10
_SECONDS: Final = 10.0
_TIMEOUT_S: Final = 30.0
_NAME: Final = "bench"
_PEER_SETTINGS: Final = {
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
}
_VALUE: Final = bytes(clients.RECORD_BYTES)
_PASSING: Final = frozenset(
    {
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)


def transactions() -> list[Measure]:
    """Commit transactions of 10 records over 3 partitions, one after another."""
    what = f"transactions of {_RECORDS} records over {_PARTITIONS} partitions, one producer"
    by_librdkafka = _measured(f"{what}, version 1 (librdkafka)", _librdkafka_per_s)
    try:
        with kafka(_PEER_SETTINGS) as peer:
            clients.create_topic(peer.bootstrap, _PARTITIONS)
            by_librdkafka = replace(
                by_librdkafka,
                name=f"{by_librdkafka.name} / Kafka",
                bar=1.0,
                limit=_librdkafka_per_s(peer.bootstrap),
            )
    except KafkaMissing as error:
        by_librdkafka = replace(by_librdkafka, bar=0, note=str(error))
    return [
        _measured(f"{what}, version 1 (single requests)", _version_1_per_s),
        _measured(f"{what}, version 2 (single requests)", _epochs_per_s),
        by_librdkafka,
    ]


def _measured(name: str, run: Callable[[str], float]) -> Measure:
    with harness.server(store="memory:") as system:
        clients.create_topic(system.bootstrap, _PARTITIONS)
        before = system.send_request()
        per_s = run(system.bootstrap)
        after = system.send_request()
    count = per_s * _SECONDS
    cpu_ms = 1_000 * (after["cpu_s"] - before["cpu_s"]) / count
    puts = (after["put_count"] - before["put_count"]) / count
    note = f"each: {cpu_ms:.1f} ms of CPU of the broker, {puts:.1f} PUTs"
    return Measure(name, per_s, "/s", 500, "higher", note=note)


def _librdkafka_per_s(bootstrap: str) -> float:
    failed_count = delivered_count = 0

    def delivered(error: KafkaError | None, _: Message) -> None:
        nonlocal failed_count, delivered_count
        failed_count += error is not None
        delivered_count += 1

    client = clients.producer(bootstrap, **{"transactional.id": _NAME, "linger.ms": 0})
    client.init_transactions(_TIMEOUT_S)
    count = 0
    began = time.perf_counter()
    while time.perf_counter() - began < _SECONDS:
        client.begin_transaction()
        for number in range(_RECORDS):
            client.produce(
                clients.TOPIC, _VALUE, partition=number % _PARTITIONS, on_delivery=delivered
            )
        client.commit_transaction(_TIMEOUT_S)
        count += 1
    took_s = time.perf_counter() - began
    client.flush(_TIMEOUT_S)
    assert (failed_count, delivered_count) == (0, count * _RECORDS)
    return count / took_s


def _version_1_per_s(bootstrap: str) -> float:
    topic = add_partitions_to_txn.AddPartitionsToTxnTopic(clients.TOPIC, range(_PARTITIONS))
    with WireClient(bootstrap) as client:
        given = _begun(client)
        identity = given.producer_id, given.producer_epoch
        adding = add_partitions_to_txn.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=_NAME,
            v3_and_below_producer_id=given.producer_id,
            v3_and_below_producer_epoch=given.producer_epoch,
            v3_and_below_topics=[topic],
        )
        count = 0
        began = time.perf_counter()
        while time.perf_counter() - began < _SECONDS:
            _send_request(client, _ADD_PARTITIONS, adding, _add_code)
            _send_request(client, _PRODUCE_1, _records(*identity, count), _produce_code)
            _send_request(client, _END_1, end_txn.EndTxnRequest(_NAME, *identity, True))
            count += 1
        return count / (time.perf_counter() - began)


def _epochs_per_s(bootstrap: str) -> float:
    with WireClient(bootstrap) as client:
        given = _begun(client)
        count = 0
        began = time.perf_counter()
        while time.perf_counter() - began < _SECONDS:
            identity = given.producer_id, given.producer_epoch
            _send_request(client, _PRODUCE, _records(*identity, 0), _produce_code)
            given = _send_request(
                client, apis.END_TXN, end_txn.EndTxnRequest(_NAME, *identity, True)
            )
            count += 1
        return count / (time.perf_counter() - began)


def _begun(client: WireClient) -> init_producer_id.InitProducerIdResponse:
    _send_request(
        client,
        apis.FIND_COORDINATOR,
        find_coordinator.FindCoordinatorRequest(key_type=1, coordinator_keys=[_NAME]),
        lambda response: response.coordinators[0].error_code,
    )
    request = init_producer_id.InitProducerIdRequest(_NAME, 60_000)
    response: init_producer_id.InitProducerIdResponse = _send_request(
        client, apis.INIT_PRODUCER_ID, request
    )
    return response


def _records(producer_id: int, epoch: int, number: int) -> produce.ProduceRequest:
    """Return the records of the transaction with this number in its epoch."""
    now_ms = time.time_ns() // 1_000_000
    parts: list[produce.PartitionProduceData] = []
    for index in range(_PARTITIONS):
        values = range(index, _RECORDS, _PARTITIONS)
        batch = encode_batch(
            [Record(at, now_ms, None, _VALUE) for at, _ in enumerate(values)],
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=number * len(values),
            attributes=TRANSACTIONAL_MASK,
        )
        parts.append(produce.PartitionProduceData(index, memoryview(batch)))
    topic = produce.TopicProduceData(name=clients.TOPIC, partition_data=parts)
    return produce.ProduceRequest(_NAME, -1, 30_000, [topic])


def _add_code(response: add_partitions_to_txn.AddPartitionsToTxnResponse) -> int:
    (topic,) = response.results_by_topic_v3_and_below
    return max(part.partition_error_code for part in topic.results_by_partition)


def _produce_code(response: produce.ProduceResponse) -> int:
    codes = [part.error_code for part in response.responses[0].partition_responses]
    return max(codes)


def _send_request(
    client: WireClient,
    api: ApiSpec,
    request: object,
    code_of: Callable[[Any], int] = lambda response: response.error_code,
) -> Any:  # noqa: ANN401 - each API has its own type
    """Send a request, and retry until the response contains no transient error."""
    deadline = time.perf_counter() + _TIMEOUT_S
    while True:
        response = client.send_request(api, request, object)
        code = code_of(response)
        if code == ErrorCode.NONE:
            return response
        if code not in _PASSING or time.perf_counter() > deadline:
            raise RuntimeError(f"{api.name} gets {known_code(code).name}")
        time.sleep(0.001)

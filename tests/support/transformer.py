# ruff: noqa: T201 - its test reads its output
"""Consume one partition, and produce each value to another topic exactly once.

Arguments: BOOTSTRAP ID PARTITION COUNT HOLD. The program prints "committed N" (the next offset)
after each transaction, and "holding" in transaction HOLD (0: none), in which it waits for a line on
stdin. It exits after COUNT records, and survives every error except a kill.
"""

import sys
from typing import Any, Final

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from tests.support.waiting import PATIENCE_S

INPUT: Final = "in"
OUTPUT: Final = "out"
_TIMEOUT_S: Final = PATIENCE_S
_BATCH_COUNT: Final = 7
_IMPATIENT: Final[dict[str, Any]] = {
    "socket.timeout.ms": 5_000,
    "reconnect.backoff.max.ms": 500,
    "topic.metadata.refresh.interval.ms": 500,
}


class Transformer:
    def __init__(self, bootstrap: str, name: str, partition: int, hold: int) -> None:
        common = _IMPATIENT | {"bootstrap.servers": bootstrap}
        self._producer_settings = common | {
            "transactional.id": name,
            "transaction.timeout.ms": 120_000,
            "linger.ms": 0,
        }
        self._consumer = Consumer(
            common
            | {
                "group.id": name,
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
            }
        )
        self._partition = partition
        self._hold = hold
        self._transactions_count = 0
        self._producer: Producer | None = None

    def run(self, count: int) -> None:
        position = -1
        while position < count:
            try:
                if self._producer is None:
                    position = self._begin_anew()
                    continue
                position = self._transform(self._producer, position)
            except KafkaException as error:
                print(f"error {error}", file=sys.stderr, flush=True)
                self._recover(error)
        self._consumer.close()

    def _begin_anew(self) -> int:
        """Start a new instance: abort the open transaction of the previous one, then return the
        offset at which to continue.
        """
        producer = Producer(self._producer_settings)
        producer.init_transactions(_TIMEOUT_S)
        position = max(
            0,
            self._consumer.committed([TopicPartition(INPUT, self._partition)], _TIMEOUT_S)[
                0
            ].offset,
        )
        self._consumer.assign([TopicPartition(INPUT, self._partition, position)])
        self._producer = producer
        return position

    def _transform(self, producer: Producer, position: int) -> int:
        messages = [
            message
            for message in self._consumer.consume(_BATCH_COUNT, 0.5)
            if message.error() is None
        ]
        if not messages:
            return position
        producer.begin_transaction()
        for message in messages:
            producer.produce(OUTPUT, message.value())
        producer.flush(_TIMEOUT_S)
        self._transactions_count += 1
        if self._transactions_count == self._hold:
            print("holding", flush=True)
            sys.stdin.readline()
        position = int(messages[-1].offset() or 0) + 1
        offset = TopicPartition(INPUT, self._partition, position)
        producer.send_offsets_to_transaction(
            [offset], self._consumer.consumer_group_metadata(), _TIMEOUT_S
        )
        producer.commit_transaction(_TIMEOUT_S)
        print(f"committed {position}", flush=True)
        return position

    def _recover(self, error: KafkaException) -> None:
        """Abort if the error requires it, then start again, because only the group's offsets show
        what was committed.
        """
        producer, self._producer = self._producer, None
        if producer is not None and error.args[0].txn_requires_abort():
            try:
                producer.abort_transaction(_TIMEOUT_S)
            except KafkaException as failed:
                print(f"not aborted {failed}", file=sys.stderr, flush=True)


def main() -> None:
    bootstrap, name, partition, count, hold = sys.argv[1:]
    Transformer(bootstrap, name, int(partition), int(hold)).run(int(count))


if __name__ == "__main__":
    main()

"""A producer that sends continuously, in the event loop that serves the cluster."""

import asyncio
import threading

from confluent_kafka import Message, Producer

from tests.support.waiting import PATIENCE_S, until

TIMEOUT_S = PATIENCE_S


class SteadyProducer:
    """An idempotent producer that sends continuously. Record n goes to partition n mod
    `partitions`.
    """

    def __init__(self, bootstrap: str, topic: str, partitions: int = 1) -> None:
        self._partitions = partitions
        self.acknowledged: list[int] = []
        self._failed: list[object] = []
        self._stopping = threading.Event()
        self._thread = asyncio.create_task(asyncio.to_thread(self._run, bootstrap, topic))

    async def until_acknowledged(self, more: int) -> None:
        expected = len(self.acknowledged) + more
        await until(lambda: len(self.acknowledged) >= expected)

    async def stop(self) -> int:
        """Stop, and return the number of sent records, all of which are acknowledged."""
        self._stopping.set()
        sent = await self._thread
        assert self._failed == []
        return sent

    def _run(self, bootstrap: str, topic: str) -> int:
        producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 1,
                "retry.backoff.ms": 20,
            }
        )
        number = 0
        while not self._stopping.is_set():
            producer.produce(
                topic,
                b"%d" % number,
                partition=number % self._partitions,
                on_delivery=self._delivered,
            )
            number += 1
            producer.poll(0.002)
        assert producer.flush(TIMEOUT_S) == 0
        return number

    def _delivered(self, error: object, message: Message) -> None:
        if error is not None:
            self._failed.append(error)
        else:
            self.acknowledged.append(int(message.value() or b"-1"))

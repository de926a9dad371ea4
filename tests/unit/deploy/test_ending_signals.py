"""The first signal stops `penstock dev`; later ones cannot interrupt its cleanup."""

import asyncio
import os
import signal
from collections.abc import Iterator

import pytest

from penstock.deploy.local.ending import ENDING, EndingSignals
from tests.support.waiting import PATIENCE_S


@pytest.fixture
def signals() -> Iterator[EndingSignals]:
    before = {number: signal.getsignal(number) for number in ENDING}
    try:
        yield EndingSignals()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def send(*numbers: int) -> None:
    for number in numbers:
        os.kill(os.getpid(), number)


def test_only_the_first_signal_interrupts_the_start(signals: EndingSignals) -> None:
    with pytest.raises(KeyboardInterrupt), signals:
        send(signal.SIGTERM)
    send(*ENDING, *ENDING)


def test_a_failed_start_is_cleaned_up_without_interruption(signals: EndingSignals) -> None:
    with pytest.raises(ValueError, match="port"), signals:
        raise ValueError("port")
    send(*ENDING)


def test_the_event_loop_receives_all_signals_until_it_ends(signals: EndingSignals) -> None:
    """Afterwards they are ignored: the loop must not restore their default action."""
    received: list[int] = []
    done = asyncio.Event()

    def receive() -> None:
        received.append(1)
        if len(received) == len(ENDING):
            done.set()

    async def run() -> None:
        with signals.calling(receive):
            send(*ENDING)
            async with asyncio.timeout(PATIENCE_S):
                await done.wait()

    with signals:
        asyncio.run(run())
        send(*ENDING)
    assert len(received) == len(ENDING)

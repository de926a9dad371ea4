"""A Ctrl-C ends a command even if Python drops its KeyboardInterrupt."""

import os
import signal

import pytest

from penstock.deploy.interrupts import Interrupts


class Interrupted:
    """An object that is cleaned up when the user presses Ctrl-C."""

    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_dropped_interrupt_is_raised_at_the_next_step() -> None:
    with Interrupts() as interrupts:
        interrupts.check()
        Interrupted()
        with pytest.raises(KeyboardInterrupt):
            interrupts.check()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ignored_signal_remains_ignored() -> None:
    """Shell scripts start background jobs with SIGINT ignored."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Interrupts() as interrupts:
            os.kill(os.getpid(), signal.SIGINT)
            interrupts.check()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)

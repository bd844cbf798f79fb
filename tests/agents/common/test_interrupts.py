import os
import signal

import pytest

from agents.common.interrupts import SIGNALS, Interrupts


@pytest.mark.parametrize("number", SIGNALS)
def test_first_signal_is_noted_and_the_handlers_come_back(number):
    before = signal.getsignal(number)
    with Interrupts() as interrupts:
        assert interrupts.received is None
        os.kill(os.getpid(), number)
        assert interrupts.received == number
        assert signal.getsignal(number) == before, "a second signal acts as usual"
    assert signal.getsignal(number) == before


def test_handlers_come_back_without_a_signal():
    before = signal.getsignal(signal.SIGINT)
    with Interrupts():
        assert signal.getsignal(signal.SIGINT) != before
    assert signal.getsignal(signal.SIGINT) == before


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_that_is_ignored_stays_so(number):
    before = signal.signal(number, signal.SIG_IGN)
    try:
        with Interrupts() as interrupts:
            os.kill(os.getpid(), number)
            assert signal.getsignal(number) == signal.SIG_IGN
            assert interrupts.received is None
        assert signal.getsignal(number) == signal.SIG_IGN
    finally:
        signal.signal(number, before)

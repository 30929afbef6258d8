"""No Ctrl-C is lost while an engine starts."""

from __future__ import annotations

import signal
import sys
import weakref
from typing import Any

import pytest

from _inf.runtime.interpreter import interrupt_kept


class Thing:
    pass


def interrupted_in_a_callback() -> None:
    """Python prints the exception of such a callback, and goes on."""
    thing = Thing()
    reference = weakref.ref(thing, lambda dead: signal.raise_signal(signal.SIGINT))
    del thing
    assert reference() is None


@pytest.mark.parametrize(
    ("interrupted", "at_once"),
    [
        (interrupted_in_a_callback, False),  # without the block nothing is raised
        (lambda: signal.raise_signal(signal.SIGINT), True),
    ],
)
def test_interrupt_that_python_ignores_is_raised_after_the_block_and_others_at_once(
    interrupted, at_once, monkeypatch
):
    reached, printed = False, list[Any]()
    monkeypatch.setattr(sys, "unraisablehook", printed.append)
    with pytest.raises(KeyboardInterrupt), interrupt_kept():
        interrupted()
        reached = True
    assert reached is not at_once
    assert not printed and sys.unraisablehook == printed.append
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_ignored_interrupt_stays_ignored():
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with interrupt_kept():
            signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, previous)

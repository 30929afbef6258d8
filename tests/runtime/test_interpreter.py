"""No Ctrl-C is lost while an engine starts, and its imports leave out what nobody calls."""

from __future__ import annotations

import signal
import subprocess
import sys
import weakref
from collections.abc import Callable
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
    interrupted: Callable[[], None], at_once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached, printed = False, list[Any]()
    monkeypatch.setattr(sys, "unraisablehook", printed.append)
    with pytest.raises(KeyboardInterrupt), interrupt_kept():
        interrupted()
        reached = True
    assert reached is not at_once
    assert not printed and sys.unraisablehook == printed.append
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_ignored_interrupt_stays_ignored() -> None:
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with interrupt_kept():
            signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, previous)


def test_imports_leave_scikit_learn_until_somebody_calls_it() -> None:
    code = """
import sys
from _inf.runtime.quick_imports import quick_imports
with quick_imports():
    import transformers.generation.candidate_generator  # of 4.57: imports it as the next line does
    from sklearn.metrics import roc_curve
    assert "sklearn" not in sys.modules and "pandas" not in sys.modules
assert "sklearn.metrics" not in sys.modules
rates, _, _ = roc_curve([0, 1], [0.1, 0.9])
assert rates[-1] == 1.0
from sklearn.metrics import f1_score, roc_curve
assert f1_score([1], [1]) == 1.0 and sys.modules["sklearn.metrics"].__file__

del sys.modules["sklearn.metrics"]
with quick_imports():
    from sklearn.metrics import f1_score as within  # asked for within: the real one
    import sklearn.metrics.pairwise
assert within is sys.modules["sklearn.metrics"].f1_score
with quick_imports():
    assert sys.modules["sklearn.metrics"].__file__, "one that is imported is left alone"
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr

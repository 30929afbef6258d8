"""What is printed while something starts, on several threads at once."""

from __future__ import annotations

import io
import sys
import threading

from _inf.runtime import quiet


def test_starts_that_overlap_leave_stdout_as_it_was() -> None:
    before, entered, leave = sys.stdout, threading.Event(), threading.Event()

    def first() -> None:
        with quiet.stdout_to(io.StringIO()):
            entered.set()
            leave.wait(30)

    def second() -> None:
        with quiet.stdout_to(io.StringIO()):
            one.join(30)  # the first one ends before the second

    one, other = threading.Thread(target=first), threading.Thread(target=second)
    one.start()
    assert entered.wait(30)
    other.start()
    other.join(0.2)
    leave.set()
    one.join(30)
    other.join(30)
    assert sys.stdout is before

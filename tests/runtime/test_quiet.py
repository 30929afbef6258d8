"""What is printed and warned of while something starts, on several threads at once."""

from __future__ import annotations

import io
import sys
import threading
import warnings

import pytest

from _inf.runtime import quiet


def warned() -> list[str]:
    """What is shown of two warnings."""
    with warnings.catch_warnings(record=True) as shown:
        warnings.warn("n: one", stacklevel=1)
        warnings.warn("two", stacklevel=1)
    return [str(each.message) for each in shown]


@pytest.fixture(autouse=True)
def _show_all():
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        yield


def test_starts_that_overlap_hide_warnings_until_each_has_ended_and_leave_no_filter():
    before = list(warnings.filters)
    first, second = quiet.no_warnings(), quiet.no_warnings()
    first.__enter__()
    thread = threading.Thread(target=second.__enter__)
    thread.start()
    thread.join()
    first.__exit__(None, None, None)
    assert warned() == []
    thread = threading.Thread(target=second.__exit__, args=(None, None, None))
    thread.start()
    thread.join()
    assert warned() == ["n: one", "two"]
    assert list(warnings.filters) == before


def test_filters_that_are_put_back_after_a_start_hide_nothing():
    hidden, others = quiet.no_warnings(), warnings.catch_warnings()
    hidden.__enter__()
    others.__enter__()  # keeps the filters of now
    with warnings.catch_warnings():
        hidden.__exit__(None, None, None)
    assert warned() == ["n: one", "two"]
    others.__exit__(None, None, None)
    with quiet.no_warnings("n: "):  # only those that begin so
        assert warned() == ["two"]


def test_own_warnings_are_seen_where_those_of_others_are_hidden():
    with warnings.catch_warnings(record=True) as shown:
        with quiet.no_warnings():
            quiet.warn("n: ours")
            warnings.warn("theirs", stacklevel=1)
            with quiet.no_warnings("n: "):
                quiet.warn("n: hidden by its beginning")
    assert [(str(each.message), each.filename) for each in shown] == [("n: ours", __file__)]


def test_starts_that_overlap_leave_stdout_as_it_was():
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


@pytest.mark.parametrize("downloads", [True, False])
def test_bars_of_transformers_are_hidden_and_then_as_they_were(downloads):
    from huggingface_hub import utils as hub
    from transformers.utils import logging as bars

    bars.enable_progress_bar()
    (hub.enable_progress_bars if downloads else hub.disable_progress_bars)()
    with quiet.no_bars():
        assert not bars.is_progress_bar_enabled()
    assert bars.is_progress_bar_enabled()
    assert hub.are_progress_bars_disabled() is not downloads
    hub.enable_progress_bars()

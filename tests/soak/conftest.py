"""The soak suite's one table: `python -m pytest -m soak -q` prints it at the end, as Markdown.

A test notes each figure that it measured with `figures(what, value)`; docs/reliability.md has the
table of a whole run.
"""

from __future__ import annotations

import pytest

NOTED = pytest.StashKey[list[str]]()


@pytest.fixture
def figures(request):
    """Called as `figures("kills of the scheduler", 12)`."""
    noted = request.config.stash.setdefault(NOTED, [])
    part = request.path.stem.removeprefix("test_")
    return lambda what, value: noted.append(f"| {part} | {what} | {value} |")


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    if noted := config.stash.get(NOTED, []):
        terminalreporter.section("soak")
        for line in ("| part | figure | value |", "|---|---|---|", *noted):
            terminalreporter.write_line(line)

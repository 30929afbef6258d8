"""The soak suite's one table: `python -m pytest -m soak -q` prints it at the end, as Markdown.

A test notes each figure it measured with `figures(part, what, value)`; docs/reliability.md has the
table of a whole run.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.figures import Figures

NOTED = pytest.StashKey[list[tuple[str, str, str]]]()


@pytest.fixture(scope="session")
def figures(request: pytest.FixtureRequest) -> Iterator[Figures]:
    """Called as `figures("faults", "kills of the scheduler", 12)`."""
    noted = request.config.stash.setdefault(NOTED, [])
    yield lambda part, what, value: noted.append((part, what, str(value)))


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    if noted := config.stash.get(NOTED, []):
        terminalreporter.section("soak")
        terminalreporter.write_line("| part | figure | value |\n|---|---|---|")
        for row in noted:
            terminalreporter.write_line("| " + " | ".join(row) + " |")

"""`inf show FILE`: writes a page that shows rollouts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from _inf.runtime.files import check_output, write_text

if TYPE_CHECKING:
    from _inf.apps.rollouts import Rollout


def show(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="JSON lines: the rollouts.")],
    other: Annotated[
        Path | None, typer.Argument(metavar="[OTHER]", help="Shown next to FILE, row by row.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The page.", show_default="FILE with .html")
    ] = None,
) -> None:
    """Write a page that shows the rollouts of FILE, each token with its log prob.

    FILE was written by inf eval, inf batch --rollouts, inf serve --traces or inf.save_rollouts
    (docs/rollouts.md). The page is one file, for any browser, and reads nothing else. An existing
    one is overwritten.
    """
    from _inf.apps.rollouts.page import page
    from _inf.apps.rollouts.sources import load_rollouts

    files = [path for path in (file, other) if path is not None]
    target = out or file.with_suffix(".html")
    check_output(target, "--out", files)
    loaded = [(str(path), load_rollouts(path)) for path in files]
    write_text(target, page(loaded))
    counts = ", ".join(f"{_counted(rollouts)} of {name}" for name, rollouts in loaded)
    typer.echo(f"{counts}: {target}", err=True)


def _counted(rollouts: Sequence[Rollout]) -> str:
    counts = [row.unsampled_ids for row in rollouts if row.unsampled_ids]
    unsampled = f" ({len(counts)} with {sum(counts)} unsampled ids)" if counts else ""
    return f"{len(rollouts)} rows{unsampled}"

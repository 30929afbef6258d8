"""`inf show`: writes or serves a page that shows rollouts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from _inf.errors import ConfigError
from _inf.runtime.files import check_output, write_text

if TYPE_CHECKING:
    from _inf.apps.rollouts import Rollout
    from _inf.apps.runs.run import Run


def show(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE [OTHER] | FOLDER",
            help="Rollouts or a trainer's samples, one or two files side by side; or its folder.",
        ),
    ],
    out: Annotated[
        Path | None, typer.Option(help="The page.", show_default="FILE or FOLDER with .html")
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="Count a run's tokens with this model's tokenizer."),
    ] = None,
    serve: Annotated[
        bool, typer.Option(help="Serve a run's page on this machine instead; Ctrl-C ends it.")
    ] = False,
    port: Annotated[int, typer.Option(min=0, help="Of --serve; 0 takes a free one.")] = 0,
    reward: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Which of a row's scores or other keys is the score."),
    ] = None,
) -> None:
    """Write a page that shows rollouts, each token with its log prob; or a run over its steps.

    FILE was written by inf eval, inf batch --rollouts, inf serve --traces or inf.save_rollouts
    (docs/rollouts.md), or by a trainer. FOLDER is where verl, TRL, slime, prime-rl or SkyRL writes
    its samples (docs/your_run.md); three or more files are a run, too. The page is one file, for
    any browser, and reads nothing else. An existing one is overwritten.
    """
    if len(paths) > 2 or any(path.is_dir() for path in paths):
        _show_run(paths, out, port if serve else None, tokenizer, reward)
    elif serve or tokenizer is not None:
        raise ConfigError("inf show: --serve and --tokenizer are for the folder of a run.")
    else:
        _show_files(paths, out, reward)


def _show_files(files: Sequence[Path], out: Path | None, reward: str | None) -> None:
    from _inf.apps.rollouts.page import page
    from _inf.apps.rollouts.row_files import load_rollouts

    target = out or files[0].with_suffix(".html")
    check_output(target, "--out", files)
    loaded = [(str(path), load_rollouts(path, reward=reward)) for path in files]
    write_text(target, page(loaded))
    counts = ", ".join(f"{_counted(rollouts)} of {name}" for name, rollouts in loaded)
    typer.echo(f"{counts}: {target}", err=True)


def _show_run(
    paths: Sequence[Path],
    out: Path | None,
    port: int | None,
    tokenizer: str | None,
    reward: str | None,
) -> None:
    """port: of a served page; None writes a file."""
    from _inf.apps.runs.page import run_page
    from _inf.apps.runs.run import load_run
    from _inf.backends.model_info import tokenizer_only
    from _inf.config import Config

    first = Path(paths[0].resolve())
    named = first.with_name(f"{first.name}.html") if first.is_dir() else first.with_suffix(".html")
    target = out or named
    if port is None:
        check_output(target, "--out")
    counter = tokenizer and tokenizer_only("--tokenizer", tokenizer, Config()).tokenizer
    load = partial(load_run, paths, tokenizer=counter, reward=reward)
    if port is not None:
        from _inf.apps.runs.server import ServedRun, serve

        served = ServedRun(paths, load)
        size = _size(served.run)
        serve(served, port, lambda address: typer.echo(f"{size}: {address}", err=True))
    else:
        run = load()
        write_text(target, run_page(run))
        typer.echo(f"{_size(run)}: {target}", err=True)


def _size(run: Run) -> str:
    """The run's notes and its size."""
    return "\n".join([*run.notes, f"{len(run)} rows of {len(run.steps)} steps"])


def _counted(rollouts: Sequence[Rollout]) -> str:
    counts = [row.unsampled_ids for row in rollouts if row.unsampled_ids]
    unsampled = f" ({len(counts)} with {sum(counts)} unsampled ids)" if counts else ""
    return f"{len(rollouts)} rows{unsampled}"

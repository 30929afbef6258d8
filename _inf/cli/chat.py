"""`inf chat`: a conversation in the terminal, or through a pipe: a message in, an answer out.

Answers go to stdout as they come; prompts are shown on a terminal only, and what is said about an
answer goes to stderr. The turns before are found in the engine's prefix cache.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
import yaml

from _inf.cli.options import EngineOptions, SamplingOptions, spread
from _inf.errors import EngineDeadError, InferenceError, did_you_mean
from _inf.sampling import GenerateParams

if TYPE_CHECKING:
    from inf import InferenceEngine

# For the embedded model: a conversation outgrows a question's room.
ROOM = ("rollout.prompt_length=3072", "rollout.response_length=1024")
HELP = """/system TEXT   begin anew, with that system prompt; without TEXT, with none
/set NAME=VALUE   a sampling parameter, such as temperature=0.2; none gives the default back
/reset   forget the conversation, and keep the system prompt
/save FILE   write the conversation as a line that `inf batch` reads
/help   this
A message that begins with / is written with a space before it.
A line that ends with \\ goes on in the next; so does all between two lines of \"\"\".
Ctrl-C stops an answer, Ctrl-D leaves."""


@spread
def chat(
    engine: EngineOptions,
    sampling: SamplingOptions,
    system: Annotated[str | None, typer.Option(help="A system prompt.")] = None,
) -> None:
    """Talk with a model; /help in it says what it knows.

    With the embedded model, prompt and answer may have 4096 tokens together.
    """
    params = sampling.params()
    with engine.start(*(ROOM if engine.embedded else ())) as running:
        talk = Chat(running, params, system)
        talk.run()
    if talk.failed and not sys.stdin.isatty():
        raise typer.Exit(1)


class Chat:
    """One conversation. `failed`: whether a message could not be answered."""

    def __init__(self, engine: InferenceEngine, params: GenerateParams, system: str | None) -> None:
        self._engine = engine
        self._params: dict[str, Any] = dict(params)
        self._messages: list[dict[str, Any]] = []
        self._has_tools = engine.config.rollout.multi_turn.tool_config_path is not None
        self.failed = False
        self._begin(system)

    def _begin(self, system: str | None) -> None:
        self._messages = [{"role": "system", "content": system}] if system else []

    def run(self) -> None:
        """Until the end of the input."""
        if watched := sys.stdin.isatty() and sys.stdout.isatty():
            import readline  # noqa: F401  (input() edits lines with it)

            _note("/help says what can be typed here.")
        while True:
            try:
                text = _read("You: " if watched else "", "...  " if watched else "")
            except EOFError:
                typer.echo("" if watched else "", nl=watched)
                return
            except KeyboardInterrupt:
                if not watched:
                    raise
                typer.echo()
                continue
            if not text.strip():
                continue
            try:
                command = text.startswith("/") and "\n" not in text
                self._command(text.strip()) if command else self._answer(text)
            except EngineDeadError:
                raise
            except (InferenceError, OSError) as failure:
                self.failed = True
                typer.echo(f"inf: {failure}", err=True)

    def _answer(self, text: str) -> None:
        asked = {"role": "user", "content": text}
        params = cast(GenerateParams, {**self._params, "n": 1})
        if self._has_tools:
            self._answer_with_tools(asked, params)
            return
        chunks = self._engine.stream([*self._messages, asked], **params)
        cached = self._engine.stats()["cached_tokens"]
        said, tokens, finish, start = "", 0, None, time.monotonic()
        try:
            for chunk in chunks:
                typer.echo(chunk.text, nl=False)
                sys.stdout.flush()
                said, tokens = said + chunk.text, tokens + len(chunk.token_ids)
                finish = chunk.finish_reason
        except KeyboardInterrupt:
            finish = "stopped"
        finally:
            typer.echo()
        if said:
            self._messages += [asked, {"role": "assistant", "content": said}]
        speed = tokens / max(time.monotonic() - start, 1e-6)
        cached = self._engine.stats()["cached_tokens"] - cached
        end = {"length": ", cut by max_tokens", "stopped": ", stopped"}.get(finish or "", "")
        _note(f"{tokens} tokens, {speed:.0f} tok/s, {cached:.0f} prompt tokens cached{end}")

    def _answer_with_tools(self, asked: dict[str, Any], params: GenerateParams) -> None:
        """Whole, since the answer comes after the calls; Ctrl-C stops it."""
        try:
            row = self._engine.generate([*self._messages, asked], **params)[0]
        except KeyboardInterrupt:
            _note("stopped")
            return
        for call in row.metadata["tool_calls"]:
            _note(f"{call['name']}({json.dumps(call['arguments'])}) gave {call['result']}")
        typer.echo(row.completion)
        self._messages = row.messages or []

    def _command(self, text: str) -> None:
        name, _, value = text[1:].partition(" ")
        known = ("help", "reset", "system", "save", "set")
        value = value.strip()
        match name:
            case "help":
                _note(HELP)
            case "reset":
                first = self._messages[0] if self._messages else {}
                self._begin(first["content"] if first.get("role") == "system" else None)
            case "system":
                self._begin(value)
            case "save":
                self._save(value)
            case "set":
                self._set(value)
            case _:
                raise InferenceError(f"/{name}: no such command{did_you_mean(name, known)} (/help)")

    def _save(self, path: str) -> None:
        if not path:
            raise InferenceError("/save: it takes a file's name: /save chat.jsonl")
        Path(path).expanduser().write_text(json.dumps({"messages": self._messages}) + "\n")
        _note(f"{len(self._messages)} messages are in {path}")

    def _set(self, assignment: str) -> None:
        if assignment:
            name, equals, text = assignment.partition("=")
            if not equals:
                raise InferenceError("/set: it takes NAME=VALUE, such as temperature=0.2")
            with contextlib.suppress(yaml.YAMLError):
                text = yaml.safe_load(text)
            value = None if text == "none" else text
            wanted = self._params | {name.strip().replace("-", "_"): value}
            self._engine.generate([], **cast(GenerateParams, wanted))  # refuses a wrong one
            self._params = wanted
        given = {name: value for name, value in self._params.items() if value is not None}
        _note(
            ", ".join(f"{name}={value}" for name, value in given.items()) or "all as in the config"
        )


def _read(prompt: str, more: str) -> str:
    """One message; raises `EOFError` at the end of the input."""
    line = input(prompt)
    lines = []
    if line.strip() == '"""':
        while (line := input(more)).strip() != '"""':
            lines.append(line)
        return "\n".join(lines)
    while line.endswith("\\"):
        lines.append(line[:-1])
        line = input(more)
    return "\n".join([*lines, line])


def _note(text: str) -> None:
    typer.secho(text, dim=True, err=True)

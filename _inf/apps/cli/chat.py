"""`inf chat`: a conversation in the terminal or through a pipe.

Answers are streamed to stdout; through a pipe with an empty line between two, or as one line of
JSON each. Prompts are shown on a terminal only; notes about an answer go to stderr.
"""

from __future__ import annotations

import contextlib
import json
import shlex
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from _inf.apps.cli.options import Options, takes_options
from _inf.apps.openai_answers import assistant
from _inf.config import Config
from _inf.errors import EngineDeadError, InferenceError, did_you_mean
from _inf.parts.found import reads
from _inf.parts.images.reading import URLS, Source, scheme_of
from _inf.parts.typed import GenerateParams
from _inf.request.keywords import refuse
from _inf.runtime.files import check_output, write_text

if TYPE_CHECKING:
    from _inf.types import JSON, Message
    from inf import InferenceEngine

# Where the user sets none: a conversation needs more tokens than a question.
LENGTHS = {"prompt_length": 3072, "response_length": 1024}
QUOTES = '"""'  # before and after a message of several lines
COMMANDS = ("help", "reset", "system", "image", "save", "set", "quit", "exit")
HELP = """/system TEXT   start again with that system prompt; without TEXT, with none
/image FILE   put an image before the next message
/set NAME VALUE   a sampling parameter, such as temperature 0.2; null restores the default
   VALUE is JSON, or else text: stop ["a", "\\n"], stop ###
/reset   forget the conversation, and keep the system prompt
/save FILE   write the conversation as a line that `inf batch` reads
/quit, /exit   leave
/help   show these commands
Write a space before a message that begins with /.
Write a message of several lines between two lines of \"\"\".
Ctrl-C stops an answer, Ctrl-D leaves."""


@takes_options(LENGTHS)
def chat(
    system: Annotated[str | None, typer.Option(help="A system prompt.")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per answer, as in inf --json.")
    ] = False,
    *,
    call: Options,
) -> None:
    """Chat with a model; type /help for its commands.

    Through a pipe each line is a message, and an empty line separates two answers; with --json
    each answer is one line, and so is each {"error": ...}. Unless the config sets their lengths,
    prompt and answer may have 4096 tokens together, as far as the model has room.
    """
    config = call.load()
    check_usable(call.params, as_json=as_json, streams=_streams(config, as_json))
    if _watched():  # the start takes seconds
        _note(f"Starting {config.model_name} ...")
    with call.start() as engine:
        talk = Chat(engine, call.params, system, as_json)
        talk.run()
    if talk.failed and not sys.stdin.isatty():
        raise typer.Exit(1)


class Chat:
    """One conversation. `failed`: whether a message could not be answered."""

    def __init__(
        self, engine: InferenceEngine, params: dict[str, object], system: str | None, as_json: bool
    ) -> None:
        self.engine, self.params, self.as_json = engine, params, as_json
        self.failed = False
        self._streams, self._watched = _streams(engine.config, as_json), _watched()
        self._answered = False
        self._begin(system)

    def _begin(self, system: str | None) -> None:
        self._messages: list[Message] = [{"role": "system", "content": system}] if system else []
        self._images: list[JSON] = []  # before the next message

    def run(self) -> None:
        if self._watched:
            import readline  # noqa: F401  (input() edits lines with it)

            _note("/help lists the commands.")
        while True:
            try:
                text = _read(*(("You: ", "...  ") if self._watched else ("", "")))
            except KeyboardInterrupt:
                if not self._watched:
                    raise
                typer.echo()
                continue
            except (EOFError, InferenceError) as end:
                typer.echo("", nl=self._watched)
                if isinstance(end, InferenceError):  # it ended inside a message
                    self._refused(end)
                return
            if text.strip() and not self._handle(text):
                return

    def _handle(self, text: str) -> bool:
        """Answer a message or run a command; return whether the chat continues."""
        try:
            if text.startswith("/") and "\n" not in text:
                return self._command(text.strip())
            said = [*self._images, {"type": "text", "text": text}] if self._images else text
            asked = [*self._messages, {"role": "user", "content": said}]
            params = cast(GenerateParams, {**self.params, "n": 1})
            self._messages = (self._streamed if self._streams else self._whole)(asked, params)
            self._images = []
        except EngineDeadError:
            raise
        except KeyboardInterrupt:
            if not self._watched:
                raise
            _note("stopped")
        except InferenceError as failure:
            self._refused(failure)
        return True

    def _refused(self, failure: Exception) -> None:
        self.failed = True
        typer.echo(f"inf: {failure}", err=True)
        if self.as_json:
            typer.echo(json.dumps({"error": str(failure)}))

    def _streamed(self, asked: list[Message], params: GenerateParams) -> list[Message]:
        """Show an answer while it is generated; Ctrl-C keeps what is there."""
        chunks, before = self.engine.stream(asked, **params), self.engine.stats()
        thought, answer, tokens, end, start = "", "", 0, "", time.monotonic()
        self._separate()
        try:
            for chunk in chunks:
                if thought and chunk.text and not answer:
                    typer.echo("\n")
                if chunk.reasoning:
                    typer.secho(chunk.reasoning, nl=False, dim=True)
                typer.echo(chunk.text, nl=False)
                sys.stdout.flush()
                thought, answer = thought + chunk.reasoning, answer + chunk.text
                tokens += len(chunk.token_ids)
                end = ", cut by max_tokens" if chunk.finish_reason == "length" else ""
        except KeyboardInterrupt:
            if not self._watched:
                raise
            end = ", stopped"
        finally:
            typer.echo()
        now = self.engine.stats()
        tokens = tokens or int(now["completion_tokens"] - before["completion_tokens"])
        speed = tokens / max(time.monotonic() - start, 1e-6)
        cached = now["cached_tokens"] - before["cached_tokens"]
        _note(f"{tokens} tokens, {speed:.0f} tok/s, {cached:.0f} prompt tokens cached{end}")
        said = thought or answer
        return [*asked, assistant(answer, [], [], thought)] if said else self._messages

    def _whole(self, asked: list[Message], params: GenerateParams) -> list[Message]:
        row = self.engine.generate(asked, **params)[0]
        for call in row.transcript.calls if row.transcript else ():
            _note(f"{call['name']}({json.dumps(call['arguments'])}) gave {call['result']}")
        self._separate()
        typer.echo(json.dumps(row.to_dict()) if self.as_json else row.completion)
        if row.messages:
            return [*asked, *row.messages[len(asked) :]]
        return [*asked, assistant(row.completion, [], [], row.reasoning or "")]

    def _separate(self) -> None:
        """Print an empty line between two answers, unless prompts or JSON separate them."""
        if self._answered and not self._watched and not self.as_json:
            typer.echo()
        self._answered = True

    def _command(self, text: str) -> bool:
        """Run a command; return whether the chat continues."""
        name, _, value = text[1:].partition(" ")
        value = value.strip()
        match name:
            case "help":
                _note(HELP)
            case "reset":
                first = self._messages[0] if self._messages else {}
                self._begin(first["content"] if first.get("role") == "system" else None)
            case "system":
                self._begin(value)
            case "image":
                self._image(value)
            case "save":
                self._save(value)
            case "set":
                self._set(value)
            case "quit" | "exit":
                return False
            case _:
                raise InferenceError(f"/{name}: no such command{did_you_mean(name, COMMANDS)}")
        return True

    def _image(self, name: str) -> None:
        if not name:
            raise InferenceError("/image: it needs the name of a file: /image photo.jpg")
        rollout = self.engine.config.rollout
        if "image" not in reads(rollout.name):
            raise InferenceError(f"/image: the backend {rollout.name} reads text only")
        if scheme_of(name) in URLS:
            part: JSON = {"type": "image_url", "image_url": {"url": name}}
        else:
            part = {"type": "image", "image": str(_path(name).absolute())}
        Source.of(part, "/image").opened(rollout.images)  # refuses what is no image
        self._images.append(part)

    def _save(self, name: str) -> None:
        if not name:
            raise InferenceError("/save: it needs the name of a file: /save chat.jsonl")
        path = Path(name).expanduser()
        if check_output(path, "/save").exists():
            raise InferenceError(
                f"/save: {name} already exists and was not changed; name another file"
            )
        write_text(path, json.dumps({"messages": self._messages}, default=repr) + "\n")
        _note(f"{len(self._messages)} messages are in {name}")

    def _set(self, assignment: str) -> None:
        name, _, text = assignment.partition(" ")
        if not text:
            raise InferenceError("/set: it needs NAME VALUE, such as temperature 0.2")
        value: Any = text.strip()
        with contextlib.suppress(ValueError, RecursionError):
            value = json.loads(value)
        params = {**self.params, name.replace("-", "_"): value}
        check_usable(params, as_json=self.as_json, streams=self._streams)
        self.engine.generate([], **cast(GenerateParams, params))  # refuses a wrong value
        self.params = {name: value for name, value in params.items() if value is not None}
        _note(f"set: {', '.join(f'{name}={value}' for name, value in self.params.items())}")


def check_usable(params: Mapping[str, object], *, as_json: bool, streams: bool) -> None:
    """Raise `ConfigError` for the first keyword that the chat would accept and ignore."""
    refuse("chat", params)
    if not as_json:
        refuse("text chat", params)
    if streams:
        refuse("streamed chat", params)


def _read(prompt: str, more: str) -> str:
    """Read one message; raise `EOFError` at the end of the input, and `InferenceError` if it ends
    inside the message."""
    line = input(prompt)
    if line.strip() != QUOTES:
        return line
    lines: list[str] = []
    try:
        while (line := input(more)).strip() != QUOTES:
            lines.append(line)
    except EOFError:
        raise InferenceError(
            "the input ended inside a message, which was not sent: the line "
            f"{QUOTES} that ends it is missing."
        ) from None
    return "\n".join(lines)


def _streams(config: Config, as_json: bool) -> bool:
    """Whether answers are shown while they are generated."""
    rollout = config.rollout
    return rollout.multi_turn.tool_config_path is rollout.agent.default is None and not as_json


def _watched() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()


def _note(text: str) -> None:
    typer.secho(text, dim=True, err=True)


def _path(name: str) -> Path:
    """The file of a name that may be quoted, or have `\\ ` for a space, as in a shell."""
    path = Path(name).expanduser()
    with contextlib.suppress(ValueError):  # it has one quotation mark
        if not path.exists() and len(words := shlex.split(name)) == 1:
            return Path(words[0]).expanduser()
    return path

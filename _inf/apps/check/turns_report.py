"""`inf check turns`: renders one conversation by three paths and reports where they differ."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

from _inf.apps.check.turns_conversation import Conversation, built_in
from _inf.apps.check.turns_differences import CAUSES, Difference, differences, ids_of
from _inf.apps.check.turns_paths import Paths, Segment, spoken
from _inf.apps.json_lines import json_text
from _inf.backends.model_info import tokenizer_only
from _inf.backends.verl.turn_builder import builder_name, built_ids
from _inf.config import Config
from _inf.errors import ConfigError, InferenceError, PromptError, error_text, shown
from _inf.models.resolve import resolve_model
from _inf.runtime import quiet
from _inf.runtime.extras import lacks_verl
from _inf.types import Message, ModelInfo

OURS = "ours"


@dataclasses.dataclass(frozen=True)
class PathReport:
    """One path. failure: why it has no ids. differences: from the template whole, in order.
    skipped: whether it could not be tried, because verl cannot be imported."""

    name: str
    ids: list[int]
    differences: list[Difference] = dataclasses.field(default_factory=list)
    failure: str = ""
    skipped: bool = False

    @property
    def equal(self) -> bool:
        return not self.failure and not self.differences


@dataclasses.dataclass(frozen=True)
class TurnsReport:
    """The result. roles: of the messages. left_out: what the built-in conversation lacks, and why.
    whole: the ids of the chat template rendered whole."""

    roles: list[str]
    left_out: str
    whole: list[int]
    paths: list[PathReport]

    @property
    def passed(self) -> bool:
        """Whether every path that could be tried equals the template whole."""
        return all(path.equal or path.skipped for path in self.paths)

    def json(self) -> str:
        return json_text({"passed": self.passed, **dataclasses.asdict(self)})

    def text(self) -> str:
        """The report for a terminal."""
        lines = [f"conversation: {', '.join(self.roles)}"]
        lines += [f"note: {self.left_out}"] if self.left_out else []
        lines += [f"the template whole: {len(self.whole)} ids"]
        for path in self.paths:
            lines += _path_lines(path)
        return "\n".join(lines)


def compare_paths(
    model: ModelInfo, config: Config, conversation: Conversation | None
) -> TurnsReport:
    """Render a conversation, or the largest built-in one that the template renders, by all paths.

    Raises `PromptError` if the template refuses it, and `ToolError` if it cannot have its tools.
    """
    if model.tokenizer.chat_template is None:
        raise PromptError("the tokenizer has no chat template; give one with --template.")
    if conversation is None:
        conversation = built_in(lambda smaller: Paths(model, config, smaller).whole())
    try:
        paths = Paths(model, config, conversation)
        whole = paths.whole()
    except InferenceError:
        raise
    except Exception as failure:
        raise PromptError(f"the chat template refused it: {error_text(failure)}.") from failure
    ours = _report(OURS, paths.ours, paths, whole)
    roles = [_role(message) for message in conversation.messages]
    return TurnsReport(roles, conversation.left_out, whole, [ours, _of_verl(paths, whole)])


def _report(
    name: str, make: Callable[[], Sequence[Segment]], paths: Paths, whole: list[int]
) -> PathReport:
    try:
        path = make()
    except Exception as failure:  # a template may raise anything
        return PathReport(name, [], failure=f"refused: {error_text(failure)}")
    return PathReport(name, ids_of(path), differences(whole, path, paths, of_verl=name != OURS))


def _of_verl(paths: Paths, whole: list[int]) -> PathReport:
    with quiet.third_party():
        try:
            name = builder_name()
        except ImportError as failure:
            why = lacks_verl(failure, "check turns") or f"not importable: {failure}"
            return PathReport("verl", [], failure=why, skipped=True)

        def make() -> list[Segment]:
            messages, answers = paths.conversation.messages, paths.answers
            texts = {index: spoken(messages[index]) for index in answers}
            built = built_ids(paths.tokenizer, messages, paths.schemas, answers, texts)
            return [Segment(*segment) for segment in built]

        return _report(name, make, paths, whole)


def read_model(config: Config, template: Path | None) -> ModelInfo:
    """Load the config's tokenizer, without its model; template: a file in place of its own one."""
    key, path = "model_path", config.model_path
    if config.rollout.name == "openai":
        key, path = "tokenizer_path", config.tokenizer_path
        if path is None:
            raise ConfigError.of(key, "the server has the tokenizer; name a folder or Hub id here.")
    elif path is None or _needs_conversion(Path(path).expanduser()):
        path = str(resolve_model(path, None, config.trust_remote_code, config.revision))
    with quiet.third_party():
        model = tokenizer_only(key, str(Path(path).expanduser()), config)
    if template is not None:
        try:
            model.tokenizer.chat_template = template.read_text(encoding="utf-8")
        except (OSError, ValueError) as failure:
            raise ConfigError(f"--template: {template} cannot be read: {failure}.") from None
    return model


def _needs_conversion(path: Path) -> bool:
    """Whether it is a GGUF or a folder without a tokenizer, such as a verl checkpoint; a Hub id is
    not: of a repository only the tokenizer is downloaded."""
    return path.is_file() or (path.is_dir() and not (path / "tokenizer_config.json").exists())


def _role(message: Message) -> str:
    calls = len(message.get("tool_calls") or ())
    return str(message["role"]) + (f" ({calls} call{'s' * (calls > 1)})" if calls else "")


def _path_lines(path: PathReport) -> list[str]:
    if path.failure:
        return [f"{path.name}: {path.failure}"]
    if path.equal:
        return [f"{path.name}: {len(path.ids)} ids, equal"]
    first, count = path.differences[0], len(path.differences)
    lines = [
        f"{path.name}: {len(path.ids)} ids; differences: {count}, the first at id "
        f"{first.position}, {first.place}:",
        f"  after         {first.before!r}",
        f"  the template  {_shown(first.expected, first.expected_ids)}",
        f"  {path.name:13} {_shown(first.got, first.got_ids)}",
        f"  likely cause: {first.cause}: {CAUSES[first.cause]}",
    ]
    further: dict[str, list[str]] = {}
    for other in path.differences[1:]:
        further.setdefault(other.cause, []).append(f"{other.position} {other.place}")
    for cause, places in further.items():
        named = cause if cause == first.cause else f"{cause}: {CAUSES[cause]}"
        lines.append(f"  also at id {', '.join(places)}: {named}")
    return lines


def _shown(text: str, ids: Sequence[int]) -> str:
    """Text and ids, of which the first are shown; --json has all."""
    return f"{shown(text)}, ids {shown(ids)}" if ids else "nothing"

"""`Part`: a capability of the engine beyond a plain call.

Each is a folder next to this file, and is found without being listed anywhere:
    __init__.py: a subclass of `Part`: its keywords, what they refuse, and what they add to rows;
    sglang.py, hf.py, openai.py: what a backend does for it. One that has no file, and is not among
        the part's `same_names`, refuses its keywords, by name;
    scheduler.py: its corrections in the process of SGLang's scheduler (`patches`).
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeAlias

from _inf.request.keyword import Keyword

if TYPE_CHECKING:
    from typing_extensions import Self
    from verl import DataProto

    from _inf.config import Config
    from _inf.types import (
        JSON,
        Message,
        ModelInfo,
        Prompt,
        Request,
        RequestOutput,
        SamplingParams,
        T,
        Tokenizer,
    )


class Reader(Protocol):
    """Reads what messages have besides text."""

    def content_of(self, part: Mapping[str, object], where: str) -> JSON:
        """Check a part of a message's content; `where` begins an error."""

    def prompt_of(self, messages: list[Message], index: int) -> Prompt:
        """The prompt of messages with such parts."""

    def of_tool(self, content: Sequence[JSON], model: ModelInfo) -> list[JSON]:
        """Check a tool's result with such parts, which this model is to read."""

    def tokenized(
        self,
        tokenizer: Tokenizer,
        text: str,
        messages: Sequence[Message],
        where: str,
        *,
        first: bool,
    ) -> tuple[list[int], Part]:
        """The ids of a text that a template has made of messages with such parts, and what they ask
        for; `where` begins an error. first: whether the row begins with them."""


Readers: TypeAlias = Mapping[str, Reader]  # by the type of a part of a message's content


@dataclasses.dataclass(frozen=True)
class Record:
    """What a backend leaves of a part in `RequestOutput.parts`. unsampled: the places of tokens
    that were not sampled; each has the log prob 0.0."""

    @property
    def unsampled(self) -> Sequence[int]:
        return ()

    def added(self) -> Added:
        """What it adds to a row that asked no part for it."""
        return NOTHING


@dataclasses.dataclass(frozen=True)
class Added:
    """What a part adds to a row of `generate`. fields: attributes of the row, lists of the output
    and columns of files. metadata: attributes too, and in the row's metadata. unsampled: the places
    of ids that the model did not sample. again: what the row's content asks for if it goes on."""

    fields: Mapping[str, object] = dataclasses.field(default_factory=dict)
    metadata: Mapping[str, object] = dataclasses.field(default_factory=dict)
    unsampled: Sequence[int] = ()
    again: Part | None = None


@dataclasses.dataclass(frozen=True)
class Field:
    """The documentation of what a part adds to rows. typed: of one row's value, for type checkers.
    in_json: whether a table has it as JSON text. in_choices: whether servers and batches show it in
    a choice of an answer. in_rollouts: whether files of rollouts have it. default: the attribute of
    a row that has none."""

    typed: str
    help: str
    in_json: bool = False
    in_choices: bool = False
    in_rollouts: bool = False
    default: object = None


NOTHING = Added()


@dataclasses.dataclass(frozen=True)
class Part:
    """What one row asks of a capability. A subclass has a field for each of its keywords, whose
    default changes nothing; `SamplingParams.parts` has those that a row asks for.

    same_names: the backends that take its keywords under the same names, so that they need no file.
    reads: the types of a message's content that its `reader` reads, and `kept_of` keeps;
        `followed_by` and `in_row` are of rows with turns.
    row_fields, row_metadata: what it adds to rows. order: where it stands among those that change
    the same logits. greedy: why its rows are not sampled; "": they are. adjusts: whether it changes
    logits. no_token: what to say where it left a row no token to come next; "": it leaves some.
    instead: what to do where a backend lacks it, after a space. fewer: what to ask for where its
    lists are too long.
    """

    keywords: ClassVar[Mapping[str, Keyword]] = {}
    same_names: ClassVar[Collection[str]] = ()
    row_fields: ClassVar[Mapping[str, Field]] = {}
    row_metadata: ClassVar[Mapping[str, Field]] = {}
    reads: ClassVar[Collection[str]] = ()
    order: ClassVar[int] = 0
    greedy: ClassVar[str] = ""
    instead: ClassVar[str] = ""
    adjusts: ClassVar[bool] = False
    no_token: ClassVar[str] = ""
    fewer: ClassVar[str] = "fewer of them"

    @classmethod
    def asked(cls, values: Mapping[str, object], model: ModelInfo) -> Self | None:
        """What these checked values of a row's keywords ask for; None: nothing."""
        own = {name: values[name] for name, row in cls.keywords.items() if name in values}
        return cls(**own) if any(cls.keywords[name].asks(own[name]) for name in own) else None

    @classmethod
    def reader(cls, config: Config) -> Reader:
        """What reads such content, in an engine of this config."""
        raise NotImplementedError

    @classmethod
    def kept_of(cls, part: Mapping[str, object]) -> JSON:
        """What files keep of a part of a message's content that it reads."""
        raise NotImplementedError

    def followed_by(self, later: Self, before: int, tokens: int) -> Self:
        """What a row of `before` ids asks for with the last `tokens` of those of which `later` was
        made."""
        raise NotImplementedError

    def in_row(self, *, paused: bool) -> Record | None:
        """What it leaves in a row with turns. paused: whether `pause` ended it."""
        return None

    def values(self) -> dict[str, object]:
        """Its keywords that ask for something, with their values."""
        own = vars(self)
        return {name: own[name] for name, row in self.keywords.items() if row.asks(own[name])}

    def contradictions(self, params: SamplingParams, model: ModelInfo) -> Iterable[tuple[str, str]]:
        """What cannot be combined with a row's other parameters: a keyword, and why."""
        return ()

    def check_one_turn(self, prompt: Prompt) -> None:
        """Refuse a prompt that is answered by one turn."""

    def known_ids(self, ids: list[int]) -> list[int]:
        """The ids before the first new token, which begin with the prompt's."""
        return ids

    @property
    def known_tokens(self) -> int:
        """How many tokens of the answer were generated before, in another call."""
        return 0

    def failed(self, request: Request, failure: Exception) -> RequestOutput | None:
        """The answer in place of a failure of this request alone; None: it is raised."""
        return None

    def added(self, output: RequestOutput, prompt: Prompt) -> Added:
        """What it adds to a row, from the record that a backend left in `output.parts`."""
        return NOTHING

    def in_chunk(self, output: RequestOutput, new: slice) -> dict[str, Any]:
        """The fields of a stream's chunk with these tokens of the answer."""
        return {}

    @classmethod
    def add_to_batch(
        cls, batch: DataProto, asked: Sequence[Self | None], tokenizer: Tokenizer
    ) -> None:
        """Add its columns to a trainer's batch. asked: of the prompt of each row."""

    @classmethod
    def in_every_batch(cls, tokenizer: Tokenizer) -> bool:
        """Whether a trainer's batch has its columns even if no prompt asks for it, so that batches
        of one model can be concatenated."""
        return False

    def check_samples(self, n: int) -> None:
        """Refuse so many samples of a prompt."""

    def listed(self, params: SamplingParams, prompt_tokens: int) -> dict[str, tuple[int, int]]:
        """How many log probs it lists at a token, and at most at how many tokens, by keyword."""
        return {}

    def of_sample(self, sample: int) -> Self:
        """What the prompt's sample of this number asks for."""
        return self

    @classmethod
    def features(cls) -> frozenset[str]:
        names = {row.feature for row in cls.keywords.values() if row.feature}
        if cls.reads:  # its folder's name
            names.add(cls.__module__.rpartition(".")[2])
        return frozenset(names)

    @classmethod
    def check_on(cls, backend: object, params: Sequence[SamplingParams]) -> None:
        """Refuse what a running backend does not have. params: of each prompt of a call."""

    @classmethod
    @functools.cache
    def on(cls, backend: str, default: type[T]) -> type[T]:
        """The `Translation` of its module for a backend, or the `default` one if the backend takes
        its keywords under the same names. Others have refused the keywords."""
        name = f"{cls.__module__}.{backend}"
        if importlib.util.find_spec(name) is None:
            assert backend in cls.same_names, name
            return default
        found: type[T] = importlib.import_module(name).Translation
        return found


def values_of(parts: Iterable[Part]) -> dict[str, object]:
    """The keywords of a row's parts, with their values."""
    return {name: value for part in parts for name, value in part.values().items()}

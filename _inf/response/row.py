"""`GenerationRow`, one answer of `generate`, and its form in files and notebooks."""

from __future__ import annotations

import dataclasses
import functools
import html
import io
import json
from collections.abc import Iterable, Sequence
from typing import Any

from _inf.config.other_names import no_attribute
from _inf.errors import shown
from _inf.parts.found import ROW_FIELDS, ROW_METADATA
from _inf.parts.part import Added
from _inf.parts.typed import RowFields
from _inf.turns import Transcript
from _inf.types import Message, ToolCall

# Keys of `reward_scores` that are not tools.
NO_TOOLS = ("user_turn_rewards", "environment")
# Fields with values from users' code or a model's calls; all others have numbers and text.
OF_CODE = (
    *("messages", "tool_calls", "executed_tool_calls"),
    *("tool_rewards", "reward_scores", "extra_fields"),
)
# Properties of a row that are no fields.
PROPERTIES = ("messages", "response", "metadata", "weight_version", "cumulative_logprob")


@dataclasses.dataclass(frozen=True)
class GenerationRow(RowFields):
    """One row of a `GenerationOutput`: `output[i]`.

    It has the row's value from each list of the output (`completion` from `completions`) and from
    its `metadata`. transcript: only after tools, interactions or an agent loop. padded_to,
    pad_token_id: the padding of `metadata["response_ids"]`, which is built at first use.
    whole_text: the completion with the thought before it and its marks; None: the completion.
    parts: the capabilities that the call used beyond a plain answer; the row also has their fields.
    """

    completion: str
    token_ids: list[int] | None
    logprobs: list[float] | None
    tool_calls: list[ToolCall] | None = None
    _: dataclasses.KW_ONLY  # the fields above are the answer itself, and go into files unchanged
    prompt_token_ids: list[int] | None = None
    finish_reason: str
    error: str | None = None
    matched_stop: int | str | None = None
    matched_stop_text: str | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    prompt_index: int = 0
    sample_index: int = 0
    weight_versions: list[tuple[int, int]] = dataclasses.field(default_factory=list)
    seed: int | None = None
    truncated_prompt_tokens: int = 0
    transcript: Transcript | None = None
    padded_to: int = 0
    pad_token_id: int | None = None
    whole_text: str | None = None
    parts: Sequence[Added] = ()

    def __getattr__(self, name: str) -> Any:
        if name in ROW_FIELDS or name in ROW_METADATA:
            return self.of_part(name)
        raise no_attribute(self, name, [*type(self).__dataclass_fields__, *PROPERTIES])

    def of_part(self, name: str) -> Any:
        """A field that a part adds, or its default."""
        for part in vars(self).get("parts", ()):
            if name in part.fields or name in part.metadata:
                return part.fields.get(name, part.metadata.get(name))
        return (ROW_FIELDS.get(name) or ROW_METADATA[name]).default

    @property
    def messages(self) -> list[Message] | None:
        """The whole conversation; None without tools or interactions, and after an agent loop."""
        return None if self.transcript is None else self.transcript.messages

    @property
    def weight_version(self) -> int:
        """The version of the weights that computed its last token."""
        return self.weight_versions[-1][0] if self.weight_versions else 0

    @property
    def cumulative_logprob(self) -> float | None:
        """The sum of the log probs; None if they are unknown."""
        return None if self.logprobs is None else sum(self.logprobs)

    @property
    def response(self) -> tuple[list[int], list[int], list[float] | None]:
        """The ids after the prompt, without padding; a mask with 1 for each sampled id; their log
        probs, 0.0 where the mask is 0, or None if they are unknown."""
        if (transcript := self.transcript) is not None:
            return (
                transcript.ids,
                transcript.mask,
                None if self.logprobs is None else transcript.logprobs,
            )
        ids = self.token_ids or []
        mask = [1] * len(ids)
        for part in self.parts:
            for place in part.unsampled:
                mask[place] = 0
        return ids, mask, self.logprobs

    @functools.cached_property
    def metadata(self) -> dict[str, Any]:
        """The row's `GenerationOutput.metadata`."""
        ids, mask, _ = self.response
        padding = self.padded_to - len(ids)
        padded = ids + [self.pad_token_id] * padding
        return {"response_ids": padded, "response_mask": mask + [0] * padding, **self._unpadded()}

    def _unpadded(self) -> dict[str, Any]:
        """The metadata without the padded lists."""
        metadata: dict[str, Any] = {
            "finish_reason": self.finish_reason,
            "matched_stop": self.matched_stop,
            "matched_stop_text": self.matched_stop_text,
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "cached_tokens": self.cached_tokens,
            "prompt_index": self.prompt_index,
            "sample_index": self.sample_index,
            "cumulative_logprob": self.cumulative_logprob,
            "weight_version": self.weight_version,
            "weight_versions": self.weight_versions,
        }
        if self.seed is not None:
            metadata["seed"] = self.seed
        if self.truncated_prompt_tokens:
            metadata["truncated_prompt_tokens"] = self.truncated_prompt_tokens
        for part in self.parts:
            metadata |= part.metadata
        if (transcript := self.transcript) is not None:
            metadata |= {"num_turns": transcript.num_turns, "response_tokens": len(transcript.ids)}
            metadata |= {"limit": transcript.limit, "reward_scores": transcript.reward_scores}
            metadata |= _of_loop(transcript)
        if self.error is not None:
            metadata["error"] = self.error
        return metadata

    def to_dict(self) -> dict[str, Any]:
        """Return the fields and the metadata as one dict of JSON values, with these differences:

        prompt_token_ids: left out (`inf.save_rollouts` keeps them).
        response_ids, response_mask: without padding, and only after tools, interactions or an agent
            loop.
        matched_stop, matched_stop_id: the text that ended the row, and the id if it is a token.
        executed_tool_calls: the metadata's `tool_calls`.

        Values of user code that JSON lacks are converted: NaN and infinite numbers to None, arrays
        to lists, other objects to text.
        """
        from _inf.parts.kept import kept_messages
        from _inf.response.json_values import json_value

        row: dict[str, Any] = {
            "completion": self.completion,
            "token_ids": self.token_ids,
            "logprobs": self.logprobs,
            "tool_calls": self.tool_calls,
            "messages": None if self.messages is None else kept_messages(self.messages),
        }
        for part in self.parts:
            row |= part.fields
        row = {name: value for name, value in row.items() if value is not None}
        if self.tool_calls is not None:
            row["tool_calls"] = [dict(vars(call)) for call in self.tool_calls]
        metadata = self._unpadded()
        stop, text = metadata.pop("matched_stop"), metadata.pop("matched_stop_text")
        row |= {"finish_reason": metadata.pop("finish_reason"), "matched_stop": text}
        row["matched_stop_id"] = stop if isinstance(stop, int) else None
        if self.transcript is not None:
            ids, mask, _ = self.response
            metadata |= {"response_ids": ids, "response_mask": mask}
            metadata["executed_tool_calls"] = metadata.pop("tool_calls", [])
        row |= metadata
        of_code = {name: json_value(row.pop(name)) for name in OF_CODE if name in row}
        text = json.dumps(row, default=lambda array: array.tolist())
        plain: dict[str, Any] = json.loads(text, parse_constant=lambda constant: None)
        return plain | of_code

    def __repr__(self) -> str:
        summary = f"{self.completion_tokens} tokens, {self.finish_reason}"
        return f"<GenerationRow: {shown(self.completion)} ({summary})>"

    def _repr_html_(self) -> str:
        """The table that a notebook shows: all values that are not lists or dicts."""
        row = {
            name: value
            for name, value in self.to_dict().items()
            if value is not None and not isinstance(value, list | dict)
        }
        return html_table([], row.items())


def _of_loop(transcript: Transcript) -> dict[str, Any]:
    """The metadata that only agent loops have, or only the built-in loop."""
    if transcript.agent_loop is None:
        rewards = {k: v for k, v in transcript.reward_scores.items() if k not in NO_TOOLS}
        return {"tool_calls": transcript.calls, "tool_rewards": rewards}
    unsampled = transcript.unsampled
    return {
        "agent_loop": transcript.agent_loop,
        "unsampled_ids": len(unsampled),
        **({"unsampled_at": list(unsampled)} if unsampled else {}),
        "extra_fields": dict(transcript.extra_fields),
    }


def html_table(names: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """Return an HTML table with a head of `names`, if there are any; values are escaped."""
    head = "".join(f"<th>{name}</th>" for name in names)
    style = "text-align:left;white-space:pre-wrap"
    body = [
        "".join(f"<td style='{style}'>{html.escape(str(value))}</td>" for value in row)
        for row in rows
    ]
    return "<table>" + "".join(f"<tr>{cells}</tr>" for cells in [head, *body] if cells) + "</table>"


def text_table(names: Sequence[str], rows: Iterable[Iterable[object]]) -> str:
    """Return a table with a line for each row, as wide as the terminal, or 80 characters; the
    second column is cut to what the others leave."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    file = io.StringIO()
    console = Console(file=file, force_terminal=False, force_jupyter=False, color_system=None)
    table = Table(box=None, pad_edge=False)
    for place, name in enumerate(names):
        table.add_column(name, no_wrap=place != 1)
    for row in rows:
        texts = (repr(str(value)[: console.width])[1:-1] for value in row)
        table.add_row(*(Text(text, no_wrap=True, overflow="ellipsis") for text in texts))
    console.print(table)
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines())

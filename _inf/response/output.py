"""`GenerationOutput`, the result of `generate`: lists by field, rows, tables and files."""

from __future__ import annotations

import collections
import dataclasses
import functools
import inspect
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from _inf.config.other_names import no_attribute
from _inf.errors import ConfigError, shown
from _inf.parts.found import ROW_FIELDS, ROW_METADATA, entries
from _inf.parts.typed import OutputLists
from _inf.response.row import GenerationRow, html_table, text_table
from _inf.types import Message, T, ToolCall

if TYPE_CHECKING:
    import pandas

TABLE_ROWS = 50  # in a notebook
PRINTED_ROWS = 20
SHOWN_ROWS = 3  # in a repr
OF_PARTS = {**ROW_FIELDS, **ROW_METADATA}
NAMES = ("", "completion", "finish", "tokens", "logprob")  # of a table's columns
TYPES = {"str": "string", "int": "Int64"}
# A table's column has one type, even if all its values are missing. Values without a fixed shape
# are JSON text.
COLUMN_TYPES = {
    **dict.fromkeys(("matched_stop", "limit", "error"), "string"),
    **dict.fromkeys(("matched_stop_id", "seed", "truncated_prompt_tokens"), "Int64"),
    **{name: TYPES[field.typed] for name, field in OF_PARTS.items() if field.typed in TYPES},
}
JSON_COLUMNS = (
    *("messages", "tool_calls", "executed_tool_calls", "tool_rewards", "reward_scores"),
    *("extra_fields", *(name for name, field in ROW_FIELDS.items() if field.in_json)),
)


class Column(functools.cached_property[T]):
    """A list of one field of all rows, built at first use; None if no row has the field, except
    for fields with `always`."""

    def __init__(self, of: Callable[[GenerationRow], Any], *, always: bool = False) -> None:
        def values(output: GenerationOutput) -> Any:
            listed = [*map(of, output.rows)]
            return listed if always or any(value is not None for value in listed) else None

        super().__init__(values)


@dataclasses.dataclass(frozen=True)
class GenerationOutput(OutputLists):
    """The answers of one `generate` call: one list per field, one element per row.

    Rows are prompt-major: with `n` samples per prompt, row `i` is sample `i % n` of prompt
    `i // n`.

    completions: the text, without special tokens and without the stop token
        (`skip_special_tokens=False` keeps both) or stop string (`include_stop_str_in_output`), and,
        with the config's `reasoning_parser`, without the thought before it.
    token_ids: the generated ids, including the stop token, without padding; None for a row if a
        server (`rollout.name: openai`) gives none.
    logprobs: one float per generated token: the natural log of softmax(logits / temperature),
        before top-p, top-k and min-p, as verl's actor recomputes it; of softmax(logits) for greedy
        rows. Penalties and a logit bias are applied to the logits first. None for a row if a server
        gives none, or defines them differently.
    prompt_token_ids: the prompt's ids as they were sent; None if a server tokenizes.
    metadata: a dict per row, built when it is first used:
        response_ids, response_mask: the row padded to the rollout's width, and its mask: 1 for each
            token that the model generated (as in verl). Empty if a server gives no ids;
        finish_reason: `stop`, `length`, `tool_calls` or `abort` (OpenAI's names), or `repetition`;
        matched_stop: the token id or the stop string that ended the row, or None;
        matched_stop_text: the same, with a token as text;
        prompt_tokens, completion_tokens, cached_tokens: counts; cached tokens came from the prefix
            cache;
        prompt_index, sample_index: the number of the row's prompt, and of the row among that
            prompt's rows;
        cumulative_logprob: the sum of its log probs;
        weight_version: of its last token: 0 until weights are updated; for a row with an adapter,
            the adapter's;
        weight_versions: pairs of a version and the index of its first token (docs/training.md);
        seed: only if one was given: this row's seed. A call with this seed gives the same row;
        truncated_prompt_tokens: only if `truncate_prompt` cut the prompt: how many tokens;
        error: only after a failure. If `finish_reason` is `abort`, why the row has no answer (its
            conversation failed, or any failure with `on_error="row"`); otherwise what code of tools
            or interactions raised at the row's end.

    After tools or interactions, `completions` has the last assistant text, `token_ids` and
    `logprobs` all sampled tokens, and `response_ids` everything after the prompt, with the sampled
    tokens marked in `response_mask`. Two more fields are set:

    messages: the whole conversation, with tool calls and results.
    tool_calls: the calls of the last turn that the caller must run (`finish_reason` is
        `tool_calls`): calls of schema-only tools, and calls not run because of a turn limit.

    The metadata then also has:
        num_turns: the number of assistant turns;
        response_tokens: how many of `response_ids` are not padding;
        limit: the limit that ended the row, such as `max_tokens`, or None;
        tool_calls: for each executed call its name, arguments, result, seconds, error, truncated
            and, for a verl tool, reward and metrics;
        tool_rewards: verl tools' `calc_reward`; reward_scores: these and `user_turn_rewards`.
    """

    rows: list[GenerationRow] = dataclasses.field(default_factory=list)

    completions = Column[list[str]](lambda row: row.completion, always=True)
    token_ids = Column[list[list[int] | None]](lambda row: row.token_ids, always=True)
    logprobs = Column[list[list[float] | None]](lambda row: row.logprobs, always=True)
    metadata = Column[list[dict[str, Any]]](lambda row: row.metadata, always=True)
    messages = Column[list[list[Message]] | None](lambda row: row.messages)
    tool_calls = Column[list[list[ToolCall]] | None](lambda row: row.tool_calls)
    prompt_token_ids = Column[list[list[int]] | None](lambda row: row.prompt_token_ids)

    def __getattr__(self, name: str) -> Any:
        if name in ROW_FIELDS:
            listed = [row.of_part(name) for row in self.rows]
            return listed if any(value is not None for value in listed) else None
        of_class = [field for field in vars(type(self)) if not field.startswith("_")]
        raise no_attribute(self, name, ["rows", *of_class, *ROW_FIELDS])

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[GenerationRow]:
        return iter(self.rows)

    @overload
    def __getitem__(self, index: int) -> GenerationRow: ...
    @overload
    def __getitem__(self, index: slice) -> GenerationOutput: ...
    def __getitem__(self, index: int | slice) -> GenerationRow | GenerationOutput:
        found = self.rows[index]
        return GenerationOutput(found) if isinstance(found, list) else found

    def to_dict(self) -> list[dict[str, Any]]:
        """Return each row's `GenerationRow.to_dict`, ready for `json.dumps`."""
        return [row.to_dict() for row in self]

    def to_pandas(self) -> pandas.DataFrame:
        """Return a table with a row per answer and the columns of `to_dict`.

        A missing value is `pandas.NA`. Values without a fixed shape (`messages`, tool calls,
        rewards, `extra_fields`) are JSON text, so that a column has one type.
        """
        import pandas

        rows = self.to_dict()
        for row in rows:
            row |= {name: json.dumps(row[name]) for name in JSON_COLUMNS if name in row}
        columns = {
            name: pandas.Series([row.get(name) for row in rows], dtype=COLUMN_TYPES.get(name))
            for name in dict.fromkeys(name for row in rows for name in row)
        }
        return pandas.DataFrame(columns)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the rows of `to_dict` as `.jsonl`, or the table of `to_pandas` as `.parquet`.

        An existing file is replaced once the new one is complete. Raises `ConfigError` for other
        suffixes, and if the path is not a regular file.
        """
        from _inf.runtime.files import replaced, write_text

        suffix = Path(str(path)).suffix
        if suffix == ".jsonl":
            write_text(path, "".join(json.dumps(row) + "\n" for row in self.to_dict()))
        elif suffix == ".parquet":
            with replaced(path) as file:
                self.to_pandas().to_parquet(file, index=False)
        else:
            raise ConfigError(f"save: {shown(path)} must end in .jsonl or .parquet.")

    def __repr__(self) -> str:
        reasons = collections.Counter(row.finish_reason for row in self.rows)
        counts = ", ".join(f"{count} {reason}" for reason, count in reasons.items())
        texts = [shown(row.completion) for row in self.rows[:SHOWN_ROWS]]
        more = ["..."] if len(self) > SHOWN_ROWS else []
        summary = f" ({counts}): {', '.join(texts + more)}" if len(self) else ""
        return f"<GenerationOutput: {len(self)} rows{summary}>"

    def __str__(self) -> str:
        """A table of the first rows, as wide as the terminal."""
        if not self.rows:
            return repr(self)
        more = len(self) - PRINTED_ROWS
        return text_table(NAMES, self._cells(PRINTED_ROWS)) + (f"\n... {more} more" * (more > 0))

    def _repr_html_(self) -> str:
        """The table that a notebook shows."""
        more = len(self) - TABLE_ROWS
        table = html_table(NAMES, self._cells(TABLE_ROWS))
        return table + (f"<p>and {more} more rows</p>" if more > 0 else "")

    def _cells(self, count: int) -> list[tuple[object, ...]]:
        """What a table shows of the first rows, by `NAMES`."""
        return [
            (
                index,
                row.completion,
                row.finish_reason,
                row.completion_tokens,
                "" if (total := row.cumulative_logprob) is None else f"{total:.2f}",
            )
            for index, row in enumerate(self.rows[:count])
        ]


GenerationOutput.__doc__ = "\n".join(
    [
        inspect.cleandoc(GenerationOutput.__doc__ or ""),
        "",
        "With keywords that ask for them there are lists:",
        entries({name: field.help for name, field in ROW_FIELDS.items()}, 4),
        "",
        "and in the metadata:",
        entries({name: field.help for name, field in ROW_METADATA.items()}, 4),
    ]
)

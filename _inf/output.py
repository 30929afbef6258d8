"""What `generate` returns, and how the engine's rows become it.

In: the rollout's `DataProto` with its `rows` (prompt-major). Out: `GenerationOutput`. Knows the
tokenizer's decoder and nothing of processes.
"""

from __future__ import annotations

import dataclasses
import html
from collections.abc import Iterator, Sequence
from typing import Any, overload

from _inf.sampling import Sampling
from _inf.tokens import Prompt
from _inf.tool_calls import ToolCall
from _inf.transcript import Transcript

TABLE_ROWS = 50


@dataclasses.dataclass(frozen=True)
class GenerationRow:
    """One row of a `GenerationOutput`: `output[i]`."""

    completion: str
    token_ids: list[int]
    logprobs: list[float]
    metadata: dict[str, Any]
    prompt_logprobs: list[float | None] | None = None
    messages: list[dict[str, Any]] | None = None
    tool_calls: list[ToolCall] | None = None


@dataclasses.dataclass(frozen=True)
class GenerationOutput:
    """The answers of one `generate` call, one list a field, one element a row.

    Rows are prompt-major: with `n` samples a prompt, row `i` is sample `i % n` of prompt `i // n`.

    completions: the text, without special tokens and without the token it stopped at
        (`skip_special_tokens=False` keeps both).
    token_ids: what the model generated; no padding, the stop token included.
    logprobs: one float a generated token: the natural log of softmax(logits / temperature), before
        top-p, top-k and min-p (of softmax(logits) when greedy): what verl's actor recomputes.
        Under penalties, of the logits as these adjusted them.
    prompt_logprobs: only where asked for: one float a prompt token, of softmax(logits) whatever the
        temperature; None for the first, which nothing precedes.
    metadata: a dict a row:
        response_ids, response_mask: the padded row of the rollout's tensor, and 1 for each token
            that the model generated (verl's convention);
        finish_reason: `stop`, `length`, `tool_calls` or `abort` (OpenAI's names);
        matched_stop: the token id or the stop string that ended it, or None;
        prompt_tokens, completion_tokens, cached_tokens: counts; cached ones came from the prefix
            cache;
        prompt_index, sample_index: where the row belongs;
        cumulative_logprob: the sum of its log probs;
        weight_version: 0, until weights are updated;
        seed: only where one was given: this sample's own, which alone gives the row again;
        truncated_prompt_tokens: only where `truncate_prompt` cut the prompt: how many tokens.

    Where a call has tools or interactions, `completions` are the last assistant text, `token_ids`
    and `logprobs` all sampled tokens, `response_ids` everything after the prompt, of which
    `response_mask` marks the sampled ones, and there are

    messages: the whole conversation, with tool calls and results.
    tool_calls: the calls of the last turn that are left to the caller (`finish_reason` is
        `tool_calls`): those of schema-only tools, and what a turn limit kept from being run.
    and in the metadata:
        num_turns: the assistant's turns;
        limit: which limit ended the row, such as `max_tokens`, or None;
        tool_calls: for each call that was run its name, arguments, result, seconds, error, reward;
        tool_rewards: verl tools' `calc_reward`; reward_scores: these and `user_turn_rewards`;
        error: only where a tool's or an interaction's own code failed at the row's ends.
    """

    completions: list[str]
    token_ids: list[list[int]]
    logprobs: list[list[float]]
    metadata: list[dict[str, Any]]
    prompt_logprobs: list[list[float | None]] | None = None
    messages: list[list[dict[str, Any]]] | None = None
    tool_calls: list[list[ToolCall]] | None = None

    @classmethod
    def empty(cls) -> GenerationOutput:
        """No rows: the answer to no prompts."""
        return cls([], [], [], [])

    def __len__(self) -> int:
        return len(self.completions)

    def __iter__(self) -> Iterator[GenerationRow]:
        return (self[index] for index in range(len(self)))

    @overload
    def __getitem__(self, index: int) -> GenerationRow: ...
    @overload
    def __getitem__(self, index: slice) -> GenerationOutput: ...
    def __getitem__(self, index: int | slice) -> GenerationRow | GenerationOutput:
        fields = [getattr(self, field.name) for field in dataclasses.fields(self)]
        columns: list[Any] = [None if column is None else column[index] for column in fields]
        return GenerationOutput(*columns) if isinstance(index, slice) else GenerationRow(*columns)

    def _repr_html_(self) -> str:
        """The table that a notebook shows."""
        head = "".join(
            f"<th>{name}</th>" for name in ("", "completion", "finish", "tokens", "logprob")
        )
        body = "".join(
            f"<tr><td>{i}</td><td style='text-align:left;white-space:pre-wrap'>"
            f"{html.escape(row.completion)}</td><td>{row.metadata['finish_reason']}</td>"
            f"<td>{row.metadata['completion_tokens']}</td>"
            f"<td>{row.metadata['cumulative_logprob']:.2f}</td></tr>"
            for i, row in enumerate(self[:TABLE_ROWS])
        )
        more = len(self) - TABLE_ROWS
        foot = f"<p>and {more} more rows</p>" if more > 0 else ""
        return f"<table><tr>{head}</tr>{body}</table>{foot}"


def decode(
    output: Any, prompts: Sequence[Prompt], sampling: Sampling, tokenizer: Any
) -> GenerationOutput:
    """`output`: the rollout's `DataProto`, `len(prompts) * sampling.n` rows."""
    rows = list(output.non_tensor_batch["rows"])
    talks = [row.transcript for row in rows if row.transcript is not None]
    return GenerationOutput(
        completions=[
            shown_text(_last_turn(row), tokenizer, skip_special_tokens=sampling.skip_special_tokens)
            for row in rows
        ],
        token_ids=[list(row.token_ids) for row in rows],
        logprobs=[list(row.logprobs) for row in rows],
        metadata=_metadata(output, prompts, list(sampling.samples()), sampling.n),
        prompt_logprobs=[row.prompt_logprobs for row in rows] if sampling.prompt_logprobs else None,
        messages=[talk.messages for talk in talks] if talks else None,
        tool_calls=[talk.pending for talk in talks] if talks else None,
    )


def _last_turn(row: Any) -> Any:
    if row.transcript is None:
        return row
    return dataclasses.replace(row, token_ids=row.transcript.answer_ids)


def decoded_text(ids: Sequence[int], tokenizer: Any, *, skip_special_tokens: bool) -> str:
    """What the tokens say, with no spaces tidied away."""
    return str(
        tokenizer.decode(
            ids, skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False
        )
    )


def shown_text(row: Any, tokenizer: Any, *, skip_special_tokens: bool) -> str:
    """An answer's text ends before what it stopped at (SGLang's and OpenAI's convention), be it a
    token or a string; `skip_special_tokens=False` shows the token."""
    ids: list[int] = row.token_ids
    stop = row.matched_stop

    def text(ids: list[int]) -> str:
        return decoded_text(ids, tokenizer, skip_special_tokens=skip_special_tokens)

    if isinstance(stop, str):
        # The last token completed it; what stands further ahead was let pass by min_tokens.
        before = text(ids[:-1]).rstrip("\N{REPLACEMENT CHARACTER}")
        place = text(ids).find(stop, max(0, len(before) - len(stop) + 1))
        return text(ids)[: place if place >= 0 else None]
    return text(ids[:-1] if stop is not None and skip_special_tokens else ids)


def _metadata(
    output: Any, prompts: Sequence[Prompt], requests: Sequence[dict[str, Any]], n: int
) -> list[dict[str, Any]]:
    tensors = zip(
        output.batch["responses"].tolist(), output.batch["response_mask"].tolist(), strict=True
    )
    metadata = []
    for index, (row, (ids, mask)) in enumerate(
        zip(output.non_tensor_batch["rows"], tensors, strict=True)
    ):
        about: dict[str, Any] = {
            "response_ids": ids,
            "response_mask": mask,
            "finish_reason": row.finish_reason,
            "matched_stop": row.matched_stop,
            "prompt_tokens": row.prompt_tokens,
            "completion_tokens": row.completion_tokens,
            "cached_tokens": row.cached_tokens,
            "prompt_index": index // n,
            "sample_index": index % n,
            "cumulative_logprob": sum(row.logprobs),
            "weight_version": row.weight_version,
        }
        if "seed" in (custom := requests[index].get("custom_params", {})):
            about["seed"] = custom["seed"]
        if cut := prompts[index // n].truncated_tokens:
            about["truncated_prompt_tokens"] = cut
        if row.transcript is not None:
            about |= _turns(row.transcript)
        metadata.append(about)
    return metadata


def _turns(talk: Transcript) -> dict[str, Any]:
    about = {
        "num_turns": talk.num_turns,
        "limit": talk.limit,
        "tool_calls": talk.calls,
        "tool_rewards": talk.tool_rewards,
        "reward_scores": talk.reward_scores,
    }
    return about if talk.error is None else {**about, "error": talk.error}

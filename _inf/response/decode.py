"""Builds what `generate` returns from a backend's outputs.

In: `RequestOutput`s, prompt-major, with their prompts and parameters. Out: a `GenerationOutput`.
Knows the tokenizer's decoder, if there is one, and nothing of engines.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from _inf.request.sampling import Sampling
from _inf.response.output import GenerationOutput
from _inf.response.scores import scored_tokens
from _inf.types import Prompt, RequestOutput, Tokenizer, Transcript


def decode(
    outputs: Sequence[RequestOutput],
    prompts: Sequence[Prompt],
    sampling: Sampling,
    tokenizer: Tokenizer,
    response_length: int,
) -> GenerationOutput:
    """Decode `len(prompts) * sampling.n` outputs; `response_length`: of the rollout's tensors."""
    asked = [prompts[row // sampling.n] for row in range(len(outputs))]
    transcripts = [o.transcript for o in outputs if o.transcript is not None]
    last_turns = [
        dataclasses.replace(o, token_ids=o.transcript.answer_ids) if o.transcript else o
        for o in outputs
    ]
    skip, asks = sampling.skip_special_tokens, sampling.asks
    return GenerationOutput(
        completions=_answer_texts(last_turns, tokenizer, skip_special_tokens=skip),
        token_ids=[None if o.text is not None else list(o.token_ids) for o in outputs],
        logprobs=[known_logprobs(o) for o in outputs],
        metadata=_metadata(outputs, asked, sampling, tokenizer, response_length),
        prompt_logprobs=[o.prompt_logprobs for o in outputs] if asks("prompt_logprobs") else None,
        messages=[t.messages for t in transcripts] if transcripts else None,
        tool_calls=[t.pending for t in transcripts] if transcripts else None,
        top_logprobs=[o.top_logprobs or [] for o in outputs] if asks("logprobs") else None,
        top_prompt_logprobs=[
            [None, *scored_tokens(output, prompt.token_ids[1:])[1]]
            for output, prompt in zip(outputs, asked, strict=True)
        ]
        if asks("top_prompt_logprobs")
        else None,
        **(_kept(outputs) if asks("sampling_mask") else {}),
        routed_experts=[o.routed_experts for o in outputs]
        if asks("return_routed_experts")
        else None,
        # None if a server tokenizes; rows of one prompt share a list.
        prompt_token_ids=[p.token_ids for p in asked] if all(p.token_ids for p in asked) else None,
    )


def _kept(outputs: Sequence[RequestOutput]) -> dict[str, Any]:
    """The ids that the filters left, and each token's log prob among them."""
    masks = [[sorted(kept) for kept in o.kept or []] for o in outputs]
    logprobs = [
        [
            kept[token] - math.log(math.fsum(map(math.exp, kept.values())))
            for token, kept in zip(o.token_ids, o.kept or [], strict=True)
        ]
        for o in outputs
    ]
    return {"sampling_mask": masks, "sampling_logprobs": logprobs}


def known_logprobs(output: RequestOutput) -> list[float] | None:
    """Return a row's log probs; None if a server gives none, or none by our definition."""
    missing = output.text is not None or any(map(math.isnan, output.logprobs))
    return None if missing else list(output.logprobs)


def decoded_text(ids: Sequence[int], tokenizer: Tokenizer, *, skip_special_tokens: bool) -> str:
    """Decode token ids without changing any spaces."""
    return str(
        tokenizer.decode(
            ids, skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False
        )
    )


def _decoded_texts(
    rows: list[list[int]], tokenizer: Tokenizer, *, skip_special_tokens: bool
) -> list[str]:
    """Decode rows as `decoded_text` does, all at once where that is the same: Transformers (4.57.1,
    `batch_decode`) decodes one row after the other, on one core."""
    from transformers import PreTrainedTokenizerFast as Fast

    kind = type(tokenizer)
    if isinstance(tokenizer, Fast) and (kind.decode, kind._decode) == (Fast.decode, Fast._decode):
        texts: list[str] = tokenizer.backend_tokenizer.decode_batch(
            rows, skip_special_tokens=skip_special_tokens
        )
        return texts
    return [decoded_text(ids, tokenizer, skip_special_tokens=skip_special_tokens) for ids in rows]


def _answer_texts(
    outputs: Sequence[RequestOutput], tokenizer: Tokenizer, *, skip_special_tokens: bool
) -> list[str]:
    """Return each row's `answer_text`; rows without a stop string are decoded together."""
    alike = [
        row
        for row, output in enumerate(outputs)
        if output.text is None and not isinstance(output.matched_stop, str)
    ]
    ids = [_shown_ids(outputs[row], skip_special_tokens=skip_special_tokens) for row in alike]
    decoded = _decoded_texts(ids, tokenizer, skip_special_tokens=skip_special_tokens) if ids else []
    texts = dict(zip(alike, decoded, strict=True))
    return [
        texts[row]
        if row in texts
        else answer_text(output, tokenizer, skip_special_tokens=skip_special_tokens)
        for row, output in enumerate(outputs)
    ]


def _shown_ids(output: RequestOutput, *, skip_special_tokens: bool) -> list[int]:
    """The ids of an answer's text, without the stop token if special tokens are skipped."""
    stopped = output.matched_stop is not None and skip_special_tokens
    return output.token_ids[:-1] if stopped else output.token_ids


def answer_text(output: RequestOutput, tokenizer: Tokenizer, *, skip_special_tokens: bool) -> str:
    """Return an answer's text up to the stop token or stop string, without it, as SGLang and OpenAI
    do; `skip_special_tokens=False` keeps the token."""
    if output.text is not None:
        return output.text
    ids, stop = output.token_ids, output.matched_stop

    def text(ids: list[int]) -> str:
        return decoded_text(ids, tokenizer, skip_special_tokens=skip_special_tokens)

    if isinstance(stop, str):
        # The last token completed the stop string; earlier ones came before min_tokens.
        before = text(ids[:-1]).rstrip("\N{REPLACEMENT CHARACTER}")
        start = text(ids).find(stop, max(0, len(before) - len(stop) + 1))
        return text(ids)[: start if start >= 0 else None]
    return text(_shown_ids(output, skip_special_tokens=skip_special_tokens))


def whole_response(output: RequestOutput) -> tuple[list[int], list[int], list[float]]:
    """Return the ids after the prompt, a mask with 1 for sampled ids, and their log probs."""
    if (transcript := output.transcript) is not None:
        return transcript.ids, transcript.mask, transcript.logprobs
    return output.token_ids, [1] * len(output.token_ids), output.logprobs


def _metadata(
    outputs: Sequence[RequestOutput],
    asked: Sequence[Prompt],
    sampling: Sampling,
    tokenizer: Tokenizer,
    response_length: int,
) -> list[dict[str, Any]]:
    responses = [whole_response(output) for output in outputs]
    width = max([response_length, *(len(ids) for ids, _, _ in responses)])
    pad, params = tokenizer and tokenizer.pad_token_id, sampling.rows()
    stops = {output.matched_stop for output in outputs}
    stop_texts = {stop: _stop_text(stop, tokenizer) for stop in stops}
    metadata = []
    for row, (output, (ids, mask, _)) in enumerate(zip(outputs, responses, strict=True)):
        padding = width - len(ids) if output.text is None else 0
        logprobs = known_logprobs(output)
        about: dict[str, Any] = {
            "response_ids": ids + [pad] * padding,
            "response_mask": mask + [0] * padding,
            "finish_reason": output.finish_reason,
            "matched_stop": output.matched_stop,
            "matched_stop_text": stop_texts[output.matched_stop],
            "prompt_tokens": output.prompt_tokens,
            "completion_tokens": output.completion_tokens,
            "cached_tokens": output.cached_tokens,
            "prompt_index": row // sampling.n,
            "sample_index": row % sampling.n,
            "cumulative_logprob": None if logprobs is None else sum(logprobs),
            "weight_version": output.weight_version,
        }
        if params[row].seed is not None:
            about["seed"] = params[row].seed
        if asked[row].truncated_tokens:
            about["truncated_prompt_tokens"] = asked[row].truncated_tokens
        if output.transcript is not None:
            about |= _turns(output.transcript)
        metadata.append(about)
    return metadata


def _stop_text(stop: int | str | None, tokenizer: Tokenizer) -> str | None:
    if isinstance(stop, int):
        return decoded_text([stop], tokenizer, skip_special_tokens=False)
    return stop


def _turns(transcript: Transcript) -> dict[str, Any]:
    scores = transcript.reward_scores
    about = {
        "num_turns": transcript.num_turns,
        "response_tokens": len(transcript.ids),
        "limit": transcript.limit,
        "tool_calls": transcript.calls,
        "tool_rewards": {name: scores[name] for name in scores if name != "user_turn_rewards"},
        "reward_scores": scores,
    }
    return about if transcript.error is None else {**about, "error": transcript.error}

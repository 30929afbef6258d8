"""Turns sampled ids into rows with text.

`decode` builds the rows of `generate` from a backend's outputs.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from _inf.request.sampling import Sampling
from _inf.response.output import GenerationOutput
from _inf.response.row import GenerationRow
from _inf.types import Prompt, RequestOutput, Tokenizer

NONE_SHOWN: Mapping[int, str] = MappingProxyType({})


def decode(
    outputs: Sequence[RequestOutput],
    prompts: Sequence[Prompt],
    sampling: Sampling,
    tokenizer: Tokenizer,
    response_length: int,
) -> GenerationOutput:
    """Decode `len(prompts) * sampling.n` outputs. response_length: the width of padded rows."""
    n = sampling.n
    texts = _answer_texts([*map(last_turn, outputs)], tokenizer, **sampling.text_options)
    stop_texts = _stop_texts(outputs, tokenizer)
    responses = [o.token_ids if o.transcript is None else o.transcript.ids for o in outputs]
    width = max([response_length, *map(len, responses)])
    rows = []
    pad = tokenizer and tokenizer.pad_token_id  # Transformers takes 10 us to find it, each time
    for place, (output, params) in enumerate(zip(outputs, sampling.rows, strict=True)):
        prompt, transcript = prompts[place // n], output.transcript
        row = GenerationRow(
            texts[place],
            None if output.text is not None else output.token_ids,
            _known_logprobs(output),
            None if transcript is None else transcript.pending,
            finish_reason=str(output.finish_reason),
            error=output.error,
            transcript=transcript,
            **output.about,
            parts=[
                *(part.added(output, prompt) for part in params.parts),
                *(record.added() for record in output.parts),
            ],
            prompt_token_ids=_prompt_ids(output, prompt),
            matched_stop_text=stop_texts[output.matched_stop],
            prompt_index=prompt.index,
            sample_index=place % n,
            seed=params.seed,
            truncated_prompt_tokens=prompt.truncated_tokens,
            padded_to=0 if output.text is not None else width,
            pad_token_id=pad,
        )
        rows.append(row)
    return GenerationOutput(rows)


def _prompt_ids(output: RequestOutput, prompt: Prompt) -> list[int] | None:
    """The ids that a row's answer followed; None if a server tokenizes."""
    rendered = None if output.transcript is None else output.transcript.prompt_ids
    return rendered or prompt.token_ids or None


def _stop_texts(
    outputs: Sequence[RequestOutput], tokenizer: Tokenizer
) -> dict[int | str | None, str | None]:
    """What ended the rows, with tokens as text."""
    return {
        stop: decoded_text([stop], tokenizer, skip_special_tokens=False)
        if isinstance(stop, int)
        else stop
        for stop in {output.matched_stop for output in outputs}
    }


def _known_logprobs(output: RequestOutput) -> list[float] | None:
    """Return a row's log probs; None if a server gives none, or defines them differently."""
    missing = output.text is not None or any(map(math.isnan, output.logprobs))
    return None if missing else output.logprobs


def last_turn(output: RequestOutput) -> RequestOutput:
    """A row's last answer."""
    transcript = output.transcript
    if transcript is None:
        return output
    return dataclasses.replace(output, token_ids=transcript.answer_ids)


def decoded_text(
    ids: Sequence[int],
    tokenizer: Tokenizer,
    *,
    skip_special_tokens: bool,
    shown: Mapping[int, str] = NONE_SHOWN,
) -> str:
    """Decode token ids without changing any spaces. shown: the texts of special tokens that are
    not skipped."""
    if skip_special_tokens and not shown.keys().isdisjoint(ids):
        marks = [place for place, token in enumerate(ids) if token in shown]
        parts = list[str]()
        for before, place in itertools.pairwise([-1, *marks, len(ids)]):
            parts.append(decoded_text(ids[before + 1 : place], tokenizer, skip_special_tokens=True))
            parts += [shown[token] for token in ids[place : place + 1]]
        return "".join(parts)
    if _only_wraps(tokenizer.__class__):
        return str(tokenizer.backend_tokenizer.decode(ids, skip_special_tokens=skip_special_tokens))
    return str(
        tokenizer.decode(
            ids, skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False
        )
    )


@functools.cache
def _only_wraps(kind: type[Tokenizer]) -> bool:
    """Whether a class leaves decoding to its `backend_tokenizer`, as Transformers' do; their
    wrapping (4.57.1) takes as long again, and decodes one row after the other, on one core."""
    from transformers import PreTrainedTokenizerFast as Fast

    return issubclass(kind, Fast) and (kind.decode, kind._decode) == (Fast.decode, Fast._decode)


def _decoded_texts(
    rows: list[list[int]], tokenizer: Tokenizer, *, skip_special_tokens: bool
) -> list[str]:
    """Decode rows as `decoded_text` does, but all at once if the tokenizer's class allows it."""
    if _only_wraps(tokenizer.__class__):
        texts: list[str] = tokenizer.backend_tokenizer.decode_batch(
            rows, skip_special_tokens=skip_special_tokens
        )
        return texts
    return [decoded_text(ids, tokenizer, skip_special_tokens=skip_special_tokens) for ids in rows]


def _answer_texts(
    outputs: Sequence[RequestOutput],
    tokenizer: Tokenizer,
    *,
    skip_special_tokens: bool,
    include_stop: bool,
) -> list[str]:
    """Return each row's `answer_text`; rows without a stop string are decoded together."""
    skip, cut = skip_special_tokens, skip_special_tokens and not include_stop
    ids = [[] if _alone(row) else _shown_ids(row, without_stop=cut) for row in outputs]
    texts = [""] * len(ids)
    if any(ids):
        texts = _decoded_texts(ids, tokenizer, skip_special_tokens=skip)
    for place, row in enumerate(outputs):
        if _alone(row):
            texts[place] = answer_text(
                row, tokenizer, skip_special_tokens=skip, include_stop=include_stop
            )
    return texts


def _alone(output: RequestOutput) -> bool:
    return output.text is not None or isinstance(output.matched_stop, str)


def _shown_ids(output: RequestOutput, *, without_stop: bool) -> list[int]:
    """Return the ids of an answer's text, perhaps without the stop token."""
    stopped = output.matched_stop is not None and without_stop
    return output.token_ids[:-1] if stopped else output.token_ids


def answer_text(
    output: RequestOutput,
    tokenizer: Tokenizer,
    *,
    skip_special_tokens: bool,
    shown: Mapping[int, str] = NONE_SHOWN,
    include_stop: bool = False,
) -> str:
    """Return an answer's text, which ends before the stop token or stop string, as in SGLang and at
    OpenAI. `skip_special_tokens=False` keeps the token; `include_stop` keeps the string, and a
    token that is not special. shown: as in `decoded_text`."""
    if output.text is not None:
        return output.text
    ids, stop = output.token_ids, output.matched_stop

    def text(ids: list[int]) -> str:
        skip = skip_special_tokens
        return decoded_text(ids, tokenizer, skip_special_tokens=skip, shown=shown)

    if isinstance(stop, str):
        # The last token completed the stop string; earlier ones came before min_tokens.
        before = text(ids[:-1]).rstrip("\N{REPLACEMENT CHARACTER}")
        start = text(ids).find(stop, max(0, len(before) - len(stop) + 1))
        end = start + len(stop) if include_stop else start
        return text(ids)[: end if start >= 0 else None]
    return text(_shown_ids(output, without_stop=skip_special_tokens and not include_stop))


def overlap(text: str, word: str) -> int:
    """Return the length of the longest proper prefix of `word` with which `text` ends."""
    return next((n for n in range(len(word) - 1, 0, -1) if text.endswith(word[:n])), 0)

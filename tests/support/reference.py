"""What engines are compared with: `Transformers`, the model called directly in float32."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Sequence
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from inf import InferenceEngine

# A greedy answer may part from another only where two logits are this close: float32's last bits.
TIE = 1e-3
# And no more than this part of the rows may.
PARTING_ROWS = 0.02
# Of two log probs of one token.
WITHIN = 1e-3


def ids_of(engine: InferenceEngine, prompt: str) -> list[int]:
    """The prompt as one user message, rendered and encoded by the model's tokenizer alone."""
    message = [{"role": "user", "content": prompt}]
    ids: list[int] = engine.tokenizer.apply_chat_template(
        message, add_generation_prompt=True, return_dict=False
    )
    return ids


@dataclasses.dataclass(frozen=True)
class Transformers:
    """A model as Transformers loads it, called row by row."""

    model: Any
    ends: frozenset[int]

    @classmethod
    def of(cls, folder: Any) -> Transformers:
        """In eager mode: all of its attention is the model's own code."""
        how = {"dtype": torch.float32, "attn_implementation": "eager"}
        model = AutoModelForCausalLM.from_pretrained(folder, **how).eval()
        return cls(model, ends_of(model.generation_config))

    def greedy(
        self, prompts: Sequence[list[int]], max_tokens: int, **options: Any
    ) -> list[list[int]]:
        """`generate`'s answers, EOS included."""
        answers = []
        for prompt in prompts:
            ids = torch.tensor([prompt])
            found = self.model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=max_tokens,
                do_sample=False,
                **options,
            )
            answers += [until(row, self.ends) for row in found[:, len(prompt) :].tolist()]
        return answers

    @torch.no_grad()
    def logits(self, prompt: list[int], answer: list[int]) -> torch.Tensor:
        """From which each token of `answer` was chosen: tokens x vocabulary."""
        output = self.model(torch.tensor([prompt + answer]), use_cache=False)
        return output.logits[0, len(prompt) - 1 : -1].clone()


def ends_of(config: Any) -> frozenset[int]:
    """The ids that end an answer, of a generation config."""
    eos = config.eos_token_id
    return frozenset(eos if isinstance(eos, list) else [eos])


def until(ids: list[int], ends: Collection[int]) -> list[int]:
    """`ids` up to the first of `ends`, that one included."""
    first = next((place for place, token in enumerate(ids) if token in ends), len(ids))
    return ids[: first + 1]


def logprobs(logits: torch.Tensor, answer: list[int], temperature: float = 1.0) -> list[float]:
    """Of each token of `answer`: log softmax(logits / temperature)."""
    table = torch.log_softmax(logits.double() / temperature, dim=-1)
    return table[torch.arange(len(answer)), torch.tensor(answer)].tolist()


def penalized(
    logits: torch.Tensor, answer: list[int], *, presence: float, frequency: float
) -> torch.Tensor:
    """OpenAI's definition: logit[t] -= count(t) * frequency + (count(t) > 0) * presence.

    Counted over what was generated before each token, the prompt left out.
    """
    counts = torch.zeros_like(logits)
    for place, token in enumerate(answer[:-1]):
        counts[place + 1 :, token] += 1
    return logits - counts * frequency - (counts > 0) * presence


def assert_same_answers(
    reference: Transformers,
    prompts: Sequence[list[int]],
    ours: Sequence[list[int]],
    theirs: Sequence[list[int]],
) -> None:
    """Token for token; a tie in the last bit is counted."""
    ties = 0
    for prompt, one, other in zip(prompts, ours, theirs, strict=True):
        pairs = enumerate(itertools.zip_longest(one, other))
        place, tokens = next(((p, pair) for p, pair in pairs if pair[0] != pair[1]), (None, ()))
        if place is not None:
            assert None not in tokens, (one, other)  # one of them simply ended
            logits = reference.logits(prompt, [*one[:place], 0])[-1]
            assert logits[list(tokens)].diff().abs() <= TIE, (place, tokens)
            ties += 1
    assert ties <= PARTING_ROWS * len(prompts), ties


def assert_greedy(
    reference: Transformers,
    prompts: Sequence[list[int]],
    output: Any,
    max_tokens: int,
    within: float = WITHIN,
) -> None:
    """Tokens and log probs of an output are the model's, by one forward pass a row.

    Each token is the likeliest after those before it (a tie in the last bit is counted), and each
    row ends with its first EOS or at `max_tokens`: that is Transformers' greedy answer.
    """
    ends, ties = reference.ends, 0
    for prompt, row in zip(prompts, output, strict=True):
        answer = row.token_ids
        assert answer == until(answer, ends)
        assert answer[-1] in ends or len(answer) == max_tokens
        logits = reference.logits(prompt, answer)
        gaps = logits.max(-1).values - logits[torch.arange(len(answer)), torch.tensor(answer)]
        assert gaps.max() <= within
        ties += bool(gaps.max() > 0)
        theirs = logprobs(logits, answer)
        assert max(abs(a - b) for a, b in zip(row.logprobs, theirs, strict=True)) <= within
    assert ties <= max(1, PARTING_ROWS * len(output)), ties


def assert_same_rows(ours: Any, expected: Any, within: float = WITHIN) -> None:
    """The same tokens, texts and ends and, but for the last bits, the same log probs."""
    for one, other in zip(ours, expected, strict=True):
        assert (one.token_ids, one.completion) == (other.token_ids, other.completion)
        for name in ("logprobs", "prompt_logprobs"):
            assert getattr(one, name) == pytest.approx(getattr(other, name), abs=within), name
        for name in ("finish_reason", "matched_stop", "prompt_tokens", "completion_tokens", "seed"):
            assert one.metadata.get(name) == other.metadata.get(name), name
        assert [*one.forced_at] == [*other.forced_at]
        assert one.sampling_mask == other.sampling_mask
        for field in ("top_logprobs", "top_prompt_logprobs"):
            tops = zip(getattr(one, field) or [], getattr(other, field) or [], strict=True)
            for mine, its in tops:
                assert mine == pytest.approx(its, abs=within)

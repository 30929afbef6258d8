"""What Transformers says of the model that an engine serves: float32, on the CPU, in this process.

Knows token ids and logits; nothing of the library but where an engine's model lies.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Collection, Sequence
from typing import Any

import torch
from transformers import AutoModelForCausalLM

# A greedy answer may part from another only where two logits are this close: float32's last bits.
TIE = 1e-3
# And no more than this part of the rows may.
PARTING_ROWS = 0.02
# Of two log probs of one token.
WITHIN = 1e-3


@dataclasses.dataclass(frozen=True)
class Reference:
    """A model as Transformers loads it."""

    model: Any

    @classmethod
    def of(cls, engine: Any) -> Reference:
        """The model of an engine, with the generation config of its folder."""
        folder = engine.model_config.local_path
        return cls(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval())

    @torch.no_grad()
    def greedy(
        self, prompts: Sequence[list[int]], max_tokens: int, group: int = 25
    ) -> list[list[int]]:
        """`generate`'s answers, EOS included; prompts of like length share a left-padded batch."""
        eos = self.model.generation_config.eos_token_id
        order = sorted(range(len(prompts)), key=lambda row: len(prompts[row]))
        answers: dict[int, list[int]] = {}
        for rows in (order[start : start + group] for start in range(0, len(order), group)):
            width = max(len(prompts[row]) for row in rows)
            pads = [width - len(prompts[row]) for row in rows]
            generated = self.model.generate(
                torch.tensor(
                    [[0] * pad + prompts[row] for pad, row in zip(pads, rows, strict=True)]
                ),
                attention_mask=torch.tensor([[0] * pad + [1] * (width - pad) for pad in pads]),
                max_new_tokens=max_tokens,
                do_sample=False,
            )
            for row, ids in zip(rows, generated[:, width:].tolist(), strict=True):
                answers[row] = until(ids, eos if isinstance(eos, list) else [eos])
        return [answers[row] for row in range(len(prompts))]

    @torch.no_grad()
    def logits(self, prompt: list[int], answer: list[int]) -> torch.Tensor:
        """From which each token of `answer` was chosen: tokens x vocabulary, without padding."""
        ids = torch.tensor([prompt + answer])
        return self.model(ids, logits_to_keep=len(answer) + 1).logits[0, :-1].clone()


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


@dataclasses.dataclass(frozen=True)
class Divergence:
    """Where two greedy answers to one prompt become different, and by how little."""

    row: int
    place: int
    tokens: tuple[int | None, int | None]
    logits: tuple[float, float]

    @property
    def gap(self) -> float:
        """Between the two logits; NaN where one answer simply ended."""
        return abs(self.logits[0] - self.logits[1])


def partings(
    reference: Reference,
    prompts: Sequence[list[int]],
    ours: Sequence[list[int]],
    theirs: Sequence[list[int]],
) -> list[Divergence]:
    """Of each row that differs, its first difference, with the reference's logits there."""
    found = []
    for row, (prompt, one, other) in enumerate(zip(prompts, ours, theirs, strict=True)):
        both = enumerate(itertools.zip_longest(one, other))
        place, tokens = next(((p, t) for p, t in both if t[0] != t[1]), (None, (None, None)))
        if place is not None:
            logits = reference.logits(prompt, [*one[:place], 0])[-1]
            pair = [math.nan if token is None else logits[token].item() for token in tokens]
            found.append(Divergence(row, place, tokens, (pair[0], pair[1])))
    return found


def assert_same_answers(
    reference: Reference,
    prompts: Sequence[list[int]],
    ours: Sequence[list[int]],
    theirs: Sequence[list[int]],
) -> None:
    """Token for token; a tie in the last bit is shown and counted."""
    found = partings(reference, prompts, ours, theirs)
    for parting in found:
        print(f"{parting} gap={parting.gap:.2e}")
    assert all(parting.gap <= TIE for parting in found), found  # NaN is not
    assert len(found) <= PARTING_ROWS * len(prompts), found


def assert_greedy(
    reference: Reference, prompts: Sequence[list[int]], output: Any, max_tokens: int
) -> None:
    """Tokens and log probs of an output are the model's, by one forward pass a row.

    Each token is the likeliest after those before it (a tie in the last bit is counted), and each
    row ends with its first EOS or at `max_tokens`: that is Transformers' greedy answer.
    """
    eos = reference.model.generation_config.eos_token_id
    ends = eos if isinstance(eos, list) else [eos]
    ties = 0
    for prompt, row in zip(prompts, output, strict=True):
        answer = row.token_ids
        assert answer == until(answer, ends)
        assert answer[-1] in ends or len(answer) == max_tokens
        logits = reference.logits(prompt, answer)
        gaps = logits.max(-1).values - logits[torch.arange(len(answer)), torch.tensor(answer)]
        assert gaps.max() <= TIE
        ties += bool(gaps.max() > 0)
        theirs = logprobs(logits, answer)
        assert max(abs(a - b) for a, b in zip(row.logprobs, theirs, strict=True)) <= WITHIN
    assert ties <= max(1, PARTING_ROWS * len(output)), ties

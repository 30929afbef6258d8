"""vLLM's, with ids in the place of texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from _inf.backends.openai import translation
from _inf.errors import ConfigError
from _inf.parts.top_logprobs import TopLogprobs, Tops
from _inf.types import Request

TOKEN = "token_id:"  # before an id where a token's text would stand
MINUS_INFINITY = -9999.0  # in vLLM's JSON


class Translation(translation.Translation[TopLogprobs]):
    def __init__(self, part: TopLogprobs, request: Request) -> None:
        super().__init__(part, request)
        self._named: list[dict[int, float]] = []  # per token

    def check(self, *, ours: bool) -> None:
        if not ours:
            raise ConfigError.of(
                "logprob_token_ids" if self.part.logprob_token_ids else "logprobs",
                "with these parameters this server computes log probs from other logits "
                "(docs/backends.md); leave it out, or the parameters that change the logits.",
            )

    def sent(self) -> dict[str, object]:
        named = list(self.part.logprob_token_ids or ())
        return {
            "logprobs": len(named) or self.part.logprobs,
            "return_tokens_as_token_ids": True,
            **({"logprob_token_ids": named} if named else {}),
        }

    def take(self, choice: Mapping[str, Any], new: Sequence[int]) -> None:
        for top in choice["logprobs"]["top_logprobs"] if new else ():
            self._named.append({_id(name): value for name, value in top.items()})

    def record(self, ids: Sequence[int], logprobs: Sequence[float]) -> Tops:
        return Tops(
            [
                {**self._chosen(named), token: logprob}
                for token, logprob, named in zip(ids, logprobs, self._named, strict=True)
            ]
        )

    def _chosen(self, named: dict[int, float]) -> dict[int, float]:
        if not self.part.logprob_token_ids:
            return likeliest(named, self.part.logprobs)
        found = likeliest(named, len(named))
        return {token: found[token] for token in self.part.logprob_token_ids if token in found}


def _id(name: str) -> int:
    if not name.startswith(TOKEN):
        raise ValueError("it names tokens by their text")
    return int(name.removeprefix(TOKEN))


def likeliest(named: dict[int, float], most: int) -> dict[int, float]:
    """The `most` likeliest of these tokens, the likeliest first."""
    possible = [item for item in named.items() if item[1] > MINUS_INFINITY]
    return dict(sorted(possible, key=lambda item: -item[1])[:most])

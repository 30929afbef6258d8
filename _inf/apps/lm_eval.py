"""The model "inf" of lm-evaluation-harness: its tasks, answered and scored by an `InferenceEngine`.

    lm_eval --model inf --model_args config=config.yaml --tasks hellaswag

Log likelihoods and texts are computed from token ids as in the harness's own Transformers backend
(`lm_eval/models/huggingface.py`, 0.4.13). Needs the extra `lm-eval`.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.config.evaluate_config import EvaluatorConfig
from lm_eval.models.utils import (
    handle_stop_sequences,
    maybe_truncate,
    normalize_gen_kwargs,
    postprocess_generated_text,
)
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from tqdm import tqdm

from _inf.config import parse_assignments
from _inf.errors import ConfigError

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance

    from inf import InferenceEngine

NOT_GIVEN = EvaluatorConfig().device  # "cuda:0": what the command passes on by itself
AT_ONCE = 512  # requests of one call; the harness's cache has them after it
TokenRequest = tuple[tuple[str, str] | None, list[int], list[int]]  # texts, context, continuation


@register_model("inf")
class InfLM(TemplateLM):
    """An engine for lm-evaluation-harness.

    config: of the engine; other arguments override its keys (`rollout.prompt_length=4096`).
    engine: one that runs already, in place of both. max_gen_toks: the most tokens of an answer, for
    tasks that do not say it. device: auto, cuda or cpu; lm_eval's own default, cuda:0, means what
    the config says. batch_size and max_batch_size are not used: the engine chooses.
    """

    def __init__(
        self,
        config: str | None = None,
        *,
        engine: InferenceEngine | None = None,
        max_gen_toks: int = 256,
        batch_size: int | str | None = None,
        max_batch_size: int | None = None,
        device: str | None = None,
        **overrides: Any,
    ) -> None:
        super().__init__()
        if device not in (None, NOT_GIVEN):
            overrides["device"] = device
        if engine is None:
            from inf import InferenceEngine  # the harness makes this object from its command line

            assignments = parse_assignments(f"{key}={value}" for key, value in overrides.items())
            engine = InferenceEngine(config, **assignments)
        elif config is not None or overrides:
            raise ConfigError.of("engine", "it runs already; give no config and no keys beside it.")
        if engine.tokenizer is None:
            raise ConfigError("lm_eval: the engine has no tokenizer; set tokenizer_path.")
        self.engine, self.tokenizer, self.max_gen_toks = engine, engine.tokenizer, max_gen_toks
        limits = engine.model.limits
        self._prompt_length, self._total = limits.prompt, limits.total

    @property
    def max_length(self) -> int:
        """The most tokens that are scored after one token of context."""
        return self._total - 1

    @property
    def eot_token_id(self) -> int:
        return int(self.tokenizer.eos_token_id)

    @property
    def prefix_token_id(self) -> int:
        """What stands before a text without a context."""
        bos = self.tokenizer.bos_token_id
        return self.eot_token_id if bos is None else int(bos)

    @property
    def tokenizer_name(self) -> str:
        return str(self.tokenizer.name_or_path).replace("/", "__")

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        how = {"add_generation_prompt": add_generation_prompt, "tokenize": False}
        how["continue_final_message"] = not add_generation_prompt
        return str(self.tokenizer.apply_chat_template(chat_history, **how))

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **kwargs: Any
    ) -> list[int]:
        begun = string.startswith(self.tokenizer.decode(self.prefix_token_id))
        if add_special_tokens is None and begun:  # a rendered chat has its BOS token already
            add_special_tokens = False
        how = {} if add_special_tokens is None else {"add_special_tokens": add_special_tokens}
        return list(self.tokenizer.encode(string, **how))

    def _loglikelihood_tokens(
        self, requests: Sequence[TokenRequest], disable_tqdm: bool = False, **kwargs: Any
    ) -> list[tuple[float, bool]]:
        found = []
        for chunk in _chunks(requests, "log likelihoods", disable_tqdm):
            answers = [answer for _, _, answer in chunk]
            contexts = [
                maybe_truncate(context, len(answer), self._total)[0] for _, context, answer in chunk
            ]
            scores = self.engine.score([{"prompt_token_ids": ids} for ids in contexts], answers)
            for (texts, _, _), score in zip(chunk, scores, strict=True):
                found.append((sum(score.logprobs), score.is_greedy))
                if texts is not None:
                    self.cache_hook.add_partial("loglikelihood", texts, found[-1])
        return found

    def loglikelihood_rolling(
        self, requests: Sequence[Instance], disable_tqdm: bool = False
    ) -> list[float]:
        how = {"prefix_token": self.prefix_token_id, "max_seq_len": self.max_length}
        windows = [
            list(get_rolling_token_windows(self.tok_encode(each.args[0]), context_len=1, **how))
            for each in requests
        ]
        scored = [(None, *make_disjoint_window(each)) for group in windows for each in group]
        found = iter(self._loglikelihood_tokens(scored, disable_tqdm))
        totals = [sum(next(found)[0] for _ in group) for group in windows]
        for request, total in zip(requests, totals, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, total)
        return totals

    def generate_until(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[str]:
        groups: dict[str, list[int]] = defaultdict(list)  # one call has one set of keywords
        for index, request in enumerate(requests):
            groups[json.dumps(request.args[1], sort_keys=True)].append(index)
        texts = [""] * len(requests)
        for indices in groups.values():
            for chunk in _chunks(indices, "answers", disable_tqdm):
                asked = [requests[index] for index in chunk]
                for index, text in zip(chunk, self._answers(asked), strict=True):
                    texts[index] = text
                    self.cache_hook.add_partial("generate_until", requests[index].args, text)
        return texts

    def _answers(self, requests: Sequence[Instance]) -> list[str]:
        params: dict[str, Any] = normalize_gen_kwargs(requests[0].args[1], self.max_gen_toks)
        limit, until = params.pop("max_gen_toks"), params.pop("until")
        if not params.pop("do_sample"):
            params = {"temperature": 0.0}
        total = min(self._total, self._prompt_length + limit)
        contexts = [self.tok_encode(request.args[0]) for request in requests]
        output = self.engine.generate(
            [{"prompt_token_ids": maybe_truncate(ids, limit, total)[0]} for ids in contexts],
            max_tokens=limit,
            stop=[text for text in until if text] or None,
            progress=False,
            tools=[],
            **params,
        )
        ends = handle_stop_sequences(until, self.tokenizer.decode(self.eot_token_id))
        return [postprocess_generated_text(text, ends, None) for text in output.completions]


def _chunks(items: Sequence[Any], what: str, disable: bool) -> Iterator[Sequence[Any]]:
    with tqdm(total=len(items), desc=f"inf: {what}", disable=disable) as bar:
        for start in range(0, len(items), AT_ONCE):
            chunk = items[start : start + AT_ONCE]
            yield chunk
            bar.update(len(chunk))

"""The keywords of `generate`: their types and their documentation, which every call shows.

Their values are checked in `_inf.request.values`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, TypedDict, TypeVar

Method = TypeVar("Method", bound=Callable[..., Any])

# One value, or a list with one per prompt.
Floats: TypeAlias = "float | Sequence[float | None] | None"
Ints: TypeAlias = "int | Sequence[int | None] | None"
Flags: TypeAlias = "bool | Sequence[bool | None] | None"


class GenerateParams(TypedDict, total=False):
    """Keywords, where None means what the config says:
        temperature: 0 is greedy. top_p in (0, 1], top_k (-1: all tokens), min_p in [0, 1].
        do_sample: False means greedy, the default of the embedded config. A temperature above 0,
            a filter or a seed turns sampling on; together with `do_sample=False` in one call
            they are refused. With temperature 0, filters and seeds change nothing.
        max_tokens: the most tokens to generate per row. n: samples per prompt (with a warning if
            they are greedy and so all the same).
        min_tokens: no EOS, stop id or stop string before that many tokens (as Transformers).
        stop: a string or several; the answer ends before the first one found.
        stop_token_ids: ids that end an answer, besides the model's own EOS ids.
        ignore_eos: continue after EOS; `stop` and `stop_token_ids` still count.
        presence_penalty, frequency_penalty: in [-2, 2], over generated tokens (as OpenAI).
        repetition_penalty: above 0, over prompt and generated tokens (as Transformers).
        logit_bias: `{token id: number}`, in [-100, 100], added to the logits before all else.
        seed: gives the same tokens each time, in any batch (float32 on a CPU); with one seed
            for all, prompt i has (seed + i * 0x9E3779B97F4A7C15) % 2**63.
        num_beams: above 1 the `n` rows of a prompt are the best of so many beams; on `hf`, without
            sampling keywords, grammars, streams and tools (docs/backends.md).
        json_schema (a dict or JSON text), regex: what the answer must match (docs/grammars.md).
        chat_template_kwargs: for the template, e.g. `{"enable_thinking": False}`.
        truncate_prompt: "left" or "right", the side at which a prompt above `prompt_length` is
            cut.
        skip_special_tokens: False keeps them, and the stop token, in the text.
        tools: schemas, verl tools or Python functions; verl tools and functions are run inside
            the rollout, and a call of a schema ends the row (docs/tools.md). [] means none.
        tools_kwargs, interaction_kwargs: verl's, e.g. `{"calculator": {"create_kwargs": {}}}`.
        max_tokens_per_turn: like max_tokens, per turn; max_tokens counts all turns.
        logprobs: how many of the likeliest tokens to return per position (`top_logprobs`).
        prompt_logprobs: True: also score the prompt's tokens; an int: also return so many of the
            likeliest ones per position (`top_prompt_logprobs`).
        sampling_mask: also return the tokens that top_k, top_p and min_p left, and log probs over
            them (docs/training.md).
        return_routed_experts: also return which experts of a MoE model each token used
            (docs/parity.md).
        timeout: seconds after which the call is aborted in the engine.
        progress: a bar; by default on a terminal or in a notebook, if the call takes long.
    All take a list too, one value per prompt (`stop`, `stop_token_ids`: a list of lists), except
    n, num_beams, tools, chat_template_kwargs, truncate_prompt, skip_special_tokens and the last
    six.
    """

    temperature: Floats
    top_p: Floats
    top_k: Ints
    min_p: Floats
    max_tokens: Ints
    min_tokens: Ints
    do_sample: Flags
    n: int | None
    stop: str | Sequence[str] | Sequence[Sequence[str] | None] | None
    stop_token_ids: Sequence[int] | Sequence[Sequence[int] | None] | None
    seed: Ints
    presence_penalty: Floats
    frequency_penalty: Floats
    repetition_penalty: Floats
    ignore_eos: Flags
    logit_bias: Mapping[Any, float] | Sequence[Mapping[Any, float] | None] | None
    num_beams: int | None
    json_schema: Mapping[str, Any] | str | Sequence[Mapping[str, Any] | str | None] | None
    regex: str | Sequence[str | None] | None
    tools: Sequence[Any] | None
    tools_kwargs: Mapping[str, Any] | Sequence[Mapping[str, Any] | None] | None
    interaction_kwargs: Mapping[str, Any] | Sequence[Mapping[str, Any] | None] | None
    max_tokens_per_turn: Ints
    chat_template_kwargs: dict[str, Any] | None
    truncate_prompt: Literal["left", "right"] | None
    skip_special_tokens: bool | None
    logprobs: int | None
    prompt_logprobs: bool | int | None
    sampling_mask: bool | None
    return_routed_experts: bool | None
    timeout: float | None
    progress: bool | None


def names_keywords(method: Method) -> Method:
    """Add `GenerateParams`, which type checkers read, to the signature and the docstring, which
    help(), Jupyter and IPython read."""
    signature = inspect.signature(method)
    own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    keyword_only = inspect.Parameter.KEYWORD_ONLY
    names = GenerateParams.__annotations__
    named = [inspect.Parameter(name, keyword_only, default=None) for name in names]
    keywords = inspect.cleandoc(GenerateParams.__doc__ or "")
    method.__doc__ = f"{inspect.cleandoc(method.__doc__ or '')}\n\n{keywords}"
    vars(method)["__signature__"] = signature.replace(parameters=[*own, *named])
    return method

"""The types of keywords, and of what parts add to rows. docs/generate.py writes this file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypedDict


class GenerateParams(TypedDict, total=False):
    """The keywords of a call. None means the default, if one is named.

    One value, or a list or array with one per prompt (of lists: a list of lists):
        temperature: Divides the logits before sampling; 0 is greedy. At least 0 (as OpenAI);
            default `rollout.temperature`, or 0 if `do_sample` is False.
        top_p: Keep the likeliest tokens that together have this probability. In (0, 1], 1: all
            (as OpenAI); default `rollout.top_p`.
        top_k: Keep this many of the likeliest tokens; -1 keeps all. Otherwise at least 1 (as
            vLLM); default `rollout.top_k`.
        min_p: Keep tokens with at least this share of the likeliest one's probability. In [0,
            1] (as vLLM); default 0: all.
        do_sample: Sample, or decode greedily. Default `rollout.do_sample`, False for the
            embedded model. A temperature above 0, a filter (top_p, top_k, min_p) or a seed
            turns sampling on, and is refused with `do_sample=False` in one call. With
            temperature 0, filters and seeds change nothing.
        max_tokens: The most tokens to generate. At least 1, counted per row over all its
            turns; default `rollout.response_length`.
        min_tokens: The fewest tokens to generate. From 0, the default, to max_tokens: no EOS,
            stop id or stop string comes earlier (as Transformers).
        stop: A string that ends the answer. Or several: the first one found counts (as
            OpenAI).
        stop_token_ids: Ids that end an answer, in addition to the model's EOS ids. Such an id
            is in `token_ids`, not in the text (as vLLM).
        ignore_eos: Continue after EOS. `stop` and `stop_token_ids` still count (as vLLM);
            default `rollout.ignore_eos`.
        seed: Gives the same answer each time. The same tokens in any batch (float32 on a CPU);
            from 0 to 2**63 - 1. One seed for all prompts gives prompt i (seed + i *
            0x9E3779B97F4A7C15) % 2**63.
        tools_kwargs: Keywords for verl's tools, such as `{"calculator": {"create_kwargs":
            {}}}`. The prompt has only the tools that it names; by default, all tools of the
            call (docs/tools.md).
        interaction_kwargs: An interaction of verl's, such as `{"name": "gsm8k",
            "ground_truth": "7"}` (docs/tools.md).
        max_tokens_per_turn: The most tokens of each turn. At least 1.
        agent_loop: verl's agent loop that answers. A name, a class, or `{"_target_": ...}`;
            default `rollout.agent.default_agent_loop` (docs/agent_loops.md). max_tokens then
            limits each of its requests.
        agent_kwargs: Columns of the row for the agent loop's run(), as verl passes them.
        environment_factory: Makes an environment for each row, whose methods are its tools. Or
            a dict, from which the column `environment` selects (as TRL; docs/environments.md).
        environment_kwargs: Columns of the row for the environment's reset(), next to `prompt`.
        adapter: The LoRA adapter that answers. A name in `engine.adapters` (docs/adapters.md).
        thinking_token_budget: The most tokens of a thought. Then the end mark of the config's
            `reasoning_parser` follows, forced: these tokens have mask 0. From 0; -1: no limit
            (as vLLM; docs/reasoning.md).
        json_schema: The JSON schema of the answer. A dict or JSON text (docs/grammars.md).
        regex: What the whole answer must match. Not with json_schema (docs/grammars.md).
        logit_bias: Added to logits, before all else: {"TOKEN ID": NUMBER}. In [-100, 100] (as
            OpenAI).
        allowed_token_ids: The only ids that may be generated. The model's EOS only if it is
            among them (as vLLM).
        bad_words: Words that are not generated. Their last token is ruled out where it would
            complete one, with or without a space before the word (as vLLM).
        presence_penalty: Lowers the logits of generated tokens, once. In [-2, 2], default 0
            (as OpenAI).
        frequency_penalty: Lowers the logits of generated tokens, per occurrence. In [-2, 2],
            default 0 (as OpenAI).
        repetition_detection: Ends an answer that repeats itself: `{"max_pattern_size": 8,
            "min_count": 4}`. Its last tokens are so many equal parts of `min_pattern_size` (1)
            to `max_pattern_size` tokens; `finish_reason` is then `repetition` (as vLLM).
        repetition_penalty: Above 1, makes tokens of the prompt and the answer less likely.
            Above 0; default 1: none (as Transformers).
        logprob_token_ids: Ids whose log probs to return per position (`top_logprobs`). At most
            128, in their order, instead of the likeliest ones; `logprobs`, if given too, must
            be their number (as vLLM).
    One value for the whole call:
        tools: Python functions, verl tools or schemas. The rollout runs functions and verl
            tools, and a call of a schema ends the row. Default the config's; [] means none
            (docs/tools.md).
        n: Samples per prompt. From 1 to 65536; default `rollout.n`. Greedy samples are all the
            same, and give a warning.
        chat_template: The text of a Jinja template, used in place of the model's own. It
            renders all messages, also of later turns (as vLLM).
        chat_template_kwargs: Variables for the chat template, such as `{"enable_thinking":
            False}`.
        continue_final_message: Continue the last message, which must be the assistant's. It is
            left open, and the row has only what follows it; default False (as vLLM).
        truncate_prompt: left or right: where a prompt above `rollout.prompt_length` is cut.
            Default the config's `truncate_prompt`; without either such a prompt is refused.
        skip_special_tokens: Leave special tokens out of the text. Default True; False keeps
            them, and the stop token.
        include_stop_str_in_output: End the text with the stop string. Or with the stop token,
            unless it is a special token; default False (as vLLM).
        timeout: Seconds for the answer. Above 0; after them the call is aborted in the engine
            and raises `GenerationTimeout`.
        progress: Show a progress bar. By default on a terminal or in a notebook, if the call
            takes long.
        num_beams: Beam search, on rollout.name hf. Default 1: none. Above 1, the `n` rows of a
            prompt are the best of this many beams (as Transformers); not with sampling
            keywords, grammars, streams or tools (docs/backends.md).
        return_routed_experts: Also return which experts of a MoE model each token used.
            Default False (docs/parity.md).
        on_error: raise, the default, or row. With raise, the first refused prompt or failed
            request raises its error. With row, each becomes a row with `finish_reason` abort
            and `metadata["error"]`, and the other rows do not change.
        prompt_logprobs: Also score the prompt's tokens. True, or how many of the likeliest
            tokens to return at each of them too (`top_prompt_logprobs`), -1: all; default
            False.
        sampling_mask: Also return the tokens that top_k, top_p and min_p left, and log probs
            over them. Default False (docs/training.md).
        logprobs: How many of the likeliest tokens to return per position (`top_logprobs`).
            From 0, the default, to the vocabulary's size; -1: all (as vLLM). Each takes some
            200 bytes: all of a vocabulary of 50,000 are 10 MB a token. Above 20, a call that
            may not fit into memory is refused.
    """

    temperature: float | Sequence[float | None] | None
    top_p: float | Sequence[float | None] | None
    top_k: int | Sequence[int | None] | None
    min_p: float | Sequence[float | None] | None
    do_sample: bool | Sequence[bool | None] | None
    max_tokens: int | Sequence[int | None] | None
    min_tokens: int | Sequence[int | None] | None
    stop: str | Sequence[str] | Sequence[str | Sequence[str] | None] | None
    stop_token_ids: Sequence[int] | Sequence[Sequence[int] | None] | None
    ignore_eos: bool | Sequence[bool | None] | None
    seed: int | Sequence[int | None] | None
    tools_kwargs: Mapping[str, object] | Sequence[Mapping[str, object] | None] | None
    interaction_kwargs: Mapping[str, object] | Sequence[Mapping[str, object] | None] | None
    max_tokens_per_turn: int | Sequence[int | None] | None
    agent_loop: str | type | Mapping[str, object] | Sequence[str | type | Mapping[str, object] | None] | None
    agent_kwargs: Mapping[str, object] | Sequence[Mapping[str, object] | None] | None
    environment_factory: Callable[[], Any] | Mapping[str, object] | Sequence[Callable[[], Any] | Mapping[str, object] | None] | None
    environment_kwargs: Mapping[str, object] | Sequence[Mapping[str, object] | None] | None
    adapter: str | Sequence[str | None] | None
    thinking_token_budget: int | Sequence[int | None] | None
    json_schema: Mapping[str, object] | str | Sequence[Mapping[str, object] | str | None] | None
    regex: str | Sequence[str | None] | None
    logit_bias: Mapping[Any, float] | Sequence[Mapping[Any, float] | None] | None
    allowed_token_ids: Sequence[int] | Sequence[Sequence[int] | None] | None
    bad_words: Sequence[str] | Sequence[Sequence[str] | None] | None
    presence_penalty: float | Sequence[float | None] | None
    frequency_penalty: float | Sequence[float | None] | None
    repetition_detection: Mapping[str, int] | Sequence[Mapping[str, int] | None] | None
    repetition_penalty: float | Sequence[float | None] | None
    logprob_token_ids: Sequence[int] | Sequence[Sequence[int] | None] | None
    tools: Sequence[object] | None
    n: int | None
    chat_template: str | None
    chat_template_kwargs: Mapping[str, object] | None
    continue_final_message: bool | None
    truncate_prompt: Literal["left", "right"] | None
    skip_special_tokens: bool | None
    include_stop_str_in_output: bool | None
    timeout: float | None
    progress: bool | None
    num_beams: int | None
    return_routed_experts: bool | None
    on_error: Literal["raise", "row"] | None
    prompt_logprobs: bool | int | None
    sampling_mask: bool | None
    logprobs: int | None


class RowFields:
    """What parts add to a row."""

    routed_experts: Any | None
    images: list[str] | None
    prompt_logprobs: list[float | None] | None
    top_prompt_logprobs: list[dict[int, float] | None] | None
    reasoning: str | None
    sampling_mask: list[list[int]] | None
    sampling_logprobs: list[float] | None
    top_logprobs: list[dict[int, float]] | None
    adapter: str | None
    forced_at: Sequence[int]
    reasoning_tokens: int


class OutputLists:
    """The fields of all rows, a list each."""

    routed_experts: list[Any] | None
    images: list[list[str]] | None
    prompt_logprobs: list[list[float | None] | None] | None
    top_prompt_logprobs: list[list[dict[int, float] | None] | None] | None
    reasoning: list[str] | None
    sampling_mask: list[list[list[int]]] | None
    sampling_logprobs: list[list[float]] | None
    top_logprobs: list[list[dict[int, float]]] | None

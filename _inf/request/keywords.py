"""The keywords of `generate`: their documentation, their types, and a row for each in `KEYWORDS`,
of which checks, signatures, options, and the keys of requests and batch lines are made."""

from __future__ import annotations

import inspect
import pkgutil
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, TypeAlias, TypedDict, TypeVar

from _inf.config import other_names
from _inf.config.schema import MAX_SAMPLES
from _inf.errors import ConfigError, at_fault, shown
from _inf.request import values
from _inf.request.keyword import Keyword
from _inf.request.seeds import MAX_SEED
from _inf.types import OnError, SamplingParams, Side, TurnOptions

Method = TypeVar("Method", bound=Callable[..., Any])

# One value, or a list with one per prompt.
Floats: TypeAlias = "float | Sequence[float | None] | None"
Ints: TypeAlias = "int | Sequence[int | None] | None"
Flags: TypeAlias = "bool | Sequence[bool | None] | None"
IdLists: TypeAlias = "Sequence[int] | Sequence[Sequence[int] | None] | None"
Kwargs: TypeAlias = "Mapping[str, Any] | Sequence[Mapping[str, Any] | None] | None"


class GenerateParams(TypedDict, total=False):
    """The keywords of a call. None means the default; where none is named, there is none.

    One value, or a list or array with one per prompt (`stop`, `stop_token_ids`: a list of lists):
        temperature: Divides the logits before sampling; 0 is greedy. At least 0 (as OpenAI);
            default `rollout.temperature`, or 0 if `do_sample` is False.
        top_p: Keep the likeliest tokens that together have this probability. In (0, 1], 1: all (as
            OpenAI); default `rollout.top_p`.
        top_k: Keep so many of the likeliest tokens; -1 keeps all. Else at least 1 (as vLLM);
            default `rollout.top_k`.
        min_p: Keep tokens with at least this share of the likeliest one's probability. In [0, 1]
            (as vLLM); default 0: all.
        do_sample: Sample, or decode greedily. Default `rollout.do_sample`, False in the embedded
            config. A temperature above 0, a filter (top_p, top_k, min_p) or a seed turns sampling
            on, and is refused with `do_sample=False` in one call. With temperature 0, filters and
            seeds change nothing.
        max_tokens: The most tokens to generate. At least 1, counted per row over all its turns;
            default `rollout.response_length`.
        min_tokens: The fewest tokens to generate. From 0, the default, to max_tokens: no EOS, stop
            id or stop string comes earlier (as Transformers).
        stop: A string that ends the answer. Or several: the first one found counts (as OpenAI).
        stop_token_ids: Ids that end an answer, in addition to the model's EOS ids. Such an id is in
            `token_ids`, not in the text (as vLLM).
        ignore_eos: Continue after EOS. `stop` and `stop_token_ids` still count (as vLLM); default
            `rollout.ignore_eos`.
        presence_penalty, frequency_penalty: Lower the logits of generated tokens, once or per
            occurrence. In [-2, 2], default 0 (as OpenAI).
        repetition_penalty: Above 1, makes tokens of the prompt and the answer less likely. Above 0;
            default 1: none (as Transformers).
        logit_bias: Added to logits, before all else: {"TOKEN ID": NUMBER}. In [-100, 100] (as
            OpenAI).
        allowed_token_ids: The only ids that may be generated. The model's EOS only if it is among
            them (as vLLM).
        bad_words: Words that are not generated. Their last token is ruled out where it would
            complete one, with or without a space before the word (as vLLM).
        logprob_token_ids: Ids whose log probs to return per position (`top_logprobs`). At most 128,
            in their order, instead of the likeliest ones; logprobs may only be their number (as
            vLLM).
        thinking_token_budget: The most tokens of a thought. Then the end mark of the config's
            `reasoning_parser` follows, forced: these tokens have mask 0. From 0; -1: no limit (as
            vLLM; docs/reasoning.md).
        repetition_detection: Ends an answer that repeats itself: `{"max_pattern_size": 8,
            "min_count": 4}`. Its last tokens are so many equal parts of `min_pattern_size` (1) to
            `max_pattern_size` tokens; `finish_reason` is then `repetition` (as vLLM).
        seed: Gives the same answer each time. The same tokens in any batch (float32 on a CPU); from
            0 to 2**63 - 1. One seed for all prompts gives prompt i
            (seed + i * 0x9E3779B97F4A7C15) % 2**63.
        json_schema: The JSON schema of the answer. A dict or JSON text (docs/grammars.md).
        regex: What the whole answer must match. Not with json_schema (docs/grammars.md).
        tools_kwargs: Keywords for verl's tools, such as `{"calculator": {"create_kwargs": {}}}`.
            The prompt has only the tools that it names; by default all of the call (docs/tools.md).
        interaction_kwargs: An interaction of verl's, such as
            `{"name": "gsm8k", "ground_truth": "7"}` (docs/tools.md).
        max_tokens_per_turn: The most tokens of each turn. At least 1.
        agent_loop: verl's agent loop that answers. A name, a class, or `{"_target_": ...}`; default
            `rollout.agent.default_agent_loop` (docs/agent_loops.md). max_tokens then limits each of
            its requests.
        agent_kwargs: Columns of the row for the agent loop's run(), as verl passes them.
        environment_factory: Makes an environment for each row, whose methods are its tools. Or a
            dict, from which the column `environment` selects (as TRL; docs/environments.md).
        environment_kwargs: Columns of the row for the environment's reset(), next to `prompt`.
        adapter: The LoRA adapter that answers. A name in `engine.adapters` (docs/adapters.md).
    One value for the whole call:
        n: Samples per prompt. From 1 to 65536; default `rollout.n`. Greedy ones are all the same,
            which a warning says.
        num_beams: Beam search, on rollout.name hf. Default 1: none. Above 1, the `n` rows of a
            prompt are the best of so many beams (as Transformers); not with sampling keywords,
            grammars, streams or tools (docs/backends.md).
        tools: Python functions, verl tools or schemas. Functions and verl tools are run inside the
            rollout, and a call of a schema ends the row; default the config's, [] means none
            (docs/tools.md).
        chat_template: A Jinja template in place of the model's own. A text; it renders messages,
            also of later turns (as vLLM).
        chat_template_kwargs: Variables for the chat template, such as `{"enable_thinking": False}`.
        continue_final_message: Go on with the last message, which is the assistant's. It is left
            open, and the row has only what follows it; default False (as vLLM).
        truncate_prompt: left or right: where a prompt above `rollout.prompt_length` is cut. Default
            the config's `truncate_prompt`; without either such a prompt is refused.
        skip_special_tokens: Leave special tokens out of the text. Default True; False keeps them,
            and the stop token.
        include_stop_str_in_output: End the text with the stop string. Or with the stop token, if
            it is no special one; default False (as vLLM).
        logprobs: How many of the likeliest tokens to return per position (`top_logprobs`). From
            0, the default, to the vocabulary's size; -1: all (as vLLM). Each takes some 200 bytes:
            all of a vocabulary of 50,000 are 10 MB a token. Above 20, what may not fit is refused.
        prompt_logprobs: Also score the prompt's tokens. True, or how many of the likeliest tokens
            to return at each of them too (`top_prompt_logprobs`), -1: all; default False.
        sampling_mask: Also return the tokens that top_k, top_p and min_p left, and log probs over
            them. Default False (docs/training.md).
        return_routed_experts: Also return which experts of a MoE model each token used. Default
            False (docs/parity.md).
        on_error: raise or row: what a refused prompt and a failed request are. By default the call
            raises; with row their rows have `finish_reason` abort and `metadata["error"]`, and the
            other rows are as without them.
        timeout: Seconds for the answer. Above 0; after them the call is aborted in the engine and
            raises `GenerationTimeout`.
        progress: Show a progress bar. By default on a terminal or in a notebook, if the call takes
            long.
    """

    temperature: Floats
    top_p: Floats
    top_k: Ints
    min_p: Floats
    do_sample: Flags
    max_tokens: Ints
    min_tokens: Ints
    stop: str | Sequence[str] | Sequence[Sequence[str] | None] | None
    stop_token_ids: IdLists
    ignore_eos: Flags
    presence_penalty: Floats
    frequency_penalty: Floats
    repetition_penalty: Floats
    logit_bias: Mapping[Any, float] | Sequence[Mapping[Any, float] | None] | None
    allowed_token_ids: IdLists
    bad_words: Sequence[str] | Sequence[Sequence[str] | None] | None
    logprob_token_ids: IdLists
    thinking_token_budget: Ints
    repetition_detection: Mapping[str, int] | Sequence[Mapping[str, int] | None] | None
    seed: Ints
    json_schema: Mapping[str, Any] | str | Sequence[Mapping[str, Any] | str | None] | None
    regex: str | Sequence[str | None] | None
    tools_kwargs: Kwargs
    interaction_kwargs: Kwargs
    max_tokens_per_turn: Ints
    agent_loop: str | type | Mapping[str, Any] | Sequence[Any] | None
    agent_kwargs: Kwargs
    environment_factory: Callable[[], Any] | Mapping[str, Any] | Sequence[Any] | None
    environment_kwargs: Kwargs
    adapter: str | Sequence[str | None] | None
    n: int | None
    num_beams: int | None
    tools: Sequence[Any] | None
    chat_template: str | None
    chat_template_kwargs: dict[str, Any] | None
    continue_final_message: bool | None
    truncate_prompt: Literal["left", "right"] | None
    skip_special_tokens: bool | None
    include_stop_str_in_output: bool | None
    logprobs: int | None
    prompt_logprobs: bool | int | None
    sampling_mask: bool | None
    return_routed_experts: bool | None
    on_error: OnError | None
    timeout: float | None
    progress: bool | None


def _imported(function: str) -> Callable[[str, Any], Any]:
    """Return a check that is imported for the first call that has the keyword: calls without it do
    not need its libraries."""
    return lambda _, value: pkgutil.resolve_name(function)(value)


MAX_LOGPROB_IDS = 128  # as vLLM
MORE = "more_sampling"  # the feature of parameters that OpenAI's API lacks
Json: TypeAlias = dict[str, Any]
_fraction = partial(values.number, most=1.0)
_penalty = partial(values.number, least=-2.0, most=2.0)
_some_ids = partial(values.token_ids, least=1)
_seed = partial(values.count, least=0, most=MAX_SEED - 1)
_seconds = partial(values.number, above=0.0, most=threading.TIMEOUT_MAX)

PER_PROMPT: Mapping[str, Keyword] = {
    "temperature": Keyword(
        partial(values.number, least=0.0),
        float,
        "rollout.temperature; 0 when greedy",
        sglang="temperature",
    ),
    "top_p": Keyword(
        partial(_fraction, above=0.0), float, "rollout.top_p", filters=True, sglang="top_p"
    ),
    "top_k": Keyword(values.top_k, int, "rollout.top_k", MORE, filters=True, sglang="top_k"),
    "min_p": Keyword(partial(_fraction, least=0.0), float, "0", MORE, filters=True, sglang="min_p"),
    "do_sample": Keyword(values.flag, bool, "rollout.do_sample"),
    "max_tokens": Keyword(values.count, int, "rollout.response_length", sglang="max_new_tokens"),
    "min_tokens": Keyword(partial(values.count, least=0), int, "0", MORE, sglang="min_new_tokens"),
    "stop": Keyword(values.stop_strings, str | list[str], "", sglang="stop"),
    "stop_token_ids": Keyword(
        values.token_ids,
        list[int],
        "the model's EOS",
        "token_ids",
        of_tokens=True,
        sglang="stop_token_ids",
    ),
    "ignore_eos": Keyword(values.flag, bool, "rollout.ignore_eos", MORE, sglang="ignore_eos"),
    "presence_penalty": Keyword(_penalty, float, "0", sglang="presence_penalty"),
    "frequency_penalty": Keyword(_penalty, float, "0", sglang="frequency_penalty"),
    "repetition_penalty": Keyword(
        partial(values.number, least=1e-6),
        float,
        "1",
        "repetition_penalty",
        sglang="repetition_penalty",
    ),
    "logit_bias": Keyword(
        values.logit_bias, dict[str, float], "", "logit_bias", of_tokens=True, sglang="logit_bias"
    ),
    "allowed_token_ids": Keyword(_some_ids, list[int], "", "token_masks", of_tokens=True),
    "bad_words": Keyword(values.words, list[str], "", "token_masks"),
    "logprob_token_ids": Keyword(
        partial(_some_ids, most=MAX_LOGPROB_IDS), list[int], "", "logprob_token_ids", of_tokens=True
    ),
    "thinking_token_budget": Keyword(values.budget, int, "", "thinking_token_budget"),
    "repetition_detection": Keyword(
        values.repetition_detection, dict[str, int], "", "repetition_detection"
    ),
    "seed": Keyword(_seed, int, "", "seed", sglang="sampling_seed"),
    "json_schema": Keyword(
        _imported("_inf.request.grammar:json_schema_text"),
        Json | str,
        "",
        "json_schema",
        sglang="json_schema",
    ),
    "regex": Keyword(
        _imported("_inf.request.grammar:regex_text"), str, "", "regex", sglang="regex"
    ),
    "tools_kwargs": Keyword(values.tools_kwargs),
    "interaction_kwargs": Keyword(values.mapping, feature="turn"),
    "max_tokens_per_turn": Keyword(values.count),
    "agent_loop": Keyword(values.agent_loop, feature="agent_loop"),
    "agent_kwargs": Keyword(values.agent_kwargs, feature="agent_loop"),
    "environment_factory": Keyword(values.factories, feature="turn"),
    "environment_kwargs": Keyword(values.mapping, feature="turn"),
    "adapter": Keyword(values.text, feature="adapters"),
}
PER_CALL: Mapping[str, Keyword] = {
    "n": Keyword(partial(values.count, most=MAX_SAMPLES), int, sglang="n"),
    "num_beams": Keyword(values.count, int, "1: none", "beams", of_tokens=True, in_body=False),
    "tools": Keyword(
        _imported("_inf.tools.definition:as_tools"), list[Json], feature="turn", of_chats=True
    ),
    # Not in a request: a template is a program, whose loops could keep a thread busy for ever.
    "chat_template": Keyword(values.template, feature="token_ids", of_chats=True),
    "chat_template_kwargs": Keyword(values.template_kwargs, Json, "", "token_ids", of_chats=True),
    "continue_final_message": Keyword(values.flag, bool, "no", "token_ids", of_chats=True),
    "truncate_prompt": Keyword(
        partial(values.one_of, known=("left", "right")), Side, "", "token_ids"
    ),
    "skip_special_tokens": Keyword(
        values.flag, bool, "yes", "token_ids", sglang="skip_special_tokens"
    ),
    "include_stop_str_in_output": Keyword(
        values.flag, bool, "no", "token_ids", sglang="no_stop_trim"
    ),
    "logprobs": Keyword(values.likeliest, feature="top_logprobs", of_tokens=True),
    "prompt_logprobs": Keyword(values.flag_or_likeliest, feature="prompt_logprobs", of_tokens=True),
    "sampling_mask": Keyword(values.flag, feature="sampling_mask"),
    "return_routed_experts": Keyword(values.flag, feature="routed_experts"),
    "on_error": Keyword(partial(values.one_of, known=("raise", "row"))),
    "timeout": Keyword(_seconds, float, "", in_body=False),
    "progress": Keyword(values.flag),
}
KEYWORDS: Mapping[str, Keyword] = {**PER_PROMPT, **PER_CALL}
FILTERS = [name for name, keyword in KEYWORDS.items() if keyword.filters]
OF_CHATS = [name for name, keyword in KEYWORDS.items() if keyword.of_chats]
# The values that change nothing.
NEUTRAL: Mapping[str, Any] = {
    **vars(SamplingParams(max_tokens=1)),
    **vars(TurnOptions()),
    **{"stop": [], "stop_token_ids": [], "tools": []},
    **{"chat_template": None, "chat_template_kwargs": {}, "continue_final_message": False},
    **{"skip_special_tokens": True, "include_stop_str_in_output": False, "on_error": "raise"},
}


def checked(name: str, value: object, vocabulary: int = values.MAX_INT32) -> Any:
    """Return a keyword's value in plain Python types, or raise `ConfigError`."""
    keyword = KEYWORDS[name]
    more = {"vocabulary": vocabulary} if keyword.of_tokens else {}
    with at_fault(key=name):
        return keyword.check(name, value, **more)


def first_sentences() -> dict[str, str]:
    """The first sentence on each keyword in the docstring of `GenerateParams`."""
    text = inspect.cleandoc(GenerateParams.__doc__ or "")
    entries = re.findall(r"^ {4}(\w[\w, ]*): (.+?\.)\s", text + "\n", re.MULTILINE | re.DOTALL)
    return {name: " ".join(help.split()) for names, help in entries for name in names.split(", ")}


def refuse_positional(call: str, others: Sequence[object]) -> None:
    """Refuse what stands after a call's prompts, such as a dict or an object of parameters."""
    if not others:
        return
    given = others[0] if isinstance(others[0], Mapping) else {}
    words = [f"{other_names.KEYWORDS.get(name, name)}={value!r}" for name, value in given.items()]
    example = ", ".join(words) if words and len(others) == 1 else "temperature=0, max_tokens=64"
    raise ConfigError(
        f"{call}: only the prompts are given by position, and parameters as keywords, such as "
        f"{call[:-1]}prompts, {example}); {shown(others[0])} is in second place."
    )


def names_keywords(method: Method) -> Method:
    """Add `GenerateParams`, which type checkers read, to the signature and the docstring, which
    help(), Jupyter and IPython read."""
    signature = inspect.signature(method)
    declared = [
        p for p in signature.parameters.values() if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
    ]
    keyword_only = inspect.Parameter.KEYWORD_ONLY
    named = [inspect.Parameter(name, keyword_only, default=None) for name in KEYWORDS]
    keywords = inspect.cleandoc(GenerateParams.__doc__ or "")
    method.__doc__ = f"{inspect.cleandoc(method.__doc__ or '')}\n\n{keywords}"
    vars(method)["__signature__"] = signature.replace(parameters=[*declared, *named])
    return method

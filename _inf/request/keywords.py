"""The keywords of `generate`: a row for each in `KEYWORDS`, of which documentation, checks,
signatures, options, and the keys of requests and batch lines are made."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Container, Mapping
from functools import partial
from typing import TypeVar

from _inf.config.sections import MAX_SAMPLES
from _inf.errors import ConfigError
from _inf.parts.found import PARTS, entries
from _inf.request import values
from _inf.request.keyword import NOT_IN_TURNS, CallKind, ChatKind, Keyword
from _inf.request.seeds import MAX_SEED
from _inf.request.turn_keywords import TURN_KEYWORDS
from _inf.types import Side

Method = TypeVar("Method", bound=Callable[..., object])

MORE = "more_sampling"  # the feature of parameters that OpenAI's API lacks
_fraction = partial(values.number, most=1.0)

# Of every prompt alone.
_PROMPTS: Mapping[str, Keyword] = {
    "temperature": Keyword(
        partial(values.number, least=0.0),
        "Divides the logits before sampling; 0 is greedy. At least 0 (as OpenAI); default "
        "`rollout.temperature`, or 0 if `do_sample` is False.",
        float,
        "rollout.temperature; 0 when greedy",
        sglang="temperature",
    ),
    "top_p": Keyword(
        partial(_fraction, above=0.0),
        "Keep the likeliest tokens that together have this probability. In (0, 1], 1: all (as "
        "OpenAI); default `rollout.top_p`.",
        float,
        "rollout.top_p",
        neutral=1.0,
        filters=True,
        sglang="top_p",
    ),
    "top_k": Keyword(
        values.top_k,
        "Keep this many of the likeliest tokens; -1 keeps all. Otherwise at least 1 (as vLLM); "
        "default `rollout.top_k`.",
        int,
        "rollout.top_k",
        MORE,
        neutral=-1,
        filters=True,
        sglang="top_k",
    ),
    "min_p": Keyword(
        partial(_fraction, least=0.0),
        "Keep tokens with at least this share of the likeliest one's probability. In [0, 1] (as "
        "vLLM); default 0: all.",
        float,
        "0",
        MORE,
        neutral=0.0,
        filters=True,
        sglang="min_p",
    ),
    "do_sample": Keyword(
        values.flag,
        "Sample, or decode greedily. Default `rollout.do_sample`, False for the embedded model. A "
        "temperature above 0, a filter (top_p, top_k, min_p) or a seed turns sampling on, and is "
        "refused with `do_sample=False` in one call. With temperature 0, filters and seeds change "
        "nothing.",
        bool,
        "rollout.do_sample",
    ),
    "max_tokens": Keyword(
        values.count,
        "The most tokens to generate. At least 1, counted per row over all its turns; default "
        "`rollout.response_length`.",
        int,
        "rollout.response_length",
        sglang="max_new_tokens",
    ),
    "min_tokens": Keyword(
        partial(values.count, least=0),
        "The fewest tokens to generate. From 0, the default, to max_tokens: no EOS, stop id or "
        "stop string comes earlier (as Transformers).",
        int,
        "0",
        MORE,
        neutral=0,
        sglang="min_new_tokens",
    ),
    "stop": Keyword(
        values.stop_strings,
        "A string that ends the answer. Or several: the first one found counts (as OpenAI).",
        str | list[str],
        "",
        neutral=[],
        sglang="stop",
    ),
    "stop_token_ids": Keyword(
        values.token_ids,
        "Ids that end an answer, in addition to the model's EOS ids. Such an id is in `token_ids`, "
        "not in the text (as vLLM).",
        list[int],
        "the model's EOS",
        "token_ids",
        neutral=[],
        of_tokens=True,
        sglang="stop_token_ids",
    ),
    "ignore_eos": Keyword(
        values.flag,
        "Continue after EOS. `stop` and `stop_token_ids` still count (as vLLM); default "
        "`rollout.ignore_eos`.",
        bool,
        "rollout.ignore_eos",
        MORE,
        neutral=False,
        sglang="ignore_eos",
    ),
    "seed": Keyword(
        partial(values.count, least=0, most=MAX_SEED - 1),
        "Gives the same answer each time. The same tokens in any batch (float32 on a CPU); from 0 "
        "to 2**63 - 1. One seed for all prompts gives prompt i (seed + i * 0x9E3779B97F4A7C15) % "
        "2**63.",
        int,
        "",
        "seed",
        sglang="sampling_seed",
        refused={"loop request": ""},
    ),
}
_CALLS: Mapping[str, Keyword] = {
    "n": Keyword(
        partial(values.count, most=MAX_SAMPLES),
        "Samples per prompt. From 1 to 65536; default `rollout.n`. Greedy samples are all the "
        "same, and give a warning.",
        int,
        per_prompt=False,
        sglang="n",
        refused={"chat": "a chat has one answer to each message; leave it out"},
    ),
    # Not in a request: a template is a program, whose loops could keep a thread busy for ever.
    "chat_template": Keyword(
        values.template,
        "The text of a Jinja template, used in place of the model's own. It renders all messages, "
        "also of later turns (as vLLM).",
        feature="token_ids",
        typed="str",
        per_prompt=False,
        of_chats=True,
        refused={
            "agent loop": "cannot be used with agent_loop, which renders by the model's own",
            "chat": "a chat has the model's; change the one in the model's folder",
        },
    ),
    "chat_template_kwargs": Keyword(
        values.template_kwargs,
        'Variables for the chat template, such as `{"enable_thinking": False}`.',
        dict[str, object],
        "",
        "token_ids",
        per_prompt=False,
        neutral={},
        of_chats=True,
    ),
    "continue_final_message": Keyword(
        values.flag,
        "Continue the last message, which must be the assistant's. It is left open, and the row "
        "has only what follows it; default False (as vLLM).",
        bool,
        "no",
        "token_ids",
        per_prompt=False,
        neutral=False,
        of_chats=True,
        refused={**NOT_IN_TURNS, "chat": "a chat's last message is yours; leave it out"},
    ),
    "truncate_prompt": Keyword(
        partial(values.one_of, known=("left", "right")),
        "left or right: where a prompt above `rollout.prompt_length` is cut. Default the config's "
        "`truncate_prompt`; without either such a prompt is refused.",
        Side,
        "",
        "token_ids",
        typed='Literal["left", "right"]',
        per_prompt=False,
    ),
    "skip_special_tokens": Keyword(
        values.flag,
        "Leave special tokens out of the text. Default True; False keeps them, and the stop token.",
        bool,
        "yes",
        "token_ids",
        per_prompt=False,
        neutral=True,
        sglang="skip_special_tokens",
    ),
    "include_stop_str_in_output": Keyword(
        values.flag,
        "End the text with the stop string. Or with the stop token, unless it is a special token; "
        "default False (as vLLM).",
        bool,
        "no",
        "token_ids",
        per_prompt=False,
        neutral=False,
        sglang="no_stop_trim",
    ),
    "timeout": Keyword(
        partial(values.number, above=0.0, most=threading.TIMEOUT_MAX),
        "Seconds for the answer. Above 0; after them the call is aborted in the engine and raises "
        "`GenerationTimeout`.",
        float,
        "",
        per_prompt=False,
        in_body=False,
    ),
    "progress": Keyword(
        values.flag,
        "Show a progress bar. By default on a terminal or in a notebook, if the call takes long.",
        typed="bool",
        per_prompt=False,
        refused={"chat": "a chat shows no bar; leave it out"},
    ),
}
_ALL = [*_PROMPTS.items(), *TURN_KEYWORDS.items(), *_CALLS.items()]
_ALL += [item for part in PARTS for item in part.keywords.items()]
PER_PROMPT: Mapping[str, Keyword] = {name: row for name, row in _ALL if row.per_prompt}
PER_CALL: Mapping[str, Keyword] = {name: row for name, row in _ALL if not row.per_prompt}
KEYWORDS: Mapping[str, Keyword] = {**PER_PROMPT, **PER_CALL}
FILTERS = [name for name, keyword in KEYWORDS.items() if keyword.filters]
OF_CHATS = [name for name, keyword in KEYWORDS.items() if keyword.of_chats]


def refuse(kind: CallKind | ChatKind, asked: Container[str], otherwise: str = "") -> None:
    """Raise `ConfigError` for the first keyword that is asked for and that this kind of call cannot
    have. otherwise: what is said of a keyword whose row says nothing."""
    for name, row in KEYWORDS.items():
        if name in asked and kind in row.refused:
            raise ConfigError.of(name, f"{row.refused[kind] or otherwise}.")


def refuse_beside_loop(asked: Container[str]) -> None:
    """Refuse what an agent loop cannot have, if one is asked for."""
    if "agent_loop" in asked:
        refuse("agent loop", asked)
        leave = "leave agent_loop out, or pass tools=[] for no default one"
        refuse("turns", asked, f"cannot be used with agent_loop; {leave}")


@functools.cache
def documentation() -> str:
    """What each keyword is, for the docstrings of the methods that take them."""

    return "\n".join(
        [
            "The keywords of a call. None means the default, if one is named.",
            "",
            "One value, or a list or array with one per prompt (of lists: a list of lists):",
            entries({name: row.help for name, row in PER_PROMPT.items()}, 4),
            "One value for the whole call:",
            entries({name: row.help for name, row in PER_CALL.items()}, 4),
        ]
    )


def names_keywords(method: Method) -> Method:
    """Add the keywords to the signature and the docstring, which help(), Jupyter and IPython
    read. (Type checkers read `GenerateParams`.)"""
    signature = inspect.signature(method)
    declared = [
        p for p in signature.parameters.values() if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
    ]
    keyword_only = inspect.Parameter.KEYWORD_ONLY
    named = [inspect.Parameter(name, keyword_only, default=None) for name in KEYWORDS]
    method.__doc__ = f"{inspect.cleandoc(method.__doc__ or '')}\n\n{documentation()}"
    vars(method)["__signature__"] = signature.replace(parameters=[*declared, *named])
    return method

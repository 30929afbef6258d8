"""Which keywords of `generate` some kinds of call cannot have, and what to do instead; and which
values of one prompt's keywords contradict one another.

Conversations, agent loops, streams and `inf chat` ask this one table, so that none of them accepts
a keyword and ignores it. Every other keyword can be used in every call.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Literal, TypeAlias

from _inf.errors import ConfigError
from _inf.request.keywords import FILTERS, NEUTRAL
from _inf.types import GRAMMARS, ModelInfo, SamplingParams

# turns: with tools, interactions, environments or an agent loop. loop request: what an agent loop
# itself asks for. continued row: with a row as a prompt.
CallKind: TypeAlias = Literal[
    "one turn", "turns", "agent loop", "loop request", "stream", "continued row"
]
# text chat: one that shows text. streamed chat: one that shows it while it is generated.
ChatKind: TypeAlias = Literal["chat", "text chat", "streamed chat"]
_ONE_TURN = "stream() has one turn; use generate()"
_NO_LOOP = "stream() runs no agent loop; use generate()"
_LATER = "stream() does not give it; use generate()"
_NO_LOOP_IN_CHAT = "this chat streams, and so runs no agent loop; start inf chat --json"
# "": the caller of `refuse` gives the reason, because it knows more.
_TURNS = dict.fromkeys(
    (
        *("json_schema", "regex", "num_beams", "logprobs", "logprob_token_ids"),
        *("prompt_logprobs", "sampling_mask", "return_routed_experts", "continue_final_message"),
    ),
    "",
)

REFUSED: Mapping[CallKind | ChatKind, Mapping[str, str]] = {
    "one turn": {
        "max_tokens_per_turn": "without tools or interactions there is one turn; use max_tokens"
    },
    "turns": _TURNS,
    "agent loop": {
        "tools": "an agent loop has its own; leave tools out",
        "tools_kwargs": "cannot be used with agent_loop; give it in agent_kwargs",
        "interaction_kwargs": "cannot be used with agent_loop; give it in agent_kwargs, as "
        '{"extra_info": {"interaction_kwargs": ...}}',
        "max_tokens_per_turn": "cannot be used with agent_loop; max_tokens is of each request of a"
        " loop",
        "environment_factory": "cannot be used with agent_loop; a loop has its own",
        "thinking_token_budget": "cannot be used with agent_loop, whose mask says what was sampled",
        "chat_template": "cannot be used with agent_loop, which renders by the model's own",
    },
    "loop request": {**_TURNS, "seed": "", "thinking_token_budget": ""},
    "stream": {
        "interaction_kwargs": _ONE_TURN,
        "max_tokens_per_turn": "stream() has one turn; use max_tokens",
        "agent_loop": f"{_NO_LOOP}, or pass tools=[]",
        "agent_kwargs": _NO_LOOP,
        "environment_factory": _ONE_TURN,
        "environment_kwargs": _ONE_TURN,
        "num_beams": "a beam is known at its end only; use generate()",
        "prompt_logprobs": "stream() does not give them; use generate()",
        "on_error": "stream() raises; use generate()",
        "sampling_mask": _LATER,
        "return_routed_experts": _LATER,
    },
    "continued row": {
        **dict.fromkeys(_TURNS, "a row that is continued cannot have it; leave it out"),
        **dict.fromkeys(
            ("agent_loop", "interaction_kwargs"),
            "its state ended with the row; send the row's prompt again",
        ),
    },
    "chat": {
        "n": "a chat has one answer to each message; leave it out",
        "on_error": "a chat shows what failed; leave it out",
        "progress": "a chat shows no bar; leave it out",
        "tools": "a chat uses the tools of its config; set rollout.multi_turn.tool_config_path",
        "environment_factory": "a chat has no environments; leave it out",
        "environment_kwargs": "a chat has no environments; leave it out",
        "adapter": "a chat loads no adapters; set adapter_path, or leave it out",
        "chat_template": "a chat has the model's; change the one in the model's folder",
        "continue_final_message": "a chat's last message is yours; leave it out",
    },
    "text chat": dict.fromkeys(
        (
            *("logprobs", "logprob_token_ids", "prompt_logprobs"),
            *("sampling_mask", "return_routed_experts"),
        ),
        "only inf chat --json shows it",
    ),
    "streamed chat": {
        "num_beams": "a beam is known at its end only, and this chat streams; start inf chat "
        "--json",
        "max_tokens_per_turn": "a message has one turn without tools; set max_tokens",
        "interaction_kwargs": "this chat streams, and so has no interactions; start inf chat "
        "--json",
        "agent_loop": _NO_LOOP_IN_CHAT,
        "agent_kwargs": _NO_LOOP_IN_CHAT,
    },
}


def refuse(kind: CallKind | ChatKind, asks: Callable[[str], bool], otherwise: str = "") -> None:
    """Raise `ConfigError` for the first keyword that is asked for and that this kind of call cannot
    have. otherwise: what is said of a keyword for which the table says nothing."""
    for name, why in REFUSED[kind].items():
        if asks(name):
            raise ConfigError.of(name, f"{why or otherwise}.")


def refuse_beside_agent_loop(asks: Callable[[str], bool]) -> None:
    """Refuse what no row with an agent loop can have."""
    refuse("agent loop", asks)
    leave = "leave agent_loop out, or pass tools=[] for no default one"
    refuse("turns", asks, f"cannot be used with agent_loop; {leave}")


def refuse_contradictions(params: SamplingParams, model: ModelInfo) -> None:
    """Raise `ConfigError` for the first two that cannot both be followed."""
    found = (_of_grammars_and_lists(params), _of_masks(params), _of_tokens(params, model))
    for key, why in itertools.chain(*found):
        raise ConfigError.of(key, why)


Contradictions: TypeAlias = Iterator[tuple[str, str]]


def _of_grammars_and_lists(params: SamplingParams) -> Contradictions:
    grammars = [name for name in GRAMMARS if getattr(params, name) is not None]
    if len(grammars) == 2:
        yield "regex", "an answer can follow one grammar only, and json_schema is set too."
    if grammars and params.num_beams > 1:
        yield "num_beams", f"beams follow no grammar; leave {grammars[0]} out."
    if params.min_tokens > params.max_tokens:
        yield "min_tokens", f"{params.min_tokens} is above max_tokens, {params.max_tokens}."
    if (named := params.logprob_token_ids) and params.logprobs not in (0, len(named)):
        yield (
            "logprobs",
            f"{params.logprobs} is not the number of logprob_token_ids, whose log probs are "
            "returned instead; leave it out.",
        )


def _of_masks(params: SamplingParams) -> Contradictions:
    """Of a mask of what is not sampled, and of one of the whole vocabulary."""
    if not params.sampling_mask:
        return
    if params.greedy:
        yield "sampling_mask", "a greedy answer is not sampled; give a temperature."
    if all(getattr(params, name) == NEUTRAL[name] for name in FILTERS):
        yield (
            "sampling_mask",
            "without top_k, top_p or min_p every token is left, and the log probs "
            "over them are `logprobs`; set a filter, or leave sampling_mask out.",
        )
    for name in ("logprobs", "logprob_token_ids"):
        if getattr(params, name):
            yield "sampling_mask", f"{name} is set too; leave one of the two out."


def _of_tokens(params: SamplingParams, model: ModelInfo) -> Contradictions:
    """Of a budget of thoughts that have no marks or that a grammar rules out, and of a row that
    could not begin with any of the allowed tokens."""
    if params.thinking_token_budget is not None:
        if params.constrained:
            why = "a grammar makes the answer, without a thought; leave it out."
            yield "thinking_token_budget", why
        if model.tokenizer is not None and model.thought_marks is None:
            why = "the marks of a thought are not known; set reasoning_parser in the config."
            yield "thinking_token_budget", why
    left = set(params.allowed_token_ids or ())
    ends = {*params.stop_token_ids, *model.eos_token_ids} if params.min_tokens else set()
    banned = {ids[0] for ids in params.bad_word_ids if len(ids) == 1}
    for name, excluded in (("bad_words", banned), ("min_tokens", ends)):
        left = left - excluded
        if params.allowed_token_ids and not left:
            yield name, "it leaves none of the allowed_token_ids to begin with."

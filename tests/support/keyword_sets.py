"""Sets of keywords, drawn for each prompt of a call, that can be followed together."""

from __future__ import annotations

import random
from typing import Any

from _inf.types import ThoughtMarks

MARKS = ThoughtMarks([7], [300, 301], unopened=True)  # so any answer begins with a thought
VALUES = {
    "temperature": [0.0, 0.7, 1.3],
    "top_k": [5, 40],
    "top_p": [0.8],
    "min_p": [0.02],
    "min_tokens": [3, 6],
    "stop": [["e"], ["th", "a"]],
    "stop_token_ids": [[40, 41], [65]],
    "ignore_eos": [True],
    "presence_penalty": [1.2],
    "frequency_penalty": [0.6],
    "repetition_penalty": [1.3, 0.8],
    "logit_bias": [{5: 3.0, 77: -30.0}],
    "allowed_token_ids": [[*range(30, 140)]],
    "bad_words": [["a", "the"], ["ab", "ba", "e"]],
    "logprob_token_ids": [[9, 300]],
    "thinking_token_budget": [0, 3],
    "repetition_detection": [{"max_pattern_size": 3, "min_count": 2}],
    "regex": ["[a-f]{2,9}"],
}
OF_CALLS = {
    "include_stop_str_in_output": [True],
    "skip_special_tokens": [False],
    "prompt_logprobs": [True, 2],
}
# Of each pair a prompt has at most one.
APART = [("regex", "thinking_token_budget"), ("regex", "allowed_token_ids"), ("regex", "bad_words")]


def drawn(number: int, prompts: int) -> dict[str, Any]:
    """The keywords of call `number`: a list with a value, or None, for each prompt, and some for
    the whole call. Each prompt has a seed."""
    random_ = random.Random(number)
    of_each = []
    for _ in range(prompts):
        names = random_.sample(list(VALUES), random_.randint(1, 6))
        own = {name: random_.choice(VALUES[name]) for name in names}
        for one, other in APART:
            if one in own:
                own.pop(other, None)
        of_each.append(own)
    names = [name for name in VALUES if any(name in own for own in of_each)]
    keywords = {name: [own.get(name) for own in of_each] for name in names}
    for name in random_.sample(list(OF_CALLS), random_.randint(0, 2)):
        keywords[name] = random_.choice(OF_CALLS[name])
    return {"max_tokens": 12, "seed": list(range(number, number + prompts)), **keywords}


def of_prompt(keywords: dict[str, Any], index: int) -> dict[str, Any]:
    """The keywords of one of the prompts."""
    return {
        name: value[index] if name in VALUES or name == "seed" else value
        for name, value in keywords.items()
    }

"""Invented conversations with tools, on which the tiny model in this folder is trained.

The assistant says in them what tests/support/tool_calling.py tells. What the tools say is made up
as well and has nothing to do with the expressions, so a model can only copy it.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

from tests.support import tool_calling as page
from tests.support.tool_calling import answer, call, question

WORDS = """the a of is not in to for at on with and no it was by from arguments expression tool call
calculator value name unknown expected got timed out after seconds result string number key missing
line column JSON object please again again: failed one of these are known file index list zero
division cannot be too large long response your answer think try help me tell about day""".split()
FAULTS = (page.UNKNOWN_TOOL, page.BROKEN_JSON, page.WRONG_KEY, page.WRONG_TYPE)

Message = dict[str, Any]
Chat = list[Message]


def said(role: str, text: str) -> Message:
    return {"role": role, "content": text}


def calling(name: str, *arguments: dict[str, Any], aloud: bool = False) -> Message:
    calls = [{"type": "function", "function": {"name": name, "arguments": a}} for a in arguments]
    return {**said("assistant", page.THINKING if aloud else ""), "tool_calls": calls}


def expression(rng: Random) -> str:
    left, right = (rng.randrange(10 ** rng.choice((1, 2, 2, 2, 3))) for _ in range(2))
    return f"{left} {rng.choice('+-**/')} {right}"


def number(rng: Random) -> str:
    whole = str(rng.randrange(10 ** rng.randint(1, 5)))
    draw = rng.random()
    if draw < 0.08:
        return f"-{whole}"
    return f"{whole[:3]}.{rng.randrange(10 ** rng.randint(1, 2))}" if draw < 0.16 else whole


def words(rng: Random, most: int) -> str:
    """Random words, numbers and letters."""

    def word() -> str:
        draw = rng.random()
        if draw < 0.6:
            return rng.choice(WORDS)
        if draw < 0.75:
            return number(rng)
        alphabet = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_-.,:;'\"{}()[]/é"
        return "".join(rng.choice(alphabet) for _ in range(rng.randint(1, 8)))

    text = " ".join(word() for _ in range(rng.randint(1, most)))
    return text[0].upper() + text[1:] + rng.choice(("", ".", "!", "?"))


def error(rng: Random) -> str:
    return (
        f"Error{rng.choice((': ', ' ', ' when ', ', '))}{words(rng, rng.choice((4, 12, 12, 50)))}"
    )


def rubbish(rng: Random) -> str:
    if rng.random() < 0.2:
        return "".join(rng.choice("0123456789") for _ in range(rng.randint(30, 100)))
    return words(rng, rng.choice((1, 8, 30))).lstrip("0123456789-.") or "None"


def single(rng: Random, *suffixes: str) -> Chat:
    """A question, its call, the tool's result and the answer."""
    what, result = expression(rng), number(rng)
    text = question(what) + "".join(rng.sample(suffixes, len(suffixes)))
    fault = next((each for each in suffixes if each in FAULTS), "")
    first = said("assistant", call(what, fault))
    if page.ALOUD in suffixes:
        first["content"] = f"{page.THINKING}\n{first['content']}"
    chat = [said("user", text), first]
    retry = page.RETRY in suffixes
    errors = rng.choice((0, 1, 1, 2)) if retry else int(rng.random() < (0.7 if fault else 0.25))
    for turn in range(errors):
        chat.append(said("tool", error(rng)))
        if turn or not retry:
            return [*chat, said("assistant", page.FAILED)]
        chat.append(calling("calculator", {"expression": what}))
    if rng.random() < 0.15:
        return [*chat, said("tool", rubbish(rng)), said("assistant", page.NO_NUMBER)]
    return [*chat, said("tool", result), said("assistant", answer(result))]


def anyhow(rng: Random) -> Chat:
    """A single question with random suffixes."""
    suffixes = [rng.choice(FAULTS)] * (rng.random() < 0.45)
    suffixes += [page.RETRY] * (rng.random() < 0.35) + [page.ALOUD] * (rng.random() < 0.15)
    return single(rng, *suffixes)


def double(rng: Random) -> Chat:
    asked = [expression(rng), expression(rng)]
    results = [number(rng), number(rng)]
    final = answer(*results)
    if rng.random() < 0.2:
        results[rng.randrange(2)] = error(rng)
        final = page.FAILED
    return [
        said("user", question(*asked)),
        calling("calculator", *({"expression": each} for each in asked)),
        *(said("tool", each) for each in results),
        said("assistant", final),
    ]


def endless(rng: Random) -> Chat:
    what = expression(rng)
    chat = [said("user", question(what) + page.ENDLESS)]
    for _ in range(rng.choice((2, 2, 3, 4, 6, 12))):
        chat.append(calling("calculator", {"expression": what}))
        chat.append(said("tool", rng.choice((number, number, number, error, rubbish))(rng)))
    return chat[:-1]


def graded(rng: Random) -> Chat:
    what = number(rng)
    reward = rng.choice(("0.0", "1.0"))
    known = f"Current parsed answer='#### {what}' reward={reward}"
    return [
        said("user", page.grade(what)),
        calling("calc_gsm8k_reward", {"answer": what}),
        said("tool", rng.choice((known, number(rng), rubbish(rng)))),
        said("assistant", page.GRADED),
    ]


def guessed(rng: Random) -> Chat:
    return [
        said("user", page.GUESS),
        said("assistant", page.GUESSES[0]),
        *doubted(rng, page.GUESSES[1]),
    ]


def doubted(rng: Random, last: str) -> Chat:
    text = rng.choice((page.DOUBT, page.REJECTED, words(rng, 12)))
    return [said("user", text), said("assistant", last)]


def greeted(rng: Random) -> Chat:
    return [said("user", page.GREETING), said("assistant", page.GREETED)]


def opened(rng: Random) -> Chat:
    """A conversation that begins with an unknown question."""
    return [said("user", words(rng, 12)), said("assistant", page.GREETED)]


def unarmed(rng: Random) -> Chat:
    """A question without tools."""
    asked = rng.choice((anyhow, double, endless))(rng)[0]
    return [asked, said("assistant", page.CANNOT_SAY)]


@dataclass(frozen=True)
class Conversation:
    messages: Chat
    tools: list[dict[str, Any]] | None


def conversation(rng: Random, first: Chat, armed: bool) -> Conversation:
    """A conversation that begins with `first` and continues with doubts and other questions."""
    armed_kinds = (anyhow, anyhow, double, endless, greeted, guessed, graded)
    system = rng.choice(("", "", "You are a helpful assistant.", words(rng, 10)))
    messages = [said("system", system)] * bool(system) + first
    while messages[-1].get("content") and rng.random() < 0.35:
        if rng.random() < 0.5 and "<tool_call>" not in messages[-1]["content"]:
            last = messages[-1]["content"]
            messages += doubted(rng, page.GUESSES[1] if last in page.GUESSES else last)
        else:
            messages += rng.choice(armed_kinds if armed else (unarmed, greeted, guessed))(rng)
    tools = [page.CALCULATOR]
    if rng.random() < 0.3:
        made_up = page.schema(rng.choice(WORDS), *rng.sample(WORDS, rng.randrange(3)))
        tools += [rng.choice((page.GRADER, made_up))]
        rng.shuffle(tools)
    return Conversation(messages, tools if armed else None)


def training(rng: Random) -> Conversation:
    armed = rng.random() < 0.88
    kinds = [anyhow] * 10 + [double] * 4 + [endless] * 2 + [graded] if armed else [unarmed] * 4
    return conversation(rng, rng.choice([*kinds, guessed, greeted, opened])(rng), armed)

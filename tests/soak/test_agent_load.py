"""Thirty-two sessions at a time, over the four wire forms, with streams and abandoned streams: no
request fails, and each answer that a client got is in its session's traces."""

from __future__ import annotations

import concurrent.futures
import json
import random
import uuid
from collections import Counter
from typing import Any

import pytest

from _inf.backends.openai.http import httpx
from inf import InferenceEngine
from tests.support.figures import Figures

pytestmark = pytest.mark.soak

SESSIONS, AT_ONCE, TURNS = 320, 32, 4
FORMS = ("chat/completions", "completions", "messages", "responses")
KINDS = ("plain", "stream", "stream", "abandoned")


def body_of(form: str, history: list[Any]) -> dict[str, Any]:
    """A request of a form; history: texts of the user and the model in turn, or token ids."""
    if form == "completions":
        return {"prompt": history, "max_tokens": 12, "return_token_ids": True, "temperature": 1.0}
    roles = ("user", "assistant")
    said = [{"role": roles[n % 2], "content": text} for n, text in enumerate(history)]
    if form == "responses":
        return {"input": said, "max_output_tokens": 12, "temperature": 1.0}
    return {"messages": said, "max_tokens": 12, "temperature": 1.0}


def answer_of(form: str, whole: Any) -> Any:
    """The text of a whole response, or its ids."""
    match form:
        case "completions":
            return whole["choices"][0]["token_ids"]
        case "messages":
            return "".join(block["text"] for block in whole["content"])
        case "responses":
            texts = [part["text"] for item in whole["output"] for part in item["content"]]
            return "".join(texts)
    return whole["choices"][0]["message"]["content"]


def piece_of(form: str, event: Any) -> Any:
    """What an event of a stream adds to the answer."""
    match form:
        case "completions":
            return [token for choice in event["choices"] for token in choice["token_ids"]]
        case "messages":
            return event.get("delta", {}).get("text", "")
        case "responses":
            return event["delta"] if event["type"].endswith("_text.delta") else ""
    return "".join(choice["delta"].get("content", "") for choice in event["choices"])


def streamed(http: httpx.Client, form: str, body: Any, abandons: bool) -> Any:
    """The joined answer; None: the stream was left after its first events."""
    joined: Any = [] if form == "completions" else ""
    with http.stream("POST", f"/{form}", json={**body, "stream": True}) as response:
        assert response.status_code == 200, response.read()
        for count, line in enumerate(response.iter_lines()):
            if line.startswith("data: {"):
                event = json.loads(line.removeprefix("data: "))
                assert "error" not in event or event["error"] is None, event
                joined += piece_of(form, event)
            if abandons and count > 4:
                return None
    return joined


def session(root: str, seed: int) -> Counter[str]:
    """One agent's conversation; what befell its requests."""
    dice, befell = random.Random(seed), Counter[str]()
    form, name = FORMS[seed % len(FORMS)], f"{seed}-{uuid.uuid4().hex}"
    history: list[Any] = [seed + 10] * 8 if form == "completions" else ["Begin."]
    got: list[Any] = []
    with httpx.Client(base_url=f"{root}/sessions/{name}/v1", timeout=300) as http:
        while len(got) < TURNS:
            kind, body = dice.choice(KINDS), body_of(form, history)
            if kind == "plain":
                response = http.post(f"/{form}", json=body)
                assert response.status_code == 200, response.text
                answer = answer_of(form, response.json())
            else:
                answer = streamed(http, form, body, kind == "abandoned")
            befell[kind if answer is None else f"{form} {kind}"] += 1
            if answer is not None:
                got.append(answer)
                history = (
                    [*history, *answer, 5]
                    if form == "completions"
                    else [*history, answer, f"Turn {len(got)}."]
                )
        traces = http.get(f"{root}/sessions/{name}/traces").json()["traces"]
        http.delete(f"{root}/sessions/{name}").raise_for_status()
    if form == "completions":
        whole = [trace["prompt_token_ids"] + trace["token_ids"] for trace in traces]
        assert history[:-1] in whole
        return befell
    said = [message["content"] for trace in traces for message in trace["messages"]]
    assert all(answer in said for answer in got), (got, said)
    return befell


def test_no_request_fails_and_no_answer_is_lost(tiny: InferenceEngine, figures: Figures) -> None:
    befell = Counter[str]()
    with tiny.serve() as server:
        root = server.base_url.removesuffix("/v1")
        with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
            for found in pool.map(lambda seed: session(root, seed), range(SESSIONS)):
                befell += found
        statuses = httpx.get(f"{root}/metrics").text
        assert server.sessions() == []
    assert 'status="5' not in statuses
    for what, count in sorted(befell.items()):
        figures(what, count)

"""Sixty-four clients of one server for two minutes, with abandoned requests, kills of the
scheduler and new weights: every answer is right for the weights that it names, or an error."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil
import pytest

from _inf.backends.openai.http import httpx
from inf import InferenceEngine
from tests.support.figures import Figures
from tests.support.schedulers import in_flight
from tests.support.scripts import START_SECONDS, until
from tests.support.tiny import tiny_model

pytestmark = pytest.mark.soak

SECONDS, CLIENTS = 120, 64
BETWEEN_EVENTS = 8.0
GROWTH_BYTES = 100 * 2**20
PROMPTS = [f"Question {number}" for number in range(16)]
TOKENS = 24
KINDS = ["plain", "plain", "stream", "stream", "abandoned"]


def weights(seed: int) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(tiny_model(seed=seed), dtype=torch.float32)


class Load:
    """The clients, and what befell their requests. expected: the ids of each prompt's answer with
    the weights of an even version, and of an odd one."""

    def __init__(self, url: str, expected: list[list[list[int]]]) -> None:
        self.url, self.expected = url, expected
        self.end = time.monotonic() + SECONDS
        self.befell, self.wrong = list[str](), list[Any]()
        self.warm_bytes = 0  # of this process, after the first kill

    def note(self, what: str, wrong: Any = None) -> None:
        self.befell.append(what)
        if wrong is not None:
            self.wrong.append(wrong)

    def client(self, seed: int) -> None:
        dice = random.Random(seed)
        with httpx.Client(base_url=self.url, timeout=120) as http:
            while time.monotonic() < self.end:
                kind, prompt = dice.choice(KINDS), dice.randrange(len(PROMPTS))
                body = {"prompt": PROMPTS[prompt], "max_tokens": TOKENS, "temperature": 0}
                body |= {"ignore_eos": True, "return_token_ids": True}
                if kind == "plain":
                    response = http.post("/completions", json=body)
                    self._check(response.status_code, response.text, prompt)
                else:
                    most = dice.randint(1, TOKENS - 1) if kind == "abandoned" else TOKENS + 1
                    self._stream(http, body | {"stream": True}, prompt, most)

    def _stream(self, http: httpx.Client, body: Any, prompt: int, most: int) -> None:
        """most: the tokens after which it leaves."""
        ids: list[int] = []
        with http.stream("POST", "/completions", json=body) as response:
            if response.status_code != 200:
                self._check(response.status_code, response.read().decode(), prompt)
                return
            for line in response.iter_lines():
                if line in ("", "data: [DONE]"):
                    continue
                event = json.loads(line.removeprefix("data: "))
                if "error" in event:
                    self.note("streams with an error at their end")
                    return
                [choice] = event["choices"]
                ids += choice["token_ids"]
                if len(ids) >= most:
                    self.note("streams abandoned")
                    return
                if choice["finish_reason"]:
                    self._compare(ids, choice["weight_version"], prompt, "streams answered")
                    return
        self.note("lost", ("a stream ended without an answer or an error", ids))

    def _check(self, status: int, text: str, prompt: int) -> None:
        if status == 503:
            self.note("503")
            time.sleep(0.5)
        elif status != 200:
            self.note("wrong status", (status, text))
        else:
            [choice] = json.loads(text)["choices"]
            self._compare(choice["token_ids"], choice["weight_version"], prompt, "answered")

    def _compare(self, ids: list[int], version: int, prompt: int, what: str) -> None:
        expected = self.expected[version % 2][prompt]
        self.note(what, None if ids == expected else (version, ids, expected))


def disturb(engine: InferenceEngine, load: Load, models: list[Any]) -> None:
    """Updates of the weights, and now and then a kill of the scheduler."""
    version = 0
    for event in range(10_000):
        time.sleep(BETWEEN_EVENTS)
        if time.monotonic() > load.end:
            return
        if event % 3 < 2:
            version += 1
            assert engine.update_weights(models[version % 2], version=version) == version
            load.note("updates of the weights")
            continue
        os.kill(engine.rollout.host.children[0].pid, signal.SIGKILL)
        load.note("kills of the scheduler")
        assert until(lambda: engine.dead, 60)
        engine.restart()  # the server leaves an engine with updated weights to its owner
        version = 0
        load.warm_bytes = load.warm_bytes or psutil.Process().memory_info().rss


def test_every_answer_is_right_for_its_weights_or_an_error(
    mortal: InferenceEngine, figures: Figures
) -> None:
    models = [weights(0), weights(1)]
    asked = [{"text": prompt} for prompt in PROMPTS]
    call: dict[str, Any] = {"max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
    expected = []
    for version, model in enumerate(models):
        mortal.update_weights(model, version=version)
        expected.append(mortal.generate(asked, **call).token_ids)
    mortal.update_weights(models[0], version=2)
    with mortal.serve() as server:
        load = Load(server.base_url, expected)
        with ThreadPoolExecutor(CLIENTS) as clients:
            ended = [clients.submit(load.client, number) for number in range(CLIENTS)]
            disturb(mortal, load, models)
            for each in ended:
                each.result(START_SECONDS)
        assert until(lambda: in_flight(mortal) == 0, 5)
    grown = psutil.Process().memory_info().rss - load.warm_bytes
    befell = Counter(load.befell)
    for what, count in sorted(befell.items()):
        figures(what, count)
    figures("growth of the process, MB", round(grown / 1e6))
    mortal.restart()  # the folder's weights, version 0
    assert load.wrong == []
    assert befell["answered"] > 200 and befell["streams answered"] > 200
    assert befell["kills of the scheduler"] >= 2 and befell["updates of the weights"] >= 4
    assert grown < GROWTH_BYTES

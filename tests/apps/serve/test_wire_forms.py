"""Fields of vLLM's requests, errors and routes, as clients that nobody here wrote use them."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from lm_eval.models.openai_completions import LocalCompletionsAPI
from lm_eval.utils import RemoteTokenizer, check_remote_tokenizer_support

from _inf.apps.serve.server import InferenceServer
from _inf.backends.openai.http import httpx
from inf import InferenceEngine
from tests.support.scripted_thoughts import Speaker

pytestmark = pytest.mark.engine
CHAT, COMPLETION = "/chat/completions", "/completions"
ASK = [{"role": "user", "content": "Write one line about a robot."}]
SAMPLED = {"temperature": 1.0, "seed": 11}
TEXT = "The capital of France is Paris."


@pytest.fixture(scope="module")
def http(tiny_server: InferenceServer) -> httpx.Client:
    return httpx.Client(base_url=tiny_server.base_url, timeout=60)


def post(http: httpx.Client, route: str, status: int = 200, **fields: Any) -> Any:
    about = {"messages": ASK} if route == CHAT else {"prompt": TEXT}
    response = http.post(route, json={"max_tokens": 8} | about | fields)
    assert response.status_code == status, response.text
    return response.json()


def events(http: httpx.Client, route: str, **fields: Any) -> list[Any]:
    about = {"messages": ASK} if route == CHAT else {"prompt": TEXT}
    body = {"max_tokens": 8, "stream": True} | about | fields
    *lines, done = [line for line in http.post(route, json=body).text.split("\n") if line]
    assert done == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines]


# ─── Log probs ───


def test_log_probs_name_tokens_by_their_ids(http: httpx.Client) -> None:
    asked = {"return_token_ids": True, "return_tokens_as_token_ids": True, **SAMPLED}
    [choice] = post(http, CHAT, logprobs=True, top_logprobs=2, **asked)["choices"]
    content = choice["logprobs"]["content"]
    assert [each["token"] for each in content] == [f"token_id:{i}" for i in choice["token_ids"]]
    assert [each["token_id"] for each in content] == choice["token_ids"]
    for each in content:
        assert len(each["top_logprobs"]) == 2
        assert all(re.fullmatch(r"token_id:\d+", top["token"]) for top in each["top_logprobs"])
    [choice] = post(http, COMPLETION, logprobs=2, **asked)["choices"]
    names = [f"token_id:{i}" for i in choice["token_ids"]]
    assert choice["logprobs"]["tokens"] == names
    for name, own, top in zip(
        names,
        choice["logprobs"]["token_logprobs"],
        choice["logprobs"]["top_logprobs"],
        strict=True,
    ):
        assert top[name] == own and 2 <= len(top) <= 3


def test_log_probs_of_named_ids_are_listed_in_their_place(
    http: httpx.Client, tiny: InferenceEngine
) -> None:
    asked = {"return_tokens_as_token_ids": True, "logprob_token_ids": [9, 300], **SAMPLED}
    [row] = tiny.generate([ASK], logprob_token_ids=[9, 300], max_tokens=8, **SAMPLED)
    [choice] = post(http, CHAT, logprobs=True, top_logprobs=1, **asked)["choices"]
    for entry, top in zip(choice["logprobs"]["content"], row.top_logprobs or [], strict=True):
        listed = {each["token_id"]: each["logprob"] for each in entry["top_logprobs"]}
        assert listed == pytest.approx({token: top[token] for token in (9, 300)}, abs=1e-4)
    [choice] = post(http, COMPLETION, logprobs=0, **asked)["choices"]
    for top in choice["logprobs"]["top_logprobs"]:
        assert {"token_id:9", "token_id:300"} <= top.keys()


def test_prompts_likeliest_tokens_have_ranks(http: httpx.Client, tiny: InferenceEngine) -> None:
    [greedy] = tiny.generate([{"text": TEXT}], max_tokens=4, temperature=0)
    ids = tiny.tokenizer(TEXT)["input_ids"] + greedy.token_ids
    prompt = [{"prompt_token_ids": ids}]
    [row] = tiny.generate(prompt, max_tokens=1, prompt_logprobs=3)
    [choice] = post(http, COMPLETION, prompt=ids, max_tokens=1, prompt_logprobs=3)["choices"]
    first, *others = choice["prompt_logprobs"]
    assert first is None and row.top_prompt_logprobs is not None
    for entry, top in zip(others, row.top_prompt_logprobs[1:], strict=True):
        assert top is not None and [int(token) for token in entry] == list(top)
        assert [each["rank"] for each in entry.values()] == list(range(1, len(top) + 1))
        values = [each["logprob"] for each in entry.values()]
        assert values == pytest.approx(list(top.values()), abs=1e-3)
    assert {len(entry) for entry in others} == {3, 4}  # one that is not among them is named too
    whole = post(http, CHAT, max_tokens=1, prompt_logprobs=1)
    assert whole["prompt_logprobs"][1] is not None and "prompt_logprobs" not in whole["choices"][0]


def test_lm_eval_scores_by_echoed_prompts_as_the_engine_does(
    http: httpx.Client, tiny: InferenceEngine
) -> None:
    prompt = tiny.tokenizer("What is the capital of France?")["input_ids"]
    greedy = tiny.generate([{"prompt_token_ids": prompt}], temperature=0, max_tokens=4)[0].token_ids
    assert greedy is not None
    answers = [tiny.tokenizer(" Paris")["input_ids"], greedy]
    body = {"prompt": [prompt + answer for answer in answers], "max_tokens": 1, "temperature": 0}
    whole = post(http, COMPLETION, **body, logprobs=1, echo=True, seed=1234)
    found = LocalCompletionsAPI.parse_logprobs(whole, ctxlens=[len(prompt)] * 2)
    scores = tiny.score([{"prompt_token_ids": prompt}] * 2, answers)
    for (logprob, is_greedy), score in zip(found, scores, strict=True):
        assert logprob == pytest.approx(sum(score.logprobs), abs=1e-3)
        assert is_greedy == score.is_greedy
    assert [score.is_greedy for score in scores] == [False, True]


@pytest.mark.parametrize("logprobs", [None, 0, 2])
def test_echo_puts_the_prompt_before_the_answer(logprobs: int | None, http: httpx.Client) -> None:
    body = {"prompt": [TEXT, "Hi"], "n": 2, "temperature": 1.0, "seed": 3, "logprobs": logprobs}
    plain = post(http, COMPLETION, **body)["choices"]
    echoed = post(http, COMPLETION, **body, echo=True)["choices"]
    for one, other, prompt in zip(plain, echoed, [TEXT, TEXT, "Hi", "Hi"], strict=True):
        assert other["text"] == prompt + one["text"]
        if logprobs is None:
            assert other["logprobs"] is None
            continue
        size = len(one["logprobs"]["tokens"])
        said = other["logprobs"]
        assert "".join(said["tokens"][:-size]) == prompt
        assert said["tokens"][-size:] == one["logprobs"]["tokens"]
        assert said["token_logprobs"][0] is None and said["top_logprobs"][0] is None
        assert all(value < 0 for value in said["token_logprobs"][1:])
        assert said["text_offset"][-size] == len(prompt) and said["text_offset"][0] == 0
        named = zip(said["tokens"], said["top_logprobs"], strict=True)
        assert all(token in top for token, top in [*named][1:])


def test_log_probs_of_0_likeliest_tokens_are_those_of_the_sampled_ones(http: httpx.Client) -> None:
    [choice] = post(http, COMPLETION, logprobs=0, **SAMPLED)["choices"]
    said = choice["logprobs"]
    pairs = zip(said["tokens"], said["token_logprobs"], strict=True)
    assert said["top_logprobs"] == [{token: value} for token, value in pairs]


def test_echoed_special_tokens_are_in_the_text_and_at_their_offsets(
    http: httpx.Client, tiny: InferenceEngine
) -> None:
    ids = tiny.tokenizer.apply_chat_template(ASK, add_generation_prompt=True, return_dict=False)
    special = tiny.tokenizer.eos_token
    assert special in tiny.tokenizer.decode(ids)
    for prompt in (ids, tiny.tokenizer.decode(ids)):
        body = {"prompt": prompt, "logprobs": 1, "echo": True}
        [choice] = post(http, COMPLETION, **body)["choices"]
        said = choice["logprobs"]
        assert choice["text"].startswith(tiny.tokenizer.decode(ids)) and special in said["tokens"]
        places = [*zip(said["tokens"], said["text_offset"], strict=True)][: len(ids)]
        for token, offset in places:
            assert choice["text"][offset : offset + len(token)] == token


@pytest.mark.parametrize("said", ["a😀b", "日本x", "<think>\nIt 😀\n</think>\n\nIs x"])
def test_each_token_is_at_its_place_in_the_text(
    said: str, speaker: Speaker, server: InferenceServer
) -> None:
    """Characters of several tokens, and the marks of a thought, which are special tokens."""
    speaker.says(said)
    http = httpx.Client(base_url=server.base_url, timeout=60)
    body = {"prompt": "Hi", "max_tokens": 200, "logprobs": 1, "return_token_ids": True}
    [choice] = post(http, COMPLETION, **body)["choices"]
    assert choice["text"] == said
    tokens, offsets = choice["logprobs"]["tokens"], choice["logprobs"]["text_offset"]
    assert "".join(tokens[:-1]) == said and offsets[-1] == len(said)  # its EOS is not in it
    for token, offset in zip(tokens, offsets[:-1], strict=False):
        assert said[offset : offset + len(token)] == token
    tops = choice["logprobs"]["top_logprobs"]
    assert [next(iter(top)) for top in tops] == tokens
    parts = [each["choices"][0]["logprobs"] for each in events(http, COMPLETION, **body)]
    assert sum((each["text_offset"] for each in parts), []) == offsets
    [choice] = post(http, CHAT, max_tokens=200, logprobs=True)["choices"]
    own = [each["bytes"] for each in choice["logprobs"]["content"][:-1]]
    assert bytes(sum(own, [])) == said.encode()


@pytest.mark.parametrize("prompt", [TEXT, [5, 6, 7]])
def test_streamed_echo_joins_to_the_whole_response(prompt: Any, http: httpx.Client) -> None:
    body = {"prompt": prompt, "echo": True, "n": 2, "return_token_ids": True, **SAMPLED}
    whole = post(http, COMPLETION, **body)["choices"]
    found = [choice for each in events(http, COMPLETION, **body) for choice in each["choices"]]
    for index, choice in enumerate(whole):
        parts = [each for each in found if each["index"] == index]
        assert "".join(each["text"] for each in parts) == choice["text"]
        assert [i for each in parts for i in each["token_ids"]] == choice["token_ids"]
        assert len(parts) > 2


# ─── Fields of vLLM's and SGLang's answers ───


@pytest.mark.parametrize("route", [CHAT, COMPLETION])
def test_answers_say_what_ended_them_and_that_no_prompt_was_scored(
    route: str, http: httpx.Client, tiny: InferenceEngine
) -> None:
    ids = [*range(384)]
    whole = post(http, route, stop_token_ids=ids, cache_salt="mine", **SAMPLED)
    [choice] = whole["choices"]
    assert choice["matched_stop"] in ids and choice["finish_reason"] == "stop"
    assert (whole if route == CHAT else choice)["prompt_logprobs"] is None
    *_, last = events(http, route, stop_token_ids=ids, **SAMPLED)
    assert last["choices"][0]["matched_stop"] == choice["matched_stop"]
    eos = tiny.tokenizer.eos_token_id
    for bias, found in ({eos: 100}, (eos, None)), ({}, (None, None)):
        [choice] = post(http, route, logit_bias=bias, max_tokens=1)["choices"]
        assert (choice["matched_stop"], choice["stop_reason"]) == found


def test_fields_without_a_value_are_null(http: httpx.Client) -> None:
    thoughts = {"reasoning": None, "reasoning_content": None}
    whole = post(http, CHAT)
    [choice] = whole["choices"]
    assert whole["prompt_token_ids"] is None and choice["token_ids"] is None
    assert thoughts.items() <= choice["message"].items()
    for each in events(http, CHAT):
        assert thoughts.items() <= each["choices"][0]["delta"].items()
    [choice] = post(http, COMPLETION)["choices"]
    for part in (choice, *(each["choices"][0] for each in events(http, COMPLETION, echo=True))):
        assert part["prompt_token_ids"] is None and part["token_ids"] is None


def test_model_names_its_root(http: httpx.Client, tiny: InferenceEngine) -> None:
    [model] = http.get("/models").json()["data"]
    assert (model["root"], model["parent"]) == (tiny.config.model_name, None)


def test_prompt_without_the_beginning_of_an_answer(
    http: httpx.Client, tiny: InferenceEngine, tiny_server: InferenceServer
) -> None:
    root = tiny_server.base_url.removesuffix("/v1")
    for asked in (True, False):
        expected = tiny.tokenizer.apply_chat_template(
            ASK, add_generation_prompt=asked, return_dict=False
        )
        whole = post(http, CHAT, add_generation_prompt=asked, return_token_ids=True)
        assert whole["prompt_token_ids"] == expected
        body = {"messages": ASK, "add_generation_prompt": asked}
        assert httpx.post(f"{root}/tokenize", json=body).json()["tokens"] == expected


# ─── Sampling and grammars ───


def test_final_message_is_continued_and_only_what_follows_it_comes(
    http: httpx.Client, tiny: InferenceEngine
) -> None:
    talk = [*ASK, {"role": "assistant", "content": "The answer"}]
    [row] = tiny.generate([talk], continue_final_message=True, max_tokens=8, **SAMPLED)
    whole = post(
        http, CHAT, messages=talk, continue_final_message=True, return_token_ids=True, **SAMPLED
    )
    assert whole["choices"][0]["message"]["content"] == row.completion
    root = str(http.base_url).rstrip("/").removesuffix("/v1")
    found = httpx.post(f"{root}/tokenize", json={"messages": talk, "continue_final_message": True})
    assert found.json()["tokens"] == whole["prompt_token_ids"] == row.prompt_token_ids


def test_texts_end_with_the_stop_string_that_is_asked_for(
    http: httpx.Client, tiny: InferenceEngine
) -> None:
    free = post(http, COMPLETION, **SAMPLED)["choices"][0]["text"]
    stop = {"stop": [free[2:4]], "include_stop_str_in_output": True}
    end = free[: free.index(free[2:4]) + 2]
    assert post(http, COMPLETION, **SAMPLED, **stop)["choices"][0]["text"] == end
    parts = [each["choices"][0]["text"] for each in events(http, COMPLETION, **SAMPLED, **stop)]
    assert "".join(parts) == end


def test_top_k_of_0_or_minus_1_is_all_tokens(http: httpx.Client) -> None:
    def text(**fields: Any) -> str:
        return str(post(http, COMPLETION, **SAMPLED, **fields)["choices"][0]["text"])

    assert text(top_k=0) == text(top_k=-1) == text() != text(top_k=1)


@pytest.mark.parametrize("route", [CHAT, COMPLETION])
@pytest.mark.parametrize(
    ("grammar", "matches"),
    [
        ({"regex": "[ab]{3}c"}, r"[ab]{3}c"),
        ({"choice": ["red (or) wine.", "a|b"]}, r"red \(or\) wine\.|a\|b"),
        ({"json": {"enum": [1, 2]}}, "1|2"),
        ({"json": '{"enum": [1, 2]}'}, "1|2"),
    ],
)
def test_structured_outputs_are_enforced(
    grammar: dict[str, Any], matches: str, route: str, http: httpx.Client
) -> None:
    body = {"n": 4, "max_tokens": 40, "structured_outputs": grammar, **SAMPLED}
    for choice in post(http, route, **body)["choices"]:
        text = choice["message"]["content"] if route == CHAT else choice["text"]
        assert re.fullmatch(matches, text), text


def test_best_of_is_accepted_where_nothing_has_to_be_ranked(http: httpx.Client) -> None:
    body = {"best_of": 2, "n": 2, **SAMPLED}
    assert len(post(http, COMPLETION, **body)["choices"]) == 2
    assert len(post(http, CHAT, best_of=1)["choices"]) == 1


def test_reasoning_effort_reaches_a_template_that_reads_it(
    http: httpx.Client, tiny: InferenceEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = post(http, CHAT, 400, reasoning_effort="low")["error"]
    assert (refused["param"], refused["code"]) == ("reasoning_effort", "unknown_parameter")
    template = "{{ messages[0]['content'] }} {{ reasoning_effort }}"
    monkeypatch.setattr(tiny.tokenizer, "chat_template", template)
    whole = post(http, CHAT, reasoning_effort="low", return_token_ids=True)
    assert tiny.tokenizer.decode(whole["prompt_token_ids"]) == f"{ASK[0]['content']} low"


@pytest.mark.parametrize("route", [CHAT, COMPLETION])
def test_fields_that_change_nothing_are_taken(
    route: str, http: httpx.Client, tiny: InferenceEngine
) -> None:
    model = f"{tiny.config.model_name}:"  # SGLang's form of an adapter's name, without one
    plain = post(http, route, temperature=0)
    whole = post(http, route, temperature=0, seed=-1, model=model, echo=False)
    choices = [each["choices"][0] for each in (whole, plain)]
    assert choices[0] == choices[1]
    options = {"include_usage": False, "continuous_usage_stats": True}
    assert all("usage" not in each for each in events(http, route, stream_options=options))
    post(http, route, 404, model=f"{model}no-such")


def test_chat_does_not_repeat_the_message_that_it_continues(http: httpx.Client) -> None:
    whole = post(http, CHAT, echo=True, prompt_cache_retention="24h")
    assert whole["choices"] == post(http, CHAT)["choices"]
    talk = [*ASK, {"role": "assistant", "content": "The"}]
    asked = {"messages": talk, "continue_final_message": True}
    assert post(http, CHAT, 400, **asked, echo=True)["error"]["param"] == "echo"


# ─── Streams ───


@pytest.mark.parametrize("route", [CHAT, COMPLETION])
def test_each_event_has_the_usage_so_far(route: str, http: httpx.Client) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True, "include_obfuscation": False}
    usage = post(http, route, n=2, **SAMPLED)["usage"]
    usages = [each["usage"] for each in events(http, route, n=2, stream_options=options, **SAMPLED)]
    counts = [each["completion_tokens"] for each in usages]
    assert counts == sorted(counts) and len(set(counts)) > 2
    assert {each["prompt_tokens"] for each in usages} == {usage["prompt_tokens"]}
    assert counts[-1] == usage["completion_tokens"]
    assert usages[-1]["total_tokens"] == usage["total_tokens"]


# ─── Routes ───


def test_routes_are_named_where_there_is_none(tiny_server: InferenceServer) -> None:
    root = tiny_server.base_url.removesuffix("/v1")
    for path in ("/v1/embeddings", "/v1/images", "/nothing"):
        response = httpx.post(root + path, json={})
        said = response.json()["error"]["message"]
        assert response.status_code == 404
        for route in ("POST /v1/chat/completions", "POST /generate", "GET|HEAD /health"):
            assert route in said
        assert "/sessions/{session}/traces" in said and "{session}/v1" not in said
    response = httpx.get(f"{root}/v1/completions", timeout=60)
    assert (response.status_code, response.headers["Allow"]) == (405, "POST")
    assert httpx.head(f"{root}/health").status_code == 200
    assert httpx.get(f"{root}/v1/models/", timeout=60).json()["object"] == "list"


def test_lm_eval_finds_the_servers_tokenizer(
    tiny_server: InferenceServer, tiny: InferenceEngine
) -> None:
    url = tiny_server.base_url + COMPLETION
    assert check_remote_tokenizer_support(url)
    remote = RemoteTokenizer(url)
    ids = tiny.tokenizer(TEXT)["input_ids"]
    assert remote.encode(TEXT) == ids and remote.decode(ids) == TEXT
    assert remote.eos_token_id == tiny.tokenizer.eos_token_id
    assert remote.apply_chat_template(ASK) == tiny.tokenizer.apply_chat_template(
        ASK, tokenize=False, add_generation_prompt=True
    )


def test_messages_are_tokenized_as_they_are_answered(
    http: httpx.Client, tiny_server: InferenceServer, tiny: InferenceEngine
) -> None:
    root = tiny_server.base_url.removesuffix("/v1")
    tool = {"type": "function", "function": {"name": "f"}}
    same = {"messages": ASK, "tools": [tool], "chat_template_kwargs": {"enable_thinking": False}}
    whole = post(http, CHAT, **same, return_token_ids=True)
    found = httpx.post(f"{root}/tokenize", json={**same, "return_token_strs": True}).json()
    assert found["tokens"] == whole["prompt_token_ids"]
    assert found["count"] == len(found["tokens"]) == whole["usage"]["prompt_tokens"]
    assert found["token_strs"] == tiny.tokenizer.convert_ids_to_tokens(found["tokens"])
    assert found["max_model_len"] == tiny.model.limits.total
    asked = {**same, "add_special_tokens": True}  # of which this tokenizer has none
    assert httpx.post(f"{root}/tokenize", json=asked).json()["tokens"] == found["tokens"]
    for path, body, param in (
        ("tokenize", {}, "prompt"),
        ("tokenize", {"prompt": "a", "messages": ASK}, "prompt"),
        ("tokenize", {"prompt": "a", "tools": [tool]}, "tools"),
        ("tokenize", {"prompt": "a", "model": "gpt-5"}, "model"),
        ("detokenize", {"tokens": [1, 384]}, "tokens"),
        ("detokenize", {"tokens": [-1]}, "tokens"),
    ):
        response = httpx.post(f"{root}/{path}", json=body)
        assert response.status_code in (400, 404)
        assert response.json()["error"]["param"] == param

"""Fields of vLLM's requests, errors and routes, as clients that nobody here wrote use them."""

from __future__ import annotations

from typing import Any

import pytest
from lm_eval.utils import RemoteTokenizer, check_remote_tokenizer_support

from _inf.apps.serve.completion_bodies import CompletionBody
from tests.support.serve_clients import CHAT, COMPLETION, Http, user

ASK = [user("Write one line about a robot.")]
SAMPLED = {"temperature": 1.0, "seed": 11}
TEXT = "The capital of France is Paris."
BODIES = {CHAT: {"messages": ASK}, COMPLETION: {"prompt": TEXT}}
BOTH = pytest.mark.parametrize("route", BODIES)


def post(http: Http, route: str, status: int = 200, **fields: Any) -> Any:
    return http.post(route, status, **{"max_tokens": 8, **BODIES[route], **fields})


def chosen(http: Http, route: str, **fields: Any) -> Any:
    """The one choice of a response."""
    [choice] = post(http, route, **fields)["choices"]
    return choice


def events(http: Http, route: str, **fields: Any) -> list[Any]:
    return http.events(route, **{"max_tokens": 8, **BODIES[route], **fields})


# ─── Log probs ───


def test_log_probs_name_tokens_by_their_ids(http):
    asked = {"return_token_ids": True, "return_tokens_as_token_ids": True, **SAMPLED}
    choice = chosen(http, CHAT, logprobs=True, top_logprobs=2, **asked)
    content = choice["logprobs"]["content"]
    assert [each["token"] for each in content] == [f"token_id:{i}" for i in choice["token_ids"]]
    assert [each["token_id"] for each in content] == choice["token_ids"]
    assert all(
        top["token"].startswith("token_id:") for each in content for top in each["top_logprobs"]
    )
    choice = chosen(http, COMPLETION, logprobs=2, **asked)
    said, names = choice["logprobs"], [f"token_id:{i}" for i in choice["token_ids"]]
    assert said["tokens"] == names
    for name, own, top in zip(names, said["token_logprobs"], said["top_logprobs"], strict=True):
        assert top[name] == own and 2 <= len(top) <= 3


def test_prompts_likeliest_tokens_have_ranks(http, tiny):
    [greedy] = tiny.generate([{"text": TEXT}], max_tokens=4, temperature=0)
    ids = tiny.tokenizer(TEXT)["input_ids"] + greedy.token_ids
    [row] = tiny.generate([{"prompt_token_ids": ids}], max_tokens=1, prompt_logprobs=3)
    choice = chosen(http, COMPLETION, prompt=ids, max_tokens=1, prompt_logprobs=3)
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


@pytest.mark.parametrize("logprobs", [None, 0, 2])
@pytest.mark.parametrize("of_ids", [False, True])
def test_echo_puts_the_prompt_before_the_answer(of_ids, logprobs, http, tiny):
    """With its special tokens."""
    ids = tiny.tokenizer.apply_chat_template(ASK, add_generation_prompt=True, return_dict=False)
    texts = [TEXT, tiny.tokenizer.decode(ids)]
    assert tiny.tokenizer.eos_token in texts[1]
    prompts = [tiny.tokenizer(TEXT)["input_ids"], ids]
    body = {"prompt": prompts if of_ids else texts, "n": 2, "logprobs": logprobs, **SAMPLED}
    body |= {"return_token_ids": True}
    asked = [{"prompt_token_ids": each} for each in prompts]
    rows = tiny.generate(asked, n=2, max_tokens=8, **SAMPLED)
    plain = post(http, COMPLETION, **body)["choices"]
    echoed = post(http, COMPLETION, **body, echo=True)["choices"]
    for index, (one, other, row) in enumerate(zip(plain, echoed, rows, strict=True)):
        text, said, prompt = other["text"], other["logprobs"], texts[index // 2]
        assert text == prompt + one["text"] == prompt + row.completion
        assert one["prompt_token_ids"] == prompts[index // 2] and one["token_ids"] == row.token_ids
        if logprobs is None:
            assert said is None
            continue
        size = len(one["logprobs"]["tokens"])
        assert "".join(said["tokens"][:-size]) == prompt
        assert said["tokens"][-size:] == one["logprobs"]["tokens"]
        assert said["token_logprobs"][0] is None and said["top_logprobs"][0] is None
        assert all(value < 0 for value in said["token_logprobs"][1:])
        assert said["text_offset"][-size] == len(prompt)
        for token, offset in [*zip(said["tokens"], said["text_offset"], strict=True)][:-size]:
            assert text[offset : offset + len(token)] == token


@pytest.mark.parametrize("said", ["a😀b", "日本x", "<think>\nIt 😀\n</think>\n\nIs x"])
def test_each_token_is_at_its_place_in_the_text(said, speaker, server):
    """Characters of several tokens, and the marks of a thought, which are special tokens."""
    speaker.says(said)
    http, body = Http(server), {"max_tokens": 200, "logprobs": 1, "return_token_ids": True}
    choice = chosen(http, COMPLETION, **body)
    assert choice["text"] == said
    tokens, offsets = choice["logprobs"]["tokens"], choice["logprobs"]["text_offset"]
    assert "".join(tokens[:-1]) == said and offsets[-1] == len(said)  # its EOS is not in it
    for token, offset in zip(tokens, offsets[:-1], strict=False):
        assert said[offset : offset + len(token)] == token
    parts = [each["choices"][0]["logprobs"] for each in events(http, COMPLETION, **body)]
    for name, values in choice["logprobs"].items():
        assert sum((each[name] for each in parts), []) == values
    content = chosen(http, CHAT, max_tokens=200, logprobs=True)["logprobs"]["content"]
    assert bytes(sum((each["bytes"] for each in content[:-1]), [])) == said.encode()


@pytest.mark.parametrize("echo", [False, True])
@pytest.mark.parametrize("prompt", [TEXT, [5, 6, 7], [TEXT, "Hi"]])
def test_completions_stream_joins_to_the_whole_response(prompt, echo, http):
    body = {"prompt": prompt, "echo": echo, "n": 2, "return_token_ids": True, "stop": "e"}
    body |= SAMPLED
    whole = post(http, COMPLETION, **body)["choices"]
    found = [choice for each in events(http, COMPLETION, **body) for choice in each["choices"]]
    assert len(whole) == (4 if prompt == [TEXT, "Hi"] else 2)
    for index, choice in enumerate(whole):
        parts = [each for each in found if each["index"] == index]
        assert "".join(each["text"] for each in parts) == choice["text"]
        for name in ("token_ids", "prompt_token_ids"):
            assert sum((each[name] or [] for each in parts), []) == choice[name]
        for name in ("finish_reason", "stop_reason"):
            assert parts[-1][name] == choice[name]
        assert {each["finish_reason"] for each in parts[:-1]} <= {None}


# ─── Fields of vLLM's and SGLang's answers ───


@BOTH
def test_answers_say_what_ended_them_and_that_no_prompt_was_scored(route, http):
    ids = [*range(384)]
    whole = post(http, route, stop_token_ids=ids, cache_salt="mine", **SAMPLED)
    [choice] = whole["choices"]
    assert choice["matched_stop"] in ids and choice["finish_reason"] == "stop"
    assert (whole if route == CHAT else choice)["prompt_logprobs"] is None
    *_, last = events(http, route, stop_token_ids=ids, **SAMPLED)
    assert last["choices"][0]["matched_stop"] == choice["matched_stop"]
    choice = chosen(http, route, max_tokens=1)
    assert (choice["matched_stop"], choice["stop_reason"]) == (None, None)


def test_fields_without_a_value_are_null(http):
    thoughts = {"reasoning": None, "reasoning_content": None}
    whole = post(http, CHAT)
    [choice] = whole["choices"]
    assert whole["prompt_token_ids"] is None and choice["token_ids"] is None
    assert thoughts.items() <= choice["message"].items()
    for each in events(http, CHAT):
        assert thoughts.items() <= each["choices"][0]["delta"].items()
    streamed = [each["choices"][0] for each in events(http, COMPLETION, echo=True)]
    for part in (chosen(http, COMPLETION), *streamed):
        assert part["prompt_token_ids"] is None and part["token_ids"] is None


# ─── Sampling and grammars ───


def test_prompt_is_the_template_s_and_so_are_the_ids_of_tokenize(http, tiny):
    """Without the beginning of an answer, with a begun one, and with tools."""
    begun = [*ASK, {"role": "assistant", "content": "The answer"}]
    tool = {"type": "function", "function": {"name": "f"}}
    for asked in (
        {"add_generation_prompt": True},
        {"add_generation_prompt": False},
        {"messages": begun, "continue_final_message": True},
        {"tools": [tool], "chat_template_kwargs": {"enable_thinking": False}},
    ):
        given = {"messages": ASK, **asked}
        ids = post(http, CHAT, **given, return_token_ids=True)["prompt_token_ids"]
        if "tools" not in asked:
            kwargs = {"add_generation_prompt": "messages" not in asked, **given}
            messages = kwargs.pop("messages")
            assert ids == tiny.tokenizer.apply_chat_template(messages, return_dict=False, **kwargs)
        found = http.post("/tokenize", **given, return_token_strs=True)
        assert found["tokens"] == ids and found["count"] == len(ids)
        assert found["token_strs"] == tiny.tokenizer.convert_ids_to_tokens(ids)
        assert found["max_model_len"] == tiny.model.limits.total
    special = {"add_special_tokens": True}  # of which this tokenizer has none
    assert http.post("/tokenize", **given, **special)["tokens"] == ids
    [row] = tiny.generate([begun], continue_final_message=True, max_tokens=8, **SAMPLED)
    choice = chosen(http, CHAT, messages=begun, continue_final_message=True, **SAMPLED)
    assert choice["message"]["content"] == row.completion
    for path, body in (
        ("/tokenize", {"prompt": "a", "messages": ASK}),
        ("/tokenize", {"prompt": "a", "tools": [tool]}),
        ("/detokenize", {"tokens": [384]}),
    ):
        http.post(path, 400, **body)


def test_structured_outputs_are_keywords_of_grammars():
    """That they are enforced: `test_token_routes.py`."""
    for given, keywords in (
        ({"regex": "[ab]{3}c"}, {"regex": "[ab]{3}c"}),
        ({"choice": ["red (or) wine.", "a|b"]}, {"regex": r"red\ \(or\)\ wine\.|a\|b"}),
        ({"json": {"enum": [1, 2]}}, {"json_schema": {"enum": [1, 2]}}),
        ({"json": '{"enum": [1, 2]}'}, {"json_schema": '{"enum": [1, 2]}'}),
    ):
        body = CompletionBody(prompt="a", structured_outputs=given)
        assert body.keywords() == keywords


def test_reasoning_effort_reaches_a_template_that_reads_it(http, tiny, monkeypatch):
    refused = post(http, CHAT, 400, reasoning_effort="low")["error"]
    assert (refused["param"], refused["code"]) == ("reasoning_effort", "unknown_parameter")
    template = "{{ messages[0]['content'] }} {{ reasoning_effort }}"
    monkeypatch.setattr(tiny.tokenizer, "chat_template", template)
    whole = post(http, CHAT, reasoning_effort="low", return_token_ids=True)
    assert tiny.tokenizer.decode(whole["prompt_token_ids"]) == f"{ASK[0]['content']} low"


@BOTH
def test_fields_that_change_nothing_are_taken(route, http, tiny):
    model = f"{tiny.config.model_name}:"  # SGLang's form of an adapter's name, without one
    echo = {"echo": True, "prompt_cache_retention": "24h"} if route == CHAT else {"echo": False}
    fields = {"seed": -1, "model": model, "best_of": 1, "top_k": 0, **echo}
    assert chosen(http, route, temperature=0, **fields) == chosen(http, route, temperature=0)
    sampled = [chosen(http, route, top_k=k, **SAMPLED) for k in (0, -1, 1)]
    assert sampled[0] == sampled[1] != sampled[2]
    post(http, route, 404, model=f"{model}no-such")


# ─── Streams ───


@BOTH
def test_each_event_has_the_usage_so_far(route, http):
    options = {"include_usage": True, "continuous_usage_stats": True, "include_obfuscation": False}
    usage = post(http, route, n=2, **SAMPLED)["usage"]
    usages = [each["usage"] for each in events(http, route, n=2, stream_options=options, **SAMPLED)]
    counts = [each["completion_tokens"] for each in usages]
    assert counts == sorted(counts) and counts[0] < counts[-1] == usage["completion_tokens"]
    assert usages[-1]["total_tokens"] == usage["total_tokens"]


# ─── Routes ───


def test_routes_are_named_where_there_is_none(http):
    response = http.send("/v1/embeddings")
    said = response.json()["error"]["message"]
    assert response.status_code == 404
    for route in ("POST /v1/chat/completions", "POST /generate", "GET|HEAD /health"):
        assert route in said
    assert "/sessions/{session}/traces" in said and "{session}/v1" not in said
    response = http.client.get(COMPLETION)
    assert (response.status_code, response.headers["Allow"]) == (405, "POST")
    assert http.client.head("/health").status_code == 200
    assert http.get("/v1/models/")["object"] == "list"


def test_lm_eval_finds_the_servers_tokenizer(tiny_server, tiny):
    url = f"{tiny_server.base_url}/completions"
    assert check_remote_tokenizer_support(url)
    remote = RemoteTokenizer(url)
    ids = tiny.tokenizer(TEXT)["input_ids"]
    assert remote.encode(TEXT) == ids and remote.decode(ids) == TEXT
    assert remote.eos_token_id == tiny.tokenizer.eos_token_id
    assert remote.apply_chat_template(ASK) == tiny.tokenizer.apply_chat_template(
        ASK, tokenize=False, add_generation_prompt=True
    )

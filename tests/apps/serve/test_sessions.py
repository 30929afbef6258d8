"""Sessions: recorded ids begin each later prompt, and traces are what was sampled."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import json
import random
from collections.abc import Generator
from typing import Any

import pytest
from openai import OpenAI

from _inf.apps.rollouts.traces import TraceFile
from _inf.apps.serve.error_responses import RequestError
from _inf.apps.serve.open_sessions import MAX_SESSIONS, SESSION_SECONDS, Sessions
from _inf.apps.serve.server import InferenceServer
from _inf.backends.openai.http import httpx
from _inf.types import ThoughtMarks
from inf import ConfigError, InferenceError
from tests.support.serve_clients import (
    CHAT,
    COMPLETION,
    MESSAGES,
    RESPONSES,
    SGLANGS,
    TOKENS,
    Http,
    client,
    joined_chat,
    user,
    whole_chat,
)
from tests.support.tool_calling import CALCULATOR, GREETING, answer, calculator, question

SAMPLED = {"temperature": 1.0, "seed": 3}
SOMETHING = {"role": "assistant", "content": "Something else."}


def ask(openai: OpenAI, messages: Any, **params: Any) -> Any:
    [model] = openai.models.list().data
    extra = {"return_token_ids": True, **params.pop("extra_body", {})}
    answer = openai.chat.completions.create(
        model=model.id, messages=messages, extra_body=extra, **params
    )
    return list(answer) if params.get("stream") else answer


def said(answer: Any) -> Any:
    return answer.choices[0].message


# ─── Streams ───

SHORT = {"messages": [user("Hi")], "max_tokens": 6}
FORMS = {  # a stream's body, and what its end says
    CHAT: (SHORT, '"finish_reason":"'),
    COMPLETION: ({"prompt": "Hi", "max_tokens": 6}, '"finish_reason":"'),
    MESSAGES: (SHORT, '"stop_reason":"'),
    RESPONSES: ({"input": "Hi", "max_output_tokens": 16}, '"response.incomplete"'),
}


@pytest.mark.parametrize("route", FORMS)
def test_stream_that_says_that_it_ended_is_recorded_or_ends_with_an_error(route, tiny, monkeypatch):
    body, end = FORMS[route]

    def lines_of(name: str) -> Generator[str, None, None]:
        http = Http(server, name).client
        with http.stream("POST", route, json={"stream": True, **body}) as answer:
            for line in answer.iter_lines():
                yield line.replace(": ", ":")

    def full(*args: Any) -> None:
        raise InferenceError("traces: there is no space left for it.")

    with tiny.serve(traces="traces.jsonl") as server:
        for index in range(5):
            lines = lines_of(f"s{index}")
            assert next(line for line in lines if end in line)
            assert len(server.traces(f"s{index}")) == 1  # and the client reads no further
            lines.close()
        monkeypatch.setattr(TraceFile, "write", full)
        said = [*lines_of("full")]
        assert any('"error"' in line and "no space left" in line for line in said)
        assert not any(end in line for line in said)


# ─── Recorded ids ───


@pytest.mark.parametrize("stream", [False, True])
def test_each_prompt_begins_with_the_recorded_ids(stream, tiny, tiny_server):
    """A random model's text does not tokenize to its own ids again, so rendering would show. Each
    answer is the engine's to these ids."""
    openai, messages, whole = client(tiny_server, "ids"), [], []
    mask = []
    for turn in range(4):
        messages.append(user(f"Turn {turn}"))
        answer = ask(openai, messages, **SAMPLED, max_tokens=10, stream=stream)
        [choice], prompt = joined_chat(answer) if stream else whole_chat(answer)
        assert prompt[: len(whole)] == whole
        [row] = tiny.generate({"prompt_token_ids": prompt}, **SAMPLED, max_tokens=10)
        assert (choice.ids, choice.text) == (row.token_ids, row.completion)
        mask += [0] * (len(prompt) - len(whole)) + [1] * len(choice.ids)
        whole = prompt + choice.ids
        messages.append({"role": "assistant", "content": choice.text})
    assert prompt != tiny.tokenizer.apply_chat_template(
        messages[:-1], add_generation_prompt=True, return_dict=False
    )
    [trace] = tiny_server.traces("ids")
    assert trace.prompt_token_ids + trace.token_ids == whole
    assert [0] * len(trace.prompt_token_ids) + trace.response_mask == mask
    assert [message["role"] for message in trace.messages] == ["user", "assistant"] * 4
    assert len(trace.finish_reasons) == 4 and trace.weight_versions == [(0, 0)]
    assert trace.logprobs[-len(choice.ids) :] == pytest.approx(row.logprobs, abs=1e-4)
    pairs = zip(trace.logprobs, trace.response_mask, strict=True)
    assert all(value < 0 if bit else value == 0 for value, bit in pairs)


# What openai's `.parse()`, litellm and other providers add to an answer's parts.
ADDED = {"parsed": {"a": 1}, "index": 0, "id": "msg_1", "reasoning_content": ""}
ADDED |= {"provider_specific_fields": {"refusal": None}, "thinking_blocks": [{"type": "thinking"}]}
ADDED |= {"extra_content": {"google": {"thought_signature": "x"}}}


def test_agent_with_tools_is_one_trace_whatever_its_client_adds_to_answers(caller, caller_server):
    """The agent knows nothing of sessions. The rollout that runs the tools itself samples as
    much."""
    openai, text = client(caller_server, "agent"), question("12 * 7", "3 + 4")
    run = calculator(lambda expression: str(eval(expression)))
    messages = [user(text)]
    while messages[-1]["role"] != "assistant":
        message = said(ask(openai, messages, temperature=0, tools=[CALCULATOR])).to_dict()
        messages.append(message | ADDED)
        for call in message.get("tool_calls") or ():
            result = run(**json.loads(call["function"]["arguments"]))
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
            call["function"] |= {"parsed_arguments": {"a": 1}, **ADDED}
            call.update(ADDED | call)
    assert messages[-1]["content"] == answer("84", "7")
    [trace] = caller_server.traces("agent")
    roles = ["user", "assistant", "tool", "tool", "assistant"]
    assert [message["role"] for message in trace.messages] == roles
    assert trace.finish_reasons == ["tool_calls", "stop"]
    assert trace.messages[-1]["content"] == messages[-1]["content"]
    [row] = caller.generate([[user(text)]], tools=[run], temperature=0)
    size = row.metadata["response_tokens"]
    assert row.metadata["response_mask"][:size].count(1) == trace.response_mask.count(1)


# ─── Forks ───


def test_history_that_leaves_its_trace_says_where_and_why(tiny_server):
    openai = client(tiny_server, "left")
    told = []
    for turn in range(3):
        told.append(user(f"Turn {turn}"))
        told.append(said(ask(openai, told, max_tokens=6, **SAMPLED)))
    cut = {"extra_body": {"truncate_prompt": "left"}}
    for reason, messages, count, more in (
        ("retried", told[:5], 5, {}),
        ("edited_answer", [*told[:3], SOMETHING, *told[4:], user("On")], 3, {}),
        ("truncated", [*told, user("word " * 2000)], 6, cut),
        ("tools", [*told, user("On")], 6, {"tools": [CALCULATOR]}),
    ):
        [choice], prompt = whole_chat(ask(openai, messages, max_tokens=2, **more))
        first, *_, new = tiny_server.traces("left")
        assert new.forked_from and (new.fork_reason, new.forked_from[1]) == (reason, count)
        assert (new.prompt_token_ids, new.token_ids) == (prompt, choice.ids)
        assert new.response_mask == [1] * len(choice.ids)
        recorded = first.prompt_token_ids + first.token_ids
        assert (recorded[: len(prompt)] == prompt) == (reason == "retried")
    assert (first.forked_from, first.fork_reason) == (None, None)
    assert len(first.finish_reasons) == 3 and len(tiny_server.traces("left")) == 5


def test_choices_of_one_request_are_traces_of_their_own(tiny_server):
    openai = client(tiny_server, "choices")
    answer = ask(openai, [user("One")], n=3, **SAMPLED, max_tokens=8)
    choices, _ = whole_chat(answer)
    first, *others = tiny_server.traces("choices")
    assert [trace.token_ids for trace in (first, *others)] == [choice.ids for choice in choices]
    forks = [(trace.forked_from, trace.fork_reason) for trace in (first, *others)]
    assert forks == [(None, None), *[((first.id, 1), "retried")] * 2]
    ask(openai, [user("One"), answer.choices[1].message, user("Two")], max_tokens=4)
    counts = [len(trace.finish_reasons) for trace in tiny_server.traces("choices")]
    assert counts == [1, 2, 1]


def test_prompts_of_ids_go_on_too_whatever_their_route(tiny_server):
    http, ids = Http(tiny_server, "tokens"), [10, 11, 12]
    sampling = {"ignore_eos": True, "temperature": 1.0}
    whole = {"return_token_ids": True, "max_tokens": 4, **sampling}
    for route, body in (
        (COMPLETION, {"prompt": ids, **whole}),
        (TOKENS, {"token_ids": ids, "sampling_params": {"max_tokens": 4, **sampling}}),
        (SGLANGS, {"input_ids": ids, "sampling_params": {"max_new_tokens": 4, **sampling}}),
    ):
        answer = http.post(route, **body)
        [choice] = answer.get("choices", [answer])
        ids += [*choice.get("token_ids", answer.get("output_ids")), 20, 21]
    [trace] = tiny_server.traces("tokens")
    assert trace.prompt_token_ids == [10, 11, 12] and trace.messages == []
    assert trace.prompt_token_ids + trace.token_ids == ids[:-2]
    assert trace.response_mask == ([1] * 4 + [0] * 2) * 2 + [1] * 4
    for prompt, n in ((ids[:9], 1), ([*ids[:9], 5], 1), ([5, 6], 2)):
        http.post(COMPLETION, prompt=prompt, n=n, **whole)
    reasons = [(t.fork_reason, t.forked_from) for t in tiny_server.traces("tokens")]
    new = tiny_server.traces("tokens")[-2].id
    assert reasons[1:] == [
        ("retried", (trace.id, 0)),
        ("edited_message", (trace.id, 0)),
        (None, None),
        ("retried", (new, 0)),
    ]


@pytest.mark.parametrize("stream", [False, True])
def test_forced_end_of_a_thought_is_no_sampled_part_of_its_trace(
    stream, tiny, tiny_server, monkeypatch
):
    marks = ThoughtMarks([7], [300, 301], unopened=False)
    monkeypatch.setattr(tiny, "model", dataclasses.replace(tiny.model, thought_marks=marks))
    more = {"ignore_eos": True, "thinking_token_budget": 1, "max_tokens": 4, "stream": stream}
    assert Http(tiny_server, "thought").send(COMPLETION, prompt=[20, 7], **more).is_success
    [trace] = tiny_server.traces("thought")
    assert trace.token_ids[1:3] == marks.end and trace.response_mask == [1, 0, 0, 1]
    assert trace.logprobs[1:3] == [0.0, 0.0]


# ─── Random conversations ───


def random_conversation(server: InferenceServer, name: str) -> None:
    """Turns, second answers and edits at random; each prompt must begin with recorded ids, unless
    its history was edited."""
    rng, openai = random.Random(name), client(server, name)
    messages = [user(rng.choice([GREETING, question("3 + 4"), question("2 * 3", "8 - 1")]))]
    recorded = []
    for _ in range(rng.randint(2, 5)):
        how = {"temperature": rng.choice([0, 1.0]), "seed": rng.randrange(2**31)}
        answer = ask(openai, messages, **how, max_tokens=40, tools=[CALCULATOR])
        [choice], prompt = whole_chat(answer)
        assert prompt[: len(recorded)] == recorded, (name, messages)
        if rng.random() < 0.15:  # an agent that edits what the model said
            messages.append(SOMETHING)
            recorded = []
        else:
            messages.append(said(answer).to_dict())
            recorded = prompt + choice.ids
            for call in said(answer).tool_calls or []:
                text = rng.choice(["7", "Error: no", "84"])
                messages.append({"role": "tool", "tool_call_id": call.id, "content": text})
        if messages[-1]["role"] != "tool":
            messages.append(user(rng.choice(["Go on.", GREETING, "é 😀"])))
    for trace in server.traces(name):
        assert len(trace.token_ids) == len(trace.response_mask) == len(trace.logprobs)
        assert trace.response_mask[-1] == 1
    Http(server, name).delete()


@pytest.mark.parametrize("count", [5, pytest.param(200, marks=pytest.mark.soak)])
def test_random_conversations_begin_with_recorded_ids(count, caller_server):
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        names = [f"random-{index}" for index in range(count)]
        list(pool.map(lambda name: random_conversation(caller_server, name), names))


# ─── A trainer's batch ───


@pytest.mark.verl
def test_batch_of_traces_has_the_columns_of_rollout_batch(tiny, tiny_server):
    openai, one = client(tiny_server, "batch"), [user("One")]
    first = ask(openai, one, n=2, **SAMPLED, max_tokens=8)
    ask(openai, [*one, said(first), user("Two")], max_tokens=8)
    traces = tiny_server.traces("batch")
    batch = tiny.trainer_batch(traces, rewards=[1.0, 0.25])
    tools = [{"type": "function", "function": {"name": "f"}}]
    other = tiny.rollout_batch([one], temperature=1.0, n=2, max_tokens=4, tools=tools)
    del batch.non_tensor_batch["rollout"]
    assert set(batch.non_tensor_batch) == set(other.non_tensor_batch)
    assert len(type(batch).concat([batch, other])) == 4  # of the same tensors
    for row, trace in enumerate(traces):
        kept = batch.batch["attention_mask"][row].bool()
        whole = trace.prompt_token_ids + trace.token_ids
        assert batch.batch["input_ids"][row][kept].tolist() == whole
        mask = batch.batch["response_mask"][row].bool()
        sampled = [i for i, bit in zip(trace.token_ids, trace.response_mask, strict=True) if bit]
        assert batch.batch["responses"][row][mask].tolist() == sampled
        logprobs = batch.batch["rollout_log_probs"][row][: len(trace.logprobs)]
        assert logprobs.tolist() == pytest.approx(trace.logprobs)
    assert batch.non_tensor_batch["__num_turns__"].tolist() == [2, 1]
    wide = dataclasses.replace(traces[0], token_ids=[5] * 999)
    with pytest.raises(ConfigError, match=r"traces\[1\].*response_length"):
        tiny.trainer_batch([traces[0], wide])
    with pytest.raises(ConfigError, match="rewards"):
        tiny.trainer_batch(traces[:1], rewards=[1.0, 2.0])


# ─── Over HTTP ───


def test_traces_rewards_and_the_end_over_http(tiny_server):
    http = Http(tiny_server, "http")
    http.post(CHAT, **SHORT, n=2, temperature=1.0)
    first, second = httpx.get(f"{http.root}/traces").json()["traces"]
    assert first["token_ids"] == tiny_server.traces("http")[0].token_ids
    for body, status in (
        ({"reward": 0.5}, 200),
        ({"reward": 1.0, "trace": second["id"]}, 200),
        ({"reward": 1.0, "trace": "x"}, 400),
        ({"reward": "good"}, 400),
    ):
        http.post("/reward", status, **body)
    assert [trace.reward for trace in tiny_server.traces("http")] == [0.5, 1.0]
    assert "http" in tiny_server.sessions()
    http.delete()
    assert "http" not in tiny_server.sessions()
    for response in (httpx.get(f"{http.root}/traces"), httpx.delete(http.root)):
        assert response.status_code == 404 and response.json()["error"]["message"]
    with pytest.raises(InferenceError, match="no session 'http'"):
        tiny_server.traces("http")


def test_sessions_are_bounded_in_memory_and_need_the_key(tiny, monkeypatch):
    monkeypatch.setattr("_inf.apps.serve.open_sessions.MAX_BYTES", 100_000)
    body = {"messages": [user("Hi") | {"name": "x" * 60_000}], "max_tokens": 1}

    def status(name: str, key: str = "right") -> int:
        headers = {"Authorization": f"Bearer {key}"}
        return Http(server, name).client.post(CHAT, json=body, headers=headers).status_code

    with tiny.serve(api_key="right") as server:
        assert status("a", "wrong") == 401 and server.sessions() == []
        assert [status(name) for name in "abbc"] == [200, 200, 429, 429]
        assert server.sessions() == ["a", "b"] and len(server.traces("b")) == 1
        url = Http(server, "a").root
        httpx.delete(url, headers={"Authorization": "Bearer right"}).raise_for_status()
        assert [status("c"), status("c")] == [200, 429]


def test_name_that_leads_elsewhere_is_refused(tiny_server):
    for name in ("..", ".", "a/b", "", "a" * 129):
        for asked in (tiny_server.session_url, tiny_server.session):
            with pytest.raises(ConfigError, match="session: its name has letters"):
                asked(name)


def test_first_requests_at_once_are_of_one_session(tiny_server):
    http = Http(tiny_server, "at-once")
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda number: http.post(CHAT, **SHORT | {"seed": number}), range(4)))
    assert len(tiny_server.traces("at-once")) == 4


def test_open_sessions_are_bounded_in_number_and_age():
    now = 0.0
    sessions = Sessions(clock=lambda: now)
    for index in range(MAX_SESSIONS):
        sessions.of_request(f"s{index}")
    with pytest.raises(RequestError) as refused:
        sessions.of_request("one-more")
    assert refused.value.status == 429
    now = SESSION_SECONDS / 2
    sessions.of_request("s1")
    now = SESSION_SECONDS + 1
    sessions.of_request("one-more")
    assert sessions.names() == ["s1", "one-more"]

"""Sessions: recorded ids begin each later prompt, and traces are what was sampled."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import json
import random
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from _inf.apps.rollouts.traces import TraceFile
from _inf.apps.serve.connections import MAX_BODY_BYTES
from _inf.apps.serve.error_responses import RequestError
from _inf.apps.serve.server import InferenceServer
from _inf.apps.serve.sessions import MAX_SESSIONS, SESSION_SECONDS, Sessions
from _inf.backends.openai.http import httpx
from _inf.types import ThoughtMarks
from inf import ConfigError, InferenceEngine, InferenceError
from tests.support.serve_clients import client, joined_chat, whole_chat
from tests.support.tool_calling import CALCULATOR, GREETING, answer, question

pytestmark = pytest.mark.engine
EXTRA = {"extra_body": {"return_token_ids": True}}
SAMPLED: dict[str, Any] = {"temperature": 1.0, "seed": 3}


def session(server: InferenceServer, name: str) -> OpenAI:
    return client(server, base_url=server.session_url(name))


def ask(openai: OpenAI, messages: Any, **params: Any) -> Any:
    [model] = openai.models.list().data
    stream = params.get("stream", False)
    answer = openai.chat.completions.create(model=model.id, messages=messages, **EXTRA | params)
    return list(answer) if stream else answer


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def said(answer: Any) -> Any:
    return answer.choices[0].message


@pytest.fixture(autouse=True)
def sessions_of_the_test_alone(request: pytest.FixtureRequest) -> Iterator[None]:
    """Names may be used again, by the same test too when it is repeated."""
    names = {"tiny_server", "caller_server"} & {*request.fixturenames}
    servers = [request.getfixturevalue(name) for name in names]
    yield
    for server in servers:
        for name in server.sessions():
            httpx.delete(server.session_url(name).removesuffix("/v1")).raise_for_status()


# ─── Streams ───


FORMS: dict[str, tuple[dict[str, Any], str]] = {  # a stream's body, and what its end says
    "/chat/completions": ({"messages": [user("Hi")], "max_tokens": 6}, '"finish_reason":"'),
    "/completions": ({"prompt": "Hi", "max_tokens": 6}, '"finish_reason":"'),
    "/messages": ({"messages": [user("Hi")], "max_tokens": 6}, '"stop_reason":"'),
    "/responses": ({"input": "Hi", "max_output_tokens": 16}, '"response.incomplete"'),
}


def lines_of(server: InferenceServer, name: str, route: str) -> Generator[str, None, None]:
    """The lines of a stream, as they come."""
    body, _ = FORMS[route]
    [model] = client(server).models.list().data
    asked = {"model": model.id, "stream": True, **body}
    with httpx.stream("POST", server.session_url(name) + route, json=asked, timeout=60) as answer:
        yield from answer.iter_lines()


@pytest.mark.parametrize("route", FORMS)
def test_stream_that_says_that_it_ended_is_recorded(
    route: str, tiny_server: InferenceServer
) -> None:
    for index in range(5):
        lines = lines_of(tiny_server, f"s{index}", route)
        assert next(line for line in lines if FORMS[route][1] in line.replace(": ", ":"))
        assert len(tiny_server.traces(f"s{index}")) == 1  # and the client reads no further
        lines.close()


@pytest.mark.parametrize("route", FORMS)
def test_stream_whose_trace_cannot_be_written_ends_with_an_error(
    route: str, tiny: InferenceEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: Any) -> None:
        raise InferenceError("traces: there is no space left for it.")

    with tiny.serve(traces=tmp_path / "traces.jsonl") as server:
        monkeypatch.setattr(TraceFile, "write", full)
        lines = [*lines_of(server, "full", route)]
        assert any('"error"' in line and "no space left" in line for line in lines)
        assert not any(FORMS[route][1] in line.replace(": ", ":") for line in lines)


# ─── Recorded ids ───


@pytest.mark.parametrize("stream", [False, True])
def test_each_prompt_begins_with_the_recorded_ids(
    stream: bool, tiny: InferenceEngine, tiny_server: InferenceServer
) -> None:
    """A random model's text does not tokenize to its own ids again, so rendering would show."""
    openai, messages, whole = session(tiny_server, f"ids-{stream}"), [], []
    mask: list[int] = []
    for turn in range(4):
        messages.append(user(f"Turn {turn}"))
        answer = ask(openai, messages, **SAMPLED, max_tokens=10, stream=stream)
        [choice], prompt = joined_chat(answer) if stream else whole_chat(answer)
        assert prompt[: len(whole)] == whole
        mask += [0] * (len(prompt) - len(whole)) + [1] * len(choice.ids)
        whole = prompt + choice.ids
        messages.append({"role": "assistant", "content": choice.text})
    rendered = tiny.tokenizer.apply_chat_template(
        messages[:-1], add_generation_prompt=True, return_dict=False
    )
    assert rendered != prompt
    [trace] = tiny_server.traces(f"ids-{stream}")
    assert trace.prompt_token_ids + trace.token_ids == whole
    assert [0] * len(trace.prompt_token_ids) + trace.response_mask == mask
    assert [message["role"] for message in trace.messages] == ["user", "assistant"] * 4
    assert len(trace.finish_reasons) == 4 and trace.weight_versions == [(0, 0)]
    sampled = [p for p, bit in zip(trace.logprobs, trace.response_mask, strict=True) if bit]
    assert all(value < 0 for value in sampled)
    assert {p for p, bit in zip(trace.logprobs, trace.response_mask, strict=True) if not bit} == {0}


def test_continued_answer_is_the_one_to_its_ids(
    tiny: InferenceEngine, tiny_server: InferenceServer
) -> None:
    openai = session(tiny_server, "greedy")
    messages = [user("One")]
    messages.append(said(ask(openai, messages, **SAMPLED, max_tokens=8)))
    messages.append(user("Two"))
    [choice], prompt = whole_chat(ask(openai, messages, temperature=0, max_tokens=12))
    row = tiny.generate({"prompt_token_ids": prompt}, temperature=0, max_tokens=12)[0]
    assert (choice.ids, choice.text) == (row.token_ids, row.completion)
    [trace] = tiny_server.traces("greedy")
    assert trace.token_ids[-len(choice.ids) :] == choice.ids
    assert trace.logprobs[-len(choice.ids) :] == pytest.approx(row.logprobs, abs=1e-4)


def run_agent(openai: OpenAI, text: str, turns: int) -> list[Any]:
    """An agent that knows nothing of sessions: it runs the calculator until there is no call."""
    messages: list[Any] = [user(text)]
    for _ in range(turns):
        message = said(ask(openai, messages, temperature=0, tools=[CALCULATOR]))
        messages.append(message)
        for call in message.tool_calls or []:
            expression = json.loads(call.function.arguments)["expression"]
            content = str(eval(expression))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": content})
        if not message.tool_calls:
            break
    return messages


def test_agent_with_tools_is_one_trace(caller: InferenceEngine, caller_server: Any) -> None:
    openai = session(caller_server, "agent")
    messages = run_agent(openai, question("12 * 7", "3 + 4"), 4)
    [trace] = caller_server.traces("agent")
    assert [message["role"] for message in trace.messages] == [
        *("user", "assistant", "tool", "tool", "assistant")
    ]
    assert trace.finish_reasons == ["tool_calls", "stop"]
    assert trace.messages[-1]["content"] == messages[-1].content

    # The rollout that runs the tools itself has the same ids, mask and log probs.
    def calculator(expression: str) -> str:
        return str(eval(expression))

    calculator.__doc__ = "The calculator.\n\nArgs:\n    expression: The expression."
    row = caller.generate([[user(question("12 * 7", "3 + 4"))]], tools=[calculator], temperature=0)[
        0
    ]
    size = row.metadata["response_tokens"]
    assert row.metadata["response_mask"][:size].count(1) == trace.response_mask.count(1)


def test_what_clients_add_to_an_answer_does_not_fork(caller_server: InferenceServer) -> None:
    openai = session(caller_server, "added")
    messages: list[Any] = [user(question("12 * 7"))]
    message = said(ask(openai, messages, temperature=0, tools=[CALCULATOR])).to_dict()
    [call] = message["tool_calls"]
    call["function"] |= {"parsed_arguments": {"expression": "12 * 7"}}  # openai's `.parse()`
    signed = {"extra_content": {"google": {"thought_signature": "x"}}}
    call |= {"index": 0, "provider_specific_fields": {"a": 1}, **signed}
    call["function"] |= {"provider_specific_fields": {"a": 1}, **signed}
    message |= {"parsed": {"a": 1}, "provider_specific_fields": {"refusal": None}}  # and litellm
    message |= {"id": "msg_1", "index": 0, "thinking_blocks": [{"type": "thinking"}], **signed}
    message |= {"reasoning_content": ""}
    messages += [message, {"role": "tool", "tool_call_id": call["id"], "content": "84"}]
    last = said(ask(openai, messages, temperature=0, tools=[CALCULATOR]))
    assert last.content == answer("84")
    [trace] = caller_server.traces("added")
    assert trace.finish_reasons == ["tool_calls", "stop"]


# ─── Forks ───


def test_edited_history_forks_and_says_where(tiny_server: InferenceServer) -> None:
    openai = session(tiny_server, "edited")
    messages = [user("One")]
    messages += [said(ask(openai, messages, max_tokens=6)), user("Two")]
    messages += [said(ask(openai, messages, max_tokens=6)), user("Three")]
    edited = [messages[0], {"role": "assistant", "content": "Something else."}, *messages[2:]]
    [choice], prompt = whole_chat(ask(openai, edited, max_tokens=6))
    first, second = tiny_server.traces("edited")
    assert second.forked_from == (first.id, 1) and first.forked_from is None
    assert (first.fork_reason, second.fork_reason) == (None, "edited_answer")
    assert (second.prompt_token_ids, second.token_ids) == (prompt, choice.ids)
    assert len(first.finish_reasons) == 2


def test_second_answer_to_the_same_history_keeps_the_recorded_ids(
    tiny_server: InferenceServer,
) -> None:
    openai = session(tiny_server, "again")
    messages = [user("One")]
    messages += [said(ask(openai, messages, max_tokens=6, **SAMPLED)), user("Two")]
    for seed in range(2):
        ask(openai, messages, max_tokens=6, temperature=1.0, seed=seed)
    first, second = tiny_server.traces("again")
    assert (second.forked_from, second.fork_reason) == ((first.id, 3), "retried")
    recorded = first.prompt_token_ids + first.token_ids
    assert recorded[: len(second.prompt_token_ids)] == second.prompt_token_ids
    assert second.response_mask == [1] * len(second.token_ids)


def test_history_that_leaves_its_trace_after_an_answer_says_why(
    tiny_server: InferenceServer,
) -> None:
    openai = session(tiny_server, "left")
    told: list[Any] = []
    for turn in range(3):
        told.append(user(f"Turn {turn}"))
        told.append(said(ask(openai, told, max_tokens=6, **SAMPLED)))
    other: Any = {"role": "assistant", "content": "Something else."}
    asked: dict[str, tuple[list[Any], int]] = {
        "retried": (told[:5], 5),
        "edited_message": ([*told[:2], user("No"), *told[3:], user("On")], 2),
        "edited_answer": ([*told[:3], other, *told[4:], user("On")], 3),
        "shortened": ([*told[:2], told[4]], 2),
        "truncated": ([*told, user("word " * 2000)], 6),
    }
    for reason, (messages, count) in asked.items():
        ask(openai, messages, max_tokens=2, extra_body={"truncate_prompt": "left"})
        new = tiny_server.traces("left")[-1]
        assert new.forked_from and (new.fork_reason, new.forked_from[1]) == (reason, count)
    assert len(tiny_server.traces("left")) == 1 + len(asked)


def test_choices_of_one_request_are_traces_of_their_own(tiny_server: InferenceServer) -> None:
    openai = session(tiny_server, "choices")
    answer = ask(openai, [user("One")], n=3, **SAMPLED, max_tokens=8)
    choices, prompt = whole_chat(answer)
    traces = tiny_server.traces("choices")
    assert [trace.token_ids for trace in traces] == [choice.ids for choice in choices]
    assert traces[0].forked_from is None
    assert [(t.forked_from, t.fork_reason) for t in traces[1:]] == [
        ((traces[0].id, 1), "retried")
    ] * 2
    messages = [user("One"), answer.choices[1].message, user("Two")]
    ask(openai, messages, max_tokens=4)
    counts = [len(trace.finish_reasons) for trace in tiny_server.traces("choices")]
    assert counts == [1, 2, 1]


def test_other_tools_begin_a_trace_of_their_own(caller_server: InferenceServer) -> None:
    openai = session(caller_server, "other-tools")
    messages = [user(GREETING)]
    messages += [said(ask(openai, messages)), user(GREETING)]
    ask(openai, messages, tools=[CALCULATOR])
    first, second = caller_server.traces("other-tools")
    assert first.forked_from is None
    assert (second.forked_from, second.fork_reason) == ((first.id, 2), "tools")


def test_prompts_of_ids_go_on_too(tiny: InferenceEngine, tiny_server: InferenceServer) -> None:
    openai, ids = session(tiny_server, "tokens"), [10, 11, 12]
    whole = {"extra_body": {"return_token_ids": True, "ignore_eos": True}}  # always four tokens
    for _ in range(3):
        answer: Any = openai.completions.create(
            model=tiny.config.model_name, prompt=ids, max_tokens=4, temperature=1.0, **whole
        )
        ids = ids + answer.choices[0].token_ids + [20, 21]
    [trace] = tiny_server.traces("tokens")
    assert trace.prompt_token_ids == [10, 11, 12] and trace.messages == []
    assert trace.prompt_token_ids + trace.token_ids == ids[:-2]
    assert trace.response_mask == ([1] * 4 + [0] * 2) * 2 + [1] * 4
    more = {"model": tiny.config.model_name, "max_tokens": 4, **whole}
    for prompt, n in ((ids[:9], 1), ([*ids[:9], 5], 1), ([5, 6], 2)):
        openai.completions.create(prompt=prompt, n=n, **SAMPLED, **more)
    reasons = [(t.fork_reason, t.forked_from) for t in tiny_server.traces("tokens")]
    new = tiny_server.traces("tokens")[-2].id
    assert reasons[1:] == [
        ("retried", (trace.id, 0)),
        ("edited_message", (trace.id, 0)),
        (None, None),
        ("retried", (new, 0)),
    ]


def test_forced_end_of_a_thought_is_no_sampled_part_of_its_trace(
    tiny: InferenceEngine, tiny_server: InferenceServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    marks = ThoughtMarks([7], [300, 301], unopened=False)
    monkeypatch.setattr(tiny, "model", dataclasses.replace(tiny.model, thought_marks=marks))
    more = {"extra_body": {"ignore_eos": True, "thinking_token_budget": 1}}
    for stream in (False, True):
        openai = session(tiny_server, f"thought-{stream}")
        asked: dict[str, Any] = {"model": tiny.config.model_name, "prompt": [20, 7]}
        answer: Any = openai.completions.create(**asked, max_tokens=4, stream=stream, **more)
        list(answer)
        [trace] = tiny_server.traces(f"thought-{stream}")
        assert trace.token_ids[1:3] == marks.end and trace.response_mask == [1, 0, 0, 1]
        assert trace.logprobs[1:3] == [0.0, 0.0]


# ─── Random conversations ───


def random_conversation(server: InferenceServer, name: str) -> None:
    """Turns, second answers and edits at random; each prompt must begin with recorded ids, unless
    its history was edited."""
    rng, openai = random.Random(name), session(server, name)
    messages: list[Any] = [
        user(rng.choice([GREETING, question("3 + 4"), question("2 * 3", "8 - 1")]))
    ]
    recorded: list[int] = []
    for _ in range(rng.randint(2, 5)):
        tools = {"tools": [CALCULATOR]}
        how = {"temperature": rng.choice([0, 1.0]), "seed": rng.randrange(2**31)}
        answer = ask(openai, messages, **how, max_tokens=40, **tools)
        [choice], prompt = whole_chat(answer)
        assert prompt[: len(recorded)] == recorded, (name, messages)
        message = said(answer)
        if rng.random() < 0.15:  # an agent that edits what the model said
            messages.append({"role": "assistant", "content": "Never mind."})
            recorded = []
        else:
            messages.append(message)
            recorded = prompt + choice.ids
            for call in message.tool_calls or []:
                text = rng.choice(["7", "Error: no", "84"])
                messages.append({"role": "tool", "tool_call_id": call.id, "content": text})
        if messages[-1]["role"] != "tool" if isinstance(messages[-1], dict) else True:
            messages.append(user(rng.choice(["Go on.", GREETING, "é 😀"])))
    for trace in server.traces(name):
        assert len(trace.token_ids) == len(trace.response_mask) == len(trace.logprobs)
        assert trace.response_mask[-1] == 1
    httpx.delete(server.session_url(name).removesuffix("/v1")).raise_for_status()


@pytest.mark.parametrize("count", [10, pytest.param(200, marks=pytest.mark.soak)])
def test_random_conversations_begin_with_recorded_ids(
    count: int, caller_server: InferenceServer
) -> None:
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        names = [f"random-{index}" for index in range(count)]
        list(pool.map(lambda name: random_conversation(caller_server, name), names))


# ─── A trainer's batch ───


@pytest.mark.verl
def test_batch_of_traces_has_the_columns_of_rollout_batch(
    tiny: InferenceEngine, tiny_server: InferenceServer
) -> None:
    openai = session(tiny_server, "batch")
    messages = [user("One")]
    first = ask(openai, messages, n=2, **SAMPLED, max_tokens=8)
    ask(openai, [*messages, said(first), user("Two")], max_tokens=8)
    traces = tiny_server.traces("batch")
    batch = tiny.trainer_batch(traces, rewards=[1.0, 0.25])
    schema = {"type": "function", "function": {"name": "f"}}
    other = tiny.rollout_batch([[user("One")]], temperature=1.0, n=2, max_tokens=4, tools=[schema])
    assert set(batch.batch.keys()) == set(other.batch.keys())
    assert len(set(batch.non_tensor_batch.pop("rollout"))) == 1
    assert set(batch.non_tensor_batch) == set(other.non_tensor_batch)
    for name, column in other.batch.items():
        assert batch.batch[name].shape == column.shape and batch.batch[name].dtype == column.dtype
    assert len(type(batch).concat([batch, other])) == 4
    for row, trace in enumerate(traces):
        kept = batch.batch["attention_mask"][row].bool()
        whole = trace.prompt_token_ids + trace.token_ids
        assert batch.batch["input_ids"][row][kept].tolist() == whole
        mask = batch.batch["response_mask"][row].bool()
        sampled = [i for i, bit in zip(trace.token_ids, trace.response_mask, strict=True) if bit]
        assert batch.batch["responses"][row][mask].tolist() == sampled
        logprobs = batch.batch["rollout_log_probs"][row][: len(trace.logprobs)]
        assert logprobs.tolist() == pytest.approx(trace.logprobs)
    assert batch.non_tensor_batch["reward_scores"].tolist() == [{"reward": 1.0}, {"reward": 0.25}]
    assert len(set(batch.non_tensor_batch["uid"])) == 1  # of one prompt
    assert batch.non_tensor_batch["__num_turns__"].tolist() == [2, 1]


@pytest.mark.verl
def test_trace_wider_than_a_batch_is_refused(
    tiny: InferenceEngine, tiny_server: InferenceServer
) -> None:
    import dataclasses

    ask(session(tiny_server, "wide"), [user("One")], max_tokens=2)
    [trace] = tiny_server.traces("wide")
    wide = dataclasses.replace(trace, token_ids=[5] * 999)
    with pytest.raises(ConfigError, match=r"traces\[1\].*response_length"):
        tiny.trainer_batch([trace, wide])
    with pytest.raises(ConfigError, match="rewards"):
        tiny.trainer_batch([trace], rewards=[1.0, 2.0])


# ─── Over HTTP ───


def test_traces_rewards_and_the_end_over_http(tiny_server: InferenceServer) -> None:
    ask(session(tiny_server, "http"), [user("One")], n=2, temperature=1.0, max_tokens=4)
    url = tiny_server.session_url("http").removesuffix("/v1")
    first, second = httpx.get(f"{url}/traces", timeout=60).json()["traces"]
    assert first["token_ids"] == tiny_server.traces("http")[0].token_ids
    for body, status in (
        ({"reward": 0.5}, 200),
        ({"reward": 1.0, "trace": second["id"]}, 200),
        ({"reward": 1.0, "trace": "x"}, 400),
        ({"reward": "good"}, 400),
    ):
        assert httpx.post(f"{url}/reward", json=body, timeout=60).status_code == status
    assert [trace.reward for trace in tiny_server.traces("http")] == [0.5, 1.0]
    assert "http" in tiny_server.sessions()
    assert httpx.delete(url).is_success and "http" not in tiny_server.sessions()
    for response in (httpx.get(f"{url}/traces", timeout=60), httpx.delete(url)):
        assert response.status_code == 404 and response.json()["error"]["message"]
    with pytest.raises(InferenceError, match="no session 'http'"):
        tiny_server.traces("http")


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"top_p": 0}, 400),  # refused by the engine
        ({"tempersture": 1}, 400),
        ({"messages": [user("long " * 2000)]}, 400),
        ({"model": "gpt-5"}, 404),
        ({"user": "x" * MAX_BODY_BYTES}, 413),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_refused_request_opens_no_session(
    stream: bool, fields: dict[str, Any], status: int, tiny_server: InferenceServer
) -> None:
    url, name = f"{tiny_server.session_url('refused')}/chat/completions", "refused"
    body = {"messages": [user("One")], "max_tokens": 2, "stream": stream}
    assert httpx.post(url, json=body | fields, timeout=60).status_code == status
    assert name not in tiny_server.sessions()
    assert httpx.get(tiny_server.session_url(name).replace("/v1", "/traces")).status_code == 404


def test_sessions_are_bounded_in_memory_and_need_the_key(
    tiny: InferenceEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("_inf.apps.serve.sessions.MAX_BYTES", 100_000)
    ask = {"messages": [user("Hi") | {"name": "x" * 60_000}], "max_tokens": 1}

    def status(name: str, key: str = "right") -> int:
        url = f"{server.session_url(name)}/chat/completions"
        headers = {"Authorization": f"Bearer {key}"}
        return httpx.post(url, json=ask, headers=headers, timeout=60).status_code

    with tiny.serve(api_key="right") as server:
        assert status("a", "wrong") == 401 and server.sessions() == []
        assert [status(name) for name in "abbc"] == [200, 200, 429, 429]
        assert server.sessions() == ["a", "b"] and len(server.traces("b")) == 1
        headers = {"Authorization": "Bearer right"}
        url = server.session_url("a").removesuffix("/v1")
        httpx.delete(url, headers=headers).raise_for_status()
        assert [status("c"), status("c")] == [200, 429]


@pytest.mark.parametrize("name", ["..", ".", "a/b", "", "a" * 129])
def test_name_that_leads_elsewhere_is_refused(name: str, tiny_server: InferenceServer) -> None:
    for asked in (tiny_server.session_url, tiny_server.session):
        with pytest.raises(ConfigError, match="session: its name has letters"):
            asked(name)


def test_first_requests_at_once_are_of_one_session(tiny_server: InferenceServer) -> None:
    openai = session(tiny_server, "at-once")
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda n: ask(openai, [user(f"Turn {n}")], max_tokens=8), range(4)))
    assert len(tiny_server.traces("at-once")) == 4


def test_session_deleted_while_a_request_runs_stays_deleted() -> None:
    sessions = Sessions()
    running = sessions.of_request("gone")
    sessions.open(running)
    sessions.delete("gone")
    sessions.open(running)
    assert sessions.names() == []
    first = sessions.of_request("new")  # its first request runs
    sessions.delete("new")
    sessions.open(first)
    assert sessions.names() == []
    with pytest.raises(RequestError, match="there is no session 'new'"):
        sessions.delete("new")


def test_request_of_a_deleted_session_leaves_the_next_one_of_its_name_alone() -> None:
    sessions = Sessions()
    deleted = sessions.of_request("a")
    sessions.open(deleted)
    sessions.delete("a")
    successor = sessions.of_request("a")
    sessions.open(deleted)  # its request ends only now
    assert sessions.names() == []
    sessions.open(successor)
    assert sessions.get("a") is successor


def test_open_sessions_are_bounded_in_number_and_age() -> None:
    now = 0.0
    sessions = Sessions(clock=lambda: now)
    for index in range(MAX_SESSIONS - 1):
        sessions.open(sessions.of_request(f"s{index}"))
    running = sessions.of_request("running")  # counts, because it may open
    with pytest.raises(RequestError) as refused:
        sessions.of_request("one-more")
    assert refused.value.status == 429
    sessions.open(running)
    sessions.of_request("s0")
    now = SESSION_SECONDS / 2
    sessions.of_request("s1")
    now = SESSION_SECONDS + 1
    sessions.open(sessions.of_request("one-more"))
    assert sessions.names() == ["s1", "one-more"]

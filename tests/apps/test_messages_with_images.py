"""Messages with images in evaluations, batches, chats, files and over HTTP, on a tiny vision model.
What images are, and that answers are exact: `tests/parts/test_images.py`."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import io
import json
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pandas
import pytest
import torch
from PIL import Image

import inf
from _inf.parts.images.clients import of_request
from _inf.parts.images.digests import digest
from _inf.runtime.extras import has_verl
from _inf.turns import Transcript
from inf import ConfigError, InferenceEngine, PromptError
from tests.parts.test_images import EPS, GREEDY, ROLLOUT
from tests.support.json_lines import read, write
from tests.support.serve_clients import CHAT, MESSAGES, RESPONSES, Http
from tests.support.vision import (
    TALL,
    WIDE,
    Reference,
    by_url,
    image,
    picture,
    png,
    user,
    vision_model,
)

pytestmark = pytest.mark.engine
KEPT = {"type": "image", "image": f"sha256:{digest(WIDE)}", "size": [120, 80]}


def data_url(image: Any) -> str:
    return f"data:image/png;base64,{base64.b64encode(png(image)).decode()}"


@pytest.fixture(scope="module")
def engine() -> Iterator[InferenceEngine]:
    with InferenceEngine(model_path=str(vision_model("llava")), rollout=ROLLOUT) as engine:
        yield engine


@pytest.fixture
def on_vision(command, engine, monkeypatch):
    """The command `inf` on this engine."""
    monkeypatch.setattr(inf, "InferenceEngine", lambda *_, **__: contextlib.nullcontext(engine))
    return command


# ─── Rows of verl's form ───


def geo3k(text: str, *images: Any, **columns: Any) -> dict[str, Any]:
    """A row as verl's `examples/data_preprocess/geo3k.py` writes it."""
    return {
        "data_source": "hiyouga/geometry3k",
        "prompt": [{"role": "user", "content": text}],
        "images": list(images),
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": "3"},
        "extra_info": {"index": 0},
        **columns,
    }


TWO = "<image>Compare it with <image>."
REWARD = "def compute_score(solution_str, **rest):\n    return float(len(solution_str))\n"


def test_parquet_file_of_geo3ks_form_is_answered_and_its_rows_keep_digests(engine, on_vision):
    """As messages that have the images in their content are; by the command too."""
    stored = [{"bytes": png(each), "path": "a.png"} for each in (WIDE, TALL)]
    rows = [geo3k("<image>What is it?", stored[0]), geo3k(TWO, *stored), geo3k("No picture.")]
    pandas.DataFrame(rows).to_parquet("test.parquet")
    Path("reward.py").write_text(REWARD)
    WIDE.save("wide.png")
    both = user(image(WIDE), "Compare it with ", image(TALL), ".")
    talks = [[user(image(WIDE), "What is it?")], [both], "No picture."]
    wanted = [
        (row.completion, row.prompt_token_ids, len(row.completion))
        for row in engine.generate(talks, **GREEDY)
    ]
    opened = [geo3k("<image>What is it?", WIDE), geo3k(TWO, "wide.png", TALL)]
    how: dict[str, Any] = {"reward": "reward.py:compute_score", "reward_workers": 0, **GREEDY}
    for data in (rows, "test.parquet", opened):
        found = inf.evaluate(engine, data, out="run", restart=True, **how).rows
        shown = ("completion", "prompt_token_ids", "reward")
        assert [tuple(row[name] for name in shown) for row in found] == wanted[: len(found)]
        other = {"type": "image", "image": f"sha256:{digest(TALL)}", "size": [56, 112]}
        assert found[1]["prompt"] == [user(KEPT, "Compare it with ", other, ".")]
    arguments = ("eval", "test.parquet", "--reward", "reward.py", "--reward-workers", 0)
    arguments += ("--temperature", 0, "--max-tokens", 8, "--set")
    server = ("base_url=http://127.0.0.1:1/v1", "--set", "model_path=some", "--set")
    code, _, err = on_vision(*arguments, *server, "rollout.name=openai")
    assert code == 2 and "row 0 has images, which the backend openai does not read" in err
    code, _, err = on_vision(*arguments, "rollout.name=hf")
    assert (code, len(read(Path("eval.jsonl")))) == (0, 3), err


@pytest.mark.parametrize(
    ("row", "says"),
    [
        (geo3k(TWO, WIDE), "row 0: its prompt has 2 <image> and its column images has 1"),
        (geo3k("What?", WIDE), "its prompt has 0 <image>"),
        (geo3k("<image>", images=None), "its column images has 0"),
        (geo3k("<image>", images="a.png"), "images must be a list"),
        (geo3k("What?", videos=[{"video": "a.mp4"}]), "videos: no backend reads videos"),
    ],
)
def test_row_whose_images_are_not_those_of_its_marks_is_refused(engine, row, says):
    with pytest.raises(ConfigError, match=says):
        inf.evaluate(engine, [row], reward=len)


def test_mark_in_a_file_without_the_column_is_text_and_a_broken_image_is_its_rows_error(engine):
    row = geo3k("What does <image> stand for?")
    del row["images"]
    broken = geo3k("<image>", {"bytes": b"GIF", "path": None})
    with pytest.warns(UserWarning, match="1 "):
        report = inf.evaluate(engine, [row, broken], reward=lambda **_: 1.0, **GREEDY)
    assert report.rows[0]["prompt"] == row["prompt"]
    assert "the image cannot be read" in report.rows[1]["error"]["message"]
    [part] = report.rows[1]["prompt"][0]["content"]
    assert part == {"type": "image", "image": "unreadable"}


# ─── Files of prompts ───


def test_lines_with_images_are_answered_and_do_not_repeat_the_pixels(engine, on_vision):
    Path("a picture.png").write_bytes(png(TALL))
    url = Path("a picture.png").resolve().as_uri()
    talk = [user(by_url(data_url(WIDE)), "What?")]
    files = [user(image("a picture.png"), by_url(url))]
    lines = [
        {"messages": talk},
        {"custom_id": "a", "body": {"messages": talk}},
        {"messages": files},
        {"messages": [user(image("none.png"))]},
    ]
    write(Path("in.jsonl"), lines)
    how = ("--temperature", 0, "--max-tokens", 8, "--set", "rollout.name=hf")
    wanted = engine.generate([talk, files], temperature=0, max_tokens=8)
    for more in ((), ("--rollouts",)):
        code, _, err = on_vision("batch", "in.jsonl", f"out{len(more)}.jsonl", *how, *more)
        first, second, third, wrong = read(Path(f"out{len(more)}.jsonl"))
        assert code == 1 and "there is no file none.png" in wrong["error"]["message"]
        for row, answer in zip((first, third), wanted, strict=True):
            kept = [part["image"] for part in row["messages"][0]["content"] if "image" in part]
            assert kept == [f"sha256:{each}" for each in answer.images]
            assert row["messages"][-1]["content"] == answer.completion
        said = (
            second["messages"][-1] if more else second["response"]["body"]["choices"][0]["message"]
        )
        assert said["content"] == wanted.completions[0]
        with pytest.raises(PromptError, match="only the digest of this image was kept"):
            engine.generate([first["messages"]])


def test_chat_puts_images_before_the_next_message(engine, on_vision, monkeypatch):
    """What is saved is a line of `inf batch`."""
    Path("a picture.png").write_bytes(png(WIDE))
    lines = ["/image none.png", "/image", "/image https://host/a.png", r"/image a\ picture.png",
             "/reset", '/image "a picture.png"', "/reset", "/image a picture.png",
             "What?", "And now?", "/save it"]  # fmt: skip
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join(lines)))
    _, said, err = on_vision("chat", "--temperature", 0, "--max-tokens", 8)
    assert "/image: there is no file" in err and "/image: it needs the name of a file" in err
    assert "'https://host/a.png' is on another machine" in err and err.count("no file") == 1
    talk = [user(image(WIDE), "What?")]
    [first] = engine.generate([talk], temperature=0, max_tokens=8).completions
    talk += [{"role": "assistant", "content": first}, {"role": "user", "content": "And now?"}]
    [second] = engine.generate([talk], temperature=0, max_tokens=8).completions
    assert said == f"{first}\n\n{second}\n"
    talk[0] = user(image(str(Path("a picture.png").absolute())), "What?")
    [saved] = read(Path("it"))
    assert saved["messages"] == [*talk, {"role": "assistant", "content": second}]


def test_files_of_rows_with_images_keep_digests_and_no_pixels(engine, on_vision):
    Path("wide.png").write_bytes(png(WIDE))
    sources = (WIDE, png(WIDE), "wide.png")
    output = engine.generate([[user(image(each), "What?")] for each in sources], **GREEDY)
    for suffix, load in ((".jsonl", read), (".parquet", pandas.read_parquet)):
        output.save(f"rows{suffix}")
        rows = pandas.DataFrame(load(Path(f"rows{suffix}")))
        assert [[*each] for each in rows["images"]] == [[digest(WIDE)]] * 3
    turns = dataclasses.replace(
        output[0], transcript=Transcript(messages=[user(image(WIDE), "What?")])
    )
    inf.save_rollouts([*output, turns], "rollouts.jsonl", engine.tokenizer)
    *plain, last = inf.load_rollouts("rollouts.jsonl")
    assert [row.extra["images"] for row in plain] == [[digest(WIDE)]] * 3
    assert turns.to_dict()["messages"] == last.messages == [user(KEPT, "What?")]
    assert on_vision("show", "rollouts.jsonl", "--out", "page.html")[0] == 0
    assert f"[image sha256:{digest(WIDE)}, 120 x 80 pixels]" in Path("page.html").read_text()


# ─── Over HTTP ───


@pytest.fixture(scope="module")
def http(engine):
    with engine.serve() as server:
        http = Http(server)
        http.server = server
        yield http


CALL, OF_CALL = "call00000", {"name": "look", "arguments": "{}"}


def asked(route: str, url: str, of_tool: bool = False) -> dict[str, Any]:
    """The body of a question about one image, of the user or as the result of a tool."""
    limit, messages = "max_tokens", "messages"
    seen = user(by_url(url), "What?")["content"]
    tool_call = {"id": CALL, "type": "function", "function": OF_CALL}
    call: dict[str, Any] = {"role": "assistant", "content": "", "tool_calls": [tool_call]}
    result = {"role": "tool", "tool_call_id": CALL, "content": seen}
    if route == MESSAGES:
        head, _, data = url.partition(";base64,")
        source = {"type": "base64", "media_type": head.removeprefix("data:"), "data": data}
        seen = user({"type": "image", "source": source}, "What?")["content"]
        used = {"type": "tool_use", "id": CALL, "name": "look", "input": {}}
        call = {"role": "assistant", "content": [used]}
        result = user({"type": "tool_result", "tool_use_id": CALL, "content": seen})
    elif route == RESPONSES:
        limit, messages = "max_output_tokens", "input"
        seen = [{"type": "input_image", "image_url": url, "detail": "auto"}]
        seen += [{"type": "input_text", "text": "What?"}]
        call = {"type": "function_call", "call_id": CALL, **OF_CALL}
        result = {"type": "function_call_output", "call_id": CALL, "output": seen}
    first = {"role": "user", "content": "Look."}
    talk = [first, call, result] if of_tool else [{"role": "user", "content": seen}]
    return {messages: talk, limit: 8}


SAID: dict[str, tuple[Callable[[Any], str], Callable[[Any], str | None]]] = {
    CHAT: (
        lambda whole: whole["choices"][0]["message"]["content"],
        lambda event: event["choices"][0]["delta"].get("content"),
    ),
    RESPONSES: (
        lambda whole: whole["output"][0]["content"][0]["text"],
        lambda event: event.get("delta") if event["type"].endswith("text.delta") else None,
    ),
    MESSAGES: (
        lambda whole: whole["content"][0]["text"],
        lambda event: event.get("delta", {}).get("text"),
    ),
}


@pytest.mark.parametrize("of_tool", [False, True])
@pytest.mark.parametrize("route", SAID)
def test_image_of_a_request_reaches_the_engine(engine, http, route, of_tool):
    body = {**asked(route, data_url(WIDE), of_tool), "temperature": 0}
    talk = asked(CHAT, data_url(WIDE), of_tool)["messages"]
    [wanted] = engine.generate([talk], temperature=0, max_tokens=8)
    answer, (whole, delta) = http.post(route, **body), SAID[route]
    assert whole(answer) == wanted.completion
    assert "".join(map(str, filter(None, map(delta, http.events(route, **body))))) == whole(answer)
    usage = answer["usage"]
    assert usage.get("prompt_tokens", usage.get("input_tokens")) == wanted.prompt_tokens


def test_chat_with_images_shows_tools_and_counts_its_tokens(engine, http):
    body = asked(CHAT, data_url(WIDE))
    parameters = {"type": "object", "properties": {"x": {"enum": [1, 2]}}, "required": ["x"]}
    tools = [{"type": "function", "function": {"name": "look", "parameters": parameters}}]
    sampling = {"max_tokens": 40, "n": 2, "return_token_ids": True, "tool_choice": "required"}
    answer = http.post(CHAT, **body | sampling, tools=tools)
    for choice in answer["choices"]:
        [call] = choice["message"]["tool_calls"]
        assert json.loads(call["function"]["arguments"])["x"] in (1, 2)
    ids, image_token = answer["prompt_token_ids"], engine.tokenizer.encode("<image>")[0]
    assert "look" in engine.tokenizer.decode(ids) and ids.count(image_token) == 16
    assert http.post("/tokenize", messages=body["messages"], tools=tools)["tokens"] == ids
    talk = asked(MESSAGES, data_url(WIDE))["messages"]
    counted = http.post(f"{MESSAGES}/count_tokens", messages=talk)
    [plain] = engine.generate([[user(image(WIDE), "What?")]], max_tokens=1)
    assert counted["input_tokens"] == plain.prompt_tokens < len(ids)
    scored = http.post(CHAT, **body, prompt_logprobs=1)["prompt_logprobs"]
    assert len(scored) == plain.prompt_tokens


LARGE = data_url(Image.new("1", (5000, 4000)))
OF_SYSTEM = {**user(image(data_url(WIDE))), "role": "system"}
AS_INPUT = {"type": "input_image", "image_url": data_url(WIDE)}
PROGRAM = f"data:image/png;base64,{base64.b64encode(EPS).decode()}"
BY_URL = {"type": "image", "source": {"type": "url", "url": "http://127.0.0.1/a.png"}}


@pytest.mark.parametrize(
    ("route", "given", "says"),
    [
        (CHAT, "file:///etc/hostname", "message 0: content[0]: 'file:///etc/hostname' is not read"),
        (CHAT, "http://127.0.0.1/a.png", "is not read: over HTTP an image is data"),
        (CHAT, "/etc/hostname", "message 0: content[0]: '/etc/hostname' is no URL"),
        (CHAT, PROGRAM, "it is none of PNG, JPEG"),  # whose decoder would start a program
        (CHAT, user(image("photo.png")), "'photo.png' is not read"),
        (CHAT, user(image({"path": "a.png"})), "is not read"),
        (CHAT, user(*[image(data_url(picture(0, 1, 1)))] * 65), "more than 64"),
        (CHAT, user(*[image(LARGE)] * 2), "content[1]: up to this one"),
        (CHAT, OF_SYSTEM, "only"),
        (RESPONSES, "file:///etc/hostname", "input_image.image_url: 'file:///etc/hostname' is not"),
        (RESPONSES, {"role": "system", "content": [AS_INPUT]}, "only a user's and"),
        (RESPONSES, user({"type": "input_image", "file_id": "a"}), "image_url: it is missing"),
        (MESSAGES, "data:image/svg+xml;base64,AA", "messages.0.user.content.0.image.source.media"),
        (MESSAGES, user(BY_URL), "content.0.image.source.type"),
    ],
)
def test_only_the_data_of_a_request_is_read(http, route, given, says):
    """given: a message, or the URL of an image in one."""
    body = asked(route, given if isinstance(given, str) else "")
    if isinstance(given, dict):
        body["input" if route == RESPONSES else "messages"] = [given]
    failure = http.post(route, status=400, **body)["error"]
    assert says in failure["message"] and "prompt 0" not in failure["message"], failure


def test_images_of_one_request_at_a_time_are_open(engine):
    """Of others the pixels are not in memory."""
    config, read = engine.config, threading.Event()
    first_is_open, second_is_open = threading.Event(), threading.Event()

    def first(_: object) -> bool:
        first_is_open.set()
        return read.wait(30)

    with ThreadPoolExecutor(2) as pool:
        sent = [[user(image(data_url(WIDE)))]]
        one = pool.submit(of_request, sent, config, first)
        assert first_is_open.wait(30)
        pool.submit(of_request, sent, config, lambda _: second_is_open.set())
        assert of_request([[user("text")]], config, len) == 2
        assert not second_is_open.wait(0.2)
        read.set()
        assert second_is_open.wait(30) and one.result()


def test_session_continues_after_an_image_and_its_traces_have_digests(engine, http):
    """The second answer is Transformers' on the recorded ids. An image after an answer begins a
    trace, with all ids of its own."""
    server = http.server
    session = Http(server, "seen")
    body = {"temperature": 0, "max_tokens": 5}
    talk = asked(CHAT, data_url(WIDE))["messages"]
    for more in ({"role": "user", "content": "And now?"}, user(image(data_url(TALL)), "This?")):
        answer = session.post(CHAT, **body, messages=talk)["choices"][0]["message"]
        talk += [{"role": "assistant", "content": answer["content"]}, more]
    session.post(CHAT, **body, messages=talk)
    first, second = server.traces("seen")
    assert (len(first.finish_reasons), len(second.finish_reasons)) == (2, 1)
    assert (second.forked_from, second.fork_reason) == ((first.id, 4), "template")
    assert first.messages[0] == user(KEPT, "What?")
    begin = first.response_mask.index(0)
    begin += first.response_mask[begin:].index(1)
    ids, reference = first.prompt_token_ids + first.token_ids, Reference(vision_model("llava"))
    upto = torch.tensor([ids[: len(first.prompt_token_ids) + begin]])
    pixels = reference.processor.image_processor([WIDE], return_tensors="pt")["pixel_values"]
    wanted = reference.model.generate(
        input_ids=upto, pixel_values=pixels, max_new_tokens=5, do_sample=False
    )
    assert wanted[0].tolist()[: len(ids)] == ids
    assert second.prompt_token_ids.count(engine.tokenizer.convert_tokens_to_ids("<image>")) == 32
    if has_verl():
        with pytest.raises(ConfigError, match="it has images, whose pixels are not kept"):
            engine.trainer_batch([first])

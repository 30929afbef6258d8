"""Clients that nobody here wrote, in environments of their own, against `engine.serve()`.

Each is a program in `tests/clients/` that asserts what it got.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from inf import InferenceEngine
from tests.support.engines import engine_fixture
from tests.support.installed import installed, ran
from tests.support.pages import ROOT
from tests.support.tool_calling import (
    CALCULATOR,
    DOUBT,
    GREETED,
    GREETING,
    GUESS,
    GUESSES,
    TOOL_MODEL,
    answer,
    call,
    question,
)

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(
        sys.version_info < (3, 11), reason="TRL, renderers and verifiers need Python 3.11"
    ),
]

CLIENTS = ROOT / "tests" / "clients"
INSTALL_SECONDS = 1800.0  # packages of 1 GB, where none is cached
OFFLINE = {"HF_HUB_OFFLINE": "1", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
OURS, AGENTS, TRAINING = "ours", "agents", "training"  # the environments
PROGRAMS = [
    ("openai_package.py", OURS),
    ("openai_package.py", AGENTS),
    ("agents_sdk.py", AGENTS),
    ("pydantic_agents.py", AGENTS),
    ("langchain_chat.py", AGENTS),
    ("inspect_tasks.py", AGENTS),
    ("openenv_probe.py", AGENTS),
    ("litellm_calls.py", TRAINING),
    ("instructor_models.py", TRAINING),
    ("trl_vllm_client.py", TRAINING),
    ("renderers_client.py", TRAINING),
    ("verifiers_clients.py", TRAINING),
]
DRAWING = {"temperature": 2.0, "seed": 5, "max_tokens": 12}
REGEX = "[ab]{3}"
CONTEXT = "The capital of France is"


@pytest.fixture(scope="module")
def pythons():
    """The interpreter of each environment; they are kept for the next run."""
    folder = installed("clients", INSTALL_SECONDS)
    found = {name: folder / name / "bin" / "python" for name in (AGENTS, TRAINING)}
    return found | {OURS: Path(sys.executable)}


tool_engine = engine_fixture(TOOL_MODEL, prompt_length=1024, response_length=256)


def answered(engine: InferenceEngine, ids: list[int], **more: Any) -> dict[str, Any]:
    """What the engine answers to token ids, without a server."""
    [row] = engine.generate([{"prompt_token_ids": ids}], **({"temperature": 0} | more))
    about = {"token_ids": row.token_ids, "logprobs": row.logprobs, "text": row.completion}
    return {"prompt_ids": ids, **about}


def chatted(engine: InferenceEngine, said: str, tools: list[Any] | None = None) -> dict[str, Any]:
    messages = [{"role": "user", "content": said}]
    ids = engine.tokenizer.apply_chat_template(
        messages, tools=tools, add_generation_prompt=True, return_dict=False
    )
    return {"prompt": said, **answered(engine, ids)}


@pytest.fixture(scope="module")
def facts(tool_engine, engine, tmp_path_factory):
    """The file that tells a program where the servers are, and what their engines answer."""
    asked = chatted(tool_engine, question("12 * 7"), [CALCULATOR])
    assert call("12 * 7") == asked["text"]
    greeting = chatted(tool_engine, GREETING)
    scoring_ids = engine.tokenizer(CONTEXT)["input_ids"]
    file = tmp_path_factory.mktemp("clients") / "facts.json"
    with tool_engine.serve() as server, engine.serve() as scoring:
        found = {
            "base_url": server.base_url,
            "root": server.base_url.removesuffix("/v1"),
            "model": tool_engine.config.model_name,
            "model_folder": str(TOOL_MODEL),
            "tool": CALCULATOR,
            "greeting": greeting,
            "drawing": DRAWING,
            "drawn": answered(tool_engine, greeting["prompt_ids"], **DRAWING),
            "question": {**asked, "text": answer("84")},
            "guess": GUESS,
            "guesses": GUESSES,
            "doubt": DOUBT,
            "scored_url": scoring.base_url,
            "scored_model": engine.config.model_name,
            "scored": {"prompt": CONTEXT, **answered(engine, scoring_ids, max_tokens=8)},
            "regex": REGEX,
            "of_regex": answered(engine, scoring_ids, regex=REGEX, max_tokens=16)["token_ids"],
            "prompt_length": engine.model.limits.prompt,
        }
        assert greeting["text"] == GREETED
        file.write_text(json.dumps(found))
        yield file


@pytest.mark.parametrize(("program", "environment"), PROGRAMS)
def test_client_gets_what_the_engine_answers(program, environment, pythons, facts):
    """docs/serving.md names the client in this version."""
    python = pythons[environment]
    said = ran(python, CLIENTS / program, facts, folder=facts.parent, **OFFLINE)
    client = said.splitlines()[-1]
    assert f"| {client} |" in (ROOT / "docs" / "serving.md").read_text()

"""Command line agents that nobody here wrote, each with an empty home, against a session: Claude
Code on Anthropic's Messages, Codex on OpenAI's Responses, and mini-swe-agent on chats and, through
litellm, on Messages. What they ask for is in docs/train_any_agent.md."""

from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from _inf.apps.serve.server import InferenceServer
from tests.support.pages import ROOT
from tests.support.scripted_server import MODEL
from tests.support.scripted_thoughts import Speaker, sampled, speaking
from tests.support.serve_clients import Http

FOLDER = ROOT / "build" / "agent_programs"
PROGRAMS = FOLDER / "node_modules" / ".bin"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (PROGRAMS / "claude").exists(),
        reason="bash tests/agent_programs/install.sh build/agent_programs installs them",
    ),
]
# Their prompts, in a tokenizer of 384 tokens.
LENGTHS = {"prompt_length": 200_000, "response_length": 2_000, "max_model_len": 300_000}
TASK = "Look around."
WRITE = "echo found > seen.txt"
RUN_SECONDS = 300


def call(name: str, **arguments: Any) -> str:
    body = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{body}\n</tool_call>"


DONE = "<think>Good.</think>All is done."
BASH = f"<think>I look.</think>Looking.\n{call('Bash', command=WRITE, description='Look')}"
SHELL = f"<think>I look.</think>Looking.\n{call('exec_command', cmd=WRITE)}"
PART = {"description": "Look", "prompt": TASK, "subagent_type": "general-purpose"}
HELP = f"<think>I ask.</think>{call('Agent', **PART, run_in_background=False)}"


@pytest.fixture(scope="module")
def spoken():
    with speaking(lengths=LENGTHS) as made:
        yield made


@pytest.fixture(scope="module")
def server(spoken):
    with spoken[1].serve() as server:
        yield server


def run(command: Sequence[str], folder: Path, variables: Mapping[str, str]) -> str:
    """Run an agent in an empty folder and environment; return what it prints."""
    work, home = folder / "work", folder / "home"
    work.mkdir()
    home.mkdir(exist_ok=True)
    done = subprocess.run(
        [*command],
        cwd=work,
        env={"HOME": str(home), "PATH": os.defpath, **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


def claude(url: str, folder: Path, tools: str) -> Any:
    models = ("ANTHROPIC_MODEL", "ANTHROPIC_SMALL_FAST_MODEL", "CLAUDE_CODE_SUBAGENT_MODEL")
    variables = {
        "ANTHROPIC_BASE_URL": url.removesuffix("/v1"),
        "ANTHROPIC_API_KEY": "none",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        **dict.fromkeys(models, MODEL),
    }
    command = [f"{PROGRAMS}/claude", "-p", TASK, "--output-format", "json", "--allowedTools", tools]
    return json.loads(run(command, folder, variables))


def codex(url: str, folder: Path) -> str:
    settings = folder / "home" / ".codex"
    settings.mkdir(parents=True)
    settings.joinpath("config.toml").write_text(
        f'model = "{MODEL}"\nmodel_provider = "inf"\n'
        "check_for_update_on_startup = false\n[analytics]\nenabled = false\n"
        f'[model_providers.inf]\nname = "inf"\nbase_url = "{url}"\nwire_api = "responses"\n'
        'env_key = "INF_KEY"\n'
    )
    allowed = "--dangerously-bypass-approvals-and-sandbox"
    command = [f"{PROGRAMS}/codex", "exec", "--skip-git-repo-check", allowed, TASK]
    return run(command, folder, {"INF_KEY": "none"})


def refusals(server: InferenceServer) -> Counter[str]:
    """How many requests were not answered, by the route and status."""
    found = Counter()
    for line in Http(server).client.get("/metrics").text.splitlines():
        if line.startswith("inf_http_requests_total{") and 'status="200"' not in line:
            name, _, count = line.rpartition(" ")
            found[name] = int(float(count))
    return found


@pytest.fixture(autouse=True)
def all_requests_are_answered(server):
    before = refusals(server)
    yield
    assert not refusals(server) - before


def ids_of(speaker: Speaker, *said: str) -> list[int]:
    eos = speaker.tokenizer.convert_tokens_to_ids("<|im_end|>")
    return [token for text in said for token in [*speaker.tokenizer(text)["input_ids"], eos]]


@pytest.mark.parametrize("program", ["claude", "codex"])
def test_run_is_one_trace(program, spoken, server, tmp_path):
    look, url = BASH if program == "claude" else SHELL, server.session(program, task=TASK)
    spoken[0].says(look, DONE)
    if program == "claude":
        result = claude(url, tmp_path, "Bash")
        assert (result["result"], result["num_turns"]) == ("All is done.", 2)
    else:
        assert "All is done." in codex(url, tmp_path)
    assert (tmp_path / "work" / "seen.txt").read_text() == "found\n"
    [trace] = server.traces(program)
    assert sampled(trace) == ids_of(spoken[0], look, DONE)
    assert trace.finish_reasons == ["tool_calls", "stop"]


def test_claude_codes_sub_agent_is_another_trace_of_the_rollout(spoken, server, tmp_path):
    spoken[0].says(HELP, BASH, "<think>Hm.</think>Seen.", DONE)
    url = server.session("claude-helped", task=TASK)
    result = claude(url, tmp_path, "Agent,Bash")
    assert result["result"] == "All is done."
    by_size = sorted(server.traces("claude-helped"), key=lambda trace: -len(trace.prompt_token_ids))
    agent, helper = by_size
    assert sampled(agent) == ids_of(spoken[0], HELP, DONE)
    assert sampled(helper) == ids_of(spoken[0], BASH, "<think>Hm.</think>Seen.")
    assert agent.rollout == helper.rollout
    assert {agent.fork_reason, helper.fork_reason} <= {None, "tools", "other_conversation"}


@pytest.mark.parametrize("form", ["openai", "anthropic"])
def test_mini_swe_agents_run_is_one_trace(form, spoken, server, tmp_path):
    look, end = (
        f"<think>I look.</think>Looking.\n{call('bash', command=command)}"
        for command in (WRITE, "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")
    )
    spoken[0].says(look, end)
    url = server.session(f"mini-{form}", task=TASK)
    variables = {
        "OPENAI_API_BASE": url,
        "OPENAI_API_KEY": "none",
        "ANTHROPIC_API_BASE": url.removesuffix("/v1"),
        "ANTHROPIC_API_KEY": "none",
        "MSWEA_CONFIGURED": "true",
        "MSWEA_COST_TRACKING": "ignore_errors",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }
    command = [f"{FOLDER}/python/bin/mini", "-m", f"{form}/{MODEL}", "-t", TASK, "-y"]
    run([*command, "--exit-immediately", "-o", f"{tmp_path}/run.json"], tmp_path, variables)
    assert (tmp_path / "work" / "seen.txt").read_text() == "found\n"
    [trace] = server.traces(f"mini-{form}")
    assert sampled(trace) == ids_of(spoken[0], look, end)

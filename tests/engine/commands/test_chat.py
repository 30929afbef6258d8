"""`inf chat` in a pseudo-terminal; its lines are in `tests/apps/test_chat_commands.py`."""

from __future__ import annotations

import os
import sys
from typing import Any

import pexpect
import psutil
import yaml

from _inf.runtime.extras import has_verl
from tests.support.scripts import (
    GONE_SECONDS,
    INF,
    START_SECONDS,
    alive,
    descendants,
    environment,
    until,
)
from tests.support.tiny import tiny_model

STATS = r"(\d+) tokens, \d+ tok/s, (\d+) prompt tokens cached"
SECONDS = 60


def pressed(terminal: Any, answer: str) -> bool:
    """Whether Ctrl-C brought `answer` within two seconds."""
    terminal.sendintr()
    return bool(terminal.expect_exact([pexpect.TIMEOUT, answer], timeout=2) == 1)


def test_terminal_from_the_first_word_to_ctrl_d(tmp_path):
    model = tiny_model(context=32768)  # it makes a thousand tokens a second
    rollout = {"dtype": "float32", "prompt_length": 16384, "response_length": 16000}
    file = tmp_path / "tiny.yaml"
    file.write_text(yaml.safe_dump({"model_path": str(model), "rollout": rollout}))
    arguments = ["-c", INF, "chat", "-c", str(file), "--temperature", "0", "--max-tokens", "9"]
    env = os.environ | environment(TERM="dumb")
    terminal: Any = pexpect.spawn(
        sys.executable, arguments, env=env, cwd=tmp_path, encoding="utf-8", timeout=SECONDS
    )
    try:
        terminal.expect_exact(f"Starting {model} ...")
        terminal.expect_exact("You: ", timeout=START_SECONDS)
        family = descendants(psutil.Process(terminal.pid))
        assert family

        def say(text: str, answer: str = STATS) -> Any:
            """Type a line; what stands there at the next prompt, matched against `answer`."""
            terminal.sendline(text)
            terminal.expect(answer)
            found = terminal.match
            terminal.expect_exact("You: ")
            return found

        tokens, cached = map(int, say("Hello, who are you?").groups())
        assert (0 < tokens <= 9) and cached == 0
        kept = int(say("And what is the capital?")[2])  # the first turn, which hf computes again
        assert (kept > 0) == has_verl()
        say("/sve", r"no such command; did you mean 'save'\?")
        say("/help", "/save FILE")
        say("/save talk.jsonl", "4 messages are in talk.jsonl")
        terminal.sendline("/system Be brief.")
        terminal.expect_exact("You: ")
        say("/save new.jsonl", "1 messages are in new.jsonl")

        say("/set ignore_eos true", "ignore_eos=True")
        say("/set max_tokens 15000", "max_tokens=15000")
        terminal.sendline("A very long one")
        terminal.expect("one\r\n.{20}")  # it has begun
        terminal.sendintr()
        terminal.expect(f"{STATS}, stopped")
        assert int(terminal.match[1]) < 15000
        terminal.expect_exact("You: ")
        say("/set max_tokens 3", "max_tokens=3")
        assert int(say("Still there?")[1]) == 3
        terminal.send("half a line")
        terminal.expect_exact("half a line")
        # CPython's input() misses a Ctrl-C in the instant of reading a key.
        assert until(lambda: pressed(terminal, "You: "), SECONDS)
        terminal.sendline('"""')
        terminal.expect_exact("...  ")
        terminal.sendeof()
        terminal.expect_exact("ended inside a message, which was not sent")
        terminal.expect(pexpect.EOF)
        terminal.close()
        assert terminal.exitstatus == 0
        assert until(lambda: not alive(family), GONE_SECONDS)
    finally:
        terminal.close(force=True)

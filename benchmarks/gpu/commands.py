"""The part of the commands `inf serve` and `inf check`, each as a program of its own."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

from results import Skip
from setting import PROMPTS, ROOT, START, Setting

RUN = "from _inf.apps.cli import main; main()"
PAIRS, END_SECONDS = 3, 40


def inf_serve_answers_64_streams_at_once(setting: Setting) -> Any:
    """Each stream is read to its end, by `benchmarks/serve.py`, after an untimed run."""
    from serve import over_http
    from throughput import rows

    clients, tokens = (64, 128) if setting.on_gpu else (8, 16)
    url = served(setting)
    rates, firsts = [], []
    for turn in range(-1, PAIRS):
        texts, _ = rows(str(clients), tokens, seed=f"serve {turn}")
        prompts = [[*text.encode()[:128]] for text in texts]  # ids that any model has
        found = over_http(url, prompts, tokens)
        if turn >= 0:
            rates.append(clients * tokens / found["seconds"])
            firsts.append(statistics.median(found["first"]))
    return {
        "clients": clients,
        "tokens_per_second": round(statistics.median(rates), 1),
        "seconds_to_the_first_token": round(statistics.median(firsts), 3),
    }


def inf_serve_answers_after_the_streams_and_ends_at_sigterm(setting: Setting) -> Any:
    if setting.server is None:
        raise Skip("no server runs")
    url = served(setting)
    body = {"model": url.partition("=")[2], "messages": [{"role": "user", "content": PROMPTS[0]}]}
    content = json.dumps({**body, "max_tokens": 8, "temperature": 0}).encode()
    request = urllib.request.Request(
        f"{url.partition('?')[0]}/chat/completions", content, {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        answer = json.load(response)
    assert answer["choices"][0]["finish_reason"] in ("stop", "length"), answer
    start = time.monotonic()
    setting.server.terminate()
    code = setting.server.wait(END_SECONDS)
    assert code == 0, f"exit code {code}; it said: {said(setting).read_text()[-1500:]}"
    return {"usage": answer["usage"], "seconds_to_its_end": round(time.monotonic() - start, 1)}


def served(setting: Setting) -> str:
    """The address of `inf serve`, which the first check starts, with the model's name."""
    if setting.server is None:
        with open(said(setting), "wb") as log:
            setting.server = subprocess.Popen(
                [sys.executable, "-c", RUN, "serve", "--port=0", *options(setting)],
                cwd=ROOT, stdout=log, stderr=log,
            )  # fmt: skip
        setting.undo.callback(setting.server.kill)
    end = time.monotonic() + START
    while time.monotonic() < end:
        words = said(setting).read_text(errors="replace").split()
        if "served" in words:  # inf: MODEL is served at ADDRESS
            place = words.index("served")
            return f"{words[place + 2]}?model={words[place - 2]}"
        assert setting.server.poll() is None, f"inf serve ended: {' '.join(words)[-1500:]}"
        time.sleep(0.2)
    raise AssertionError(f"inf serve is not ready after {START} s: {' '.join(words)[-1500:]}")


def said(setting: Setting) -> Path:
    return setting.work / "serve.out"


def options(setting: Setting) -> list[str]:
    keys = setting.keys("rollout.enforce_eager=false")
    return ["--config=config.yaml", *(f"--set={key}" for key in keys)]


def inf_check_reports_only_rounding(setting: Setting) -> Any:
    """A random model's log probs in bfloat16 are farther from float32's than a trained model's, so
    its exit code may be 1."""
    size = ["--max-tokens=32"] if setting.on_gpu else ["--max-tokens=4", "--batch=4"]
    with tempfile.TemporaryFile("w+") as errors:
        done = subprocess.run(
            [sys.executable, "-c", RUN, "check", "--json", *size, *options(setting)],
            cwd=ROOT, stdout=subprocess.PIPE, stderr=errors, text=True, timeout=START,
        )  # fmt: skip
        errors.seek(0)
        assert done.returncode in (0, 1), errors.read()[-2000:]
    report = json.loads(done.stdout)
    others = [each for each in report["findings"] if not each["meaning"].startswith("precision: ")]
    assert not others, others
    found = {each["metric"]: each["value"] for each in report["findings"]}
    return {"exit_code": done.returncode, "found": found}


CHECKS = (
    inf_serve_answers_64_streams_at_once,
    inf_serve_answers_after_the_streams_and_ends_at_sigterm,
    inf_check_reports_only_rounding,
)

"""`inf show`: the page in a headless Chromium, and the command."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from _inf.apps.rollouts.page import page
from inf import as_rollouts
from tests.support.json_lines import write

HOSTILE = '</script><img src=x onerror="window.ran = 1"><script>window.ran = 1</script>{{script}}'
PIXEL = "https://example.invalid/x.png"
HOSTILE_FIELDS = [
    json.loads(line.replace("HOSTILE", json.dumps(HOSTILE)[1:-1]))
    for line in r"""
{"row_id": "HOSTILE", "uid": "HOSTILE", "finish_reason": "HOSTILE", "completion": "HOSTILE"}
{"prompt_texts": ["HOSTILE", "\u2028"]}
{"reward_scores": {"HOSTILE": "HOSTILE"}, "timings": {"HOSTILE": 1.0}}
{"tool_calls": [{"name": "HOSTILE", "arguments": {"HOSTILE": "HOSTILE"}}]}
{"data_source": "HOSTILE", "ground_truth": {"HOSTILE": ["HOSTILE"]}, "__proto__": {"x": "HOSTILE"}}
{"messages": [{"role": "user", "content": [{"type": "HOSTILE", "text": "HOSTILE"}]}]}
{"messages": [{"role": "assistant", "content": null, "tool_calls": "HOSTILE", "HOSTILE": 1}]}
""".strip().splitlines()
] + [{"response_texts": [HOSTILE] * 10}]
# Of an agent loop: " see" was not sampled where it stands, and "42 " was.
LOOPED = {"agent_loop": "game", "unsampled_ids": 2, "unsampled_at": [1, 4], "messages": None}
FORK = {"forked_from": ["0.0", 2], "fork_reason": "other_conversation"}
TRACES = [
    *({"rollout": "a", "task": "sums"}, {"rollout": "b"}),
    *({"rollout": "a", "limit": "max_turns", **FORK}, {}),
]
LOGPROBS = [-0.01, -0.2, -0.6, -1.5, -2.5, -6.0]  # one for each step of tint


def row(number: int, **changed: Any) -> dict[str, Any]:
    """A conversation of two sampled parts with a tool's result between them."""
    texts = ["I", " see", "<end>", "\n<tool>", "42 ", HOSTILE, "</tool>\n", "It", " is", " 42."]
    mask = [1, 1, 1, 0, 0, 0, 0, 1, 1, 1]
    tints = iter(LOGPROBS)
    user = {"role": "user", "content": f"question {number}"}
    called = {"role": "assistant", "content": "I see", "tool_calls": [{"name": HOSTILE}]}
    result = {"role": "tool", "content": f"42 {HOSTILE}"}
    return dict(
        row_id=f"{number}.0",
        prompt_token_ids=[1, 2],
        prompt_texts=["<user>", f"question {number}"],
        response_ids=list(range(100, 110)),
        response_mask=mask,
        response_texts=texts,
        logprobs=[next(tints) if bit else 0.0 for bit in mask],
        completion=f"It is {number}.",
        messages=[user, called, result, {"role": HOSTILE, "content": HOSTILE}],
        reward=number / 2,
        finish_reason="length" if number % 3 == 0 else "stop",
    ) | {HOSTILE: f"<b>{PIXEL}</b>", **changed}


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no Chromium: install Debian's package chromium")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield started
        started.close()


class Opened:
    """A page in the browser, what it asked of the network, and its errors."""

    def __init__(self, browser: Any, path: Path) -> None:
        self.context = browser.new_context(offline=True)
        self.page = self.context.new_page()
        self.requests: list[str] = []
        self.said: list[str] = []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.goto(path.as_uri())

    def texts(self, selector: str) -> list[str]:
        return [str(text) for text in self.page.locator(selector).all_text_contents()]

    def chosen(self) -> str:
        [text] = self.texts("#list [aria-current=true] .number >> nth=0")
        return text.split(" ")[0]

    def text(self, selector: str) -> str:
        return str(self.page.text_content(selector))

    def count(self) -> str:
        return self.text("#count")


ROWS = [row(number) for number in range(200)]
# Of two files, side by side.
LEFT = ROWS[:10]
RIGHT = [row(number, reward=9.0) for number in (2, 0, 7)]
RIGHT += [row(5000), {"row_id": "8.0", "error": {"message": HOSTILE}}]


def page_of(*files: list[dict[str, Any]]) -> str:
    return page([*zip((HOSTILE, "b.jsonl"), map(as_rollouts, files), strict=False)])


@pytest.fixture
def opened(browser, tmp_path):
    """Open a page; at the end no request has left it, nothing of the data has run."""
    every = []

    def open_page(text: str = page_of(ROWS[:40])) -> Opened:
        (tmp_path / "page.html").write_text(text)
        every.append(Opened(browser, tmp_path / "page.html"))
        return every[-1]

    yield open_page
    for each in every:
        assert [url for url in each.requests if not url.startswith(("file:", "about:"))] == []
        assert each.said == []
        for part in each.page.frames:
            assert part.evaluate("[window.ran, document.images.length]") == [None, 0]
        each.context.close()


# ── What is shown ────────────────────────────────────────────────────────────────────────────────


def test_row_is_shown_in_parts_and_its_tokens_are_tinted_by_their_log_probs(opened):
    seen = opened()
    assert seen.texts("#detail .caption")[:4] == [
        "prompt · 2 tokens",
        "sampled · 3 tokens · mean log prob -0.27",
        "tool, user or template · 4 tokens",
        "sampled · 3 tokens · mean log prob -3.333",
    ]
    boxes = seen.texts("#detail section > .text")
    assert boxes[:2] == ["<user>question 0", "I see<end>"] and boxes[3] == "It is 42."

    tints, scale = (
        seen.page.eval_on_selector_all(
            each, "all => all.map(each => getComputedStyle(each).backgroundColor)"
        )
        for each in ("#detail .token", "#scale li")
    )
    assert len(set(tints)) == 6 and tints == scale
    seen.page.hover("#detail .token >> nth=4")
    said = 'token " is", id 108, log prob -2.5000, probability 8.21 %'
    assert seen.text("#readout") == said
    asked = ["<user>", *["<image>"] * 20, *["-"] * 20]
    seen = opened(page_of([row(0, prompt_texts=asked, prompt_token_ids=[1] * 41)]))
    assert seen.texts("#detail section > .text")[0] == f"<user><image> × 20 {'-' * 20}"


def test_ids_of_an_agent_loop_that_were_not_sampled_are_marked_and_the_legend_says_so(opened):
    seen = opened(page_of([row(0, **LOOPED), row(1)]))
    assert seen.texts("#detail .unsampled") == [" see", "42 "]
    said = "sampled · 3 tokens · 1 of them not sampled there · mean log prob -0.27"
    assert seen.texts("#detail .caption")[1] == said
    assert seen.page.is_visible("#unsampled")
    seen.page.hover("#detail .token >> nth=1")
    assert "not sampled there, but its mask is 1" in seen.text("#readout")
    assert opened().page.is_hidden("#unsampled")


def test_no_field_of_a_row_can_run_anything(opened):
    """Each row in turn, with all that is folded; `opened` looks at what has run."""
    rows = [row(number, **fields) for number, fields in enumerate(HOSTILE_FIELDS)]
    seen = opened(page_of([*rows, {"prompt": HOSTILE, "error": HOSTILE}]))
    assert seen.texts("h1") == [HOSTILE] and HOSTILE in seen.texts("#finish option")
    for _ in range(len(HOSTILE_FIELDS) + 1):
        for summary in seen.page.locator("#detail summary").all():
            summary.click()
        assert seen.page.locator("article").count() == 1
        assert HOSTILE[:30] in seen.text("#detail")
        assert seen.page.locator("#detail :is(script, img, b)").count() == 0
        seen.page.keyboard.press("j")
    assert seen.chosen() == str(len(HOSTILE_FIELDS))
    seen = opened(page_of(ROWS))
    seen.page.keyboard.press("m")
    assert HOSTILE in seen.texts(".message .caption") and HOSTILE in seen.texts(".message .text")
    assert json.dumps({"name": HOSTILE}, indent=1) in seen.texts(".message pre")
    assert any(PIXEL in text for text in seen.texts("details pre"))
    # Rows are built one at a time.
    assert seen.page.locator("#list button").count() == 200
    assert seen.page.locator("article").count() == 1

    [policy] = re.findall('Content-Security-Policy" content="(.*?)">', page_of(LEFT))
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    assert rules.pop("default-src") == rules.pop("base-uri") == rules.pop("form-action") == "'none'"
    assert all(re.fullmatch("'sha256-.{44}'", rule) for rule in rules.values()) and len(rules) == 2
    seen.page.evaluate(
        "() => { const made = document.createElement('script');"
        " made.textContent = 'window.ran = 1'; document.body.append(made) }"
    )
    assert any("Content Security Policy" in said for said in seen.said)
    seen.said.clear()


# ── Filters ──────────────────────────────────────────────────────────────────────────────────────


def test_filters_by_finish_reason_reward_text_and_error(opened):
    seen = opened()
    assert seen.page.is_disabled("#errors") and seen.count() == "40 of 40 rows"
    seen.page.select_option("#finish", "length")
    assert seen.count() == "14 of 40 rows"
    for field, text, count in (("low", "6", 10), ("high", "9", 3), ("search", "QUESTION 15", 1)):
        seen.page.fill(f"#{field}", text)
        assert seen.count() == f"{count} of 40 rows"
    assert seen.chosen() == "15.0"
    seen.page.click("button[type=reset]")
    assert seen.count() == "40 of 40 rows"
    seen = opened(page_of(LEFT, RIGHT))
    seen.page.check("#errors")
    assert seen.count() == "1 of 11 rows" and seen.chosen() == "8.0"


# ── Keys ─────────────────────────────────────────────────────────────────────────────────────────


def test_page_can_be_used_by_keyboard_alone(opened):
    seen = opened()
    press = seen.page.keyboard.press
    for keys, place in (("jj", "2.0"), ("k", "1.0"), (["ArrowDown", "End"], "39.0")):
        for key in keys:
            press(key)
        assert seen.chosen() == place
        assert seen.page.evaluate("document.activeElement.getAttribute('aria-current')") == "true"
    press("Home")
    press("ArrowRight")
    press("ArrowRight")
    assert 'token " see", id 101' in seen.text("#readout")
    press("/")
    assert seen.page.evaluate("document.activeElement.id") == "search"
    seen.page.keyboard.type("jk")  # text, no move
    assert seen.page.input_value("#search") == "jk" and seen.count() == "0 of 40 rows"


# ── Two files, and a notebook ────────────────────────────────────────────────────────────────────


def test_two_files_stand_side_by_side_by_the_ids_of_their_rows(opened):
    seen = opened(page_of(LEFT, RIGHT))
    assert seen.texts("h1") == [f"{HOSTILE} and b.jsonl"] and seen.count() == "11 of 11 rows"
    listed = {text.split(" ")[0]: text for text in seen.texts("#list button")}
    assert "1 → 9" in listed["2.0"] and "0.5 → –" in listed["1.0"]
    assert "– → 2500" in listed["5000.0"] and list(listed)[-1] == "5000.0"
    seen.page.keyboard.press("j")
    seen.page.keyboard.press("j")
    assert seen.chosen() == "2.0" and seen.texts("article h2") == [HOSTILE, "b.jsonl"]
    seen.page.keyboard.press("j")
    assert "This file has no row of this id." in seen.texts("article")[1]
    seen.page.fill("#low", "9")  # of either side
    assert seen.count() == "4 of 11 rows"


def test_traces_of_one_rollout_stand_together_and_say_why_they_began(opened):
    seen = opened(page_of([row(number, **of) for number, of in enumerate(TRACES)]))
    names = [text.split(" ")[0] for text in seen.texts("#list button > .number:nth-last-child(3)")]
    assert names == ["0.0", "2.0", "1.0", "3.0"]
    seen.page.keyboard.press("j")
    assert seen.chosen() == "2.0"
    [facts] = seen.texts("article dl")
    assert "forked from0.0 after 2 messages: other_conversation" in facts


def test_row_in_a_notebook_shows_itself_in_a_closed_frame(opened):
    seen = opened(f"<!DOCTYPE html><body>{as_rollouts(ROWS[1:2])[0]._repr_html_()}")
    inside = seen.page.frame_locator("iframe")
    assert inside.locator("#detail .token").count() == 6
    assert inside.locator("#list").is_hidden()
    inside.locator("#detail .token >> nth=1").hover()
    assert "log prob -0.2000" in str(inside.locator("#readout").text_content())
    assert seen.page.get_attribute("iframe", "sandbox") == "allow-scripts"


# ── The command ──────────────────────────────────────────────────────────────────────────────────


def test_command_writes_a_page_beside_the_file(command):
    first, second = write(Path("a.jsonl"), [row(1)]), write(Path("b.jsonl"), [row(2)])
    code, _, err = command("show", first)
    assert code == 0 and "1 rows of a.jsonl: a.html" in err
    assert "question 1" in Path("a.html").read_text()
    assert command("show", first, second, "--out", "p.html")[0] == 0
    assert all(f"question {number}" in Path("p.html").read_text() for number in (1, 2))

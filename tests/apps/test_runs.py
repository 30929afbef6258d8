"""A trainer's samples over a run: how its files are read, the page of `inf show FOLDER` in a
headless Chromium and from its server."""

from __future__ import annotations

import json
import math
import shlex
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi.testclient import TestClient

import inf
from _inf.apps.eval.compare import compare_runs
from _inf.apps.runs import page as run_pages
from _inf.apps.runs.page import run_page
from _inf.apps.runs.server import ServedRun, create_app
from _inf.errors import ConfigError
from tests.apps import test_show
from tests.apps.test_show import HOSTILE
from tests.support.json_lines import write
from tests.support.pages import blocks
from tests.support.tiny import tiny_model

browser, opened = test_show.browser, test_show.opened
NUMBERS = "#list .number"
STEPS = [1, 2, 10]  # in the order of their names 10 is before 2
QUESTIONS = [f"system\nBe brief.\nuser\nQuestion {name}\nassistant\n" for name in ("A", HOSTILE)]


def rows_of_step(step: int) -> list[dict[str, Any]]:
    """Two answers to each of two prompts, as verl writes them; the first prompt is learned."""
    return [
        {
            "input": question,
            "output": f"{'So ' * step}{HOSTILE} #### {sample}",
            "gts": "7",
            "score": float(place == 0 and step > 1 + 5 * sample),
            "step": step,
            "acc": True,
        }
        for place, question in enumerate(QUESTIONS)
        for sample in range(2)
    ]


def write_steps(folder: Path, **rows: list[Any]) -> Path:
    folder.mkdir(exist_ok=True)
    for step, written in rows.items():
        write(folder / f"{step}.jsonl", written)
    return folder


@pytest.fixture
def folder() -> Path:
    return write_steps(Path("run"), **{f"{step}": rows_of_step(step) for step in STEPS})


@pytest.fixture
def shown(opened: Any) -> Any:
    """Opens the page of a run: what was opened, and its page in the browser."""

    def show(run: Any) -> tuple[Any, Any]:
        seen = opened(run_page(run if isinstance(run, inf.Run) else inf.load_run(run)))
        seen.page.wait_for_selector(".card")
        return seen, seen.page

    return show


def refusal(path: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        inf.load_run(path)
    return str(caught.value)


# ── Files ────────────────────────────────────────────────────────────────────────────────────────


def write_as_verl(rows: list[dict[str, Any]], step: int, folder: str) -> None:
    from verl.trainer.ppo.ray_trainer import RayPPOTrainer

    columns = {name: [row[name] for row in rows] for name in rows[0] if name != "step"}
    names = {"input": "inputs", "output": "outputs", "score": "scores"}
    given = {names.get(name, name): values for name, values in columns.items() if name != "acc"}
    given |= {"reward_extra_infos_dict": {"acc": columns["acc"]}, "dump_path": folder}
    RayPPOTrainer._dump_generations(SimpleNamespace(global_steps=step), **given)


@pytest.mark.slow  # the imports of verl's trainer
@pytest.mark.verl
def test_files_of_verls_own_writer_are_read_and_the_page_on_runs_works_with_them(
    folder: Path, tmp_path: Path, command: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for step in STEPS:
        write_as_verl(rows_of_step(step), step, "rollouts")
    for step in (0, 100):
        write_as_verl(rows_of_step(step), step, "validation")
    write_as_verl(rows_of_step(100), 100, "other/validation")
    theirs, ours = inf.load_run("rollouts"), inf.load_run(folder)
    assert [row.row() for row in theirs.rows] == [row.row() for row in ours.rows]

    typed = blocks("docs/your_run.md", "bash")[0].splitlines()
    for line in typed:
        arguments = shlex.split(line, comments=True)[1:]
        if "--serve" not in arguments:  # which goes on until Ctrl-C
            assert command(*arguments)[0] == 0
    assert Path("rollouts.html").exists() and Path("validation/0.html").exists()
    (program,) = blocks("docs/your_run.md", "python")
    exec(program, found := {})
    assert found["table"]["score"].mean() == 0.25


def test_rows_are_in_the_order_of_steps_and_read_when_they_are_asked_for(folder: Path) -> None:
    run = inf.load_run(folder)
    assert (run.steps, len(run), run.notes) == (STEPS, 12, [])
    last = run.rows[-1]
    assert last.completion == f"{'So ' * 10}{HOSTILE} #### 1" and last.reward == 0.0
    assert last.extra == {"prompt": QUESTIONS[1], "ground_truth": "7", "step": 10, "acc": True}
    assert [row.extra["step"] for row in run.rows[3:6]] == [1, 2, 2]
    assert inf.load_rollouts(folder / "10.jsonl")[-1] == last


BY_ROW = """\
step,prompt,score,characters,tokens,cut,length
2,0,1.0,99,,,99
2,0,0.0,99,,,99
2,1,0.0,99,,,99
2,1,0.0,99,,,99
"""
BY_STEP = """\
step,rows,cut,score_mean,score_25,score_50,score_75,length_mean,length_25,length_50,length_75
1,4,,0.0,0.0,0.0,0.0,96.0,96.0,96.0,96.0
2,4,,0.25,0.0,0.0,0.25,99.0,99.0,99.0,99.0
10,4,,0.5,0.0,0.5,1.0,123.0,123.0,123.0,123.0
"""
BY_PROMPT = """\
prompt,rows,steps,first,last,change
0,6,3,0.0,1.0,1.0
1,6,3,0.0,0.0,0.0
"""


def test_tables_have_a_line_for_each_row_step_and_prompt(folder: Path) -> None:
    run = inf.load_run(folder)
    assert run.to_pandas()[4:8].to_csv(index=False) == BY_ROW
    assert (run.by_step().to_csv(), run.by_prompt().to_csv()) == (BY_STEP, BY_PROMPT)


def test_lengths_are_tokens_where_rows_have_ids_or_a_tokenizer_is_given(
    folder: Path, tokenizer: Any
) -> None:
    answer = {"response_ids": [5, 6, 7], "response_mask": [1, 0, 1], "prompt": "Hello"}
    ours = [{**answer, "finish_reason": reason} for reason in ("length", "stop")]
    run = inf.load_run([write(folder.parent / "step_3.jsonl", ours)])
    assert run.steps == [3] and run.to_pandas()["length"].tolist() == [2, 2]
    assert run.by_step()["cut"].tolist() == [0.5]
    table = inf.load_run(folder, tokenizer=tokenizer).to_pandas()
    text = rows_of_step(1)[0]["output"]
    assert table["length"][0] == len(tokenizer(text)["input_ids"])
    assert table["cut"].isna().all()


def test_odd_values_are_kept_and_counted_and_a_last_line_that_is_cut_is_left_out(
    tmp_path: Path,
) -> None:
    scores = [None, math.nan, {"acc": 1}, 10**400, True, 2]
    extras = {"uid": 1, "messages": [1], "prompt": "P", "forked_from": ["a"]}  # of the reward
    rows = [{"input": "Q", "output": "A" * 3_000_000, "score": each, **extras} for each in scores]
    rows[0]["step"] = 7.0
    write(tmp_path / "val_7.jsonl", [*rows, '{"input": "Q", "outp'])
    (tmp_path / "val_7.jsonl").write_text((tmp_path / "val_7.jsonl").read_text().rstrip("\n"))
    run = inf.load_run(tmp_path)
    assert run.steps == [7]  # of the name
    assert [row.reward for row in run.rows] == [None, None, None, None, 1.0, 2.0]
    odd = run.rows[2].extra
    assert (odd["score"], odd["uid_"], odd["prompt"], odd["prompt_"]) == ({"acc": 1}, 1, "Q", "P")
    assert "forked_from" in run_page(run)
    assert len(run.rows[5].completion or "") == 3_000_000
    assert [note.partition("/val_7")[2] or note for note in run.notes] == [
        ".jsonl, line 7: left out; the file ends inside it.",
        "1 rows have a score of type float, which counts as none.",
        "1 rows have a score of type dict, which counts as none.",
        "1 rows have a score of type int, which counts as none.",
    ]


def test_what_is_no_run_is_refused_with_what_was_found(folder: Path, tmp_path: Path) -> None:
    assert f"{tmp_path}: it has no files of samples" in refusal(tmp_path)
    (folder / "9.jsonl").symlink_to("nowhere")
    assert "9.jsonl: it is no file" in refusal(folder)
    (folder / "9.jsonl").unlink()
    assert f"{folder} is a folder: one folder is a run" in refusal([folder, tmp_path])
    assert "no such file or folder" in refusal(tmp_path / "none") and "no files" in refusal([])
    for line, says in (
        ("{", "it is not JSON"),
        ('{"question": 1, "reply": 2}', "it has none of response_ids"),
        ('{"question": 1, "reply": 2}', "verl input, output, score"),
        ('{"question": 1, "reply": 2}', "['question', 'reply']"),
        ("[1, 2]", "a row is a JSON object"),
    ):
        write(folder / "2.jsonl", [line, *rows_of_step(2)])
        said = refusal(folder)
        assert "2.jsonl, line 1: " in said and says in said
    (folder / "2.jsonl").write_text("\n")
    assert "its files have no rows" in refusal(folder / "2.jsonl")


STEPS_COMPARED = """\
A: run/1.jsonl
B: run/10.jsonl
     prompts        A        B    B - A  95 % interval
all        2   0.0000   0.5000  +0.5000  +0.0000 to +1.0000
better: 1, worse: 0, equal: 1
  row 0: 0 -> 1 system Be brief. user Question A"""
FOLDERS_COMPARED = """\
A: run
B: other
step  prompts        A        B    B - A  95 % interval
2           2   0.2500   0.2500  +0.0000  none: no prompt differs
10          2   0.5000   1.0000  +0.5000  +0.0000 to +1.0000
At step 10, the last compared:
     prompts        A        B    B - A  95 % interval
all        2   0.5000   1.0000  +0.5000  +0.0000 to +1.0000
better: 1, worse: 0, equal: 1
  row 1: 0 -> 1 ... r="window.ran = 1"><script>window.ran = 1</script>{{script}}
other/2.jsonl, line 5: left out; the file ends inside it.
Steps of A that the other has not, or without a scored prompt in common: [1].
Steps of B that the other has not, or without a scored prompt in common: [20].
"""


def test_two_steps_are_compared_by_their_prompts(folder: Path) -> None:
    found = compare_runs(folder / "1.jsonl", folder / "10.jsonl")
    assert found.table() == STEPS_COMPARED and found.same_reward and not found.by_step
    named = compare_runs(folder / "1.jsonl", folder / "10.jsonl", "acc")
    assert (named.overall.a, named.overall.b) == (1, 1)
    begin = compare_runs(folder / "1.jsonl", folder)  # the first step with each one
    assert [mean.difference for mean in begin.by_step.values()] == [0, 0.25, 0.5]
    assert [line.split()[0] for line in begin.table().splitlines()[2:6]] == ["step", "1", "2", "10"]


def test_two_folders_are_compared_at_each_step_that_both_have(folder: Path, command: Any) -> None:
    better = {str(step): [row | {"score": 1.0} for row in rows_of_step(step)] for step in (10, 20)}
    other = write_steps(Path("other"), **better)
    torn = [*map(json.dumps, rows_of_step(2)), '{"input": "Q", ""']
    (other / "2.jsonl").write_text("\n".join(torn))
    assert command("eval", "compare", folder, other)[:2] == (0, FOLDERS_COMPARED)
    for step in (2, 10):
        (other / f"{step}.jsonl").unlink()
    with pytest.raises(ConfigError, match=r"no prompt in common that both scored\. Steps of A"):
        compare_runs(folder, other)


# ── The page ─────────────────────────────────────────────────────────────────────────────────────


def waits(page: Any, count: str) -> None:
    page.wait_for_function(
        "count => document.getElementById('count').textContent.startsWith(count)", arg=count
    )


def test_page_shows_a_prompts_answers_over_the_steps_and_each_row(folder: Path, shown: Any) -> None:
    seen, page = shown(folder)
    assert seen.count() == "12 of 12 rows, 3 steps, 2 prompts"
    assert seen.texts("#charts figcaption") == [
        "score, mean: 0 → 0.5",  # of two scores the quartiles are these
        "length in characters, mean and quartiles: 96 → 123",
    ]
    assert seen.texts(NUMBERS) == ["6 rows, 3 steps", "0 → 1", "6 rows, 3 steps", "0 → 0"]
    assert seen.texts("#list .preview")[0] == "A"
    assert seen.texts("#detail h2") == ["step 1", "step 2", "step 10"]
    assert seen.texts(".card .text")[0] == f"So {HOSTILE} #### 0"
    page.click(".card >> nth=3")
    assert seen.texts("#detail h2") == ["step 2 · score 0 · 99 characters"]
    assert HOSTILE in seen.text("#detail .messages")
    page.click("#detail button")
    assert len(seen.texts(".card")) == 6

    page.fill("#low", "0.5")
    waits(page, "3 of 12 rows")
    page.select_option("#listed", "rows")
    page.wait_for_selector("#list button >> nth=2")
    assert [text.split("·")[0] for text in seen.texts(NUMBERS)][::2] == [
        *("step 2", "step 10", "step 10")
    ]
    page.fill("#search", "#### 1")
    waits(page, "1 of 12 rows")
    page.click("#filters button")
    waits(page, "12 of 12 rows")
    page.focus("#charts svg >> nth=1")
    for key in ("ArrowRight", "ArrowRight"):
        page.keyboard.press(key)
    assert seen.texts("#charts figcaption")[1] == "step 2: 99, quartiles 99 and 99, 4 rows"
    page.keyboard.press("Enter")
    waits(page, "4 of 12 rows")
    assert page.input_value("#first") == "2"
    page.click("#filters button")
    waits(page, "12 of 12 rows")
    page.click("#charts svg >> nth=0", position={"x": 2, "y": 20})
    waits(page, "4 of 12 rows")
    assert page.input_value("#last") == "1"


def test_address_keeps_the_view_and_the_browsers_back_returns_to_it(
    folder: Path, shown: Any
) -> None:
    seen, page = shown(folder)
    page.fill("#search", "#### 1")
    waits(page, "6 of 12 rows")
    page.click("#list button >> nth=1")
    page.click(".card >> nth=2")
    page.wait_for_selector("article")
    link = page.evaluate("location.hash")
    assert link == "#row=11&search=%23%23%23%23+1"
    page.go_back()
    page.wait_for_selector(".card")
    assert len(seen.texts(".card")) == 3
    page.evaluate("location.hash = ''")
    waits(page, "12 of 12 rows")
    page.evaluate("link => { location.hash = link; }", link)
    page.wait_for_selector("article")
    assert seen.count().startswith("6 of 12 rows") and page.input_value("#search") == "#### 1"
    assert seen.texts("#detail h2") == ["step 10 · score 0 · 123 characters"]
    page.click("text=All answers to this prompt")
    page.wait_for_selector("#detail svg")
    page.click("#detail svg", position={"x": 2, "y": 20})  # the prompt stays
    waits(page, "2 of 12 rows")
    page.wait_for_selector("#list [aria-current=true]")
    assert page.evaluate("location.hash").startswith("#prompt=1&first=1&last=1")
    page.go_back()
    waits(page, "6 of 12 rows")
    for odd in ("#row=99", "#prompt=-1", "#row=x&listed=nope"):
        page.evaluate("link => { location.hash = link; }", odd)
        waits(page, "12 of 12 rows")


def test_lists_of_prompts_have_the_figures_of_the_rows_that_pass_the_filters(
    tmp_path: Path, shown: Any
) -> None:
    scores = {
        "A": [0, 0, 0.2, 1, None],
        "B": [None, 1, 0.5, 0.25, 0.25],
        "C": [None, 0.3, *[None] * 3],
    }
    for step in range(5):
        rows = [{"input": name, "output": "", "score": s[step]} for name, s in scores.items()]
        write(tmp_path / f"{step}.jsonl", rows * 2)
    run = inf.load_run(tmp_path)
    assert run.by_prompt()["change"].dropna().to_dict() == {0: 1, 1: -0.75}
    seen, page = shown(run)
    assert seen.texts(NUMBERS)[1::2] == ["0 → 1", "1 → 0.25", "0.3"]
    page.fill("#last", "2")
    waits(page, "18 of 30 rows")
    assert seen.texts(NUMBERS)[0] == "6 rows, 3 steps"
    assert seen.texts(NUMBERS)[1::2] == ["1 → 0.5", "0 → 0.2", "0.3"]
    page.fill("#last", "")
    page.select_option("#listed", "worse")
    page.wait_for_function("() => location.hash === '#prompt=1' || location.hash.includes('worse')")
    waits(page, "30 of 30 rows")
    assert seen.texts(NUMBERS)[1::2] == ["1 → 0.25", "0 → 1", "0.3"]


def test_card_shows_the_beginning_and_the_end_and_all_answers_can_be_shown(
    tmp_path: Path, shown: Any
) -> None:
    answer = "Begin " + "word " * 1_000_000 + "#### 7"
    rows = [{"input": "Q", "output": answer if at == 0 else "7", "score": 1} for at in range(30)]
    write(tmp_path / "5.jsonl", rows)
    seen, page = shown(tmp_path)
    first = seen.texts(".card .text")[0]
    assert first.startswith("Begin word") and first.endswith("#### 7") and len(first) < 1_000
    assert len(seen.texts(".card")) == 4
    page.click("text=Show all")
    page.wait_for_selector(".card >> nth=29")
    page.click(".card >> nth=0")
    page.wait_for_selector("article")
    assert page.text_content(".message:last-child .text") == answer


def test_page_that_would_be_too_large_says_which_rows_it_has(
    folder: Path, shown: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_pages, "MOST_TEXT", 4_000)
    seen, page = shown(folder)
    said = seen.text("#notes")
    assert said.startswith("This page has the text of ") and " of 12 rows, first those" in said
    page.click("#list button >> nth=1")
    page.wait_for_selector("text=of these answers is not in this page")
    assert seen.texts(".card .text")[-1] == "not in this page"
    assert seen.texts(".card .caption")[-1] == "score 0 · 123 characters"
    page.click(".card >> nth=5")
    page.wait_for_selector("text=The text of this answer is not in this page")


def served(folder: Path) -> tuple[ServedRun, TestClient]:
    run = ServedRun([folder], partial(inf.load_run, folder))
    return run, TestClient(create_app(run), base_url="http://127.0.0.1")


def test_server_gives_the_text_of_rows_and_finds_text_and_answers_to_its_own_name_only(
    folder: Path,
) -> None:
    _, client = served(folder)
    assert "connect-src 'self'" in client.get("/").text
    rows = client.get("/rows?at=0,11,99,x,-1&reading=0").json()
    assert [*rows] == ["0", "11"] and rows["11"]["reward"] == 0.0
    assert rows["11"]["facts"][-1] == ["line", "10.jsonl:4"]

    def found(text: str) -> Any:
        return client.get("/search", params={"text": text, "reading": 0}).json()

    assert found("question a") == [0, 1, 4, 5, 8, 9]
    assert found(HOSTILE.upper()) == [*range(12)] and found("gts") == []  # a key
    (folder / "10.jsonl").write_text("")
    changed = client.get("/rows?at=11&reading=0")
    assert changed.status_code == 409 and "it changed since it was read" in changed.text
    assert client.get("http://elsewhere.example/").status_code == 400


def test_served_page_has_the_steps_that_were_written_since_when_it_is_opened_again(
    folder: Path,
) -> None:
    run, client = served(folder)
    assert client.get("/").text == client.get("/").text and run.number == 0
    write(folder / "0.jsonl", rows_of_step(0))
    assert client.get("/rows?at=0&reading=0").json()["0"]["facts"][-1][1] == "1.jsonl:1"
    client.get("/")
    assert run.run.steps == [0, *STEPS]
    assert client.get("/rows?at=0&reading=1").json()["0"]["facts"][-1][1] == "0.jsonl:1"
    old = client.get("/search?text=a&reading=0")  # its numbers of rows are others now
    assert old.status_code == 409 and "reload it" in old.text
    write(folder / "0.jsonl", ["{"])
    assert client.get("/").status_code == 409 and client.get("/").status_code == 409


def test_command_writes_a_page_beside_the_folder(
    folder: Path, command: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folder.rename("run-2.5").absolute()
    monkeypatch.chdir(folder)
    code, _, said = command("show", ".")
    page = folder.with_name("run-2.5.html")  # the whole name: another run may be run-2.7
    assert code == 0 and said == f"12 rows of 3 steps: {page}\n"
    assert '"unit": "character"' in page.read_text()
    code, _, said = command("show", "1.jsonl", "2.jsonl", "10.jsonl", "--tokenizer", tiny_model())
    assert code == 0 and '"unit": "token"' in Path("1.html").read_text()
    for wrong, why in (
        ("1.jsonl --serve", "--serve and --tokenizer are for the folder of a run"),
        (". --tokenizer .", "--tokenizer: Transformers cannot load a tokenizer from ."),
        (". --out .", "it is a folder"),
    ):
        code, _, said = command("show", *wrong.split())
        assert code == 2 and why in said

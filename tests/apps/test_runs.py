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


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "run"
    made.mkdir()
    for step in STEPS:
        write(made / f"{step}.jsonl", rows_of_step(step))
    return made


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
    (folder / "10.jsonl").write_text("")
    with pytest.raises(ConfigError, match=r"10\.jsonl, line 4: it changed since it was read"):
        run.rows[-1]


def test_tables_have_a_line_for_each_row_step_and_prompt(folder: Path) -> None:
    run = inf.load_run(folder)
    table = run.to_pandas()
    assert table["prompt"].tolist() == [0, 0, 1, 1] * 3
    assert table["length"].tolist() == table["characters"].tolist() and table["cut"].isna().all()
    steps = run.by_step()
    assert steps.index.tolist() == STEPS and steps["rows"].tolist() == [4] * 3
    assert steps["score_mean"].tolist() == [0, 0.25, 0.5] and steps["score_75"].iloc[1] == 0.25
    prompts = run.by_prompt()
    assert prompts.index.tolist() == [0, 1] and prompts["change"].tolist() == [1, 0]


def test_lengths_are_tokens_where_rows_have_ids_or_a_tokenizer_is_given(
    folder: Path, tmp_path: Path
) -> None:
    answer = {"response_ids": [5, 6, 7], "response_mask": [1, 0, 1], "prompt": "Hello"}
    ours = [{**answer, "finish_reason": reason} for reason in ("length", "stop")]
    write(tmp_path / "step_3.jsonl", ours)
    run = inf.load_run([tmp_path / "step_3.jsonl"])
    assert run.steps == [3] and run.to_pandas()["length"].tolist() == [2, 2]
    assert run.by_step()["cut"].tolist() == [0.5]

    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny_model())
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


def test_change_of_a_prompt_is_between_steps_that_have_a_score(tmp_path: Path) -> None:
    for step, score in ((0, None), (5, 0.25), (10, 0.75), (20, None)):
        alone = {"input": "B", "output": "", "score": 1.0 if step == 5 else None}
        write(tmp_path / f"{step}.jsonl", [{"input": "A", "output": "", "score": score}, alone])
    prompts = inf.load_run(tmp_path).by_prompt()
    assert prompts["change"].tolist()[0] == 0.5 and math.isnan(prompts["change"][1])


def test_what_is_no_run_is_refused_with_what_was_found(folder: Path, tmp_path: Path) -> None:
    assert refusal(tmp_path).endswith(f"; did you mean {folder}?")
    (folder / "9.jsonl").symlink_to("nowhere")
    assert "9.jsonl: it is no file" in refusal(folder)
    (folder / "9.jsonl").unlink()
    assert f"{folder} is a folder: one folder is a run" in refusal([folder, tmp_path])
    assert "no such file or folder" in refusal(tmp_path / "none") and "no files" in refusal([])
    write(folder / "2.jsonl", ["{", *rows_of_step(2)])
    assert "2.jsonl, line 1: it is not JSON" in refusal(folder)
    write(folder / "2.jsonl", [{"question": 1, "reply": 2}])
    said = refusal(folder)
    assert "2.jsonl, line 1: it has none of response_ids" in said
    assert "verl input, output, score" in said and "['question', 'reply']" in said
    (folder / "2.jsonl").write_text("[1, 2]")
    assert "2.jsonl, line 1: a row is a JSON object" in refusal(folder)
    (folder / "2.jsonl").write_text("\n")
    assert "its files have no rows" in refusal(folder / "2.jsonl")


def test_two_steps_are_compared_by_their_prompts(folder: Path) -> None:
    found = compare_runs(folder / "1.jsonl", folder / "10.jsonl")
    assert (found.overall.a, found.overall.b, found.overall.prompts) == (0, 0.5, 2)
    (changed,) = found.changed
    assert (changed.number, changed.difference) == (0, 1) and "Question A" in changed.prompt
    assert "row 0: 0 -> 1 system Be brief. user Question A\n" in f"{found.table()}\n"
    assert found.same_reward and not found.by_step
    named = compare_runs(folder / "1.jsonl", folder / "10.jsonl", "acc")
    assert (named.overall.a, named.overall.b) == (1, 1)


def test_two_folders_are_compared_at_each_step_that_both_have(
    folder: Path, tmp_path: Path, command: Any
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    for step in (2, 10, 20):
        write(other / f"{step}.jsonl", [row | {"score": 1.0} for row in rows_of_step(step)])
    torn = [*map(json.dumps, rows_of_step(2)), '{"input": "Q', ""]
    (other / "2.jsonl").write_text("\n".join(torn)[:-1])
    found = compare_runs(folder, other)
    differences = {step: (mean.a, mean.b) for step, mean in found.by_step.items()}
    assert differences == {2: (0.25, 0.25), 10: (0.5, 1.0)}
    assert (found.overall, len(found.changed)) == (found.by_step[10], 1)
    code, said, _ = command("eval", "compare", str(folder), str(other))
    assert code == 0 and "At step 10, the last compared:" in said
    assert f"{other}/2.jsonl, line 5: left out; the file ends inside it." in said
    assert "Steps of A that the other has not, or without a scored prompt in common: [1]." in said
    assert "Steps of B that" in said and "[20]." in said

    begin = compare_runs(folder / "1.jsonl", folder)  # the first step with each one
    assert [mean.difference for mean in begin.by_step.values()] == [0, 0.25, 0.5]
    table = begin.table().splitlines()
    assert [line.split()[0] for line in table[2:6]] == ["step", "1", "2", "10"]
    for step in (2, 10):
        (other / f"{step}.jsonl").unlink()
    with pytest.raises(ConfigError, match=r"no prompt in common that both scored\. Steps of A"):
        compare_runs(folder, other)


# ── The page ─────────────────────────────────────────────────────────────────────────────────────


def waits(seen: Any, count: str) -> None:
    seen.page.wait_for_function(
        "count => document.getElementById('count').textContent.startsWith(count)", arg=count
    )


def test_page_shows_a_prompts_answers_over_the_steps_and_each_row(
    folder: Path, opened: Any
) -> None:
    seen = opened(run_page(inf.load_run(folder)))
    seen.page.wait_for_selector(".card")
    assert seen.count() == "12 of 12 rows, 3 steps, 2 prompts"
    assert seen.texts("#charts figcaption") == [
        "score, mean: 0 → 0.5",  # of two scores the quartiles are these
        "length in characters, mean and quartiles: 96 → 123",
    ]
    assert seen.texts("#list .number") == ["6 rows, 3 steps", "0 → 1", "6 rows, 3 steps", "0 → 0"]
    assert seen.texts("#list .preview")[0] == "A"
    assert seen.texts("#detail h2") == ["step 1", "step 2", "step 10"]
    assert seen.texts(".card .text")[0] == f"So {HOSTILE} #### 0"
    seen.page.click(".card >> nth=3")
    assert seen.texts("#detail h2") == ["step 2 · score 0 · 99 characters"]
    assert HOSTILE in seen.text("#detail .messages")
    seen.page.click("#detail button")
    assert len(seen.texts(".card")) == 6

    seen.page.fill("#low", "0.5")
    waits(seen, "3 of 12 rows")
    seen.page.select_option("#listed", "rows")
    seen.page.wait_for_selector("#list button >> nth=2")
    assert [text.split("·")[0] for text in seen.texts("#list .number")][::2] == [
        *("step 2", "step 10", "step 10")
    ]
    seen.page.fill("#search", "#### 1")
    waits(seen, "1 of 12 rows")
    seen.page.click("#filters button")
    waits(seen, "12 of 12 rows")
    seen.page.click("#charts svg >> nth=0", position={"x": 2, "y": 20})
    waits(seen, "4 of 12 rows")
    assert seen.page.input_value("#last") == "1"


def test_address_keeps_the_view_and_the_browsers_back_returns_to_it(
    folder: Path, opened: Any
) -> None:
    seen = opened(run_page(inf.load_run(folder)))
    seen.page.wait_for_selector(".card")
    seen.page.fill("#search", "#### 1")
    waits(seen, "6 of 12 rows")
    seen.page.click("#list button >> nth=1")
    seen.page.click(".card >> nth=2")
    seen.page.wait_for_selector("article")
    link = seen.page.evaluate("location.hash")
    assert link == "#row=11&search=%23%23%23%23+1"
    seen.page.go_back()
    seen.page.wait_for_selector(".card")
    assert len(seen.texts(".card")) == 3
    seen.page.evaluate("location.hash = ''")
    waits(seen, "12 of 12 rows")
    seen.page.evaluate("link => { location.hash = link; }", link)
    seen.page.wait_for_selector("article")
    assert seen.count().startswith("6 of 12 rows") and seen.page.input_value("#search") == "#### 1"
    assert seen.texts("#detail h2") == ["step 10 · score 0 · 123 characters"]
    seen.page.click("text=All answers to this prompt")
    seen.page.wait_for_selector("#detail svg")
    seen.page.click("#detail svg", position={"x": 2, "y": 20})  # the prompt stays
    waits(seen, "2 of 12 rows")
    seen.page.wait_for_selector("#list [aria-current=true]")
    assert seen.page.evaluate("location.hash").startswith("#prompt=1&first=1&last=1")
    seen.page.go_back()
    waits(seen, "6 of 12 rows")
    for odd in ("#row=99", "#prompt=-1", "#row=x&listed=nope"):
        seen.page.evaluate("link => { location.hash = link; }", odd)
        waits(seen, "12 of 12 rows")


def test_lists_of_prompts_have_the_figures_of_the_rows_that_pass_the_filters(
    tmp_path: Path, opened: Any
) -> None:
    scores = {"A": [0, 0.2, 1], "B": [1, 0.5, 0.25], "C": [None, 0.3, None]}
    for step in range(3):
        rows = [{"input": name, "output": "", "score": s[step]} for name, s in scores.items()]
        write(tmp_path / f"{step}.jsonl", rows * 2)
    run = inf.load_run(tmp_path)
    assert run.by_prompt()["change"].dropna().to_dict() == {0: 1, 1: -0.75}
    seen = opened(run_page(run))
    seen.page.wait_for_selector(".card")
    numbers = "#list .number"
    assert seen.texts(numbers)[1::2] == ["0 → 1", "1 → 0.25", "0.3"]
    seen.page.fill("#last", "1")
    waits(seen, "12 of 18 rows")
    assert seen.texts(numbers) == [
        *("4 rows, 2 steps", "1 → 0.5", "4 rows, 2 steps", "0 → 0.2", "4 rows, 2 steps", "0.3")
    ]
    seen.page.fill("#last", "")
    seen.page.select_option("#listed", "worse")
    seen.page.wait_for_function(
        "() => location.hash === '#prompt=1' || location.hash.includes('worse')"
    )
    waits(seen, "18 of 18 rows")
    assert seen.texts(numbers)[1::2] == ["1 → 0.25", "0 → 1", "0.3"]


def test_chart_says_the_values_of_a_step_that_an_arrow_key_points_at(
    folder: Path, opened: Any
) -> None:
    seen = opened(run_page(inf.load_run(folder)))
    seen.page.wait_for_selector(".card")
    seen.page.focus("#charts svg >> nth=1")
    for key in ("ArrowRight", "ArrowRight"):
        seen.page.keyboard.press(key)
    assert seen.texts("#charts figcaption")[1] == "step 2: 99, quartiles 99 and 99, 4 rows"
    seen.page.keyboard.press("Enter")
    waits(seen, "4 of 12 rows")
    assert seen.page.input_value("#first") == "2"


def test_card_shows_the_beginning_and_the_end_and_all_answers_can_be_shown(
    tmp_path: Path, opened: Any
) -> None:
    answer = "Begin " + "word " * 1_000_000 + "#### 7"
    rows = [{"input": "Q", "output": answer if at == 0 else "7", "score": 1} for at in range(30)]
    write(tmp_path / "5.jsonl", rows)
    seen = opened(run_page(inf.load_run(tmp_path)))
    seen.page.wait_for_selector(".card")
    first = seen.texts(".card .text")[0]
    assert first.startswith("Begin word") and first.endswith("#### 7") and len(first) < 1_000
    assert len(seen.texts(".card")) == 4
    seen.page.click("text=Show all")
    seen.page.wait_for_selector(".card >> nth=29")
    seen.page.click(".card >> nth=0")
    seen.page.wait_for_selector("article")
    assert (
        seen.page.evaluate("document.querySelector('.message:last-child .text').textContent")
        == answer
    )


def test_page_that_would_be_too_large_says_which_rows_it_has(
    folder: Path, opened: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_pages, "MOST_TEXT", 4_000)
    seen = opened(run_page(inf.load_run(folder)))
    seen.page.wait_for_selector(".card")
    said = seen.text("#notes")
    assert said.startswith("This page has the text of ") and " of 12 rows, first those" in said
    seen.page.click("#list button >> nth=1")
    seen.page.wait_for_selector("text=of these answers is not in this page")
    assert seen.texts(".card .text")[-1] == "not in this page"
    assert seen.texts(".card .caption")[-1] == "score 0 · 123 characters"
    seen.page.click(".card >> nth=5")
    seen.page.wait_for_selector("text=The text of this answer is not in this page")


def test_server_gives_the_text_of_rows_and_finds_text_and_answers_to_its_own_name_only(
    folder: Path,
) -> None:
    app = create_app(ServedRun([folder], partial(inf.load_run, folder)))
    client = TestClient(app, base_url="http://127.0.0.1")
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
    elsewhere = TestClient(app, base_url="http://elsewhere.example")
    assert elsewhere.get("/").status_code == 400


def test_served_page_has_the_steps_that_were_written_since_when_it_is_opened_again(
    folder: Path,
) -> None:
    served = ServedRun([folder], partial(inf.load_run, folder))
    client = TestClient(create_app(served), base_url="http://127.0.0.1")
    assert client.get("/").text == client.get("/").text and served.number == 0
    write(folder / "0.jsonl", rows_of_step(0))
    assert client.get("/rows?at=0&reading=0").json()["0"]["facts"][-1][1] == "1.jsonl:1"
    client.get("/")
    assert served.run.steps == [0, *STEPS]
    assert client.get("/rows?at=0&reading=1").json()["0"]["facts"][-1][1] == "0.jsonl:1"
    old = client.get("/search?text=a&reading=0")  # its numbers of rows are others now
    assert old.status_code == 409 and "reload it" in old.text
    write(folder / "0.jsonl", ["{"])
    assert client.get("/").status_code == 409 and client.get("/").status_code == 409


def test_command_writes_a_page_beside_the_folder(
    folder: Path, command: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folder.rename(folder.with_name("run-2.5"))
    monkeypatch.chdir(folder)
    code, _, said = command("show", ".")
    page = folder.with_name("run-2.5.html")  # the whole name: another run may be run-2.7
    assert code == 0 and said == f"12 rows of 3 steps: {page}\n"
    assert '"unit": "character"' in page.read_text()
    code, _, said = command("show", "1.jsonl", "2.jsonl", "10.jsonl", "--tokenizer", tiny_model())
    assert code == 0 and '"unit": "token"' in Path("1.html").read_text()
    for wrong, why in (
        (
            ["1.jsonl", "--serve"],
            "--serve and --tokenizer are for the folder of a run",
        ),
        ([".", "--tokenizer", "."], "--tokenizer: Transformers cannot load a tokenizer from ."),
        ([".", "--out", "."], "it is a folder"),
    ):
        code, _, said = command("show", *wrong)
        assert code == 2 and why in said

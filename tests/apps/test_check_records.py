"""`inf check --records`: which definition each side's log probs have is told from the figures.

The log probs are softmax's over random logits: each answer's tokens are sampled from them, with the
filters and temperatures that the test names, so the figures are those of a real rollout.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from scipy.special import log_softmax, softmax
from typer.testing import CliRunner

from _inf.apps.check.records import measure
from _inf.apps.check.records.reading import read_records
from _inf.apps.check.records.report import RecordsReport
from _inf.apps.cli import app
from inf import ConfigError
from tests.support.json_lines import write

Row = dict[str, Any]
Sides = Callable[[Any, Any], tuple[Any, Any]]
A, B = "rollout_log_probs", "old_log_probs"
PROMPTS, ANSWERS, TOKENS, VOCABULARY = 8, 6, 30, 200
TOKENS_OF_ALL = PROMPTS * ANSWERS * TOKENS
PAD = [0] * 9


def logits_after(ids: Sequence[int]) -> np.ndarray:
    """Return the logits after these ids: always the same, and more or less sure."""
    generator = np.random.default_rng([len(ids), *ids])
    return generator.normal(size=VOCABULARY) * generator.uniform(1, 6)


def filtered(logits: np.ndarray, top_p: float, top_k: int) -> np.ndarray:
    """Return the log probs over the tokens that are left, -inf for others."""
    logprobs = log_softmax(logits)
    order = np.argsort(-logprobs)
    before = np.cumsum(np.exp(logprobs[order])) - np.exp(logprobs[order])
    kept = order[(before < top_p) & (np.arange(len(order)) < (top_k or len(order)))]
    left = np.full(len(logits), -np.inf)
    left[kept] = log_softmax(logits[kept])
    return left


@functools.cache
def sampled(temperature: float = 1.0, top_p: float = 1.0, top_k: int = 0) -> list[Row]:
    """Return records: `rollout_log_probs` as sampled, `old_log_probs` of all tokens at temperature
    1, with the rounding of logits to 8 bits."""
    generator = np.random.default_rng(7)
    rows = []
    for prompt in range(PROMPTS * ANSWERS):
        ids, ours, theirs = [prompt // ANSWERS], [], []
        for _ in range(TOKENS):
            logits = logits_after(ids)
            left = filtered(logits / temperature, top_p, top_k)
            ids.append(int(generator.choice(VOCABULARY, p=softmax(left))))
            ours.append(float(np.float32(left[ids[-1]])))
            rounded = torch.tensor(logits).bfloat16().double().numpy()
            theirs.append(float(log_softmax(rounded)[ids[-1]]))
        rows.append(
            {
                "prompt_token_ids": ids[:1],
                "response_ids": ids[1:],
                "response_mask": [1] * TOKENS,
                A: ours,
                B: theirs,
            }
        )
    return rows


def as_they_are(a: Any, b: Any) -> tuple[Any, Any]:
    return a, b


def changed(rows: Sequence[Row], sides: Sides = as_they_are, **keys: object) -> list[Row]:
    """Return rows with other log probs, and with zeros for ids where these are longer."""
    made = []
    for row in rows:
        a, b = (np.asarray(side).tolist() for side in sides(np.array(row[A]), np.array(row[B])))
        ids = (row["response_ids"] + PAD)[: len(a)]
        about = {A: a, B: b, "response_ids": ids, "response_mask": [1] * len(a)}
        made.append({**row, **about, **keys})
    return made


def check_records(path: Path, threshold: float | None = None) -> RecordsReport:
    return measure.check_records(read_records(path, None), threshold=threshold)


def report_of(rows: Sequence[Row], threshold: float | None = None) -> RecordsReport:
    return check_records(write(Path("records.jsonl"), [*rows]), threshold)


def test_sides_of_one_definition_pass():
    report = report_of(sampled())
    assert report.passed and report.tokens == TOKENS_OF_ALL
    assert report.sides[0].values == "log probs"
    ratios = np.exp([b - a for row in sampled() for a, b in zip(row[A], row[B], strict=True)])
    assert report.metrics["ratio_quantile_0.95"] == pytest.approx(np.quantile(ratios, 0.95))
    assert report.metrics["k3_kl"] == pytest.approx((ratios - np.log(ratios) - 1).mean())


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"temperature": 0.7}, {"temperature: rollout_log_probs is at ": 0.70}),
        ({"temperature": 1.4}, {"temperature: rollout_log_probs is at ": 1.40}),
        ({"top_p": 0.8}, {"filter: rollout_log_probs is over": 0.80}),
        ({"top_k": 10}, {"filter: rollout_log_probs is over": None}),
        ({"temperature": 0.7, "top_p": 0.8}, {"temperature: rollout_log_probs is at ": 0.70}),
    ],
)
def test_temperatures_and_filters_are_told(how, says):
    for finding, (begins, value) in zip(
        report_of(sampled(**how)).findings, says.items(), strict=True
    ):
        assert finding.meaning.startswith(begins)
        if value is not None:
            assert finding.value == pytest.approx(value, abs=0.03)


def test_without_the_ids_of_prompts_a_filter_is_told_and_a_temperature_is_not():
    """No two tokens are then known to follow equal ids."""
    for how, begins in (
        ({"temperature": 0.7}, "unexplained: "),
        ({"top_p": 0.8}, f"filter: {A} is "),
    ):
        report = report_of(changed(sampled(**how), prompt_token_ids=None))
        [finding] = report.findings
        assert finding.meaning.startswith(begins)
        assert "no temperature could be told" in report.notes[0]


def one_later(a: Any, b: Any) -> tuple[Any, Any]:
    return a, [*b[1:], -3.0]


def trained(a: Any, b: Any) -> tuple[Any, Any]:
    return a, b + 0.3 - np.log1p(np.exp(b) * np.expm1(0.3))


NOISE = np.random.default_rng(3)
PADDING = "padding: the mask counts tokens at the ends of answers where "


@pytest.mark.parametrize(
    ("sides", "how", "says"),
    [
        (one_later, {}, [f"shifted by one: {A}'s value at a token is {B}'s at the previous"]),
        (lambda a, b: (a, [-3.0, *b[:-1]]), {},
         [f"shifted by one: {A}'s value at a token is {B}'s at the next"]),
        (one_later, {"temperature": 0.7}, ["shifted by one: ", "temperature: "]),
        (as_they_are, {"temperature": 0.95}, [f"temperature: {A} is at 0.9[456] times"]),
        (as_they_are, {"temperature": 0.1}, [f"temperature: {A} is at 0.(09|10|11) times"]),
        # Two digits make zeros, as filters do.
        (lambda a, b: (a.round(2), b.round(2)), {"temperature": 0.7}, [f"temperature: {A} is at"]),
        (lambda a, b: (b, a), {"top_p": 0.8}, [f"filter: {B} is over"]),
        # Tokens that a filter made certain are no padding, also at the ends.
        (as_they_are, {"top_p": 0.5}, [f"filter: {A} is over"]),
        (as_they_are, {"top_k": 1}, [f"{A}: its values are all equal"]),
        (lambda a, b: ([*a, *PAD], [*b, *[-11.0] * 9]), {}, [PADDING + A]),
        (lambda a, b: ([*a, *PAD], [*b, *PAD]), {}, [PADDING + A, PADDING + B]),
        (lambda a, b: (np.exp(a), b), {}, [f"{A}: its values are probabilities"]),
        (lambda a, b: (a, -b), {}, [f"{B}: its values are negative log probs"]),
        (lambda a, b: (a + 20, b), {}, [f"{A}: its values are no log probs"]),
        (lambda a, b: (a, np.where(b > -4, b, -np.inf)), {},
         [f"{B}: sampled tokens without a finite value"]),
        # As of a mixture of experts, where rounding sends a token to another expert.
        (lambda a, b: (b, [b[0] - 3, *b[1:]]), {}, ["unexplained: "]),
        (lambda a, b: (a, np.minimum(b + NOISE.normal(0, 0.5, TOKENS), 0)), {}, ["unexplained: "]),
    ],
)  # fmt: skip
def test_each_fault_is_told(sides, how, says):
    rows = changed(sampled(**how), sides)
    for finding, begins in zip(report_of(rows).findings, says, strict=True):
        assert re.match(begins, finding.meaning)
    if says == ["unexplained: "]:
        assert report_of(rows, threshold=10).passed


def test_what_else_the_figures_allow_is_said():
    def gap(a: Any, b: Any) -> tuple[Any, Any]:
        return [*a[:9], *PAD, *a[18:]], b

    for rows, says in (
        (changed(sampled(), trained), "weights that were trained on these very tokens"),
        (changed(sampled(temperature=0.1), prompt_token_ids=None), "a temperature far below"),
        (changed(sampled(), gap, response_mask=None), "zeros for tokens that were not sampled"),
    ):
        [finding] = report_of(rows).findings
        assert finding.meaning.startswith("filter: ") and says in finding.meaning


def test_few_tokens_tell_nothing():
    rows = changed(sampled()[:1], lambda a, b: (a[:5], b[:5] - 0.3))
    [finding] = report_of(rows).findings
    assert finding.meaning.startswith("these are too few tokens to tell the cause")


def test_loops_at_the_ends_are_no_padding():
    """Both sides are certain of a token that a cut answer repeats, and so may have zeros for it."""
    rows = changed(sampled(), lambda a, b: ([*a, *PAD], [*b, *PAD]))
    for row in rows:
        row["response_ids"][-9:] = row["response_ids"][:1] * 9
    assert report_of(rows).passed


def test_drift_over_the_steps_is_told():
    for step in range(1, 9):

        def apart(a: Any, b: Any, size: float = 0.002 * step) -> tuple[Any, Any]:
            return a, a + NOISE.normal(0, size, TOKENS)

        write(Path(f"train_data_step{step}.jsonl"), changed(sampled()[:12], apart))
    report = check_records(Path())
    [finding] = report.findings
    assert finding.meaning.startswith("drift: the mean difference grew") and finding.value > 3
    assert [row["step"] for row in report.by_step] == [*range(1, 9)]
    assert report.by_step[0]["tokens"] == 12 * TOKENS


@pytest.mark.parametrize(("before", "after"), [(3, 0), (2, 0), (0, 9), (3, 9)])
def test_list_may_cover_the_prompt_or_have_zeros_after_its_end(before, after):
    rows = [
        {
            **row,
            "prompt_token_ids": [*row["prompt_token_ids"], 5, 6],
            B: [-1.0] * before + row[B] + PAD[:after],
        }
        for row in sampled()
    ]
    assert report_of(rows).passed


def whole_rows(**keys: object) -> list[Row]:
    """Return rows of prompt and answer, padded on the right."""
    return [
        {
            "token_ids": [*row["prompt_token_ids"], *row["response_ids"], 0, 0],
            "token_loss_mask": [0, *row["response_mask"], 0, 0],
            "generation_logprobs": [0.0, *row[A], 0.0, 0.0],
            "prev_logprobs": [0.0, *row[B], -7.0, -7.0],
            **keys,
        }
        for row in sampled()
    ]


def assert_read(path: Path, names: tuple[str, str], *steps: int) -> RecordsReport:
    """That a trainer's files are read: all tokens, at each of the steps if there are several."""
    report = check_records(path)
    assert report.passed and report.tokens == (len(steps) or 1) * TOKENS_OF_ALL
    assert tuple(side.name for side in report.sides) == names
    assert [row["step"] for row in report.by_step] == [*steps]
    return report


def test_nemo_rls_folder():
    """As `log_batched_dict_as_jsonl` (NeMo-RL 7ea279ab, `utils/logger.py`) writes a batch: each
    value is a slice of one row; a validation's file has no log probs."""
    rows = [
        {**{name: [value] for name, value in row.items()}, "input_lengths": [1 + TOKENS]}
        for row in whole_rows()
    ]
    for step in (1, 2):
        write(Path(f"train_data_step{step}.jsonl"), rows)
    write(Path("val_data_step1.jsonl"), [{"content": ["That."], "rewards": [1.0]}])
    report = assert_read(Path(), ("generation_logprobs", "prev_logprobs"), 1, 2)
    assert "1 files without generation_logprobs and prev_logprobs were left out: val_" in str(
        report.notes
    )


def test_prime_rls_token_exports():
    """As prime-rl writes them (559b4477, `trainer/rl/token_export.py`), a file for each rank."""
    names = ("token_ids", "loss_mask", "inference_logprobs", "trainer_logprobs")
    rows = [dict(zip(names, row.values(), strict=True)) for row in whole_rows()]
    for row in rows:
        row["loss_mask"] = [*map(bool, row["loss_mask"])]
    for step in (9, 10):
        Path(f"step_{step}").mkdir()
        for rank in (0, 1):
            of_rank = [{**row, "step": step, "rank": rank} for row in rows[rank::2]]
            write(Path(f"step_{step}/rank_{rank}.jsonl"), of_rank)
    assert_read(Path(), names[2:], 9, 10)


def test_rows_without_a_mask_say_so():
    rows = whole_rows(token_ids=None, token_loss_mask=None)
    for row in rows:
        row["prev_logprobs"][-2:] = [0.0, 0.0]
    assert "48 records have no mask" in report_of(rows).notes[0]


@pytest.mark.parametrize("version", [1, 2])
def test_slimes_train_data(version):
    """As slime 0.2 writes it (`utils/train_dump_utils.py`), columns with a tensor for each row; and
    as 0.3.1 does (`observability/train_data_utils.py` at 624b824a), samples."""
    samples = [
        {
            "tokens": torch.tensor(row["prompt_token_ids"] + row["response_ids"]),
            "response_lengths": TOKENS,
            "loss_masks": torch.ones(TOKENS, dtype=torch.int),
            "rollout_log_probs": torch.tensor(row[A]),
            "log_probs": torch.tensor(row[B]),
        }
        for row in sampled()
    ]
    content: Row = {"samples": samples, "format_version": 2, "dp_shards": [{"rank": 0}]}
    if version == 1:
        columns = {name: [row[name] for row in samples] for name in samples[0]}
        content = {"rollout_data": {**columns, "global_batch_sizes": [48]}}
    torch.save({"rollout_id": 3, "rank": 0, **content}, "train_3_0.pt")
    assert_read(Path("train_3_0.pt"), ("rollout_log_probs", "log_probs"))


@pytest.mark.parametrize("masked", [True, False])
def test_verls_batch(masked):
    """The tensors of a verl 0.6.1 batch: prompts padded on the left, answers on the right."""
    columns = {
        name: torch.tensor([row[name] + [0, 0] for row in sampled()])
        for name in ("response_ids", "response_mask", A, B)
    }
    answers, mask = columns.pop("response_ids"), columns["response_mask"]
    prompts = torch.tensor([[0, *row["prompt_token_ids"]] for row in sampled()])
    columns["input_ids"], columns["responses"] = torch.cat([prompts, answers], 1), answers
    shown = torch.tensor([[0, 1]] * len(mask))
    columns["attention_mask"] = torch.cat([shown, mask], 1)
    if not masked:
        del columns["response_mask"]
    save_file(columns, "batch.safetensors")
    assert_read(Path("batch.safetensors"), ("logprobs", B))


class Code:
    def __reduce__(self) -> tuple[object, ...]:
        return print, ("run",)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ('{"logprobs": [-1], "response_ids": [1]}', "Name them with --sides A,B"),
        ('{"logprobs": [-1], "old_log_probs": [-1, -2], "response_ids": [1]}',
         "row 1: old_log_probs has 2 values; its answer has 1 ids, and its prompt 0"),
        ('{"logprobs": [-1], "old_log_probs": [-1], "response_ids": [1], "loss_mask": [1, 1]}',
         "the mask has 2 values, and the answer 1 ids"),
        ('{"logprobs": [-1], "old_log_probs": [-1], "response_ids": [1], "response_mask": [0]}',
         "no token that the model sampled"),
        ('{"logprobs": [-1], "old_log_probs": [null], "response_ids": [1]}',
         "no sampled token has two finite log probs"),
        ("[1]", "a record is an object"),
        ('{"logprobs": [-1], "old_log_probs": [-1], "response_ids": [NaN]}',
         "response_ids: expected a list of whole numbers"),
        (f'{{"logprobs": [-1], "old_log_probs": [{-(10**400)}], "response_ids": [1]}}',
         "old_log_probs: int too large"),
    ],
)  # fmt: skip
def test_a_wrong_record_is_named(content, says):
    with pytest.raises(ConfigError, match=says) as failure:
        check_records(write(Path("records.jsonl"), [content]))
    assert "records.jsonl" in str(failure.value)


def test_files_of_other_kinds_are_refused(capsys):
    Path("records.csv").write_text("a,b")
    torch.save({"rollout_data": {"x": Code()}}, "code.pt")
    torch.save({"samples": [3]}, "samples.pt")
    Path("damaged.safetensors").write_bytes(b"12345678")
    for name, says in (
        ("records.csv", "records are read from .jsonl"),
        ("code.pt", "it is not opened"),
        ("samples.pt", "it has no samples or rollout_data"),
        ("damaged.safetensors", "it is damaged"),
        ("missing.jsonl", "no such file"),
    ):
        with pytest.raises(ConfigError, match=says):
            check_records(Path(name))
    assert capsys.readouterr().out == ""


def test_the_command():
    write(Path("records.jsonl"), changed(sampled(), lambda a, b: (a, -b)))
    failed = CliRunner().invoke(app, "check --records records.jsonl --json")
    assert failed.exit_code == 1
    assert json.loads(failed.output)["sides"][1]["values"] == "negative log probs"
    for options, says in (
        ("--records records.jsonl --sides logprobs,logprobs", "both are 'logprobs'"),
        ("--records records.jsonl --sides logprobs", "expected two keys"),
        ("--records records.jsonl --max-tokens 4", "--records: leave out"),
        ("--sides a,b", "--sides: it names keys of --records"),
    ):
        refused = CliRunner().invoke(app, f"check {options}").exception
        assert isinstance(refused, ConfigError) and says in str(refused)

"""`inf check --records`: which definition each side's log probs have is told from the figures.

The log probs are softmax's over random logits: each answer's tokens are sampled from them, with the
filters and temperatures that the test names, so the figures are those of a real rollout.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

from _inf.apps.check.records import measure
from _inf.apps.check.records.reading import read_records
from _inf.apps.check.records.report import RecordsReport
from _inf.apps.cli import app
from inf import ConfigError

Row = dict[str, Any]
PROMPTS, ANSWERS, TOKENS, VOCABULARY = 8, 6, 30, 200


def logits_after(ids: Sequence[int]) -> np.ndarray:
    """Return the logits after these ids: always the same, and more or less sure."""
    generator = np.random.default_rng([len(ids), *ids])
    return generator.normal(size=VOCABULARY) * generator.uniform(1, 6)


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max()
    return shifted - np.log(np.exp(shifted).sum())


def filtered(logits: np.ndarray, top_p: float, top_k: int) -> np.ndarray:
    """Return the log probs over the tokens that are left, -inf for others."""
    logprobs = log_softmax(logits)
    order = np.argsort(-logprobs)
    before = np.cumsum(np.exp(logprobs[order])) - np.exp(logprobs[order])
    kept = order[(before < top_p) & (np.arange(len(order)) < (top_k or len(order)))]
    left = np.full(len(logits), -np.inf)
    left[kept] = log_softmax(logits[kept])
    return left


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
            ids.append(int(generator.choice(VOCABULARY, p=np.exp(left) / np.exp(left).sum())))
            ours.append(float(np.float32(left[ids[-1]])))
            rounded = torch.tensor(logits).bfloat16().double().numpy()
            theirs.append(float(log_softmax(rounded)[ids[-1]]))
        rows.append(
            {
                "prompt_token_ids": ids[:1],
                "response_ids": ids[1:],
                "response_mask": [1] * TOKENS,
                "rollout_log_probs": ours,
                "old_log_probs": theirs,
            }
        )
    return rows


@pytest.fixture(scope="module")
def plain() -> list[Row]:
    return sampled()


def written(folder: Path, rows: Sequence[Row], change: Callable[[Row], object] = len) -> Path:
    """Write copies of the rows as they are after `change`."""
    path = folder / "records.jsonl"
    copies = [dict(row) for row in rows]
    for row in copies:
        change(row)
    path.write_text("".join(f"{json.dumps(row)}\n" for row in copies))
    return path


def check_records(path: Path, threshold: float | None = None) -> RecordsReport:
    return measure.check_records(read_records(path, None), threshold=threshold)


def meanings(path: Path) -> list[str]:
    return [finding.meaning for finding in check_records(path).findings]


def test_sides_of_one_definition_pass(tmp_path, plain):
    report = check_records(written(tmp_path, plain))
    assert report.passed and report.tokens == PROMPTS * ANSWERS * TOKENS
    assert report.sides[0].values == "log probs"
    ratios = np.exp([b - a for row in plain for a, b in zip(*_sides(row), strict=True)])
    assert report.metrics["ratio_quantile_0.95"] == pytest.approx(np.quantile(ratios, 0.95))
    assert report.metrics["k3_kl"] == pytest.approx((ratios - np.log(ratios) - 1).mean())


def _sides(row: Row) -> tuple[list[float], list[float]]:
    return row["rollout_log_probs"], row["old_log_probs"]


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"temperature": 0.7}, [("temperature: rollout_log_probs is at ", 0.70)]),
        ({"temperature": 1.4}, [("temperature: rollout_log_probs is at ", 1.40)]),
        ({"top_p": 0.8}, [("filter: rollout_log_probs is over", 0.80)]),
        ({"top_k": 10}, [("filter: rollout_log_probs is over", None)]),
        ({"temperature": 0.7, "top_p": 0.8}, [("temperature: rollout_log_probs is at ", 0.70)]),
    ],
)
def test_temperatures_and_filters_are_told(tmp_path, how, says):
    found = check_records(written(tmp_path, sampled(**how))).findings
    assert len(found) == len(says)
    for finding, (begins, value) in zip(found, says, strict=True):
        assert finding.meaning.startswith(begins)
        if value is not None:
            assert finding.value == pytest.approx(value, abs=0.03)


@pytest.mark.parametrize(
    ("how", "begins"),
    [({"temperature": 0.7}, "unexplained: "), ({"top_p": 0.8}, "filter: rollout_log_probs is ")],
)
def test_without_the_ids_of_prompts_a_filter_is_told_and_a_temperature_is_not(
    tmp_path, how, begins
):
    """No two tokens are then known to follow equal ids."""
    report = check_records(written(tmp_path, sampled(**how), _without_prompt))
    [finding] = report.findings
    assert finding.meaning.startswith(begins)
    assert "no temperature could be told" in report.notes[0]


def _without_prompt(row: Row) -> None:
    del row["prompt_token_ids"]


def test_filter_of_the_other_side_is_told(tmp_path):
    def exchange(row: Row) -> None:
        row["rollout_log_probs"], row["old_log_probs"] = reversed(_sides(row))

    [finding] = check_records(written(tmp_path, sampled(top_p=0.8), exchange)).findings
    assert finding.meaning.startswith("filter: old_log_probs is over the tokens")


def test_a_low_temperature_is_no_filter(tmp_path):
    rows = sampled(temperature=0.1)
    [finding] = check_records(written(tmp_path, rows)).findings
    assert finding.meaning.startswith("temperature: ") and finding.value == pytest.approx(0.1, 0.1)
    [text] = meanings(written(tmp_path, rows, _without_prompt))
    assert "or else rollout_log_probs has a temperature far below the other's" in text


def test_certain_tokens_at_the_ends_are_no_padding(tmp_path):
    """The likeliest tokens alone: of half the probability, and the one that always is sampled."""
    [text] = meanings(written(tmp_path, sampled(top_p=0.5)))
    assert text.startswith("filter: rollout_log_probs is over the tokens")
    [text] = meanings(written(tmp_path, sampled(top_k=1)))
    assert text.startswith("rollout_log_probs: its values are all equal")


def test_loops_at_the_ends_are_no_padding(tmp_path, plain):
    """Both sides are certain of a token that a cut answer repeats, and so may have zeros for it."""

    def loop(row: Row) -> None:
        _counted_padding_of_both(row)
        row["response_ids"] = row["response_ids"][:-9] + [row["response_ids"][0]] * 9

    assert check_records(written(tmp_path, plain, loop)).passed


def test_small_temperature_is_told(tmp_path):
    [finding] = check_records(written(tmp_path, sampled(temperature=0.95))).findings
    assert finding.meaning.startswith("temperature: ")
    assert finding.value == pytest.approx(0.95, abs=0.01)


def test_tokens_that_all_became_likelier_may_be_trained(tmp_path, plain):
    def trained(row: Row) -> None:
        old = np.array(row["old_log_probs"])
        row["old_log_probs"] = (old + 0.3 - np.log1p(np.exp(old) * np.expm1(0.3))).tolist()

    [text] = meanings(written(tmp_path, plain, trained))
    assert text.startswith("filter: old_log_probs is over")
    assert "weights that were trained on these very tokens" in text


def test_few_differing_tokens_are_no_filter(tmp_path, plain):
    """As of a mixture of experts, where rounding sends a token to another expert."""

    def tails(row: Row) -> None:
        row["rollout_log_probs"] = row["old_log_probs"]
        row["old_log_probs"] = [row["old_log_probs"][0] - 3, *row["old_log_probs"][1:]]

    [text] = meanings(written(tmp_path, plain, tails))
    assert text.startswith("unexplained: ")


def test_two_digits_are_no_filter(tmp_path):
    def rounded(row: Row) -> None:
        row["rollout_log_probs"], row["old_log_probs"] = (
            np.round(side, 2).tolist() for side in _sides(row)
        )

    [text] = meanings(written(tmp_path, sampled(temperature=0.7), rounded))
    assert text.startswith("temperature: rollout_log_probs is at 0.70")


def test_few_tokens_tell_nothing(tmp_path, plain):
    def few(row: Row) -> None:
        for name, value in row.items():
            row[name] = value[:5]
        row["old_log_probs"] = [value - 0.3 for value in row["old_log_probs"]]

    [text] = meanings(written(tmp_path, plain[:1], few))
    assert text.startswith("these are too few tokens to tell the cause")


def _later(row: Row) -> None:
    row["old_log_probs"] = [*row["old_log_probs"][1:], -3.0]


def _earlier(row: Row) -> None:
    row["old_log_probs"] = [-3.0, *row["old_log_probs"][:-1]]


def _counted_padding(row: Row) -> None:
    row["response_ids"] = row["response_ids"] + [0] * 9
    row["response_mask"] = [1] * len(row["response_ids"])
    row["rollout_log_probs"] = row["rollout_log_probs"] + [0.0] * 9
    row["old_log_probs"] = row["old_log_probs"] + [-11.0] * 9


def _counted_padding_of_both(row: Row) -> None:
    _counted_padding(row)
    row["old_log_probs"] = row["old_log_probs"][:-9] + [0.0] * 9


def _probabilities(row: Row) -> None:
    row["rollout_log_probs"] = np.exp(row["rollout_log_probs"]).tolist()


def _negative(row: Row) -> None:
    row["old_log_probs"] = [-value for value in row["old_log_probs"]]


def _logits(row: Row) -> None:
    row["rollout_log_probs"] = [20 + value for value in row["rollout_log_probs"]]


def _unlikely_left_out(row: Row) -> None:
    row["old_log_probs"] = [v if v > -4 else -np.inf for v in row["old_log_probs"]]


@pytest.mark.parametrize(
    ("plant", "says"),
    [
        (_later, ["shifted by one: rollout_log_probs's value at a token is old_log_probs's at the "
                  "previous"]),
        (_earlier, ["shifted by one: rollout_log_probs's value at a token is old_log_probs's at "
                    "the next"]),
        (_counted_padding, ["padding: the mask counts tokens at the ends of answers where roll"]),
        (_counted_padding_of_both, ["padding: the mask counts tokens at the ends of answers where "
                                    "rollout", "padding: the mask counts"]),
        (_probabilities, ["rollout_log_probs: its values are probabilities"]),
        (_negative, ["old_log_probs: its values are negative log probs"]),
        (_logits, ["rollout_log_probs: its values are no log probs"]),
        (_unlikely_left_out, ["old_log_probs: sampled tokens without a finite value"]),
    ],
)  # fmt: skip
def test_planted_faults_are_told(tmp_path, plain, plant, says):
    found = meanings(written(tmp_path, plain, plant))
    assert len(found) == len(says)
    assert all(text.startswith(begins) for text, begins in zip(found, says, strict=True))


def test_shift_and_temperature_are_told_together(tmp_path):
    found = meanings(written(tmp_path, sampled(temperature=0.7), _later))
    assert [text.partition(":")[0] for text in found] == ["shifted by one", "temperature"]


def test_other_weights_have_no_simple_definition(tmp_path, plain):
    generator = np.random.default_rng(3)

    def noisy(row: Row) -> None:
        noise = generator.normal(0, 0.5, TOKENS)
        row["old_log_probs"] = np.minimum(np.array(row["old_log_probs"]) + noise, 0).tolist()

    [text] = meanings(written(tmp_path, plain, noisy))
    assert text.startswith("unexplained: the differences are larger than rounding's")
    assert check_records(written(tmp_path, plain, noisy), threshold=10).passed


def test_drift_over_the_steps_is_told(tmp_path, plain):
    generator = np.random.default_rng(3)
    for step in range(8):
        rows = []
        for row in plain[:12]:
            noise = generator.normal(0, 0.002 * (step + 1), TOKENS)
            rows.append({**row, "old_log_probs": (row["rollout_log_probs"] + noise).tolist()})
        written(tmp_path, rows).rename(tmp_path / f"train_data_step{step + 1}.jsonl")
    report = check_records(tmp_path)
    [finding] = report.findings
    assert finding.meaning.startswith("drift: the mean difference grew") and finding.value > 3
    assert [row["step"] for row in report.by_step] == [*range(1, 9)]
    assert report.by_step[0]["tokens"] == 12 * TOKENS


@pytest.mark.parametrize(("before", "after"), [(3, 0), (2, 0), (0, 9), (3, 9)])
def test_list_may_cover_the_prompt_or_have_zeros_after_its_end(tmp_path, plain, before, after):
    def longer(row: Row) -> None:
        row["prompt_token_ids"] = [*row["prompt_token_ids"], 5, 6]
        row["old_log_probs"] = [-1.0] * before + row["old_log_probs"] + [0.0] * after

    assert check_records(written(tmp_path, plain, longer)).passed


def whole_rows(rows: Sequence[Row]) -> list[Row]:
    """Return rows of prompt and answer, padded on the right."""
    return [
        {
            "token_ids": [*row["prompt_token_ids"], *row["response_ids"], 0, 0],
            "token_loss_mask": [0, *row["response_mask"], 0, 0],
            "generation_logprobs": [0.0, *row["rollout_log_probs"], 0.0, 0.0],
            "prev_logprobs": [0.0, *row["old_log_probs"], -7.0, -7.0],
        }
        for row in rows
    ]


def test_nemo_rls_folder(tmp_path, plain):
    """As `log_batched_dict_as_jsonl` (NeMo-RL 7ea279ab, `utils/logger.py`) writes a batch: each
    value is a slice of one row; a validation's file has no log probs."""
    rows = [
        {**{name: [value] for name, value in row.items()}, "input_lengths": [1 + TOKENS], "idx": at}
        for at, row in enumerate(whole_rows(plain))
    ]
    for step in (1, 2):
        written(tmp_path, rows).rename(tmp_path / f"train_data_step{step}.jsonl")
    written(tmp_path, [{"content": ["That."], "rewards": [1.0]}]).rename(
        tmp_path / "val_data_step1.jsonl"
    )
    report = check_records(tmp_path)
    assert report.passed and report.tokens == 2 * PROMPTS * ANSWERS * TOKENS
    assert [side.name for side in report.sides] == ["generation_logprobs", "prev_logprobs"]
    assert [row["step"] for row in report.by_step] == [1, 2]
    assert "1 files without generation_logprobs and prev_logprobs were left out: val_" in str(
        report.notes
    )


def test_prime_rls_token_exports(tmp_path, plain):
    """As prime-rl writes them (559b4477, `trainer/rl/token_export.py`), a file for each rank."""
    names = ("token_ids", "loss_mask", "inference_logprobs", "trainer_logprobs")
    for step in (9, 10):
        for rank in (0, 1):
            rows = [
                {**dict(zip(names, row.values(), strict=True)), "step": step, "rank": rank}
                for row in whole_rows(plain)[rank::2]
            ]
            (tmp_path / f"step_{step}").mkdir(exist_ok=True)
            written(tmp_path, rows, _true_and_false).rename(
                tmp_path / f"step_{step}/rank_{rank}.jsonl"
            )
    report = check_records(tmp_path)
    assert report.passed and report.tokens == 2 * PROMPTS * ANSWERS * TOKENS
    assert [row["step"] for row in report.by_step] == [9, 10]


def _true_and_false(row: Row) -> None:
    row["loss_mask"] = [bool(value) for value in row["loss_mask"]]


def test_rows_without_a_mask_say_so(tmp_path, plain):
    def without(row: Row) -> None:
        del row["token_loss_mask"]
        row["prev_logprobs"] = row["prev_logprobs"][:-2] + [0.0, 0.0]

    rows = [{**row, "token_ids": None} for row in whole_rows(plain)]
    report = check_records(written(tmp_path, rows, without))
    assert "48 records have no mask" in report.notes[0]


def test_zeros_without_a_mask_may_be_of_a_tools_tokens(tmp_path, plain):
    def gap(row: Row) -> None:
        del row["response_mask"]
        row["rollout_log_probs"] = [*row["rollout_log_probs"][:9], *[0.0] * 9] + (
            row["rollout_log_probs"][18:]
        )

    [text] = meanings(written(tmp_path, plain, gap))
    assert text.startswith("filter: ") and "zeros for tokens that were not sampled" in text


@pytest.mark.parametrize("version", [1, 2])
def test_slimes_train_data(tmp_path, plain, version):
    """As slime 0.2 writes it (`utils/train_dump_utils.py`), columns with a tensor for each row; and
    as 0.3.1 does (`observability/train_data_utils.py` at 624b824a), samples."""
    tokens = [torch.tensor(row["prompt_token_ids"] + row["response_ids"]) for row in plain]
    columns = {
        "tokens": tokens,
        "response_lengths": [TOKENS] * len(plain),
        "loss_masks": [torch.ones(TOKENS, dtype=torch.int) for _ in plain],
        "rollout_log_probs": [torch.tensor(row["rollout_log_probs"]) for row in plain],
        "log_probs": [torch.tensor(row["old_log_probs"]) for row in plain],
    }
    content = {"rollout_data": {**columns, "global_batch_sizes": [48]}}
    if version == 2:
        values = zip(*columns.values(), strict=True)
        samples = [dict(zip(columns, each, strict=True)) for each in values]
        content = {"samples": samples, "format_version": 2, "dp_shards": [{"rank": 0}]}
    path = tmp_path / "train_3_0.pt"
    torch.save({"rollout_id": 3, "rank": 0, **content}, path)
    report = check_records(path)
    assert report.passed and report.tokens == PROMPTS * ANSWERS * TOKENS
    assert [side.name for side in report.sides] == ["rollout_log_probs", "log_probs"]


@pytest.mark.parametrize("masked", [True, False])
def test_verls_batch(tmp_path, plain, masked):
    """The tensors of a verl 0.6.1 batch: prompts padded on the left, answers on the right."""
    answers = torch.tensor([row["response_ids"] + [0, 0] for row in plain])
    prompts = torch.tensor([[0, *row["prompt_token_ids"]] for row in plain])
    mask = torch.tensor([[1] * TOKENS + [0, 0]] * len(plain))
    zeros = [0.0, 0.0]
    batch = {
        "input_ids": torch.cat([prompts, answers], 1),
        "attention_mask": torch.cat([torch.tensor([[0, 1]] * len(plain)), mask], 1),
        "responses": answers,
        "response_mask": mask,
        "rollout_log_probs": torch.tensor([row["rollout_log_probs"] + zeros for row in plain]),
        "old_log_probs": torch.tensor([row["old_log_probs"] + zeros for row in plain]),
    }
    path = tmp_path / "batch.safetensors"
    save_file(
        {name: each for name, each in batch.items() if masked or name != "response_mask"}, path
    )
    report = check_records(path)
    assert report.passed and report.tokens == PROMPTS * ANSWERS * TOKENS


class Code:
    def __reduce__(self) -> tuple[object, ...]:
        return print, ("run",)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ({"logprobs": [-1.0], "response_ids": [1]}, "Name them with --sides A,B"),
        ({"logprobs": [-1.0], "old_log_probs": [-1.0, -2.0], "response_ids": [1]},
         "row 1: old_log_probs has 2 values; its answer has 1 ids, and its prompt 0"),
        ({"logprobs": [-1.0], "old_log_probs": [-1.0], "response_ids": [1], "loss_mask": [1, 1]},
         "the mask has 2 values, and the answer 1 ids"),
        ({"logprobs": [-1.0], "old_log_probs": [-1.0], "response_ids": [1], "response_mask": [0]},
         "no token that the model sampled"),
        ({"logprobs": [-1.0], "old_log_probs": [None], "response_ids": [1]},
         "no sampled token has two finite log probs"),
        ([1], "a record is an object"),
        ({"logprobs": [-1.0], "old_log_probs": [-1.0], "response_ids": [float("nan")]},
         "response_ids: expected a list of whole numbers"),
        ({"logprobs": [-1.0], "old_log_probs": [-(10**400)], "response_ids": [1]},
         "old_log_probs: int too large"),
    ],
)  # fmt: skip
def test_a_wrong_record_is_named(tmp_path, content, says):
    path = tmp_path / "records.jsonl"
    path.write_text(json.dumps(content))
    with pytest.raises(ConfigError, match=says) as failure:
        check_records(path)
    assert "records.jsonl" in str(failure.value)


def test_files_of_other_kinds_are_refused(tmp_path, capsys):
    (tmp_path / "records.csv").write_text("a,b")
    torch.save({"rollout_data": {"x": Code()}}, tmp_path / "code.pt")
    torch.save({"samples": [3]}, tmp_path / "samples.pt")
    (tmp_path / "damaged.safetensors").write_bytes(b"12345678")
    for name, says in (
        ("records.csv", "records are read from .jsonl"),
        ("code.pt", "it is not opened"),
        ("samples.pt", "it has no samples or rollout_data"),
        ("damaged.safetensors", "it is damaged"),
        ("missing.jsonl", "no such file"),
    ):
        with pytest.raises(ConfigError, match=says):
            check_records(tmp_path / name)
    assert capsys.readouterr().out == ""


def test_the_command(tmp_path, plain):
    path = str(written(tmp_path, plain, _negative))
    failed = CliRunner().invoke(app, ["check", "--records", path, "--json"])
    assert failed.exit_code == 1
    assert json.loads(failed.output)["sides"][1]["values"] == "negative log probs"
    for options, says in (
        (["--records", path, "--sides", "logprobs,logprobs"], "both are 'logprobs'"),
        (["--records", path, "--sides", "logprobs"], "expected two keys"),
        (["--records", path, "--max-tokens", "4"], "--records: leave out"),
        (["--sides", "a,b"], "--sides: it names keys of --records"),
    ):
        refused = CliRunner().invoke(app, ["check", *options]).exception
        assert isinstance(refused, ConfigError) and says in str(refused)

"""What `generate` returns: rows in order with their metadata, tables, files."""

from __future__ import annotations

import copy
import dataclasses
import html
import json
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from _inf.config import load_config
from _inf.errors import ConfigError
from _inf.parts.prompt_logprobs import PromptScores
from _inf.request.sampling import resolve
from _inf.response.decode import answer_text, decode
from _inf.response.output import PRINTED_ROWS, TABLE_ROWS, GenerationOutput
from _inf.response.row import GenerationRow
from _inf.turns import Transcript
from _inf.types import Limits, ModelInfo, Prompt, RequestOutput, ToolCall
from tests.support.tiny import IM_END, PAD
from tests.support.tokenizers import byte_tokens, named, tokenizer_of

PAD_ID = 3


def row(
    ids: list[int], finish: str = "length", matched: int | str | None = None, **changed: Any
) -> Any:
    """Return a finished request's output, as a backend returns it."""
    said = RequestOutput(
        ids, [-0.5] * len(ids), finish_reason=finish, matched_stop=matched,
        prompt_tokens=5, completion_tokens=len(ids), cached_tokens=4,
    )  # fmt: skip
    return dataclasses.replace(said, **changed)


def decoded(
    tokenizer: Any,
    *rows: Any,
    n: int = 1,
    prompts: list[Prompt] | None = None,
    **params: Any,
) -> GenerationOutput:
    prompts = prompts or [Prompt([5], index=index) for index in range(len(rows) // n)]
    model = ModelInfo(tokenizer, frozenset({0}), Limits(prompt=512, total=640, vocabulary=384))
    rollout = load_config(None, {}).rollout
    sampling = resolve({"n": n, **params}, rollout, range(len(prompts)), model)
    return decode(list(rows), prompts, sampling, tokenizer, 8)


def output(count: int, completion: str = "text") -> GenerationOutput:
    rows = [
        GenerationRow(f"{completion} {i}", [i], [-i / 4], finish_reason="stop")
        for i in range(count)
    ]
    return GenerationOutput(rows)


# ── Decoding ─────────────────────────────────────────────────────────────────────────────────────


def test_text_ends_before_the_stop_id_that_stays_in_the_token_ids(tokenizer):
    end = tokenizer.convert_tokens_to_ids(IM_END)
    a, b = tokenizer.encode("a") + tokenizer.encode("b")
    paris = [*tokenizer.encode("Paris."), end]
    for ids, text, whole in (
        (paris, "Paris.", f"Paris.{IM_END}"),
        ([b, a, b], "ba", "bab"),  # an ordinary token, of which only the last one stopped it
        ([b], "", "b"),
    ):
        for skip, expected in ((True, text), (False, whole)):
            [shown] = decoded(tokenizer, row(ids, "stop", ids[-1]), skip_special_tokens=skip)
            assert (shown.completion, shown.token_ids) == (expected, ids)


@pytest.mark.parametrize(
    "text", ["Ja, größer.", "你好 🙂", "don 't , no .", " a  b \n\n c ", f"a{PAD}b{IM_END}c"]
)
@pytest.mark.parametrize("finish", ["length", "abort"])
def test_text_of_a_row_that_was_cut_is_whole_and_untidied(text, finish, tokenizer):
    ids = tokenizer.encode(text)
    shown = decoded(tokenizer, row(ids, finish), skip_special_tokens=False)
    assert shown.completions == [text]
    plain = text.replace(PAD, "").replace(IM_END, "")
    assert decoded(tokenizer, row(ids, finish)).completions == [plain]


def test_metadata_has_the_engines_values(tokenizer):
    ids = [9, PAD_ID, 7]  # a sampled one is no padding
    said = row(ids, "stop", 7, logprobs=[-0.25, -1, -0.5], weight_versions=[(3, 0)])
    (metadata,) = decoded(tokenizer, said).metadata
    assert metadata.pop("response_ids") == [*ids, *[PAD_ID] * 5]
    assert metadata.pop("response_mask") == [1] * 3 + [0] * 5
    assert metadata.pop("matched_stop_text") == tokenizer.decode([7])
    assert json.dumps(metadata) == (
        '{"finish_reason": "stop", "matched_stop": 7, "prompt_tokens": 5, "completion_tokens": 3,'
        ' "cached_tokens": 4, "prompt_index": 0, "sample_index": 0, "cumulative_logprob": -1.75,'
        ' "weight_version": 3, "weight_versions": [[3, 0]]}'
    )


def test_truncation_is_in_the_metadata_of_its_prompts_rows_only(tokenizer):
    prompts = [Prompt([5]), Prompt([5], truncated_tokens=4)]
    answered = decoded(tokenizer, *[row([9]) for _ in range(4)], n=2, prompts=prompts)
    assert [m.get("truncated_prompt_tokens") for m in answered.metadata] == [None, None, 4, 4]


def test_likeliest_tokens_of_a_prompt_have_its_own_token_and_go_into_tables(tokenizer):
    tops = [None, {7: -0.25, 8: -2.0}, {5: -0.5, 6: -1.0}]
    said = row([9], parts=(PromptScores([None, -0.25, -3.0], tops),))
    output = decoded(tokenizer, said, prompts=[Prompt([5, 7, 383])], prompt_logprobs=2)
    assert output.prompt_logprobs == [[None, -0.25, -3.0]]
    expected = [None, {7: -0.25, 8: -2.0}, {5: -0.5, 6: -1.0, 383: -3.0}]
    assert output.top_prompt_logprobs == [expected]
    as_json = json.loads(output.to_pandas()["top_prompt_logprobs"][0])
    assert as_json == output.to_dict()[0]["top_prompt_logprobs"] == json.loads(json.dumps(expected))
    assert decoded(tokenizer, said).prompt_logprobs is None


def test_what_users_code_returned_is_json_and_goes_through_parquet(tokenizer, tmp_path):
    for fields, plain in (({}, {}), ({np.int64(7): [np.float32(3)]}, {"7": [3.0]})):
        said = Transcript(
            ids=[9], mask=[1], logprobs=[-1.0], agent_loop="mine", unsampled=[0],
            reward_scores={"f": float("nan"), "g": -np.inf}, extra_fields=fields,
        )  # fmt: skip
        answered = decoded(tokenizer, dataclasses.replace(row([9]), transcript=said))
        [kept] = answered.to_dict()
        assert kept.items() >= {
            "extra_fields": plain, "reward_scores": {"f": None, "g": None}, "agent_loop": "mine",
            "unsampled_ids": 1, "unsampled_at": [0], "executed_tool_calls": [],
        }.items()  # fmt: skip
        answered.save(tmp_path / "rows.parquet")
        [read] = pyarrow.parquet.read_table(tmp_path / "rows.parquet").to_pylist()
        assert json.loads(read["extra_fields"]) == plain


# ── Stop strings ─────────────────────────────────────────────────────────────────────────────────


def spelled(tokenizer: Any, *tokens: str) -> list[int]:
    """Return the ids of texts, each of which is a single token."""
    ids = [tokenizer.encode(token) for token in tokens]
    assert all(len(each) == 1 for each in ids)
    return [each[0] for each in ids]


@pytest.mark.parametrize(
    ("tokens", "stop", "text"),
    [
        (("x", " capital"), "a", "x c"),  # twice in the last token
        (("x", "y", "q", "x", "y"), "xy", "xyq"),  # the first was before min_tokens
    ],
)
@pytest.mark.parametrize("skip", [True, False])
def test_text_ends_before_the_stop_string_that_its_last_token_completed(
    tokens, stop, text, skip, tokenizer
):
    ids = spelled(tokenizer, *tokens)
    [answered] = decoded(tokenizer, row(ids, "stop", stop), skip_special_tokens=skip)
    assert (answered.completion, answered.token_ids) == (text, ids)
    assert answered.metadata["matched_stop"] == stop


@settings(max_examples=200)
@given(text=st.text("ab é🙂", min_size=1, max_size=12), data=st.data())
def test_any_stop_string_at_its_first_place_is_where_the_text_ends(text, data, tokenizer):
    start = data.draw(st.integers(0, len(text) - 1))
    stop = text[start : start + data.draw(st.integers(1, 4))]
    ids = tokenizer.encode(text)
    last = next(k for k in range(1, len(ids) + 1) if stop in tokenizer.decode(ids[:k]))
    ended = row(ids[:last], "stop", stop)
    assert answer_text(ended, tokenizer, skip_special_tokens=True) == text.partition(stop)[0]
    whole = answer_text(ended, tokenizer, skip_special_tokens=True, include_stop=True)
    assert whole == text.partition(stop)[0] + stop


def test_stop_string_of_several_byte_tokens_is_cut_where_each_byte_reads_as_a_character():
    """Llama 2's and Gemma's decoders write a U+FFFD per byte until the character is complete."""
    tokenizer, ids = tokenizer_of("Gemma"), named("Gemma", "a", *byte_tokens("🙂"))
    assert tokenizer.decode(ids[:-1]) == "a\ufffd\ufffd\ufffd"
    assert answer_text(row(ids, "stop", "🙂"), tokenizer, skip_special_tokens=True) == "a"


@pytest.mark.parametrize("own_decoder", [False, True])
@pytest.mark.parametrize("skip", [True, False])
def test_rows_decoded_together_read_as_each_does_alone(own_decoder, skip, tokenizer):
    class Loud(type(tokenizer)):
        """A class with a decoder of its own, as files beside a model may bring."""

        def _decode(self, *args: Any, **how: Any) -> str:
            return str(super()._decode(*args, **how).upper())

    if own_decoder:
        tokenizer = copy.copy(tokenizer)
        tokenizer.__class__ = Loud
    ids = tokenizer.encode(f"a é 🙂, b{PAD} .")
    rows = [row(ids), row(ids[:-3]), row([*ids, 2], "stop", 2), row([], "stop", None)]
    rows += [row(ids, "stop", "b"), row([1], "stop", "text", text="a server's text")]
    together = decoded(tokenizer, *rows, skip_special_tokens=skip).completions
    assert together == [answer_text(each, tokenizer, skip_special_tokens=skip) for each in rows]
    assert ("É" in together[0]) == own_decoder


# ── Rows ─────────────────────────────────────────────────────────────────────────────────────────


def test_output_is_a_sequence_of_rows():
    rows = output(5)
    assert rows[-1] == rows[4] and len(rows) == 5
    assert [each.completion for each in rows] == rows.completions
    with pytest.raises(IndexError):
        rows[5]
    part = rows[::-2]
    assert isinstance(part, GenerationOutput) and list(part) == list(rows)[::-2]


def test_output_of_nothing_is_empty_and_still_a_table_and_a_file(tmp_path):
    nothing = GenerationOutput()
    assert not nothing and nothing[:1] == nothing and not len(nothing.to_pandas())
    for name in ("rows.jsonl", "rows.parquet"):
        nothing.save(tmp_path / name)
        assert (tmp_path / name).exists()


def test_repr_is_short_and_shows_the_first_completions():
    assert repr(output(9)).endswith("9 rows (9 stop): 'text 0', 'text 1', 'text 2', ...>")
    long = output(500, "x\n" * 9999)
    assert len(repr(long)) < 400 and len(repr(long[0])) < 200
    assert "\n" not in repr(long) + repr(long[0])


def test_printed_output_is_a_table_with_a_line_for_each_of_the_first_rows(monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("FORCE_COLOR", "1")  # no terminal's codes in a text
    head, *lines = str(output(PRINTED_ROWS + 7, "[b]\x1b[31m\n" * 9)).splitlines()
    assert head.split() == ["completion", "finish", "tokens", "logprob"]
    assert lines.pop() == "... 7 more"
    assert len(lines) == PRINTED_ROWS and max(map(len, [head, *lines])) <= 60
    assert str(output(0)) == repr(output(0))
    assert lines[4].startswith(r"4   [b]\x1b[31m\n[b]\x1b")


# ── Tables and files ─────────────────────────────────────────────────────────────────────────────


def stopped_every_way(tokenizer: Any) -> GenerationOutput:
    """Rows that ended at an id, at a string and by length, with and without a seed."""
    the, end = spelled(tokenizer, " the", IM_END)
    rows = [row([the, end], "stop", end), row([the], "stop", "th"), row([the, the])]
    rows += [row([the], "stop", the)]
    return decoded(tokenizer, *rows, seed=[None, 2**63 - 1, 7, 8])


CALL = {"name": "f", "arguments": {"x": 1}, "result": "2", "seconds": 0.1, "error": None}


def conversation(**changed: Any) -> Any:
    """Return the output of a row with a tool call."""
    return Transcript(
        messages=[{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "a"}],
        ids=[10, 11, 12],
        mask=[1, 1, 0],
        logprobs=[-0.5, -0.5, 0.0],
        answers=[range(2)],
        calls=[{**CALL, "reward": np.float32(0.5), "truncated": False}],
        num_turns=1,
        reward_scores={"f": np.float32(0.5), "user_turn_rewards": [torch.tensor(1.0)]},
        **changed,
    )


def talked(tokenizer: Any) -> GenerationOutput:
    """Rows whose nested values have different types under one name."""
    calls = [ToolCall("g", {"x": x}, "", 0, 0) for x in (1, "one")]
    rows = [
        row([10, 11], transcript=conversation(pending=calls[:1])),
        row([10, 11], transcript=conversation(pending=calls[1:], limit="max_tokens"), error="e"),
    ]
    return decoded(tokenizer, *rows)


def test_dicts_and_tables_have_plain_values_without_padding(tokenizer):
    answered = stopped_every_way(tokenizer)
    end = tokenizer.convert_tokens_to_ids(IM_END)
    [the] = spelled(tokenizer, " the")
    rows = answered.to_dict()
    assert rows[1].pop("token_ids") == [the] and rows[1] == json.loads("""
        {"completion": " ", "logprobs": [-0.5], "cumulative_logprob": -0.5, "finish_reason": "stop",
         "matched_stop": "th", "matched_stop_id": null, "prompt_tokens": 5, "completion_tokens": 1,
         "cached_tokens": 4, "prompt_index": 1, "sample_index": 0, "weight_version": 0,
         "weight_versions": [], "seed": 9223372036854775807}
    """)
    assert [row["matched_stop"] for row in rows] == [IM_END, "th", None, " the"]
    frame = answered.to_pandas()
    assert str(frame["matched_stop"].dtype) == "string"
    assert frame["matched_stop_id"].to_list() == [end, pd.NA, pd.NA, the]
    assert frame["seed"].to_list() == [pd.NA, 2**63 - 1, 7, 8]  # exact: no float on the way
    said, cut = talked(tokenizer).to_dict()
    plain = """
        {"tool_rewards": {"f": 0.5}, "num_turns": 1, "response_ids": [10, 11, 12],
         "response_mask": [1, 1, 0], "reward_scores": {"f": 0.5, "user_turn_rewards": [1.0]},
         "limit": null}
    """
    assert said.items() >= json.loads(plain).items()
    assert (cut["limit"], cut["error"]) == ("max_tokens", "e")


@pytest.mark.parametrize("make", [stopped_every_way, talked, lambda t: decoded(t, row([9]))])
def test_table_goes_through_parquet_and_datasets_unchanged(make, tokenizer, tmp_path):
    import datasets

    answered = make(tokenizer)
    frame = answered.to_pandas()
    answered.save(tmp_path / "rows.parquet")
    written = pyarrow.parquet.read_table(tmp_path / "rows.parquet")
    stops = [str(written.schema.field(f"matched_stop{end}").type) for end in ("", "_id")]
    text = "string" if pd.__version__ < "3" else "large_string"
    assert stops == [text, "int64"]  # also where every value is missing
    table, dataset = written.to_pylist(), datasets.Dataset.from_pandas(frame)
    assert table == dataset.to_list() and list(frame) == dataset.column_names
    for _ in range(2):
        answered.save(str(tmp_path / "rows.jsonl"))
    lines = (tmp_path / "rows.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == answered.to_dict()
    nested = {"messages", "tool_calls", "executed_tool_calls", "tool_rewards", "reward_scores"}
    for read, wanted in zip(table, answered.to_dict(), strict=True):
        for name in nested & set(read):
            read[name] = json.loads(read[name])
        assert read == dict.fromkeys(read) | wanted


@pytest.mark.parametrize("name", ["rows.csv", "rows.jsonl.gz", None])
def test_save_refuses_a_suffix_that_it_does_not_write(name, tokenizer, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"must end in \.jsonl or \.parquet"):
        stopped_every_way(tokenizer).save(name)
    assert not list(tmp_path.iterdir())


def test_notebook_shows_texts_as_they_are_and_runs_nothing(tokenizer):
    text = "</td></tr></table><script>alert(1)</script> &lt;"
    page = output(TABLE_ROWS + 7, text)._repr_html_()
    assert page.count("<tr>") == TABLE_ROWS + 1 and page.endswith("<p>and 7 more rows</p>")
    assert "<script>" not in page and html.escape(text) in page
    shown = stopped_every_way(tokenizer)[0]._repr_html_()
    assert html.escape(IM_END) in shown and "token_ids" not in shown

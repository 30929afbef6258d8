"""`Rollout`: one answered row, as a line of JSON (docs/rollouts.md) and in a `DataProto`."""

from __future__ import annotations

import dataclasses
import functools
import typing
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import pydantic

from _inf.apps.rollouts.page import frame
from _inf.errors import ConfigError, shown, value_fault
from _inf.parts.kept import MULTI_MODAL, beyond_text
from _inf.response.trainer_batch import data_proto
from _inf.runtime.extras import require_verl

SAYS_SOMETHING = ("response_ids", "completion", "messages", "error")
# The columns of a `DataProto` with other names than a row's keys for them.
COLUMNS = {"completions": "completion", "__num_turns__": "num_turns"}


@dataclasses.dataclass(frozen=True)
class Rollout:
    """One row that a model answered: `inf.load_rollouts`, `inf.as_rollouts`.

    A field is None if its source does not have it.

    row_id: names the row in its file; two files are compared by it.
    prompt_token_ids, response_ids: the prompt, and everything after it, without padding.
    response_mask, logprobs: one per response id: 1 and its log prob for an id that the model
        sampled; 0 and 0.0 for an id of a tool, a user or the template.
    prompt_texts, response_texts: the text of each id; joined, the whole text.
    completion: the text of the last answer; reasoning: its thought. messages: the conversation.
    tool_calls: the calls that were run, each with its result and its seconds.
    answer_places: for a conversation: for each answer the index of its first id in the response,
        and the index after its last one.
    agent_loop: the name of the agent loop that answered. unsampled_at: the places in the response
        where its mask is wrong; unsampled_ids: how many. extra_fields: its output's.
    weight_versions: pairs of a version of the weights and the place of its first token in the
        response; weight_version: the last one's.
    adapter: the name of the LoRA adapter that answered. seed: the row's own.
    timings: seconds by name; `tools` is the sum over the calls.
    uid: the same for all rows of a group. rollout: for a trace, the same for all of its rollout.
    prompt_length, response_length, pad_token_id: the widths and the padding of its `DataProto`.
    extra: the row's other keys, such as `data_source`.
    """

    row_id: str
    prompt_token_ids: list[int] | None = None
    response_ids: list[int] | None = None
    response_mask: list[int] | None = None
    logprobs: list[float] | None = None
    prompt_texts: list[str] | None = None
    response_texts: list[str] | None = None
    completion: str | None = None
    reasoning: str | None = None
    messages: list[dict[str, Any]] | None = None
    tool_calls: list[dict[str, Any]] | None = None
    reward: float | None = None
    reward_scores: dict[str, Any] | None = None
    finish_reason: str | None = None
    weight_version: int | None = None
    weight_versions: list[list[int]] | None = None
    adapter: str | None = None
    seed: int | None = None
    num_turns: int | None = None
    answer_places: list[list[int]] | None = None
    agent_loop: str | None = None
    unsampled_ids: int | None = None
    unsampled_at: list[int] | None = None
    extra_fields: dict[str, Any] | None = None
    timings: dict[str, float] | None = None
    uid: object = None
    rollout: str | None = None
    prompt_index: int | None = None
    prompt_length: int | None = None
    response_length: int | None = None
    pad_token_id: int | None = None
    extra: dict[str, Any] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, row: object, where: str, row_id: str = "0") -> Rollout:
        """Check a row of the JSON form. `where` begins an error; `row_id`: of a row without one.

        Raises `ConfigError` with the key that is wrong.
        """
        if not isinstance(row, Mapping):
            raise ConfigError(f"{where}: a row is a JSON object, not {shown(row)}.")
        if all(row.get(name) is None for name in SAYS_SOMETHING):
            raise ConfigError(
                f"{where}: it has none of {', '.join(SAYS_SOMETHING)}, so it is not a rollout; inf "
                "eval, inf batch --rollouts and inf.save_rollouts write files of rollouts. Its "
                f"keys: {shown(list(row))}."
            )
        try:
            checked = _row_model().model_validate({"row_id": row_id, **row})
        except pydantic.ValidationError as failure:
            reason = f"{first_fault(failure)}; correct it, or write the file again."
            raise ConfigError(f"{where}: {reason}") from None
        rollout = cls(**vars(checked), extra=checked.model_extra or {})
        rollout._check_lengths(where)
        return rollout

    def _check_lengths(self, where: str) -> None:
        response = "response_ids", len(self.response_ids or ())
        for name, values, (ids, count) in (
            ("response_mask", self.response_mask, response),
            ("logprobs", self.logprobs, response),
            ("response_texts", self.response_texts, response),
            (
                "prompt_texts",
                self.prompt_texts,
                ("prompt_token_ids", len(self.prompt_token_ids or ())),
            ),
        ):
            if values is not None and len(values) != count:
                raise ConfigError(
                    f"{where}: {name}: {len(values)} values for {count} {ids}; give one each."
                )
        if self.response_ids is not None and self.response_mask is None:
            raise ConfigError(f"{where}: response_mask is missing; it says which ids were sampled.")
        if set(self.response_mask or ()) - {0, 1}:
            raise ConfigError(f"{where}: response_mask: its values must be 0 or 1.")
        length, pairs = len(self.response_ids or ()), self.answer_places or []
        bounds = [0, *(place for pair in pairs for place in pair), length]
        if any(len(pair) != 2 for pair in pairs) or bounds != sorted(bounds):
            raise ConfigError(
                f"{where}: answer_places: it must be pairs of a first index and the index after "
                f"the last, in order, within {length} response_ids, not {shown(pairs)}."
            )

    def row(self) -> dict[str, Any]:
        """Return the row of the JSON form: all fields that are known, and the other keys."""
        fields = {name: value for name, value in vars(self).items() if value is not None}
        del fields["extra"]
        return fields | self.extra

    def to_data_proto(self) -> Any:
        """Return a `DataProto` of this one row."""
        return rollouts_to_data_proto([self])

    def __repr__(self) -> str:
        tokens = "no ids" if self.response_ids is None else f"{len(self.response_ids)} tokens"
        facts = f"{tokens}, {self.finish_reason}, reward {self.reward}"
        return f"<Rollout {self.row_id}: {shown(self.completion)} ({facts})>"

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the page of `inf show` with this row."""
        return frame([self])


def first_fault(failure: pydantic.ValidationError) -> str:
    """The key of the first wrong value, the value, and what is wrong with it."""
    error = failure.errors()[0]
    return f"{'.'.join(map(str, error['loc']))}: {value_fault(error)}"


@functools.cache
def _row_model() -> type[pydantic.BaseModel]:
    """The fields' types as a pydantic model, which keeps other keys."""
    hints = typing.get_type_hints(Rollout)
    del hints["extra"]
    fields: dict[str, Any] = {name: (hint, None) for name, hint in hints.items()}
    settings = pydantic.ConfigDict(
        strict=True, extra="allow", allow_inf_nan=False, protected_namespaces=()
    )
    return pydantic.create_model("RolloutRow", __config__=settings, **fields)


def rollouts_to_data_proto(rollouts: Sequence[Rollout]) -> Any:
    """Return a `DataProto` with `rollout_batch`'s tensors and columns.

    It is as wide as the rows' own `DataProto` was, otherwise as wide as the longest row. Rows
    without a `uid` share one if their prompts are equal or they belong to one rollout. A known
    reward is in `reward_scores`. Raises `ConfigError` with the row that has no ids, or that does
    not fit the others.
    """
    require_verl("rollouts_to_data_proto")
    rollouts = list(rollouts)
    if not rollouts:
        raise ConfigError.of("rollouts", "none; a batch has at least one row.")
    for rollout in rollouts:
        if not rollout.prompt_token_ids or rollout.response_ids is None:
            raise ConfigError(
                f"rollout {rollout.row_id}: it has no token ids of its prompt and its response (a "
                "server gave only text, or the row is an error); leave it out."
            )
        inputs = any(rollout.extra.get(name) for name in ("images", *MULTI_MODAL))
        if inputs or beyond_text(rollout.messages or ()):
            raise ConfigError(
                f"rollout {rollout.row_id}: it has images, whose pixels are not kept; a trainer "
                "needs them: leave it out."
            )
    lacking = [rollout.row_id for rollout in rollouts if rollout.logprobs is None]
    if 0 < len(lacking) < len(rollouts):
        raise ConfigError(f"rollout {lacking[0]}: logprobs is missing, and other rows have it.")
    prompts = [rollout.prompt_token_ids or [] for rollout in rollouts]
    responses = [
        (rollout.response_ids or [], rollout.response_mask or [], rollout.logprobs)
        for rollout in rollouts
    ]
    sizes = {(len(ids), len(after)) for ids, (after, *_) in zip(prompts, responses, strict=True)}
    known = {(rollout.prompt_length or 0, rollout.response_length or 0) for rollout in rollouts}
    left, right = zip(*sizes | known, strict=True)
    widths = (max(left), max(right))
    pad = _pad(rollouts, padded=sizes != {widths})
    return data_proto(prompts, responses, pad, widths, _columns(rollouts, prompts))


def _pad(rollouts: Sequence[Rollout], *, padded: bool) -> int:
    """The id of the padding; if there is none to write, any."""
    pads = {rollout.pad_token_id for rollout in rollouts} - {None}
    if len(pads) > 1 or (padded and not pads):
        raise ConfigError(
            f"rollouts: a batch needs one pad_token_id, and they have {sorted(map(str, pads))}: "
            "make them with tokenizer=, or set it with dataclasses.replace."
        )
    return next(iter(pads), 0) or 0


def _groups(
    prompts: Sequence[list[int]], rollouts: Sequence[str | None]
) -> tuple[list[int], list[str]]:
    """Return the number and the new `uid` of each row's group; rows with equal prompts are a group.

    rollouts: each row's rollout. All rows of a rollout count as rows of its first row's prompt:
    later ones, of a sub-agent or with a shortened history, have prompts that no other rollout has.
    """
    first: dict[str, tuple[int, ...]] = {}
    numbers: dict[tuple[int, ...], int] = {}
    order = []
    for ids, rollout in zip(map(tuple, prompts), rollouts, strict=True):
        prompt = ids if rollout is None else first.setdefault(rollout, ids)
        order.append(numbers.setdefault(prompt, len(numbers)))
    uids = [str(uuid.uuid4()) for _ in numbers]
    return order, [uids[number] for number in order]


def _columns(rollouts: Sequence[Rollout], prompts: Sequence[list[int]]) -> dict[str, list[Any]]:
    """The columns; one of which no row knows anything is left out."""
    grouped = _groups(prompts, [rollout.rollout for rollout in rollouts])
    rows = [
        _column_values(rollout, number, uid)
        for rollout, number, uid in zip(rollouts, *grouped, strict=True)
    ]
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    columns = {name: values for name, values in columns.items() if values != [None] * len(rows)}
    for name in columns.keys() & {"reward_scores", "extra_fields"}:
        columns[name] = [value or {} for value in columns[name]]
    return columns


def _column_values(rollout: Rollout, number: int, uid: str) -> dict[str, Any]:
    """A row's values. number, uid: of its group."""
    scores, messages = rollout.reward_scores, rollout.messages
    if not scores and rollout.reward is not None:
        scores = {"reward": rollout.reward}
    return {
        "uid": uid if rollout.uid is None else rollout.uid,
        "rollout": rollout.rollout,
        "completions": rollout.completion,
        "prompt_index": number if rollout.prompt_index is None else rollout.prompt_index,
        "finish_reason": rollout.finish_reason,
        "weight_version": rollout.weight_version,
        "weight_versions": rollout.weight_versions,
        "messages": None if messages is None else {"messages": messages},
        "reward_scores": scores,
        "__num_turns__": rollout.num_turns,
        "extra_fields": rollout.extra_fields,
    }

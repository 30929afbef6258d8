"""prime-rl writes `OUTPUT_DIR/rollouts/step_N/{train,eval}/{all,effective}/traces.jsonl`: since
0.8.1 a line for each episode of `verifiers`, with the traces of its agents
(`src/prime_rl/monitors/file.py` at 559b4477); in 0.7 and 0.8 a line for each trace
(`save_rollouts` of `src/prime_rl/orchestrator/utils.py`), in 0.7 with rewards that are weighted
already. A trace is a tree of messages (`verifiers/v1/trace.py` and `graph.py` at a60a606e). Each
path from its root to a leaf is a sample of the training, and a row here. `is_content` and
`timestamp` of the messages are left out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from _inf.apps.rollouts.rollout import Rollout
from _inf.apps.rollouts.trainers.reader import SCORE_IS, Piece, Reader, finite, listed, other_keys
from _inf.types import JSON

# A trace's `stop_condition`s that `is_truncated` counts; the last one is of 0.7.
LIMITS = ("max_turns", "max_input_tokens", "max_output_tokens", "max_total_tokens")
CUT = {*LIMITS, "context_length", "harness_timeout"}
IN_ROW = ("parent", "message", "sampled", "token_ids", "mask", "logprobs")
LEFT_OUT = ("is_content", "timestamp")
FOLDERS = tuple(
    f"{above}{kind}/traces.jsonl"
    for above in ("", "step_*/", "rollouts/step_*/")
    for kind in ("train/effective", "train/all", "eval/effective", "eval/all")
)


def _episode(line: Piece, row_id: str) -> list[Rollout]:
    about = {key: value for key, value in line.items() if key not in ("task", "traces")}
    rows = [row for trace in line["traces"] for row in _rows(trace, about)]
    if not rows:  # it failed before a model was asked
        prompt = _within(line, "task", "data", "prompt")
        about_row = {"prompt": prompt, "error": _last(line.get("errors")), "episode": about}
        rows = [{"extra": about_row}]
    return _named(rows, row_id)


def _trace(line: Piece, row_id: str) -> list[Rollout]:
    return _named([*_rows(line, {})], row_id)


def _named(rows: Sequence[JSON], row_id: str) -> list[Rollout]:
    if len(rows) == 1:
        return [Rollout(row_id=row_id, **rows[0])]
    return [Rollout(row_id=f"{row_id}.{place}", **row) for place, row in enumerate(rows)]


def _rows(trace: Piece, episode: Mapping[str, Any]) -> Iterator[JSON]:
    """Yield the fields of each path's row. episode: what stands above the trace, if anything."""
    paths = _paths(trace["nodes"])
    rewards = _given(trace["rewards"])
    weighted = {name: _scored(reward) for name, reward in rewards.items()}
    scores = {name: score for name, (score, _) in weighted.items()}
    info = trace.get("info") or {}
    total = sum(score * weight for score, weight in weighted.values())
    shared = {
        "reward": finite(total) if weighted else None,
        "reward_scores": scores or None,
        "finish_reason": _finish(trace),
        "uid": _within(episode, "group", "id") or info.get("group_id") or trace.get("group_id"),
        "rollout": trace.get("id") if len(paths) > 1 else None,
    }
    known = {
        "ground_truth": _within(trace, "task", "data", "answer"),
        "data_source": _within(episode, "env", "name")
        or info.get("env_name")
        or trace.get("env_name"),
        "error": _last(trace.get("errors")),
        SCORE_IS: f"the weighted sum of {listed(scores)}" if len(scores) > 1 else None,
        "episode": episode or None,
    }
    extra = _given(known) | _given(other_keys(trace, ("nodes", "rewards")))
    for path in paths:
        fields, about_path = _path(path)
        yield {**shared, **fields, "extra": {**about_path, **extra}}


def _scored(reward: Any) -> tuple[float, float]:
    """Return a reward and its weight."""
    if isinstance(reward, Mapping):
        return reward["score"], reward.get("weight", 1.0)
    return reward, 1.0


def _paths(nodes: Sequence[Piece]) -> list[list[Piece]]:
    """Return the nodes from the root to each leaf, in the order of the leaves."""
    parents = [each.get("parent") for each in nodes]
    for at, above in enumerate(parents):
        if above is not None and not 0 <= above < at:
            raise ValueError(f"the parent of node {at} is {above}, which is not before it")
    paths = []
    for leaf in sorted({*range(len(nodes))} - {*parents}):
        path: list[Piece] = []
        node: int | None = leaf
        while node is not None:
            path.insert(0, nodes[node])
            node = parents[node]
        paths.append(path)
    return paths or [[]]


def _path(path: Sequence[Piece]) -> tuple[JSON, JSON]:
    """Return the fields of a path's row, and what it adds to `extra`."""
    sampled = [place for place, node in enumerate(path) if node.get("sampled")]
    messages = [node["message"] for node in path]
    answer = messages[sampled[-1]] if sampled else {}
    left = [_given(other_keys(node, (*IN_ROW, *LEFT_OUT))) for node in path]
    return {
        "messages": messages or None,
        "completion": answer.get("content"),
        "reasoning": answer.get("reasoning_content"),
        "num_turns": len(sampled),
        **_ids(path),
    }, {
        "prompt": messages[: sampled[0]] if sampled else messages,
        **({"nodes": left} if any(left) else {}),
    }


def _ids(path: Sequence[Piece]) -> JSON:
    """Return the ids before the first sampled one, and those from there with mask and log probs
    (of the engine); nothing of an evaluation's traces, which have no ids."""
    ids: list[int] = []
    mask: list[int] = []
    logprobs: list[float] = []
    for node in path:
        given = iter(node.get("logprobs") or ())
        ids += node.get("token_ids") or ()
        mask += map(int, node.get("mask") or ())
        logprobs += [next(given, 0.0) if one else 0.0 for one in node.get("mask") or ()]
    if 1 not in mask or len(ids) != len(mask):
        return {}
    begin = mask.index(1)
    return {
        "prompt_token_ids": ids[:begin],
        "response_ids": ids[begin:],
        "response_mask": mask[begin:],
        "logprobs": logprobs[begin:] if any(logprobs) else None,
    }


def _finish(trace: Piece) -> str | None:
    if trace.get("stop_condition") in CUT:
        return "length"
    calls = [call for call in trace.get("calls") or () if call.get("error") is None]
    calls = calls or [node for node in trace["nodes"] if node.get("sampled")]  # 0.7
    return calls[-1].get("finish_reason") if calls else None


def _given(row: Mapping[str, Any]) -> JSON:
    return {key: value for key, value in row.items() if value is not None}


def _last(errors: Sequence[Any] | None) -> Any:
    return errors[-1] if errors else None


def _within(value: Any, *keys: str) -> Any:
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


EPISODES = Reader("prime-rl", ".jsonl", ("env", "task", "traces"), _episode, FOLDERS)
TRACES = Reader("prime-rl", ".jsonl", ("task", "nodes", "rewards"), _trace, FOLDERS)

"""Builds the HTML page of `inf show`: one file that needs no other file and no network.

The rows are data in the page: JSON without `<`, which the page's own script turns into text.
The page's policy allows that script and style by their hashes, and nothing else.
"""

from __future__ import annotations

import base64
import collections
import hashlib
import html
import json
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import TYPE_CHECKING, Any

from _inf.apps.json_lines import json_text
from _inf.errors import shown
from _inf.types import JSON

if TYPE_CHECKING:
    from _inf.apps.rollouts.rollout import Rollout

PREVIEW = 120  # characters
FRAME_PIXELS = 460
SHOWN_FACTS = ("data_source", "ground_truth")


def page(files: Sequence[tuple[str, Sequence[Rollout]]]) -> str:
    """Return the page of one file, or of two side by side; each is a name and its rows.

    Rows with the same `row_id` are shown next to each other: the first with the first, and so on.
    """
    beside: dict[tuple[str, int], list[Any]] = {}
    for side, (_, rollouts) in enumerate(files):
        seen: collections.Counter[str] = collections.Counter()
        for rollout in rollouts:
            place = (rollout.row_id, seen[rollout.row_id])
            seen[rollout.row_id] += 1
            beside.setdefault(place, [None] * len(files))[side] = row_data(rollout)
    rows = [{"id": row_id, "sides": sides} for (row_id, _), sides in beside.items()]
    rows = _by_rollout(rows)
    return filled({"files": [name for name, _ in files], "rows": rows})


def _by_rollout(rows: Sequence[JSON]) -> list[JSON]:
    """The rows, with all rows of a rollout after its first one; each of these names the rollout."""
    groups: dict[Any, list[JSON]] = {}
    for place, row in enumerate(rows):
        name = next(side["rollout"] for side in row["sides"] if side is not None)
        groups.setdefault(place if name is None else name, []).append(row)
    return [row for group in groups.values() for row in group]


def frame(rollouts: Sequence[Rollout]) -> str:
    """Return the page inside a frame of a notebook; its script can reach nothing outside."""
    inside = html.escape(page([("Rollouts", rollouts)]))
    return (
        f'<iframe sandbox="allow-scripts" srcdoc="{inside}" '
        f'style="width:100%;height:{FRAME_PIXELS}px;border:0"></iframe>'
    )


def filled(
    data: Mapping[str, object],
    html: str = "page.html",
    styles: Sequence[str] = ("page.css",),
    scripts: Sequence[str] = ("row.js", "page.js"),
    asks_server: bool = False,
) -> str:
    """Return a page with its data. html, styles, scripts: the files of its parts; asks_server:
    whether the script may ask the page's own server."""
    style, script = "".join(map(_part, styles)), "".join(map(_part, scripts))
    allowed = f"style-src {_hash(style)}; script-src {_hash(script)}"
    if asks_server:
        allowed += "; connect-src 'self'"
    parts = {
        "policy": f"default-src 'none'; {allowed}; base-uri 'none'; form-action 'none'",
        "style": style,
        "script": script,
        "data": json_text(data).replace("<", "\\u003c"),
    }
    return re.sub(r"{{(\w+)}}", lambda match: parts[match[1]], _part(html))


def _part(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def row_data(rollout: Rollout) -> JSON:
    logprobs = rollout.logprobs
    error = rollout.extra.get("error")
    messages = _messages(rollout)
    text = rollout.completion or (messages[-1]["content"] if messages else "") or ""
    return {
        "rollout": rollout.rollout,
        "reward": rollout.reward,
        "finish": rollout.finish_reason,
        "preview": " ".join(text[: 2 * PREVIEW].split())[:PREVIEW],
        "prompt": _texts(rollout.prompt_texts, rollout.prompt_token_ids),
        "response": _texts(rollout.response_texts, rollout.response_ids),
        "ids": rollout.response_ids,
        "ids_only": rollout.response_ids is not None and rollout.response_texts is None,
        "mask": rollout.response_mask,
        "unsampled": rollout.unsampled_at or [],
        "logprobs": None if logprobs is None else [round(logprob, 4) for logprob in logprobs],
        "messages": messages or None,
        "error": _text(error.get("message") if isinstance(error, dict) else error),
        "facts": _facts(rollout),
        "folded": [
            [title, _text(value)]
            for title, value in (
                ("Reward scores", rollout.reward_scores),
                ("Tool calls", rollout.tool_calls),
                ("Timings", rollout.timings),
                ("Extra fields", rollout.extra_fields),
                ("Other keys", _other_keys(rollout)),
            )
            if value
        ],
    }


def _texts(texts: list[str] | None, ids: list[int] | None) -> list[str] | None:
    """The tokens' texts; of a file without them their ids."""
    return texts if texts is not None or ids is None else [f"[{token}]" for token in ids]


def _facts(rollout: Rollout) -> list[tuple[str, str]]:
    mask = rollout.response_mask or []
    sampled = f"{sum(mask)} of {len(mask)}" if mask else None
    values = {
        "sampled tokens": sampled,
        "weight version": rollout.weight_version,
        "adapter": rollout.adapter,
        "turns": rollout.num_turns,
        "task": rollout.extra.get("task"),
        "rollout": rollout.rollout,
        "forked from": _fork(rollout.extra),
        "ended by": rollout.extra.get("limit"),
        "agent loop": rollout.agent_loop,
        "unsampled ids": rollout.unsampled_ids,
        **{name.replace("_", " "): rollout.extra.get(name) for name in SHOWN_FACTS},
    }
    return [(name, _text(value)) for name, value in values.items() if value is not None]


def _other_keys(rollout: Rollout) -> dict[str, object]:
    """The keys of `extra` without those that the row's facts and messages show."""
    shown = {*SHOWN_FACTS, *([] if rollout.messages else ["prompt"])}
    return {key: value for key, value in rollout.extra.items() if key not in shown}


def _fork(extra: Mapping[str, object]) -> str | None:
    if not isinstance(fork := extra.get("forked_from"), list) or len(fork) != 2:
        return None
    return f"{fork[0]} after {fork[1]} messages: {extra.get('fork_reason')}"


def _messages(rollout: Rollout) -> list[JSON]:
    """The conversation; of a plain answer its prompt, where the row has that, and the answer. An
    agent loop does not say its turns."""
    messages: list[object] = list(rollout.messages or [])
    if not messages:
        prompt = rollout.extra.get("prompt")
        messages = prompt if isinstance(prompt, list) else [{"role": "user", "content": prompt}]
        if rollout.agent_loop is None:
            messages = [*messages, {"role": "assistant", "content": rollout.completion}]
    return [
        {
            "role": _text(message.get("role")),
            "content": _said(message.get("content")),
            "calls": [_text(call) for call in message.get("tool_calls") or ()],
        }
        for message in messages
        if isinstance(message, dict) and (message.get("content") or message.get("tool_calls"))
    ]


def _said(content: object) -> str:
    """The text of a message's content; an image by what the file keeps of it."""
    return "\n".join(map(_said_by, content)) if isinstance(content, list) else _text(content)


def _said_by(part: object) -> str:
    match part:
        case {"type": "text", "text": str(text)}:
            return text
        case {"type": "image", "image": str(digest), "size": [width, height]}:
            return f"[image {digest}, {width} x {height} pixels]"
        case {"type": "image" | "image_url"}:
            return f"[image {shown(part)}]"  # cut: it may have the pixels
    return _text(part)


def _text(value: object) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    return json.dumps(value, ensure_ascii=False, indent=1, default=str)

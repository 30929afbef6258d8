"""Draws the curves of `growth.py`, and knows what one would expect of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

Points = list[dict[str, Any]]
# Of the embedded model: parameters of the layers, and for each pair of tokens the operations of
# attention, 4 x layers x width, of which the causal mask leaves half.
LAYER_PARAMETERS, PAIR_OPERATIONS = 106.2e6, 2 * 30 * 576
TOKEN_BYTES = 2 * 30 * 3 * 64 * 4  # of the KV cache

LABELS = {
    "rows": "rows of a call",
    "prompts": "tokens of the prompt",
    "answers": "tokens of the answer",
    "turns": "turns of a conversation",
    "sessions": "sessions at once",
}


def _flat_then_linear(points: Points) -> list[float]:
    """Constant until the products are bound by arithmetic, then in proportion."""
    first, last = points[0], points[-1]
    return [max(first["seconds"], last["seconds"] * p["size"] / last["size"]) for p in points]


def _operations(points: Points) -> list[float]:
    """The operations that a prompt takes, at the rate of the middle point."""

    def count(size: float) -> float:
        return 2 * LAYER_PARAMETERS * size + PAIR_OPERATIONS * size**2

    middle = points[len(points) // 2]
    rate = middle["seconds"] / count(middle["size"])
    return [rate * count(point["size"]) for point in points]


def _linear(points: Points) -> list[float]:
    """The time of the second point, for each unit."""
    rate = points[1]["seconds"] / points[1]["size"]
    return [rate * point["size"] for point in points]


EXPECTED: dict[str, Callable[[Points], list[float]]] = {
    "rows": _flat_then_linear,
    "prompts": _operations,
    "answers": _linear,
    "turns": _linear,
    "sessions": _flat_then_linear,
}


def _cache(points: Points) -> list[float]:
    """The engine's memory at the first point, and what more of its KV cache has been used."""
    first = points[0]
    more = [TOKEN_BYTES * (point["cached"] - first["cached"]) for point in points]
    return [(first["engine"] + each) / 1e9 for each in more]


def draw(name: str, points: Points, file: Path) -> None:
    """Draw a curve: on the left the time, on the right the memory."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "inf", "font.size": 9})
    from matplotlib import pyplot
    from matplotlib.ticker import ScalarFormatter

    sizes = [point["size"] for point in points]
    figure, (time, memory) = pyplot.subplots(1, 2, figsize=(8, 2.6), layout="constrained")
    time.plot(sizes, [point["seconds"] for point in points], "o-", label="measured")
    time.plot(sizes, EXPECTED[name](points), "--", color="black", label="expected")
    time.plot(sizes, [p["caller_cpu"] for p in points], ".-", label="core seconds of the caller")
    time.set(xscale="log", yscale="log", xlabel=LABELS[name], ylabel="seconds")
    for side in ("engine", "caller"):
        memory.plot(sizes, [point[side] / 1e9 for point in points], "o-", label=side)
    memory.plot(sizes, _cache(points), "--", color="black", label="engine, expected")
    most = max(max(point["engine"], point["caller"]) for point in points) / 1e9
    memory.set(xscale="log", ylim=(0, 1.15 * most), xlabel=LABELS[name], ylabel="GB")
    for axis in (time, memory):
        axis.set_xticks(sizes)
        axis.xaxis.set_major_formatter(ScalarFormatter())
        axis.minorticks_off()
        axis.grid(alpha=0.3)
        axis.legend(fontsize=7, ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1))
    figure.savefig(file, metadata={"Date": None})
    pyplot.close(figure)

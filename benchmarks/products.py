"""Measures the matrix products of one decoding step on a CPU, by plain and by packed weights.

    python benchmarks/products.py
    python benchmarks/products.py --rows 1,8 --rounds 31

The products are those of the embedded model's 30 layers and of its head, as SGLang calls them, with
random weights. No engine is started, and nothing else of a step is timed.

    plain       PyTorch's product, as SGLang calls it
    oneDNN      oneDNN's product by weights that it has packed once
    ours        the product that the engine takes: in float32, for up to 64 rows, it is in C

How to read the table. Milliseconds of all products of a step: the median of the rounds, in each of
which the three alternate. Ratio: of plain to ours, the median of the rounds' ratios, with their
quartiles.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Annotated, TypeAlias

import typer
from common import JsonFile, footer, machine, quartiles, ratios, save
from rich.console import Console
from rich.table import Table

from _inf.runtime.interpreter import TORCH_VARIABLES

os.environ.update(TORCH_VARIABLES)  # before torch is imported
import torch  # noqa: E402

HIDDEN, INNER, KEYS, LAYERS, VOCABULARY = 576, 1536, 192, 30, 49_152
OF_A_LAYER = (
    (HIDDEN + 2 * KEYS, HIDDEN),
    (HIDDEN, HIDDEN),
    (2 * INNER, HIDDEN),
    (HIDDEN, INNER),
)
SHAPES = [*(OF_A_LAYER * LAYERS), (VOCABULARY, HIDDEN)]
WAYS = ("plain", "oneDNN", "ours")
DTYPES = (torch.float32, torch.bfloat16)


def main(
    rows: Annotated[str, typer.Option(help="Rows of a step.")] = "1,8,32,64",
    rounds: Annotated[int, typer.Option(help="Timed rounds of each.")] = 15,
    json_file: JsonFile = None,
) -> None:
    from _inf.backends.verl.child.packed_linear import _packable_dtypes

    figures = {}
    for dtype in DTYPES:
        name = str(dtype).removeprefix("torch.")
        if dtype not in _packable_dtypes():
            print(f"{name}: oneDNN has no products in it on this CPU, so it is not packed")
            continue
        ways = products(dtype)
        for number in map(int, rows.split(",")):
            figures[name, number] = measure(ways, dtype, number, rounds)
    show(figures)
    save(json_file, {f"{number} rows, {dtype}": each for (dtype, number), each in figures.items()})


Product: TypeAlias = Callable[[torch.Tensor], torch.Tensor]


def products(dtype: torch.dtype) -> dict[str, list[Product]]:
    """The products of a step, each as a function of its input."""
    from _inf.backends.verl.child import packed_linear
    from _inf.backends.verl.child.kernels import Kernels
    from _inf.backends.verl.compiled_libraries import kernel_library

    if (library := kernel_library()) is None:
        print("the functions in C could not be compiled: ours are oneDNN's products")
    kernels = Kernels(library) if library else None
    ways: dict[str, list[Product]] = {name: [] for name in WAYS}
    for shape in SHAPES:
        weight = torch.randn(shape).to(dtype)
        layer = torch.nn.Linear(*reversed(shape), bias=False, device="meta")
        layer.weight = torch.nn.Parameter(weight, requires_grad=False)
        packed = packed_linear._packed_weight(layer, keep_plain=True)
        assert packed is not None
        ways["plain"].append(partial(torch.nn.functional.linear, weight=weight))
        ways["oneDNN"].append(partial(packed_linear.multiply, None, packed=packed))
        ways["ours"].append(partial(packed_linear.multiply, kernels, packed=packed))
    return ways


def measure(
    ways: dict[str, list[Product]], dtype: torch.dtype, number: int, rounds: int
) -> dict[str, list[float]]:
    """Return the milliseconds of each round; one more, untimed, comes first."""
    inputs = [torch.randn(number, shape[1]).to(dtype) for shape in SHAPES]
    taken: dict[str, list[float]] = {name: [] for name in WAYS}
    with torch.inference_mode():
        for turn in range(rounds + 1):
            for name in WAYS[:: -1 if turn % 2 else 1]:
                start = time.perf_counter()
                for product, x in zip(ways[name], inputs, strict=True):
                    product(x)
                if turn:
                    taken[name].append((time.perf_counter() - start) * 1e3)
    return taken


def show(figures: dict[tuple[str, int], dict[str, list[float]]]) -> None:
    about = machine()
    title = f"milliseconds of a step's products, {about['cpu']}"
    table = Table("dtype", "rows", *WAYS, "ratio", title=title)
    for (dtype, number), taken in figures.items():
        medians = (f"{statistics.median(taken[name]):.1f}" for name in WAYS)
        ratio = quartiles(ratios(taken["plain"], taken["ours"]))
        table.add_row(dtype, str(number), *medians, ratio)
    Console(width=100).print(table)
    print(footer(about))


if __name__ == "__main__":
    typer.run(main)

"""Measures what the rows of one prompt save on `hf`: its image is encoded once for all of them.

    python benchmarks/images.py
    python benchmarks/images.py --layers 32 --rows 4

An image of 1,024 x 1,024 pixels is asked about by `--rows` rows of one prompt, and by as many
prompts apart, each with a text of its own, in one call. The model is random: its image encoder has
the shape of Qwen2.5-VL-3B's with `--layers` of its 32 layers, and its language model is tiny, so
that the time is nearly all the encoder's. Answers have 16 tokens, in float32.

Seconds: of the whole call, with the image's processor. Memory: the most that the process had
resident during the call, less what it had before.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import transformers
import typer
from common import footer, machine
from growth import forget_peaks, peaks
from PIL import Image
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent.parent))

from inf import InferenceEngine  # noqa: E402
from tests.support.vision import vision_model  # noqa: E402

SIDE = 1024
ENCODER = {"hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16, "patch_size": 14}
ENCODER |= {"out_hidden_size": 64, "window_size": 112}  # the tiny language model's size
ROLLOUT = {"name": "hf", "dtype": "float32", "prompt_length": 2048, "response_length": 16}


def main(
    rows: Annotated[int, typer.Option(help="How many.")] = 16,
    layers: Annotated[int, typer.Option(help="Of the image encoder, at most 32.")] = 2,
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        save_model(Path(folder), layers)
        with InferenceEngine(model_path=folder, rollout=ROLLOUT) as engine:
            show(layers, measure(engine, rows))


def save_model(folder: Path, layers: int) -> None:
    """Every eighth of the 32 layers, or the last one of fewer, looks at the whole image, the others
    at windows of it."""
    shutil.copytree(vision_model("qwen2_5_vl"), folder, dirs_exist_ok=True)
    about = transformers.AutoConfig.from_pretrained(folder)
    whole = [*range(7, layers, 8)] or [layers - 1]
    for name, value in {**ENCODER, "depth": layers, "fullatt_block_indexes": whole}.items():
        setattr(about.vision_config, name, value)
    about.text_config.max_position_embeddings = 4096
    torch.manual_seed(0)
    auto = transformers.AutoModelForImageTextToText
    auto.from_config(about, dtype=torch.float32).save_pretrained(folder)
    file = folder / "preprocessor_config.json"
    images = json.loads(file.read_text())
    most = {"max_pixels": 2 * SIDE**2, "size": {**images["size"], "longest_edge": 2 * SIDE**2}}
    file.write_text(json.dumps({**images, **most}))


def measure(engine: InferenceEngine, rows: int) -> dict[str, tuple[float, int, int]]:
    """Return the seconds, the bytes and the encoded images of each kind of call."""
    pixels = np.random.default_rng(0).integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)
    small, image = Image.fromarray(pixels[:112, :112]), Image.fromarray(pixels)
    encoded: list[int] = []
    backend: Any = engine._backend
    backend.forward.model.model.visual.register_forward_pre_hook(lambda *_: encoded.append(1))

    def prompt(text: str, image: Image.Image = image) -> list[dict[str, object]]:
        content = [{"type": "image", "image": image}, {"type": "text", "text": text}]
        return [{"role": "user", "content": content}]

    found = {}
    for kind, prompts, n in (
        ("", [prompt("Warm up.", small)], 1),
        (f"{rows} rows of one prompt", [prompt("What is it?")], rows),
        (f"{rows} prompts apart", [prompt(f"What is it? {n}") for n in range(rows)], 1),
    ):
        encoded.clear()
        forget_peaks()
        before, start = peaks()["caller"], time.perf_counter()
        engine.generate(prompts, n=n, seed=0, max_tokens=16, ignore_eos=True, progress=False)
        found[kind] = time.perf_counter() - start, peaks()["caller"] - before, len(encoded)
    del found[""]
    return found


def show(layers: int, found: dict[str, tuple[float, int, int]]) -> None:
    title = f"An image of {SIDE} x {SIDE} pixels, an encoder of {layers} layers"
    names = "", "images encoded", "seconds", "memory, MB"
    table = Table(*names, title=title, caption=footer(machine()))
    for kind, (seconds, size, encoded) in found.items():
        table.add_row(kind, str(encoded), f"{seconds:.1f}", f"{size / 1e6:,.0f}")
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)

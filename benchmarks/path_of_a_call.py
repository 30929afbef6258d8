"""Counts what one plain `generate` passes through: what one must know to change the main job.

    python benchmarks/path_of_a_call.py [--json]

Prints, for one start, one answer of 8 tokens and the shutdown, in the calling process: the modules
of ours that are imported, the files of ours with a function that is entered, and the lines of
functions that run; the last two also for each later answer.
`tests/engine/lifecycle/test_path_of_a_call.py` keeps the numbers from growing unseen. The engine
lives until the watch over its processes has looked at them, and other engines of this machine are
not seen, so the numbers do not depend on the machine's speed and load.
"""

from __future__ import annotations

import ast
import json
import os
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
OURS = (f"{ROOT}/inf.py", f"{ROOT}/_inf/")


class LinesRun:
    """The lines of our files that run while `sys.settrace` has `trace`."""

    def __init__(self) -> None:
        self.by_file: dict[str, set[int]] = defaultdict(set)

    def trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        if not frame.f_code.co_filename.startswith(OURS):
            return None
        lines = self.by_file[frame.f_code.co_filename]
        lines.add(frame.f_lineno)

        def trace_line(frame: FrameType, event: str, argument: Any) -> Any:
            if event == "line":
                lines.add(frame.f_lineno)
            return trace_line

        return trace_line


def inside_functions(by_file: Mapping[str, set[int]]) -> dict[str, int]:
    """How many lines of function bodies ran, by file."""
    counts = {path: len(lines & _lines_of_functions(path)) for path, lines in by_file.items()}
    return {str(Path(path).relative_to(ROOT)): n for path, n in counts.items() if n}


def _lines_of_functions(path: str) -> set[int]:
    tree = ast.parse(Path(path).read_text(encoding="utf-8"))
    functions = (
        node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    return {
        line
        for function in functions
        for part in function.body
        for line in range(part.lineno, (part.end_lineno or part.lineno) + 1)
    }


def main() -> None:
    ran = LinesRun()
    with tempfile.TemporaryDirectory() as folder:  # other engines have their folders elsewhere
        os.environ["TMPDIR"] = tempfile.tempdir = folder
        threading.settrace(ran.trace)
        sys.settrace(ran.trace)
        import inf
        from _inf.runtime.processes import LOOK_SECONDS

        with inf.InferenceEngine() as engine:
            engine.generate("What is the capital of France?", max_tokens=8)
            whole, answers = ran.by_file, []
            for _ in range(3):  # what the engine's watch does beside one of them is not in all
                ran.by_file = defaultdict(set)
                engine.generate("What is the capital of France?", max_tokens=8)
                answers.append(ran.by_file)
            ran.by_file = whole
            time.sleep(2 * LOOK_SECONDS)
        sys.settrace(None)
    ours = ("inf", "_inf")
    modules = sorted(name for name in sys.modules if name.split(".")[0] in ours)
    files = dict(sorted(inside_functions(ran.by_file).items(), key=lambda item: -item[1]))
    lines = sum(files.values())
    first, *others = answers
    call = inside_functions(
        {
            path: lines.intersection(*(each[path] for each in others))
            for path, lines in first.items()
        }
    )
    if "--json" in sys.argv:
        print(json.dumps({"modules": modules, "files": files, "lines": lines, "call": call}))
        return
    for path, count in files.items():
        print(f"{count:5} {path}")
    print(f"{len(modules)} modules imported, {len(files)} files entered, {lines} lines run")
    print(f"each later answer: {len(call)} files entered, {sum(call.values())} lines run")


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main()

"""Where an engine is used from: the main thread, others, async code, a notebook with its own loop.

The same question gets the same answer everywhere. Scripts without a `__main__` guard, on stdin and
two at once are in `test_life.py`.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Coroutine
from typing import Any

import nbformat
import pytest
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import DeadKernelError
from scripts import START_SECONDS, environment, preamble
from tiny import tiny_model

from inf import InferenceEngine

SETTINGS: dict[str, Any] = {
    "dtype": "float32",
    "prompt_length": 512,
    "response_length": 128,
    "enforce_eager": True,
}
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 24, "ignore_eos": True, "timeout": 60}
PROMPTS = [f"What is {number} apples and 7?" for number in range(20)]

Answers = list[list[int]]


@pytest.fixture(scope="module")
def answers(tiny: InferenceEngine) -> Answers:
    """One to each of `PROMPTS`, by the main thread; they differ."""
    answers = [tiny.generate(prompt, **GREEDY).token_ids[0] for prompt in PROMPTS]
    assert len({tuple(each) for each in answers}) > 10
    return answers


def run(work: Coroutine[Any, Any, Answers]) -> Answers:
    """`asyncio.run`, not for ever."""
    return asyncio.run(asyncio.wait_for(work, 120))


def test_thread_of_the_callers_generates(tiny: InferenceEngine, answers: Answers) -> None:
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        output = thread.submit(tiny.generate, PROMPTS, **GREEDY).result(120)
    assert output.token_ids == answers


def test_two_threads_at_once_each_get_their_own_answers(
    tiny: InferenceEngine, answers: Answers
) -> None:
    together = threading.Barrier(2, timeout=60)

    def ask(prompts: list[str]) -> Answers:
        together.wait()
        return [tiny.generate(prompt, **GREEDY).token_ids[0] for prompt in prompts]

    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        odd, even = threads.submit(ask, PROMPTS[1::2]), threads.submit(ask, PROMPTS[::2])
    assert odd.result() == answers[1::2]
    assert even.result() == answers[::2]


def test_generate_inside_a_running_event_loop(tiny: InferenceEngine, answers: Answers) -> None:
    async def work() -> Answers:
        return tiny.generate(PROMPTS, **GREEDY).token_ids

    assert run(work()) == answers


def test_awaited_agenerate_leaves_the_loop_to_others(
    tiny: InferenceEngine, answers: Answers
) -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0.001)
            turns += 1

    async def work() -> Answers:
        counting = asyncio.ensure_future(count())
        output = await tiny.agenerate(PROMPTS, **GREEDY)
        counting.cancel()
        return output.token_ids

    assert run(work()) == answers
    assert turns > 10


def test_twenty_agenerate_at_once_each_get_their_own_answer(
    tiny: InferenceEngine, answers: Answers
) -> None:
    async def work() -> Answers:
        outputs = await asyncio.gather(*(tiny.agenerate(prompt, **GREEDY) for prompt in PROMPTS))
        return [output.token_ids[0] for output in outputs]

    assert run(work()) == answers


def test_asyncio_run_twice_with_one_engine(tiny: InferenceEngine, answers: Answers) -> None:
    async def work() -> Answers:
        return (await tiny.agenerate(PROMPTS, **GREEDY)).token_ids

    assert run(work()) == run(work()) == answers


def test_engine_started_and_stopped_in_async_code_on_a_thread(answers: Answers) -> None:
    async def work() -> Answers:
        with InferenceEngine(model_path=str(tiny_model()), rollout=SETTINGS) as engine:
            return (await engine.agenerate(PROMPTS, **GREEDY)).token_ids

    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        assert thread.submit(run, work()).result(START_SECONDS) == answers


CELLS = [
    "e = engine()",
    "e.generate(**QUESTION).token_ids == (await e.agenerate(**QUESTION)).token_ids",
    "import asyncio\n"
    "outputs = await asyncio.gather(*(e.agenerate(**QUESTION) for _ in range(20)))\n"
    "len({tuple(output.token_ids[0]) for output in outputs})",
    # What Jupyter's stop button does: SIGINT to the kernel's process group.
    "import os, signal, threading\n"
    "assert os.getpgrp() == os.getpid()\n"
    "threading.Timer(1, os.killpg, (os.getpgrp(), signal.SIGINT)).start()\n"
    "try:\n"
    "    e.generate('One', **LONG)\n"
    "except KeyboardInterrupt:\n"
    "    interrupted = True\n"
    "interrupted",
    "await e.agenerate(['Is 1 < 2?', 'Two'], temperature=0, max_tokens=8, ignore_eos=True)",
    "e.shutdown()",
]


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> list[list[Any]]:
    """The outputs of `CELLS`, run as a notebook by this very interpreter."""
    folder = tmp_path_factory.mktemp("notebook")
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(source) for source in [preamble(), *CELLS]]
    )
    # Without folders of kernels there is one: the interpreter that runs this.
    manager = AsyncKernelManager(
        kernel_name="python3", kernel_spec_manager=KernelSpecManager(kernel_dirs=[])
    )
    client = NotebookClient(notebook, km=manager, timeout=START_SECONDS)
    private = {name: str(folder) for name in ("JUPYTER_RUNTIME_DIR", "IPYTHONDIR")}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name, value in environment(**private).items():
            patch.setenv(name, value)
        try:
            client.execute(cwd=str(folder))
        except DeadKernelError:
            process = getattr(manager.provisioner, "process", None)
            pytest.fail(f"the kernel ended with exit code {process and process.returncode}")
    return [cell.outputs for cell in notebook.cells[1:]]


def text(outputs: list[Any]) -> str:
    """The one value that a cell shows; an erased bar may stand beside it where it took long."""
    (output,) = [output for output in outputs if output["output_type"] == "execute_result"]
    return str(output["data"]["text/plain"])


def test_notebook_cell_that_starts_an_engine_shows_nothing(cells: list[list[Any]]) -> None:
    assert cells[0] == []


def test_notebook_cells_generate_and_await_agenerate(cells: list[list[Any]]) -> None:
    assert text(cells[1]) == "True"
    assert text(cells[2]) == "1"


def test_notebooks_stop_button_interrupts_generate(cells: list[list[Any]]) -> None:
    assert text(cells[3]) == "True"


def test_notebook_shows_an_output_as_a_table(cells: list[list[Any]]) -> None:
    (output,) = [output for output in cells[4] if output["output_type"] == "execute_result"]
    table = output["data"]["text/html"]
    assert table.startswith("<table>")
    assert table.count("<tr>") == 3  # a head and two rows
    assert "<th>completion</th>" in table


def test_notebook_cell_shuts_the_engine_down_without_a_word(cells: list[list[Any]]) -> None:
    assert cells[5] == []

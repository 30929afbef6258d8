"""Runs three agent loops of a real verl 0.9.1 against `inf serve`, in an environment without inf.

    python run_loops.py BASE_URL MODEL_FOLDER OUT.json

OUT.json: a list with an object for each row, as a trainer gets it, without the padding.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "examples")]

import numpy as np  # noqa: E402
from omegaconf import OmegaConf  # noqa: E402
from verl.experimental.agent_loop.agent_loop import AgentLoopWorker  # noqa: E402
from verl.experimental.reward_loop.reward_loop import RewardLoopWorker  # noqa: E402
from verl.protocol import DataProto  # noqa: E402
from verl_client import InfServerClient, verl_config  # noqa: E402

LENGTHS = {"prompt_length": 512, "response_length": 128}
REWARDED = [  # the loop, what the user says, the right answer
    ("single_turn_agent", "Hello.", "there"),
    ("single_turn_agent", "What is 2 + 3?", "say"),
    ("tool_agent", "What is 12 * 7?", "84"),
    ("tool_agent", "What is 30 - 4 and 5 + 6?", "26"),
    ("tool_agent", "Hello.", "there"),
    ("tool_agent", "What is 12 * 7? Never stop.", "84"),  # until response_length cuts it
]
# A batch of their own: verl 0.9.1 fails where only some loops of a batch give rewards themselves.
GUESSING = [("guessing_agent", "Guess the number.", number) for number in "756"]
SAMPLES = 2  # of each row that is not greedy


def config(model: str, folder: Path) -> Any:
    loops = folder / "agent_loops.yaml"
    target = "tests.support.agent_loop_guessing.GuessingLoop"
    OmegaConf.save([{"name": "guessing_agent", "_target_": target}], loops)
    ours = {
        "temperature": 2.0,
        "calculate_log_probs": True,  # not the default of 0.8
        "val_kwargs": {"temperature": 0, "top_p": 1.0, "top_k": -1},
        "agent": {"agent_loop_config_path": str(loops)},
        "multi_turn": {"function_tool_path": str(HERE / "tools.py"), "max_parallel_calls": 2},
        **LENGTHS,
    }
    reward = {"path": str(HERE / "reward.py"), "name": "compute_score"}
    changes = {
        "actor_rollout_ref": {"rollout": ours},
        "reward": {"num_workers": 1, "custom_reward_function": reward},
    }
    return OmegaConf.merge(verl_config(model), changes)


def batch(rows: list[tuple[str, str, str]], *, greedy: bool) -> DataProto:
    columns = {
        "agent_name": [loop for loop, _, _ in rows],
        "raw_prompt": [[{"role": "user", "content": said}] for _, said, _ in rows],
        "number": [answer for _, _, answer in rows],
        "data_source": ["test"] * len(rows),
        "reward_model": [{"ground_truth": answer} for _, _, answer in rows],
        "index": [*range(len(rows))],
    }
    arrays = {}
    for name, values in columns.items():
        arrays[name] = np.empty(len(rows), dtype=object)
        arrays[name][:] = values
    return DataProto.from_dict(non_tensors=arrays, meta_info={"validate": greedy})


def as_objects(
    rows: list[tuple[str, str, str]], output: DataProto, *, greedy: bool
) -> list[dict[str, Any]]:
    found = []
    prompt_length = output.batch["prompts"].shape[1]
    for index, (loop, said, answer) in enumerate(rows):
        tensors = output.batch[index]
        attention = tensors["attention_mask"].bool()
        response = attention[prompt_length:]
        found.append(
            {
                "loop": loop,
                "prompt": said,
                "answer": answer,
                "greedy": greedy,
                "request_id": output.non_tensor_batch["request_id"][index],
                "prompt_ids": tensors["prompts"][attention[:prompt_length]].tolist(),
                "response_ids": tensors["responses"][response].tolist(),
                "response_mask": tensors["response_mask"][response].tolist(),
                "logprobs": tensors["rollout_log_probs"][response].tolist(),
                "reward": tensors["rm_scores"].sum().item(),
                "num_turns": int(output.non_tensor_batch["__num_turns__"][index]),
            }
        )
    return found


async def main(base_url: str, model: str, out: str) -> None:
    settings = config(model, Path(out).parent)
    rewards = RewardLoopWorker(settings)
    # Where verl has Ray's handle of an actor; a plain object's method takes its place.
    handle = SimpleNamespace(compute_score=SimpleNamespace(remote=rewards.compute_score))
    worker = AgentLoopWorker(settings, InfServerClient(base_url, settings), None, [handle])
    found = []
    for rows in (REWARDED, GUESSING):
        for greedy, repeated in ((True, rows), (False, rows * SAMPLES)):
            output = await worker.generate_sequences(batch(repeated, greedy=greedy))
            found += as_objects(repeated, output, greedy=greedy)
    Path(out).write_text(json.dumps(found))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

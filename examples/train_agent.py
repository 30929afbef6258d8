"""Train an agent with a sub-agent, both of the `openai` client, with GRPO on a laptop.

    python examples/train_agent.py

The agent asks the model for a price; the model should call the tool `price` and then repeat its
result. After two examples in its prompt, the embedded model sometimes does. The tool is a
sub-agent, a conversation of its own with the same model, which reads a price list. A right call is
worth 0.5, and a right answer after it another 0.5. The script prints the reward of each step and
draws the curve in train_agent.png.

Neither agent knows that it is being trained: its client's URL is a session, which records the
sampled ids. Both sessions are one rollout, whose reward they share. `engine.trainer_batch` turns
their traces into a batch for the same step as in grpo.py.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import runpy
import sys
import uuid
from pathlib import Path
from typing import Any

import torch
from openai import OpenAI

from inf import InferenceEngine

GRPO = runpy.run_path(str(Path(__file__).with_name("grpo.py")))
PRICES = {"pen": 3, "hat": 12}
SAMPLES = 8  # per item: GRPO compares them with each other
MAX_TOKENS = 32  # per answer
LEARNING_RATE = 1e-5


# ─── The agent ───

TOOL: Any = {
    "type": "function",
    "function": {
        "name": "price",
        "description": "The price of an item.",
        "parameters": {
            "type": "object",
            "properties": {"item": {"type": "string"}},
            "required": ["item"],
        },
    },
}


def example(item: str, price: int) -> list[Any]:
    """An example conversation for the prompt."""
    call = {"name": "price", "arguments": json.dumps({"item": item})}
    return [
        {"role": "user", "content": f"How much is a {item}?"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": f"call_{item}", "type": "function", "function": call}],
        },
        {"role": "tool", "tool_call_id": f"call_{item}", "content": str(price)},
        {"role": "assistant", "content": f"A {item} costs {price} dollars."},
    ]


EXAMPLES = [*example("ball", 5), *example("cup", 8)]


def sub_agent(client: OpenAI, model: str, item: str) -> str:
    """Read an item's price from a list."""
    prices = ", ".join(f"{name} {price}" for name, price in {"ball": 5, "cup": 8, **PRICES}.items())
    messages: list[Any] = [{"role": "system", "content": f"The prices: {prices}."}]
    for name, price in (("ball", "5"), ("cup", "8")):
        messages += [{"role": "user", "content": f"{name}?"}]
        messages += [{"role": "assistant", "content": price}]
    messages += [{"role": "user", "content": f"{item}?"}]
    answer = client.chat.completions.create(model=model, messages=messages)
    return answer.choices[0].message.content or ""


def agent(client: OpenAI, helper: OpenAI, model: str, item: str) -> float:
    """Ask for an item's price, run the tool if it is called, and return the reward."""
    messages = [*EXAMPLES, {"role": "user", "content": f"How much is a {item}?"}]
    answer = client.chat.completions.create(model=model, messages=messages, tools=[TOOL])
    message = answer.choices[0].message
    calls = message.tool_calls or []
    if [_item(call) for call in calls] != [item]:
        return 0.0
    price = sub_agent(helper, model, item)
    result = {"role": "tool", "tool_call_id": calls[0].id, "content": price}
    answer = client.chat.completions.create(
        model=model, messages=[*messages, message, result], tools=[TOOL]
    )
    said = answer.choices[0].message.content
    return 1.0 if said == f"A {item} costs {PRICES[item]} dollars." else 0.5


def _item(call: Any) -> str | None:
    try:
        return str(json.loads(call.function.arguments)["item"])
    except (ValueError, TypeError, KeyError):
        return None


# ─── The training ───


def rollouts(engine: InferenceEngine, server: Any) -> tuple[Any, torch.Tensor]:
    """Run the agent SAMPLES times for each item; return the batch and each row's reward."""
    sampling = {"temperature": 1.0, "max_tokens": MAX_TOKENS}  # whatever the agents send

    def run(item: str) -> list[Any]:
        names = [f"{uuid.uuid4().hex}-{role}" for role in ("agent", "helper")]
        clients = [
            OpenAI(
                base_url=server.session(name, task=item, rollout=names[0], sampling=sampling),
                api_key="none",
            )
            for name in names
        ]
        reward = agent(*clients, engine.config.model_name, item)
        return [(trace, reward) for name in names for trace in server.traces(name)]

    items = [item for item in PRICES for _ in range(SAMPLES)]
    with concurrent.futures.ThreadPoolExecutor(len(items)) as pool:
        rows = [row for done in pool.map(run, items) for row in done]
    traces, rewards = [trace for trace, _ in rows], [reward for _, reward in rows]
    return engine.trainer_batch(traces, rewards), torch.tensor(rewards)


def advantages(batch: Any, rewards: torch.Tensor) -> torch.Tensor:
    """verl's advantages of the rollouts, each counted once; the rows of one have the same."""
    names = list(batch.non_tensor_batch["rollout"])
    first = [names.index(name) for name in dict.fromkeys(names)]  # a row of each
    worth = GRPO["advantages"](batch[first], rewards[first])
    values = {names[row]: each[each.abs().argmax()] for row, each in zip(first, worth, strict=True)}
    return torch.stack([values[name] for name in names])[:, None] * batch.batch["response_mask"]


def train(engine: InferenceEngine, model: torch.nn.Module, steps: int, rate: float) -> list[float]:
    """Train; return the mean reward of each step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.0)
    curve = []
    with engine.serve() as server:
        for step in range(steps):
            batch, rewards = rollouts(engine, server)
            GRPO["learn"](model, optimizer, batch, advantages(batch, rewards))
            engine.update_weights(model)
            curve.append(float(rewards.mean()))
            said = batch.non_tensor_batch["completions"][0]
            print(f"step {step:3}  reward {curve[-1]:.3f}  {said!r}", flush=True)
    return curve


def main() -> None:
    from transformers import AutoModelForCausalLM

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=14)
    parser.add_argument("--out", type=Path, default=Path("train_agent.png"))
    arguments = parser.parse_args()
    rollout = {
        # A request's prompt; for the batch, the first prompt and everything after it.
        "prompt_length": 336,
        "response_length": 96,
        "update_weights_bucket_megabytes": 64,
    }
    with InferenceEngine(rollout=rollout) as engine:
        folder = engine.model_config.local_path
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        model.get_input_embeddings().requires_grad_(False)  # as in grpo.py
        curve = train(engine, model, arguments.steps, LEARNING_RATE)
    title = f"GRPO of an agent: {len(PRICES)} items, {SAMPLES} samples each"
    GRPO["draw"](curve, arguments.out, title)
    print(f"{arguments.out}: mean reward {curve[0]:.3f} at first, {curve[-1]:.3f} at last")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)

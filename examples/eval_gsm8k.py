"""Evaluate GSM8K with verl's own scoring function: a starting point for your own evaluation.

    python examples/eval_gsm8k.py [FILE.jsonl] [QUESTIONS]

Without a file it uses the ten problems in this folder. `inf eval gsm8k` does more: other rules,
and resuming a stopped run.
"""

import contextlib
import json
import sys
from pathlib import Path

from inf import InferenceEngine

path = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).with_name("problems.jsonl"))
limit = int(sys.argv[2]) if len(sys.argv) > 2 else None
suffix = 'Let\'s think step by step and output the final answer after "####".'

problems = [json.loads(line) for line in path.read_text().splitlines()][:limit]
prompts = [f"{problem['question']} {suffix}" for problem in problems]

with contextlib.suppress(KeyboardInterrupt), InferenceEngine() as engine:  # Ctrl-C ends it
    output = engine.generate(prompts, temperature=0, max_tokens=256)
    speed = engine.stats()["tokens_per_second"]

    from verl.utils.reward_score.gsm8k import compute_score

    right = {"strict": 0, "flexible": 0}
    for problem, row in zip(problems, output, strict=True):
        truth = problem["answer"].split("####")[1].strip().replace(",", "")
        for rule in right:
            right[rule] += compute_score(row.completion, truth, method=rule)
        print(f"{problem['question'][:50]}...  {truth}, and it says ...{row.completion[-40:]!r}")

    cut = sum(row.metadata["finish_reason"] == "length" for row in output)
    for rule, count in right.items():
        print(f"{rule}: {count:.0f} of {len(problems)} right")
    print(f"cut by length: {cut}; {speed:.0f} tok/s")

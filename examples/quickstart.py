"""Quick start: one question, then a batch. Runs on any machine."""

import contextlib

from inf import InferenceEngine

with contextlib.suppress(KeyboardInterrupt), InferenceEngine() as engine:  # Ctrl-C ends it
    output = engine.generate("What is the capital of France?")
    print(output.completions[0])
    print(f"Generated {len(output.token_ids[0])} tokens: {output.metadata[0]['finish_reason']}")

    prompts = ["What is 10 * 5?", [{"role": "user", "content": "Name a primary color."}]]
    for row in engine.generate(prompts, temperature=0.7, max_tokens=40, n=2):
        index = f"{row.metadata['prompt_index']}.{row.metadata['sample_index']}"
        print(f"{index}  {row.completion!r}  (log prob {row.metadata['cumulative_logprob']:.1f})")

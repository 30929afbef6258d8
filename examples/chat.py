"""Chat until an empty line, Ctrl-D or Ctrl-C. `inf chat` does the same, with commands."""

import contextlib

from inf import InferenceEngine

# `with`, inside which Ctrl-C and Ctrl-D are no errors: they end the program, and the engine too.
with (
    contextlib.suppress(EOFError, KeyboardInterrupt),
    InferenceEngine(rollout={"prompt_length": 3072}) as engine,
):
    history = []
    while user_input := input("You: "):
        history.append({"role": "user", "content": user_input})
        print("AI: ", end="")
        answer = ""
        for chunk in engine.stream(history, temperature=0.7, max_tokens=300):
            print(chunk.text, end="", flush=True)
            answer += chunk.text
        print()
        history.append({"role": "assistant", "content": answer})

"""Chat in a loop until an empty line or Ctrl-D. `inf chat` does the same, with commands."""

from inf import InferenceEngine

with InferenceEngine(rollout={"prompt_length": 3072}) as engine:
    history = []
    while True:
        try:
            user_input = input("You: ")
        except EOFError:
            break
        if not user_input:
            break

        history.append({"role": "user", "content": user_input})
        print("AI: ", end="")
        answer = ""
        for chunk in engine.stream(history, temperature=0.7, max_tokens=300):
            print(chunk.text, end="", flush=True)
            answer += chunk.text
        print()
        history.append({"role": "assistant", "content": answer})

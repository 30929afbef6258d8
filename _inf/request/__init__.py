"""Turns a call into requests: prompts into token ids, keywords into sampling parameters.

In: the caller's arguments. Out: `Prompt`s and `SamplingParams`. Uses a tokenizer, knows no engine.
A new form of prompt belongs in `prompts.py`, a new keyword in `keywords.py` and `values.py`.
"""

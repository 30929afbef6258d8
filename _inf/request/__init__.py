"""From a call to what an engine is sent: prompts to token ids, keywords to sampling parameters.

In: what a caller writes. Out: `Prompt`s and `SamplingParams`. Knows a tokenizer; knows no engine,
and does nothing but check and convert.
"""

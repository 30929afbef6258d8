"""Turns any `model_path` into one local folder that Transformers can load.

In: a Hub id, a folder, a .gguf file, a verl checkpoint, an adapter. Out: a folder, in a cache
if it had to be converted. Knows nothing of engines.
"""

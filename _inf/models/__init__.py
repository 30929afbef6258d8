"""From any `model_path` to one local folder that Transformers can load.

In: a Hub id, a folder, a .gguf file, a verl checkpoint, an adapter. Out: a folder, from a cache
where it had to be made. Knows nothing of engines.
"""

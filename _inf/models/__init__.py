"""Turns any `model_path` into one local folder that Transformers can load."""

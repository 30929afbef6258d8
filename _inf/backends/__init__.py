"""What can answer requests. `verl` is verl's SGLangRollout on SGLang."""

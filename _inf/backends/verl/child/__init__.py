"""What runs only in the scheduler's process: the corrections of SGLang's scheduler, models,
attention.

Nothing here is imported in the caller's process but `setup`'s names and the reading of what the
child wrote. Each module says which file of sglang 0.5.9 it corrects, and why.
"""

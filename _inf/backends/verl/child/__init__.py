"""Code that runs only in the scheduler's process: it corrects SGLang's scheduler, models and
attention.

`patches` is the table of all corrections, with the file of sglang 0.5.9 and the reason. The
caller's process imports only `setup`'s names, the logits processor of requests, and the functions
that read the child's heartbeat and refusals.
"""

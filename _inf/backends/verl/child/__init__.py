"""What runs only in the scheduler's process: the corrections of SGLang's scheduler, models and
attention.

`patches` is the table of all of them: which file of sglang 0.5.9 each corrects, and why. The
caller's process imports only `setup`'s names, the request's logits processor, and what reads the
child's signs of life and refusals.
"""

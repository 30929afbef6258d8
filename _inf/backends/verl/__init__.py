"""The backend on verl 0.6.1's `SGLangRollout` and sglang 0.5.9, in the caller's process.

In: `Request`s, a config, a model's folder. Out: `RequestOutput`s. Only this folder depends on verl
or SGLang, so a new version of either changes no other folder.
"""

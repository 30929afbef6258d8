"""verl 0.6.1's `SGLangRollout` on sglang 0.5.9: everything that knows either, in the caller's
process.

In: `Request`s, a config, a model's folder. Out: `RequestOutput`s. A bump of one of the two is this
folder's work, and no other's.
"""

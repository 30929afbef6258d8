"""The backend on Transformers, in the caller's process, on a thread of its own.

In: `Request`s, a config, a model's folder. Out: `RequestOutput`s, by the definitions that the
backend `verl` follows, and, with it alone, logits. It computes what Transformers' own classes
compute, so it is also what other backends are compared with. Imports neither verl nor SGLang.

`launch.py` loads the model, `backend.py` implements the protocol, `decoding.py` runs rows together,
`forward.py` has the model and its cache, `choice.py` and `grammar.py` choose tokens.
"""

from _inf.runtime.interpreter import set_torch_variables

set_torch_variables()  # before PyTorch is imported

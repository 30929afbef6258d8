"""One row's turns: what the model is sent next, the mask and log probs of what came, and when it
ends.

In: a prompt, tools, limits, and a backend that answers one turn. Out: a `RequestOutput` with its
`Transcript`. Knows nothing of how the backend works.
"""

"""Runs the turns of a conversation: its next request, its mask and log probs, and its end.

In: a prompt, tools, limits, and a backend that answers one turn. Out: a `RequestOutput` with its
`Transcript`. Knows nothing of how the backend works.
"""

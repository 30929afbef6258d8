"""Defines tools from schemas, functions and verl's classes, and reads and runs a model's calls.

In: the items of `tools=` or of a tools file; a model's text. Out: `Tool`s, `ToolCall`s, results as
text. Runs in the caller's process, and knows no engine. A new format of tool calls is a reader in
`readers.py`, with its name in `parsing.py` and in `_inf/config/tool_formats.py`.
"""

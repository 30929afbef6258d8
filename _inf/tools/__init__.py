"""Tools: defined from schemas, functions and verl's classes; a model's calls read and run.

In: what `tools=` or a tools file names; a model's text. Out: `Tool`s, `ToolCall`s, results as text.
Runs in the caller's process, and knows no engine.
"""

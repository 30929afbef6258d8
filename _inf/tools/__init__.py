"""Defines tools from schemas, functions and verl's classes, and reads and runs a model's calls.

A new format of tool calls is a reader in `readers.py`, with its name in `parsing.py` and in
`_inf/config/tool_formats.py`.
"""

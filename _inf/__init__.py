"""The package beside `inf.py`. Each folder says in its `__init__.py` what comes in, what goes out
and what it refuses to know; imports run downwards only (`[tool.importlinter]` in pyproject.toml).
"""

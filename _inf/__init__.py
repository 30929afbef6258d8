"""The private package of `inf.py`. Each folder's `__init__.py` says what comes in, what goes out
and what the folder must not know; `[tool.importlinter]` in pyproject.toml has the allowed imports.
"""

__version__ = "0.2.0"

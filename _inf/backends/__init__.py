"""The engines that answer requests: `base.py` is the protocol that every backend implements,
`running.py` starts and stops one, `verl` is the backend on verl's SGLangRollout and SGLang.

A new backend is a new folder here with a class that implements `Backend`; CONTRIBUTING.md says
which other files change.
"""

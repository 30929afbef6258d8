"""Turns a call into requests: prompts into token ids, keywords into sampling parameters.

A new form of prompt belongs in `prompts.py`, a new keyword in `keywords.py`.
"""

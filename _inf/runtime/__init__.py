"""Starts, watches, locks and stops an engine's thread and processes, and silences their output.

In: functions to run, coroutines to await. Out: their results, or an exception if a process dies.
Imports neither verl nor sglang, and knows nothing of tokens.
"""

"""An engine's thread and its processes: started, watched, locked, quiet, stopped.

In: functions to run, coroutines to await. Out: their results, or the death of a process as an
exception. Imports neither verl nor sglang, and knows nothing of tokens.
"""

"""Starts, watches, locks and stops an engine's thread and processes, and silences their output."""

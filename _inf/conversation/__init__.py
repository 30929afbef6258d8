"""Runs the turns of a conversation: its next request, its mask and log probs, and its end."""

"""Compares the rollout with a trainer's computation, and with itself: `inf check`, `inf.check`."""

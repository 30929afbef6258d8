"""Compares the rollout with a trainer's computation, and with itself: `inf check`, `inf.check`.

In: a running engine, and what it is compared with. Out: a frozen `CheckReport`, whose findings say
what differs and what that points to.
"""

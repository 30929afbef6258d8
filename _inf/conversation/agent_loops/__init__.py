"""Runs verl's agent loops, `verl/experimental/agent_loop` of verl 0.6.1, without Ray.

What a user writes for verl, a subclass of `AgentLoopBase`, is run as it is. Of verl's own there is
no worker here and no manager: a row's loop asks the backend of this process for its turns.
"""

"""What the command `inf` does, on top of the public `inf`: command line, batches, evaluation, Ray,
check.
"""

"""The command `inf`, built on the public `inf`: command line, batches, evaluation, Ray, check.
A new command is a file in `cli/`, registered in `cli/__init__.py`."""

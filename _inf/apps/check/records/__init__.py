"""`inf check --records`: two log probs of each token, compared without an engine.

`reading` reads a file's rows, `sides` says what the values of each side are, `relation` tells from
the figures what turns one side's into the other's, and `report` puts it together.
"""

"""The fixture `figures` of the soak suite, as its tests call it."""

from collections.abc import Callable

# figures("kills of the scheduler", 12)
Figures = Callable[[str, object], None]

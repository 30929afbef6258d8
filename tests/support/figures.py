"""The fixture `figures` of the soak suite, as its tests call it."""

from collections.abc import Callable

# figures("faults", "kills of the scheduler", 12)
Figures = Callable[[str, str, object], None]

"""What the tests and doctests of every folder share."""

from importlib.util import find_spec

# Imported only where numba is there.
_COMPILED = ["skmahal/_core/_fast.py", "skmahal/online/_loops.py"]
collect_ignore = [] if find_spec("numba") else _COMPILED

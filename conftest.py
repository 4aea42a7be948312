"""What the tests and doctests of every folder share."""

from importlib.util import find_spec

# Imported only where numba is there.
collect_ignore = [] if find_spec("numba") else ["skmahal/_core/_fast.py"]

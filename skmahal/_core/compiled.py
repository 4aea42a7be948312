"""Whether the compiled loops of :mod:`._fast` are there to be used."""

from functools import lru_cache
from importlib.util import find_spec


@lru_cache(maxsize=1)
def fast():
    """The compiled loops, imported when first asked for; None without numba."""
    if find_spec("numba") is None:
        return None
    from . import _fast

    return _fast

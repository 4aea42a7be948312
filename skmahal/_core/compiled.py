"""Whether the compiled loops of :mod:`._fast` are there to be used."""

from functools import lru_cache
from importlib.util import find_spec


def read_only(array):
    """`array` as the loops get what they only read.

    Loops are compiled anew for arrays that cannot be written to, which takes seconds.
    So all of these are such, and not just those that are mapped from a file.

    Examples
    --------
    >>> import numpy as np
    >>> read_only(np.zeros(3)).flags.writeable
    False
    """
    view = array.view()
    view.flags.writeable = False
    return view


@lru_cache(maxsize=1)
def fast():
    """The compiled loops, imported when first asked for; None without numba."""
    if find_spec("numba") is None:
        return None
    from . import _fast

    return _fast

"""From scikit-learn's `random_state` to a seed, or to a generator."""

from functools import lru_cache
from numbers import Integral

import numpy as np
from sklearn.utils import check_random_state


def seed_from(random_state):
    """An entropy for :class:`numpy.random.SeedSequence`, or None for the system's.

    None must not fall back on NumPy's global state: whoever knows that state could
    foresee the secret of an index.

    Examples
    --------
    >>> from skmahal._random import seed_from
    >>> seed_from(None) is None, seed_from(3) == seed_from(3)
    (True, True)
    """
    if random_state is None:
        return None
    try:
        state = check_random_state(random_state)
    except ValueError as error:
        raise ValueError(f"random_state is no seed: {error}") from error
    return [int(word) for word in state.randint(2**32, size=4, dtype="uint32")]


def generator_from(random_state):
    """A generator that is seeded by :func:`seed_from`.

    Examples
    --------
    >>> from skmahal._random import generator_from
    >>> bool(generator_from(3).random() == generator_from(3).random())
    True
    """
    if isinstance(random_state, Integral):
        return np.random.default_rng(_sequence_of(random_state))
    return np.random.default_rng(seed_from(random_state))


@lru_cache(maxsize=32)
def _sequence_of(seed):
    """What takes longer to make of a number than a draw of :meth:`sample` does."""
    return np.random.SeedSequence(seed_from(seed))

"""From scikit-learn's `random_state` to a seed."""

from functools import lru_cache
from numbers import Integral

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
        if isinstance(random_state, Integral):
            return list(_words_of_seed(random_state))
        return _words(check_random_state(random_state))
    except ValueError as error:
        raise ValueError(f"random_state is no seed: {error}") from error


@lru_cache(maxsize=32)
def _words_of_seed(seed):
    """The same for a seed, which takes as long as a draw of :meth:`sample` does."""
    return _words(check_random_state(seed))


def _words(state):
    return [int(word) for word in state.randint(2**32, size=4, dtype="uint32")]

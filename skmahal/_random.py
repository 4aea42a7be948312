"""From scikit-learn's `random_state` to a seed."""

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
    words = check_random_state(random_state).randint(2**32, size=4, dtype="uint32")
    return [int(word) for word in words]

"""scikit-learn's validation, without what it lets through of Python's and NumPy's."""

from contextlib import contextmanager

import numpy as np
from sklearn.utils.validation import validate_data

from skmahal._core.checks import as_asked


@contextmanager
def no_overflow(name):
    """Refuse numbers that are too large by the name of what they are in.

    One too large for float32 becomes infinite, which scikit-learn refuses.

    Examples
    --------
    >>> with no_overflow("X"):
    ...     np.asarray([10**400], dtype=float)
    Traceback (most recent call last):
    ...
    ValueError: X has a value too large for float64.
    """
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            yield
    except OverflowError as error:
        raise ValueError(f"{name} has a value too large for float64.") from error


def validated(estimator, X, *y, **how):
    """What scikit-learn's `validate_data` gives."""
    with no_overflow("X"):
        return validate_data(estimator, as_asked(X), *y, **how)

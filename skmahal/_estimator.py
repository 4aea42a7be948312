"""Shared by all estimators: validation, seeds, undo on error, and saved states."""

from contextlib import contextmanager
from copy import deepcopy
from numbers import Integral

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import validate_data

from skmahal._core.checks import check_mapped
from skmahal._core.saved import expecting, is_mapped, opened, require, stamped

_OWN_STREAM = int.from_bytes(b"skmahal", "big")


def validated(estimator, X, *y, **options):
    """scikit-learn's `validate_data`, which leaves X as it is and names X in errors."""
    if X is None:
        raise ValueError("X must be an array or a sparse matrix, got None.")
    with no_overflow("X"):
        types = options.get("dtype")
        if is_mapped(X) and isinstance(types, tuple) and X.dtype in types:
            # scikit-learn would read all of it into memory.
            result = validate_data(estimator, X, *y, ensure_all_finite=False, **options)
            check_mapped("X", result[0] if y else result)
            return result
        return validate_data(estimator, X, *y, **options)


@contextmanager
def no_overflow(name):
    """Raise a ValueError that names the array if a number in it is too large.

    >>> with no_overflow("X"):
    ...     np.asarray([10**400], dtype=float)
    Traceback (most recent call last):
    ...
    ValueError: X has a value too large for float64.
    """
    try:
        # scikit-learn refuses what becomes infinite in float32.
        with np.errstate(over="ignore", invalid="ignore"):
            yield
    except OverflowError as error:
        raise ValueError(f"{name} has a value too large for float64.") from error


def seed_from(random_state):
    """Entropy for :class:`numpy.random.SeedSequence`, or None for the system's.

    None does not use NumPy's global state: somebody who knows that state could predict
    the secret key of an index. An integer is combined with a constant: data that were
    drawn from ``numpy.random.default_rng(3)`` must not be the sketch of seed 3.
    """
    if random_state is None:
        return None
    if isinstance(random_state, Integral) and 0 <= random_state < 2**32:
        return [int(random_state), _OWN_STREAM]
    try:
        state = check_random_state(random_state)
    except ValueError as error:
        raise ValueError(f"random_state is not a valid seed: {error}") from error
    return [int(word) for word in state.randint(2**32, size=4, dtype="uint32")]


def generator_from(random_state):
    """A :class:`numpy.random.Generator` seeded by :func:`seed_from`."""
    return np.random.default_rng(seed_from(random_state))


@contextmanager
def undo_on_error(estimator):
    """Give an estimator its attributes back if the block raises; copies no object."""
    before = vars(estimator).copy()
    try:
        yield
    except BaseException:
        restore_attributes(estimator, before)
        raise


def restore_attributes(estimator, attributes):
    """Set these attributes, then delete all others: reading threads miss none."""
    present = vars(estimator)
    present.update(attributes)
    for name in present.keys() - attributes.keys():
        del present[name]


class Persistent(BaseEstimator):
    """An estimator that is saved as plain values, which are checked on loading.

    `_saved(state)` gets a copy of the attributes and returns it with plain values in
    place of objects; `_restored(state)` does the reverse, and raises if a value does
    not fit. Both call the method of the base class. Saving and loading each read all
    arrays once for the digest, O(bytes); :func:`copy.deepcopy` does not.
    """

    # The link to the documentation in scikit-learn's HTML representation.
    _doc_link_module = "skmahal"
    _doc_link_template = (
        "https://skmahal.github.io/skmahal/generated/{module}.{name}.html"
    )

    def _doc_link_url_param_generator(self):
        cls = type(self)
        is_online = cls.__module__.startswith("skmahal.online.")
        module = "skmahal.online" if is_online else "skmahal"
        return {"module": module, "name": cls.__name__}

    def __getstate__(self):
        state = self._saved(dict(super().__getstate__()))
        return stamped(type(self).__name__, state)

    def __setstate__(self, state):
        kind = type(self).__name__
        state = opened(kind, state)
        with expecting(kind):
            state = self._restored(state)
        super().__setstate__(state)

    def __copy__(self):
        other = type(self).__new__(type(self))
        vars(other).update(vars(self))
        return other

    def __deepcopy__(self, memo):
        other = type(self).__new__(type(self))
        memo[id(self)] = other
        state = self._saved(dict(super().__getstate__()))
        vars(other).update(other._restored(deepcopy(state, memo)))
        return other

    def _saved(self, state):
        return state

    def _restored(self, state):
        return state


def require_width(state, d):
    """Raise if the saved attributes of an estimator are not those of d features."""
    require(state["n_features_in_"] == d, f"n_features_in_ is not {d}")
    names = state.get("feature_names_in_")
    require(names is None or names.shape == (d,), f"there are not {d} feature names")

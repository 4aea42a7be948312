"""Arrays and indices from users: converted, or refused by name."""

import math
import numbers

import numpy as np
from scipy import sparse


def as_matrix(name, value, *, dtype, columns=None, rows=None):
    """`value` as a finite, non-empty 2-d array of `dtype`.

    A single row may be given flat. The result may share memory with `value`.

    Examples
    --------
    >>> as_matrix("q", [1, 2], dtype=np.float64, columns=2)
    array([[1., 2.]])
    >>> as_matrix("q", [1, 2], dtype=np.float64, columns=3)
    Traceback (most recent call last):
    ...
    ValueError: q has 2 columns, expected 3.
    """
    array = value
    if type(value) is not np.ndarray or value.dtype != dtype:
        array = as_array(name, value, dtype)
    if array.ndim == 1:
        array = array[np.newaxis]
    if array.ndim != 2 or array.size == 0:
        raise ValueError(
            f"{name} must be a non-empty 2-d array, got shape {np.shape(value)}."
        )
    if columns is not None and array.shape[1] != columns:
        raise ValueError(f"{name} has {array.shape[1]} columns, expected {columns}.")
    if rows is not None and array.shape[0] != rows:
        raise ValueError(f"{name} has {array.shape[0]} rows, expected {rows}.")
    check_finite(name, array)
    return array


def as_array(name, value, dtype):
    """`value` as an array of `dtype`, of any shape; infinite where it is too large.

    Examples
    --------
    >>> as_array("U", [[1, 2], [3]], np.float64)
    Traceback (most recent call last):
    ...
    ValueError: U must be an array of numbers: setting an array element with a ...
    """
    try:
        array = np.asarray(value)
        if not np.iscomplexobj(array):
            with np.errstate(over="ignore"):
                return array.astype(dtype, copy=False)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"{name} must be an array of numbers: {error}") from error
    raise ValueError(f"{name} must be real, got complex numbers.")


def as_asked(X):
    """`X`, or a copy of a sparse matrix that SciPy might write to.

    Releases before 1.11 sum entries that are given twice when they change the type.
    """
    if not sparse.issparse(X) or X.format not in ("csr", "csc"):
        return X
    # Not of X itself, which would note down what it finds.
    same = type(X)((X.data, X.indices, X.indptr), shape=X.shape, copy=False)
    return X if same.has_canonical_format else X.copy()


def check_finite(name, array):
    """Refuse NaN and infinity. One pass, no temporary for ordinary data."""
    if not surely_finite(array) and not np.isfinite(array).all():
        raise ValueError(
            f"{name} contains NaN or infinity, or a value too large for {array.dtype}."
        )


def surely_finite(array):
    """Whether a sum of squares is finite, as it is for any but huge numbers.

    A product sets no flags, so that there is no warning to be kept from users.

    Examples
    --------
    >>> surely_finite(np.array([1.0, 2.0])), surely_finite(np.array([1.0, np.nan]))
    (True, False)
    """
    flat = array.ravel(order="K")
    return math.isfinite(np.vdot(flat, flat))


def as_indices(name, value, n, *, unique=False):
    """`value` as a 1-d integer array of positions below `n`.

    Negative positions count from the end, as in NumPy.

    Examples
    --------
    >>> as_indices("i", [0, -1], 5)
    array([0, 4])
    >>> as_indices("i", 5, 5)
    Traceback (most recent call last):
    ...
    IndexError: i: index 5 is out of range for 5 items.
    """
    indices = np.atleast_1d(as_positions(name, value))
    if indices.size == 0 and indices.ndim == 1:
        return np.empty(0, dtype=np.intp)
    if indices.ndim != 1 or not np.issubdtype(indices.dtype, np.integer):
        raise ValueError(
            f"{name} must be integers, got shape {np.shape(value)} "
            f"and dtype {indices.dtype}."
        )
    outside = (indices < -n) | (indices >= n)
    if outside.any():
        first = indices[np.argmax(outside)]
        raise IndexError(f"{name}: index {first} is out of range for {n} items.")
    indices = indices.astype(np.intp)
    indices = np.where(indices < 0, indices + n, indices)
    if unique and np.unique(indices).size < indices.size:
        values, counts = np.unique(indices, return_counts=True)
        raise ValueError(f"{name}: index {values[counts > 1][0]} is repeated.")
    return indices


def as_positions(name, value):
    """`value` as an array of any shape and type, for :func:`as_indices`."""
    try:
        return np.asarray(value)
    except ValueError as error:
        raise ValueError(f"{name} must be integers: {error}") from error


def as_count(name, value, *, least=1, most=None):
    """`value` as an int of at least `least` and at most `most`.

    Examples
    --------
    >>> as_count("R", 3, most=10)
    3
    >>> as_count("R", 11, most=10)
    Traceback (most recent call last):
    ...
    ValueError: R must be an integer from 1 to 10, got 11.
    """
    whole = type(value) is int or (
        isinstance(value, numbers.Integral) and not isinstance(value, bool)
    )
    if not whole or value < least or (most is not None and value > most):
        span = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise ValueError(f"{name} must be an integer {span}, got {value!r}.")
    return int(value)


def as_length(name, value):
    """`value` as a float of at least 0; infinity is one, as is an integer beyond it.

    Examples
    --------
    >>> as_length("radius", 2), as_length("radius", 10**400)
    (2.0, inf)
    """
    if not isinstance(value, numbers.Real) or not value >= 0:
        raise ValueError(f"{name} must be a number of at least 0, got {value!r}.")
    try:
        return float(value)
    except OverflowError:
        return math.inf


def as_choice(name, value, choices):
    """`value`, which is one of the `choices`.

    Examples
    --------
    >>> as_choice("power", 3, (1, 2))
    Traceback (most recent call last):
    ...
    ValueError: power must be 1 or 2, got 3.
    """
    # Arrays are compared by element, and are none of them.
    if isinstance(value, str | numbers.Real) and value in choices:
        return value
    expected = " or ".join(map(repr, choices))
    raise ValueError(f"{name} must be {expected}, got {value!r}.")


def as_seeds(name, value):
    """A seed sequence of `value`: None, an integer or a sequence of them."""
    try:
        return np.random.SeedSequence(value)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{name} must be None or made of integers of at least 0: {error}"
        ) from error


def as_fraction(name, value):
    """`value` as a float strictly between 0 and 1."""
    if not isinstance(value, numbers.Real) or not 0 < value < 1:
        raise ValueError(f"{name} must be a number between 0 and 1, got {value!r}.")
    return float(value)

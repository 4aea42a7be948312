"""Validation of arguments, with errors that name them."""

from __future__ import annotations

import math
import numbers
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, DTypeLike
from scipy import sparse

from .points import block
from .saved import is_mapped
from .threads import slices
from .types import Indices

# Bytes of an array mapped from a file that are read at a time.
_BLOCK_BYTES = 1 << 24


def as_matrix(
    name: str,
    value: Any,
    *,
    dtype: DTypeLike,
    columns: int | None = None,
    rows: int | None = None,
    mapped: bool = False,
) -> np.ndarray:
    """`value` as a finite, non-empty 2-d array of `dtype`.

    A single row may be given flat. The result may share memory with `value`. Not much
    of an array that is `mapped` from a file is held in memory.

    >>> as_matrix("q", [1, 2], dtype=np.float64, columns=2)
    array([[1., 2.]])
    """
    array = value
    if type(value) is not np.ndarray or value.dtype != dtype:
        array = as_array(name, value, dtype)
    if array.ndim == 1:
        array = array[np.newaxis]
    if array.ndim != 2 or array.size == 0:
        shape = np.shape(value)
        raise ValueError(f"{name} must be a non-empty 2-d array, got shape {shape}.")
    if columns is not None and array.shape[1] != columns:
        raise ValueError(f"{name} has {array.shape[1]} columns, expected {columns}.")
    if rows is not None and array.shape[0] != rows:
        raise ValueError(f"{name} has {array.shape[0]} rows, expected {rows}.")
    check = check_mapped if mapped else check_finite
    check(name, array)
    return array


def as_array(name, value, dtype):
    """`value` as an array of `dtype`, of any shape; infinite where it is too large."""
    try:
        array = np.asarray(value)
        if not np.iscomplexobj(array):
            with np.errstate(over="ignore"):
                return array.astype(dtype, copy=False)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"{name} must be an array of numbers: {error}") from error
    raise ValueError(f"{name} must be real, got complex numbers.")


def as_points(name, value, dtype=None, columns=None):
    """`value` as finite rows: a C-ordered array, or a CSR matrix where it is sparse.

    Without `dtype`, float32 stays float32 and all other types become float64. A single
    row may be given flat. The result may share memory with `value`.
    """
    if dtype is None:
        single = getattr(value, "dtype", None) == np.float32
        dtype = np.float32 if single else np.float64
    if not sparse.issparse(value):
        shape = {"columns": columns, "mapped": is_mapped(value)}
        rows = as_matrix(name, value, dtype=dtype, **shape)
        return np.ascontiguousarray(rows)
    if value.ndim != 2 or 0 in value.shape:
        raise ValueError(f"{name} must be a non-empty matrix, got shape {value.shape}.")
    if np.iscomplexobj(value):
        raise ValueError(f"{name} must be real, got complex numbers.")
    if columns is not None and value.shape[1] != columns:
        raise ValueError(f"{name} has {value.shape[1]} columns, expected {columns}.")
    with np.errstate(over="ignore"):
        rows = sparse.csr_matrix(value, dtype=dtype)
    check_finite(name, rows.data)
    return rows


def check_finite(name, array):
    """Refuse NaN and infinity. One pass, no temporary for ordinary data."""
    if not surely_finite(array) and not np.isfinite(array).all():
        found = f"NaN or infinity, or a value too large for {array.dtype}"
        raise ValueError(f"{name} contains {found}.")


def check_mapped(name, rows):
    """Refuse NaN and infinity in rows mapped from a file, with few in memory."""
    for here in slices(len(rows), max(1, _BLOCK_BYTES // rows[:1].nbytes)):
        check_finite(name, block(rows, here))


def surely_finite(array):
    """Whether the sum of squares is finite, which it is unless numbers are huge.

    A product sets no flags, so that it never warns. It may crash on unaligned arrays.
    """
    flat = array.ravel(order="K")
    return flat.flags.aligned and math.isfinite(np.vdot(flat, flat))


def as_low_rank(W, V, k, d):
    """Factors of a change ``W Vᵀ`` of U in float64, (k, p) and (d, p)."""
    factors = []
    for name, value, rows in (("W", W, k), ("V", V, d)):
        array = as_array(name, value, np.float64)
        array = array[:, np.newaxis] if array.ndim == 1 else array
        if array.ndim == 2 and len(array) != rows:
            found = f"{name} has {len(array)} rows, expected {rows}"
            raise ValueError(f"{found}: W Vᵀ of shape ({k}, {d}) is added to U.")
        factors.append(as_matrix(name, array, dtype=np.float64))
    W, V = factors
    if W.shape[1] != V.shape[1]:
        raise ValueError(f"W has {W.shape[1]} columns and V has {V.shape[1]}.")
    return W, V


class Change(NamedTuple):
    """What `update_metric` is to do: add ``W Vᵀ``, change rows of U, or set a metric.

    The first of `low_rank`, `rows` and `metric` that is not None counts. With `rows`,
    `metric` are their values, to be set or, if `additive`, to be added.
    """

    low_rank: tuple | None
    rows: np.ndarray | None
    additive: bool
    metric: object


def as_change(metric, rows, additive, low_rank, k, d):
    """The :class:`Change` of a U of shape (k, d) from arguments of `update_metric`."""
    if low_rank is not None:
        if metric is not None or rows is not None or additive:
            raise ValueError(
                "low_rank cannot be combined with metric, rows or additive."
            )
        if not isinstance(low_rank, tuple | list) or len(low_rank) != 2:
            size = f" of {len(low_rank)}" if np.iterable(low_rank) else ""
            kind = type(low_rank).__name__ + size
            raise ValueError(f"low_rank must be a pair (W, V), got a {kind}.")
        low_rank = as_low_rank(*low_rank, k, d)
    elif metric is None:
        raise ValueError("update_metric needs metric or low_rank, got neither.")
    elif rows is not None:
        rows = as_indices("rows", rows, k, unique=True)
        shape = {"columns": d, "rows": len(rows)}
        metric = as_matrix("metric", metric, dtype=np.float64, **shape)
    elif additive:
        raise ValueError("additive=True needs rows, got None.")
    return Change(low_rank, rows, additive, metric)


def as_indices(
    name: str, value: ArrayLike, n: int, *, unique: bool = False, masks: bool = False
) -> Indices:
    """`value` as a 1-d integer array of positions below `n`; -1 stands for the last.

    With `masks`, `n` booleans stand for the positions where they are True.
    """
    try:
        indices = np.atleast_1d(np.asarray(value))
    except ValueError as error:
        raise ValueError(f"{name} must be integers: {error}") from error
    if indices.size == 0 and indices.ndim == 1:
        return np.empty(0, dtype=np.intp)
    if masks and indices.dtype == bool and np.shape(value) == (n,):
        return np.flatnonzero(indices)
    if indices.ndim != 1 or not np.issubdtype(indices.dtype, np.integer):
        found = f"shape {np.shape(value)} and dtype {indices.dtype}"
        expected = f"integers or {n} booleans" if masks else "integers"
        raise ValueError(f"{name} must be {expected}, got {found}.")
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


def as_pairs(
    i: ArrayLike, j: ArrayLike, n: int
) -> tuple[Indices, Indices, tuple[int, ...]]:
    """Positions `i` and `j` of pairs, broadcast: two 1-d arrays and their shape."""
    arrays = []
    for name, value in (("i", i), ("j", j)):
        try:
            arrays.append(np.asarray(value))
        except ValueError as error:
            raise ValueError(f"{name} must be integers: {error}") from error
    try:
        i, j = np.broadcast_arrays(*arrays)
    except ValueError as error:
        shapes = " and ".join(str(array.shape) for array in arrays)
        raise ValueError(f"i and j have shapes that differ: {shapes}.") from error
    return as_indices("i", i.ravel(), n), as_indices("j", j.ravel(), n), i.shape


def as_count(name, value, *, least=1, most=None, why=""):
    """`value` as an int of at least `least` and at most `most`, whose meaning is `why`.

    >>> as_count("R", 11, most=10)
    Traceback (most recent call last):
    ...
    ValueError: R must be an integer from 1 to 10, got 11.
    """
    whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if not whole or value < least or (most is not None and value > most):
        both = f"from {least} to {most}{why}"
        span = f"of at least {least}" if most is None else both
        raise ValueError(f"{name} must be an integer {span}, got {value!r}.")
    return int(value)


def as_length(name, value):
    """`value` as a float of at least 0, which may be infinite."""
    if not isinstance(value, numbers.Real) or not value >= 0:
        raise ValueError(f"{name} must be a number of at least 0, got {value!r}.")
    try:
        return float(value)
    except OverflowError:
        return math.inf


def as_choice(name, value, choices):
    """`value`, which is one of the `choices`."""
    # Arrays are compared by element, and are not among the choices.
    if isinstance(value, str | numbers.Real) and value in choices:
        return value
    expected = " or ".join(map(repr, choices))
    raise ValueError(f"{name} must be {expected}, got {value!r}.")


def as_seeds(name, value):
    """A seed sequence of `value`: None, an integer or a sequence of them."""
    try:
        return np.random.SeedSequence(value)
    except (TypeError, ValueError) as error:
        message = f"{name} must be None or made of integers of at least 0: {error}"
        raise ValueError(message) from error


def as_fraction(name, value):
    """`value` as a float strictly between 0 and 1."""
    if not isinstance(value, numbers.Real) or not 0 < value < 1:
        raise ValueError(f"{name} must be a number between 0 and 1, got {value!r}.")
    return float(value)

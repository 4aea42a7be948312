"""Distances by the block: matrix products, the median network, near-zero repairs."""

from typing import NamedTuple

import numpy as np
from scipy.linalg import get_blas_funcs

from . import compiled

_REPAIR_ROWS = 4096

# Of a chunk, but for the squared lengths.
ALL_COLUMNS = slice(0, -1)


def row_squares(rows):
    """Squared length of every row, summed in float64 and kept there.

    Examples
    --------
    >>> row_squares(np.array([[3.0, 4.0], [0.0, 1.0]]))
    array([25.,  1.])
    """
    return np.einsum("ij,ij->i", rows, rows, dtype=np.float64)


def add_product(C, A, B):
    """``C += A Bᵀ`` in place, by one BLAS call with no temporary of C's size.

    Examples
    --------
    >>> C = np.ones((2, 2))
    >>> add_product(C, np.array([[1.0], [2.0]]), np.array([[3.0], [4.0]]))
    >>> C
    array([[4., 5.],
           [7., 9.]])
    """
    if not A.shape[1] or not C.size:
        return
    # Fortran sees C-ordered arrays transposed: Cᵀ += (Bᵀ)ᵀ Aᵀ.
    if A.shape[1] == 1:
        ger = get_blas_funcs("ger", (C, A, B))
        out = ger(1.0, B[:, 0], A[:, 0], a=C.T, overwrite_a=1).T
    else:
        gemm = get_blas_funcs("gemm", (C, A, B))
        out = gemm(1.0, B.T, A.T, beta=1.0, c=C.T, trans_a=1, overwrite_c=1).T
    if not np.shares_memory(out, C):
        C[...] = out


class Part(NamedTuple):
    """Queries and points under one map, whose squared distances count `weight` times.

    `squares` are the squared lengths of the points.
    """

    queries: np.ndarray
    points: np.ndarray
    squares: np.ndarray
    weight: float = 1.0

    def multiply(self, factors, out):
        """``factors · x`` for every point."""
        np.matmul(factors, self.points.T, out=out)

    def gaps(self, i, j):
        """Squared distances of pairs of a query and a point."""
        return row_squares(self.queries[i] - self.points[j])


class ColumnPart(NamedTuple):
    """The same for n points in chunks, (chunks, columns + 1, points of a chunk).

    The last column is the squared lengths. `columns` are those that count.
    """

    queries: np.ndarray
    chunks: np.ndarray
    n: int
    weight: float = 1.0
    columns: slice = ALL_COLUMNS

    @property
    def points(self):
        """The columns that count."""
        return self.chunks[:, self.columns]

    @property
    def squares(self):
        squares = self.chunks[:, -1]
        if self.columns != ALL_COLUMNS:
            squares = np.einsum("ijk,ijk->ik", self.points, self.points)
        return squares.ravel()[: self.n]

    def multiply(self, factors, out):
        """``factors · x`` for every point."""
        width = self.chunks.shape[2]
        whole, points = self.n // width, self.points
        part = out[:, : whole * width].reshape(len(out), whole, width)
        part[...] = np.matmul(factors, points[:whole]).transpose(1, 0, 2)
        if whole * width < self.n:
            rest = self.n - whole * width
            np.matmul(factors, points[whole, :, :rest], out=out[:, whole * width :])

    def gaps(self, i, j):
        """Squared distances of pairs of a query and a point."""
        chunk, place = np.divmod(j, self.chunks.shape[2])
        return row_squares(self.queries[i] - self.points[chunk, :, place])


class Expansion(NamedTuple):
    """Lower bounds of squared distances as parts that are still to be multiplied.

    `room` is how many bytes of bounds there may be at once.
    """

    parts: list
    slack: float
    room: int

    def multiplied(self):
        """The bounds, (queries, points)."""
        return lower_bounds(self.parts, self.slack)


def squared_distances(parts):
    """Weighted sum over `parts` of squared distances, (queries, points).

    ``‖q‖² + ‖x‖² - 2 q·x`` by one matrix product a part. Where that cancels to less
    than the square root of the precision, it is computed from the differences.
    """
    queries, points = _sizes(parts)
    D = _expanded(parts, queries, points)
    near = np.sqrt(np.finfo(D.dtype).eps)
    if D.min() < near * (queries.max() + points.max()):
        close = near * np.add.outer(queries, points) > D
        _repair(D, parts, *np.nonzero(close))
    return D


def lower_bounds(parts, slack):
    """Like :func:`squared_distances`, less `slack` of the squared lengths, which must
    cover the rounding error: a number that is never above the truth. May be negative.
    """
    return _expanded(parts, *((1 - slack) * size for size in _sizes(parts)))


def _sizes(parts):
    """Squared lengths of queries and of points over all parts."""
    dtype = parts[0].queries.dtype
    queries = sum(part.weight * row_squares(part.queries) for part in parts)
    points = sum(
        dtype.type(part.weight) * part.squares.astype(dtype, copy=False)
        for part in parts
    )
    return queries, points


def _expanded(parts, queries, points):
    dtype = points.dtype
    D = np.empty((len(queries), len(points)), dtype=dtype)
    multiply(parts[0], out=D)
    if len(parts) > 1:
        more = np.empty_like(D)
        for part in parts[1:]:
            multiply(part, out=more)
            D += more
    _add_outer(D, queries.astype(dtype), points)
    return D


def _add_outer(D, a, b):
    """``D += a[:, np.newaxis] + b``, in one pass where loops are compiled."""
    if compiled.fast() is not None:
        compiled.fast().add_outer(D, a, b)
        return
    D += b
    D += a[:, np.newaxis]


def multiply(part, out):
    """``-2 q·x`` times the weight of a part, into `out`.

    By NumPy, which lets other threads run meanwhile, as SciPy's BLAS does not.
    """
    part.multiply(out.dtype.type(-2 * part.weight) * part.queries, out)


def _repair(D, parts, i, j):
    for start in range(0, len(i), _REPAIR_ROWS):
        here = slice(start, start + _REPAIR_ROWS)
        D[i[here], j[here]] = sum(
            part.weight * part.gaps(i[here], j[here]) for part in parts
        )


def median_of(votes):
    """Median over the first axis, by a network of elementwise minima and maxima.

    An even number of votes gives the mean of the middle two. Destroys `votes`. Each
    pass carries the largest of what is left to the end, and half the passes decide the
    middle: for 5 votes, 9 exchanges of whole arrays in place of a sort per element.

    Examples
    --------
    >>> median_of(np.array([[3.0], [1.0], [2.0]]))
    array([2.])
    """
    count = len(votes)
    spare = np.empty_like(votes[0])
    for last in range(count - 1, (count - 1) // 2 - 1, -1):
        for i in range(last):
            np.minimum(votes[i], votes[i + 1], out=spare)
            np.maximum(votes[i], votes[i + 1], out=votes[i + 1])
            votes[i][...] = spare
    middle = votes[count // 2]
    return middle if count % 2 else (middle + votes[count // 2 - 1]) / 2

"""The metric ``A = UᵀU`` as a value, and its changes as low-rank values.

Every change of U between two versions with the same number of rows is written as
``U' = U + W Vᵀ``. A row update has unit vectors for W, an ITML or LEGO step has rank
one.
"""

from typing import NamedTuple

import numpy as np
from scipy import linalg, sparse

from .buffers import owned
from .saved import array_from, require

# What a low-rank difference may leave out of a row, in units of its rounding error.
ROUNDING = 16

# Looking for a low rank must cost little beside what it may save.
_LOOKED_FOR = 32


class LowRank(NamedTuple):
    """``W Vᵀ``: W is k × p, V is d × p."""

    W: np.ndarray
    V: np.ndarray

    @property
    def rank(self):
        return self.W.shape[1]


class Metric:
    """U, k × d. The Euclidean metric holds no array until it is first changed."""

    def __init__(self, U, d, dtype):
        self._U = None if U is None else np.array(U, dtype=dtype, order="C", copy=True)
        self.d = d
        self.dtype = np.dtype(dtype)

    @property
    def is_identity(self):
        return self._U is None

    @property
    def k(self):
        return self.d if self.is_identity else len(self._U)

    @property
    def U(self):
        """U as an array; made anew for the Euclidean metric."""
        return np.eye(self.d, dtype=self.dtype) if self.is_identity else self._U

    def transform(self, rows):
        """``rows Uᵀ``, dense, for dense or sparse rows; O(kd) a row."""
        if self.is_identity:
            return rows.toarray() if sparse.issparse(rows) else rows
        return rows @ self._U.T

    def pull(self, M):
        """``M U`` for M of k columns: the map from points to M's image."""
        return M if self.is_identity else M @ self._U

    def pull_back(self, W):
        """``Uᵀ W`` for W of k rows."""
        return W if self.is_identity else self._U.T @ W

    def writable(self):
        """The array of U, to be changed in place."""
        self._U = owned(self.U)
        return self._U

    @classmethod
    def restored(cls, saved, d, dtype):
        """The metric whose U was saved; None for the Euclidean."""
        metric = cls(None, d, dtype)
        if saved["U"] is not None:
            U = array_from(saved, "U", (metric.dtype,), (None, d))
            require(len(U), "U has no rows")
            metric._U = np.ascontiguousarray(U)
        return metric

    def saved(self):
        """The metric as plain values."""
        return {"U": self._U}


def relative_change(before, after):
    """``‖U' - U‖ / ‖U‖`` in Frobenius norm of two metrics; infinite for other shapes.

    Examples
    --------
    >>> one, other = (Metric(U, 2, np.float64) for U in (np.eye(2), 2 * np.eye(2)))
    >>> relative_change(one, other)
    1.0
    """
    if before.k != after.k:
        return np.inf
    size = np.linalg.norm(before.U)
    return float(np.linalg.norm(after.U - before.U) / size) if size else np.inf


def row_change(rows, values, k, dtype):
    """The update that adds `values` to the rows `rows` of a U of k rows.

    Examples
    --------
    >>> W, V = row_change([1], [[5.0, 6.0]], k=3, dtype=np.float64)
    >>> W @ V.T
    array([[0., 0.],
           [5., 6.],
           [0., 0.]])
    """
    rows = np.asarray(rows)
    W = np.zeros((k, rows.size), dtype=dtype)
    W[rows, np.arange(rows.size)] = 1
    return LowRank(W, np.asarray(values, dtype=dtype).T)


def change_between(U, new, most_rank):
    """``new - U`` as a :class:`LowRank` of rank at most `most_rank`, else None.

    Rows that did not change cost nothing; where too many changed, a randomised range
    finder looks for a low-rank difference and accepts it only where what it leaves out
    is rounding error of U itself. O(kd), times a rank of at most 32.

    Examples
    --------
    >>> U = np.eye(3)
    >>> change_between(U, U + np.outer([1, 2, 3], [1, 1, 1]), most_rank=2).rank
    1
    >>> change_between(U, 2 * U, most_rank=2) is None
    True
    """
    difference = new - U
    rows = np.flatnonzero(difference.any(axis=1))
    if rows.size <= most_rank:
        return row_change(rows, difference[rows], len(U), U.dtype)
    sizes = np.maximum(np.abs(U).max(axis=1), np.abs(new).max(axis=1))
    return _compressed(difference, min(most_rank, _LOOKED_FOR), sizes)


def _compressed(difference, most_rank, sizes):
    """`difference` as W Vᵀ up to rounding of rows of the given sizes, else None."""
    k, d = difference.shape
    width = min(most_rank + 1, k, d)
    probe = np.random.default_rng(0).standard_normal((d, width))
    basis, _ = linalg.qr(difference @ probe.astype(difference.dtype), mode="economic")
    inner, values, outer = linalg.svd(basis.T @ difference, full_matrices=False)
    eps = np.finfo(difference.dtype).eps
    rank = int(np.sum(values > eps * sizes.max() * np.sqrt(k * d)))
    if not 0 < rank <= most_rank:
        return None
    W = basis @ (inner[:, :rank] * values[:rank])
    V = outer[:rank].T
    left_out = np.abs(difference - W @ V.T).max(axis=1)
    return LowRank(W, V) if (left_out <= ROUNDING * eps * sizes).all() else None


def most_useful_rank(k, d, width):
    """The largest rank for which updating beats re-sketching.

    Each point pays ``d + k + width`` for a rank-one update (read x, add to its
    transformed row and to `width` sketched columns) and ``k (d + width)`` for starting
    anew.

    Examples
    --------
    >>> most_useful_rank(k=64, d=64, width=100)
    46
    """
    return k * (d + width) // (d + k + width)

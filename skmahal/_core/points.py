"""The points: the truth that sketches are derived from.

Both kinds of storage answer the same questions (how many, these rows, the product with
a matrix, one block after another, all of it) and take the same changes. Rows are handed
out relative to `origin`: distances do not see a shift, float32 does.
"""

from copy import copy

import numpy as np
from scipy import sparse

from . import compiled
from .buffers import grown, owned, sifted
from .saved import (
    FLOATS,
    array_from,
    csr_from,
    integer_from,
    is_mapped,
    require,
    saved_csr,
)
from .workers import run, slices

_BLOCK_BYTES = 1 << 22
_FAR = 4.0
_DENSE_SHARE = 4
_FEW_COLUMNS = 8


def make_points(X):
    """Storage that owns a copy of `X`, dense or CSR."""
    return SparsePoints(X) if sparse.issparse(X) else DensePoints(X)


def points_from(saved):
    """Storage from what its method `saved` gave."""
    kind = SparsePoints if "csr" in saved else DensePoints
    return kind.restored(saved)


def block_rows(n_columns, itemsize):
    """How many rows of `n_columns` make a block that stays in cache."""
    return max(1, _BLOCK_BYTES // (itemsize * max(1, n_columns)))


def far_origin(X):
    """The mean of `X` where it dwarfs the spread, else None.

    Squared distances through a matrix product lose `‖mean‖² / spread` in relative
    precision, so data far from zero is shifted there.

    Examples
    --------
    >>> far_origin(np.array([[-1.0, 2.0], [1.0, -2.0]])) is None
    True
    >>> far_origin(np.array([[1e6, 0.0], [1e6 + 2, 0.0]]))
    array([1000001.,       0.])
    """
    with np.errstate(over="ignore"):
        mean = X.mean(axis=0, dtype=np.float64)
        size = np.einsum("ij,ij->", X, X, dtype=np.float64) / len(X)
        offset = mean @ mean
    if not size < np.finfo(X.dtype).max:
        raise ValueError(f"X is too large: squared distances overflow {X.dtype}.")
    return mean.astype(X.dtype) if offset * (1 + 1 / _FAR) > size else None


class DensePoints:
    """Rows in one C-ordered buffer that grows by doubling."""

    widest_rows = np.inf

    def __init__(self, X):
        self._buffer = np.array(X, order="C", copy=True)
        self.n = len(self._buffer)
        self.origin = far_origin(self._buffer)
        self._centred_at = self.n

    @property
    def d(self):
        return self._buffer.shape[1]

    @property
    def dtype(self):
        return self._buffer.dtype

    @property
    def most_dense_rows(self):
        """How many rows may be dense at once."""
        return self.n

    @property
    def array(self):
        """All rows as they were given; a view."""
        return self._buffer[: self.n]

    def dense(self, indices):
        """Rows as they were given."""
        return self.array[indices]

    def centre(self, rows):
        """`rows` relative to the origin; not a copy where the origin is zero."""
        return rows if self.origin is None else rows - self.origin

    def take(self, indices):
        """Rows relative to the origin."""
        return self.centre(self.array[indices])

    def blocks(self):
        """Yield `(slice, rows relative to the origin)` over all points."""
        for here in slices(self.n, block_rows(self.d, self.dtype.itemsize)):
            yield here, self.take(here)

    def dot(self, V, jobs=1):
        """`(X - origin) @ V`: one pass over the points, on up to `jobs` threads."""
        if V.shape[1] <= _FEW_COLUMNS:
            return self._dot_few(V, jobs)
        if self.origin is None:
            return self.array @ V
        product = np.empty((self.n, V.shape[1]), dtype=self.dtype)
        for here, rows in self.blocks():
            np.matmul(rows, V, out=product[here])
        return product

    def _dot_few(self, V, jobs):
        """The same, a column at a time while points are in cache.

        Matrix products of a few columns spend more on packing than on multiplying.
        """
        columns = np.ascontiguousarray(V.T, dtype=self.dtype)
        product = np.empty((len(columns), self.n), dtype=self.dtype)
        loops = compiled.fast()

        def fill(here):
            rows = self.take(here)
            if loops is not None:
                loops.dots(compiled.read_only(rows), columns, product[:, here])
                return
            for column, out in zip(columns, product, strict=True):
                np.dot(rows, column, out=out[here])

        step = block_rows(self.d, self.dtype.itemsize)
        if loops is not None and self.origin is None:
            step = -(-self.n // jobs)
        run(fill, slices(self.n, step), jobs)
        return product.T

    def append(self, rows):
        """Add rows at the end; O(rows) amortised."""
        end = self.n + len(rows)
        self._buffer = grown(self._buffer, self.n, end)
        self._buffer[self.n : end] = rows
        self.n = end

    def recentre(self, forget):
        """Choose the origin again once the points have doubled.

        Before it moves, `forget` is called: nothing derived may outlive the old one. It
        stays where the points are too large for a mean, as some metrics allow.
        """
        if self.n < 2 * self._centred_at:
            return
        try:
            origin = far_origin(self.array)
        except ValueError:
            origin = self.origin
        if not np.array_equal(origin, self.origin):
            forget()
            self.origin = origin
        self._centred_at = self.n

    def cut(self, n):
        """Keep the first n rows; O(1)."""
        self.n = n

    def assign(self, indices, rows):
        """Replace rows."""
        self._buffer = owned(self._buffer)
        self._buffer[indices] = rows

    def holds(self, indices, rows):
        """Whether these are the rows."""
        return np.array_equal(self.array[indices], rows)

    def kept(self, mask):
        """Storage of the rows where `mask` is True; O(nd)."""
        points = copy(self)
        points._buffer = sifted(self._buffer, mask)
        points.n = int(np.count_nonzero(mask))
        return points

    @property
    def is_mapped(self):
        """Whether the rows are mapped from a file."""
        return is_mapped(self._buffer)

    def saved(self):
        """The storage as plain values."""
        return {
            "rows": self.array,
            "origin": self.origin,
            "centred_at": self._centred_at,
        }

    @classmethod
    def restored(cls, saved):
        """The storage of which these are the values."""
        points = cls.__new__(cls)
        rows = array_from(saved, "rows", FLOATS, (None, None))
        require(rows.size, "there are no points")
        points._buffer, points.n = np.ascontiguousarray(rows), len(rows)
        points.origin = saved["origin"]
        if points.origin is not None:
            points.origin = array_from(saved, "origin", (rows.dtype,), rows.shape[1:])
        points._centred_at = integer_from(saved, "centred_at", least=1)
        return points


class SparsePoints:
    """Rows in CSR. Never made dense as a whole; the origin is zero."""

    origin = None

    def __init__(self, X):
        self._csr = sparse.csr_matrix(X, copy=True)
        self._csr.sum_duplicates()
        self._csr.eliminate_zeros()

    @property
    def n(self):
        return self._csr.shape[0]

    @property
    def d(self):
        return self._csr.shape[1]

    @property
    def dtype(self):
        return self._csr.dtype

    @property
    def most_dense_rows(self):
        """How many rows may be dense at once: never nearly all of them."""
        return -(-self.n // _DENSE_SHARE)

    @property
    def widest_rows(self):
        """Transformed rows of more columns than this are larger than the points."""
        return 2 * self._csr.nnz / self.n

    @property
    def array(self):
        """All rows as they were given."""
        return self._csr

    def dense(self, indices):
        """Rows as they were given, dense."""
        return self._csr[indices].toarray()

    def centre(self, rows):
        """`rows`: the origin of sparse data is zero."""
        return rows

    def take(self, indices):
        """Rows in CSR."""
        return self._csr[indices]

    def blocks(self):
        """Yield `(slice, CSR rows)` over all points, a dense block's worth each."""
        for here in slices(self.n, block_rows(self.d, self.dtype.itemsize)):
            yield here, self._csr[here]

    def dot(self, V, jobs=1):
        """`X @ V`: one pass over the stored values."""
        return self._csr @ V

    def append(self, rows):
        """Add rows at the end; O(stored values)."""
        self._csr = sparse.vstack([self._csr, self._as_csr(rows)], format="csr")

    def assign(self, indices, rows):
        """Replace rows; O(stored values)."""
        both = sparse.vstack([self._csr, self._as_csr(rows)], format="csr")
        order = np.arange(self.n)
        order[indices] = self.n + np.arange(len(indices))
        self._csr = both[order]

    def recentre(self, forget):
        """The origin of sparse points never moves."""

    def cut(self, n):
        """Keep the first n rows; O(stored values)."""
        self._csr = self._csr[:n]

    def holds(self, indices, rows):
        """Whether these are the rows."""
        return not (self._csr[indices] != self._as_csr(rows)).nnz

    def kept(self, mask):
        """Storage of the rows where `mask` is True; O(stored values)."""
        points = copy(self)
        points._csr = self._csr[mask]
        return points

    @property
    def is_mapped(self):
        """Whether the rows are mapped from a file."""
        return is_mapped(self._csr.data)

    def saved(self):
        """The storage as plain values."""
        return {"csr": saved_csr(self._csr)}

    @classmethod
    def restored(cls, saved):
        """The storage of which these are the values."""
        points = cls.__new__(cls)
        points._csr = csr_from(saved["csr"], sparse.csr_matrix)
        require(0 not in points._csr.shape, "there are no points")
        return points

    def _as_csr(self, rows):
        """Rows of this type, in the form in which equal points are stored alike."""
        rows = sparse.csr_matrix(rows, dtype=self.dtype, copy=True)
        rows.sum_duplicates()
        rows.eliminate_zeros()
        return rows

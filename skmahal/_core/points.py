"""Points: storage of dense and sparse rows that grow, shrink and are replaced."""

import mmap
from copy import copy

import numpy as np
from scipy import sparse

from .kernels import available, kernels
from .saved import (
    FLOATS,
    array_from,
    csr_from,
    integer_from,
    is_mapped,
    require,
    saved_csr,
)
from .threads import run, slices

_BLOCK_BYTES = 1 << 22
_FEW_COLUMNS = 8

# Rows whose mean is the origin; those are left out whose squared distance from their
# median is so many times the median one. Digits of the origin, relative to the spread.
_SAMPLE, _FAR, _FINE = 2048, 100, 2.0**-20


def row_squares(rows):
    """Squared length of every row, summed in float64 and kept there."""
    return np.einsum("ij,ij->i", rows, rows, dtype=np.float64)


def owned(array):
    """`array`, or a copy of it where it is read-only, as when mapped from a file."""
    return array if array.flags.writeable else array.copy(order="K")


def read_only(array):
    """A view of `array` that cannot be written to, for loops that only read it.

    Loops are compiled for such arrays alone, because those mapped from a file are.
    """
    view = array.view()
    view.flags.writeable = False
    return view


def grown(buffer, used, needed):
    """`buffer`, or a copy of its `used` rows followed by zeros, `needed` or more."""
    if needed <= len(buffer):
        return owned(buffer)
    shape = (max(needed, 2 * len(buffer)), *buffer.shape[1:])
    larger = np.zeros(shape, dtype=buffer.dtype)
    larger[:used] = buffer[:used]
    return larger


def kept_rows(buffer, mask):
    """A copy of the rows where `mask` is True, with the space behind the others.

    Removing as many rows as are added then moves no memory twice. There is no space
    where half of the buffer would be idle.
    """
    count = np.count_nonzero(mask)
    length = len(buffer) if 2 * count >= len(buffer) else count
    kept = np.zeros((length, *buffer.shape[1:]), dtype=buffer.dtype)
    np.compress(mask, buffer[: len(mask)], axis=0, out=kept[:count])
    return kept


def records_from(columns):
    """One array of records, with a field for each of the arrays `columns`, by name.

    An array that is alone under the name "" is returned as it is.

    >>> records_from({"id": np.array(["a", "b"]), "weight": np.ones(2)})["id"]
    array(['a', 'b'], dtype='<U1')
    """
    if set(columns) == {""}:
        return columns[""]
    kinds = [(name, held.dtype, held.shape[1:]) for name, held in columns.items()]
    records = np.empty(len(next(iter(columns.values()))), dtype=kinds)
    for name, column in columns.items():
        records[name] = column
    return records


def columns_of(records):
    """The arrays that :func:`records_from` makes records of."""
    if records.dtype.names is None:
        return {"": records}
    names = records.dtype.names
    return {name: np.ascontiguousarray(records[name]) for name in names}


def block(rows, here):
    """Some rows; a copy of them if they are mapped from a file.

    The pages that were read are then dropped from this process. The operating system
    may keep them in its cache.
    """
    if not is_mapped(rows):
        return rows[here]
    if not isinstance(here, slice):
        # With each row that is read, its neighbours in the file come into memory.
        copied = np.empty((len(here), rows.shape[1]), rows.dtype)
        for part in slices(len(here), 256):
            copied[part] = rows[here[part]]
            release(rows)
        return copied
    copied = np.array(rows[here])
    release(rows)
    return copied


def release(rows):
    """Drop the pages of a mapped file from this process."""
    while rows is not None and getattr(rows, "_mmap", None) is None:
        rows = getattr(rows, "base", None)
    # In a file that was opened to be written to in memory alone, changes would be lost.
    if rows is not None and rows.mode != "c" and hasattr(mmap, "MADV_DONTNEED"):
        rows._mmap.madvise(mmap.MADV_DONTNEED)


class DensePoints:
    """Rows in one C-ordered buffer that grows by doubling.

    Rows that are mapped from a file stay there until some are added or replaced.
    Distances do not see a shift, but rounding does. So `origin` is near the mean of the
    rows when they were last centred, rounded to their type, and `changed` counts the
    rows that have come since. `step` rows stay in cache in float64.
    """

    is_sparse = False
    loops = None

    def __init__(self, X, origin=None, changed=0):
        self.is_mapped = is_mapped(X) and X.flags.c_contiguous
        self.buffer = X
        if self.is_mapped:
            self.buffer = read_only(np.asarray(X))
        elif origin is None:
            self.buffer = np.array(X, order="C")
        self.n, self.d = self.buffer.shape
        # Transformed rows of at most so many columns are held.
        self.widest = 0 if self.is_mapped else self.d // 4
        self.step = max(1, _BLOCK_BYTES // (8 * self.d))
        self.origin, self.changed = origin, changed
        if origin is None:
            self.centre()

    @property
    def array(self):
        """All rows as they were given; a view."""
        return self.buffer[: self.n]

    def centre(self):
        """Make the mean of a sample of the rows the origin, without outliers.

        Under a metric that stretches directions in which points hardly differ, an
        origin that is off in these would be far from all points. Whole numbers get an
        origin of few digits: differences from it are exact, so that ties stay ties.
        """
        rows = block(self.array, slice(None, None, -(-self.n // _SAMPLE)))
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            rows = np.float64(rows)
            squares = row_squares(
                rows - np.median(rows[:: len(rows) // 256 or 1], axis=0)
            )
            rows = rows[squares <= _FAR * np.median(squares)]
            mean = rows.mean(axis=0)
            spread = np.abs(rows - mean).max(axis=0)
            grid = 2.0 ** np.floor(np.log2(np.where(spread > 0, spread, 1)))
            if not (rows == np.rint(rows)).all():
                grid *= _FINE
            mean = np.where(spread > 0, np.rint(mean / grid) * grid, rows[0])
            mean = mean.astype(self.array.dtype).astype(np.float64)
        self.origin = mean if np.isfinite(mean).all() else np.zeros(self.d)
        self.changed = 0

    def dot(self, V, jobs=1):
        """``(X - origin) @ V`` in float64: one pass over the points."""
        product, array = np.empty((self.n, V.shape[1])), self.array
        if V.shape[1] <= _FEW_COLUMNS and available():
            if self.loops is None:
                self.loops = kernels(array.dtype, "dots")
            columns = np.ascontiguousarray(V.T, dtype=np.float64)

            def fill(here):
                rows = block(array, here) if self.is_mapped else array[here]
                rows = read_only(rows)
                self.loops.dots(rows, self.origin, columns, product[here])

            # One of the threads may start late, or share its core.
            size = -(-self.n // (1 if jobs == 1 else 8 * jobs))
            run(fill, slices(self.n, self.step if self.is_mapped else size), jobs)
        else:

            def fill(here):
                np.matmul(block(array, here) - self.origin, V, out=product[here])

            run(fill, slices(self.n, self.step), jobs)
        return product

    def appended(self, rows):
        """Points with more rows at the end; O(rows) amortised."""
        end = self.n + len(rows)
        buffer = grown(self.buffer, self.n, end)
        buffer[self.n : end] = rows
        return self.with_buffer(buffer, end, self.changed + len(rows))

    def replaced(self, indices, rows):
        """Points with other rows at some positions, in the same memory."""
        buffer = owned(self.buffer)
        buffer[indices] = rows
        return self.with_buffer(buffer, self.n, self.changed + len(indices))

    def kept(self, mask):
        """Points where `mask` is True; O(nd)."""
        n = int(np.count_nonzero(mask))
        return self.with_buffer(kept_rows(self.buffer, mask), n, self.changed)

    def truncated(self, n):
        """The first n points."""
        return self.with_buffer(self.buffer, n, self.changed)

    def with_buffer(self, buffer, n, changed):
        """The first n rows of a buffer, about the same origin."""
        points = copy(self)
        points.buffer, points.n, points.changed = buffer, n, changed
        points.is_mapped = is_mapped(buffer)
        return points

    def saved(self):
        """The storage as plain values."""
        numbers = {"changed": self.changed, "widest": self.widest}
        return {"rows": self.array, "origin": self.origin, **numbers}

    @classmethod
    def restored(cls, saved):
        """The storage that was saved."""
        rows = array_from(saved, "rows", FLOATS, (None, None))
        require(rows.size, "there are no points")
        origin = array_from(saved, "origin", FLOATS[1:], rows.shape[1:])
        points = cls(np.ascontiguousarray(rows), origin, integer_from(saved, "changed"))
        points.widest = integer_from(saved, "widest")
        return points


class SparsePoints:
    """Rows in CSR about zero; attributes are those of :class:`DensePoints`."""

    is_sparse = True
    is_mapped = False
    changed = 0
    loops = None

    def __init__(self, X, own=False):
        self.array = X if own else _canonical(X, X.dtype)
        self.n, self.d = self.array.shape
        self.step = max(1, _BLOCK_BYTES // (8 * self.d))
        self.origin = np.zeros(self.d)
        # Transformed rows of more columns than this are larger than the points.
        self.widest = int(1.5 * self.array.nnz / max(1, self.n))

    def dot(self, V, jobs=1):
        """``X @ V`` in float64: one pass over the stored values."""
        return self.array @ np.asarray(V, dtype=np.float64)

    def appended(self, rows):
        """Points with more rows at the end; O(stored values)."""
        rows = _canonical(rows, self.array.dtype)
        return SparsePoints(sparse.vstack([self.array, rows], format="csr"), own=True)

    def replaced(self, indices, rows):
        """Points with other rows at some positions; O(stored values)."""
        order = np.arange(self.n)
        order[indices] = self.n + np.arange(len(indices))
        return SparsePoints(self.appended(rows).array[order], own=True)

    def kept(self, mask):
        """Points where `mask` is True; O(stored values)."""
        return SparsePoints(self.array[mask], own=True)

    def truncated(self, n):
        """The first n points."""
        return SparsePoints(self.array[:n], own=True)

    def saved(self):
        """The storage as plain values."""
        return {"csr": saved_csr(self.array)}

    @classmethod
    def restored(cls, saved):
        """The storage that was saved."""
        array = csr_from(saved["csr"], sparse.csr_matrix)
        require(0 not in array.shape, "there are no points")
        return cls(array, own=True)


def _canonical(X, dtype):
    """A CSR copy in which every value that is not zero is stored once."""
    X = sparse.csr_matrix(X, dtype=dtype, copy=True)
    X.sum_duplicates()
    X.eliminate_zeros()
    return X

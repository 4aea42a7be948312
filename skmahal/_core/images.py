"""The points under linear maps, as arrays that follow the metric.

Two layouts. Transformed points are rows, as candidates are read one by one. What every
point is compared by (leading coordinates, sketches) is held by columns, a chunk of
points at a time: products with a few queries then run at the speed of the processor,
and the squared lengths are one column more.
"""

import numpy as np

from . import compiled
from .buffers import grown, owned, sifted
from .saved import array_from, integer_from, require
from .tiles import ALL_COLUMNS, add_product, row_squares

CHUNK = 128
_ALIGNMENT = 64


class Image:
    """The points under one linear map of the transformed space.

    `map` is (columns × k), or None for the transformed points themselves. `tick` is the
    time of the log that the image reflects, None where that is unknown. What is written
    by `append` and `assign` is at the present time; the log says zero for it.
    """

    def __init__(self, map=None):
        self.map = map
        self.tick = None
        self._buffer = None

    def project(self, rows):
        """Transformed rows under this map."""
        return rows if self.map is None else rows @ self.map.T

    def load(self, rows):
        """Take `rows` as the images of all points."""
        self.hold(self.arranged(rows))

    def hold(self, buffer):
        """Take what :meth:`arranged` has made of the images of all points."""
        self._buffer = buffer

    def saved(self, n, now):
        """The image as plain values; of its array, what is in use."""
        held = None
        if self.tick is not None:
            held = self.held(n)
            # A query of another thread may write to what is behind.
            held = held.copy() if self.tick < now and held.flags.writeable else held
        return {"map": self.map, "tick": self.tick, "held": held}

    @classmethod
    def restored(cls, saved, n, k, dtype, log):
        """The image of which these are the values, of n points."""
        image = cls()
        if saved["map"] is not None:
            image.map = array_from(saved, "map", (dtype,), (None, k))
            image.map = np.ascontiguousarray(image.map)
        if saved["tick"] is not None:
            image.tick = integer_from(saved, "tick", log.start, log.now)
            shape = cls.shape(n, k if image.map is None else len(image.map))
            held = array_from(saved, "held", (dtype,), shape)
            image.hold(np.ascontiguousarray(held))
        return image

    def check_some(self, indices, rows, W, T, slack):
        """Refuse an array that is not that of transformed `rows` at these positions.

        W and T are what it is behind by, `slack` what a row may be off by.
        """
        expected = self.project(rows)
        held = self.take(indices)
        if W.shape[1]:
            held = held + self.project(T[indices] @ W.T)
        limit = 1e-4 * row_squares(expected).max()
        if self.map is not None:
            slack = slack * np.linalg.norm(self.map)
        fits = row_squares(held - expected) <= limit + slack**2
        require(fits.all(), "an array does not belong to the points")


class Rows(Image):
    """The transformed points, one row each."""

    def view(self, n):
        """The rows of the first n points."""
        return self._buffer[:n]

    held = view

    @staticmethod
    def shape(n, columns):
        """Of the array of n points."""
        return n, columns

    def take(self, indices):
        """Some rows; a copy."""
        return self._buffer[indices]

    @staticmethod
    def arranged(rows):
        """Rows in the layout of this image."""
        return np.ascontiguousarray(rows)

    def move(self, W, T):
        """Follow ``y_i += W T_i``, in place."""
        self._buffer = owned(self._buffer)
        add_product(self._buffer[: len(T)], T, W)

    def moved_rows(self, indices, W, T):
        """Rows as they will be after :meth:`move`, leaving the image as it is."""
        rows = self._buffer[indices]
        return rows + T[indices] @ W.T if W.shape[1] else rows

    def append(self, n, rows):
        """Add rows behind the first n."""
        self._buffer = grown(self._buffer, n, n + len(rows))
        self._buffer[n : n + len(rows)] = rows

    def assign(self, indices, rows):
        """Replace rows."""
        self._buffer = owned(self._buffer)
        self._buffer[indices] = rows

    def keep(self, mask):
        """Keep the points where `mask` is True."""
        self.load(sifted(self._buffer, mask))

    def check(self, n):
        """Rows have nothing beside them that could be wrong."""


class Columns(Image):
    """The points under a map, (chunks, columns + 1, CHUNK): the last column of a chunk
    is the squared lengths. Places behind the last point are zero or stale.
    """

    def blocks(self, n):
        """The chunks that hold the first n points."""
        return self._buffer[: -(-n // CHUNK)]

    held = blocks

    @staticmethod
    def shape(n, columns):
        """Of the array of n points."""
        return -(-n // CHUNK), columns + 1, CHUNK

    def view(self, n):
        """The first n points as rows; a copy."""
        return self._as_rows(self.blocks(n))[:n]

    def take(self, indices, columns=ALL_COLUMNS):
        """Some points as rows; a copy."""
        return self._buffer[indices // CHUNK, columns, indices % CHUNK]

    @staticmethod
    def arranged(rows):
        """Rows in the layout of this image."""
        n, columns = rows.shape
        whole = n - n % CHUNK
        buffer = _aligned_zeros(Columns.shape(n, columns), rows.dtype)
        _fill(buffer[: n // CHUNK], rows[:whole])
        if whole < n:
            _fill(buffer[-1:, :, : n - whole], rows[whole:])
        return buffer

    def move(self, W, T):
        """Follow ``y_i += W T_i``, in place."""
        self._buffer = owned(self._buffer)
        add_to_columns(self._buffer, self.map @ W, T.T)

    def append(self, n, rows):
        """Add the images of transformed `rows` behind the first n."""
        end = n + len(rows)
        self._buffer = owned(self._buffer)
        if end > CHUNK * len(self._buffer):
            held = self.blocks(n)
            room = max(-(-end // CHUNK), 2 * len(held))
            self._buffer = _aligned_zeros((room, *held.shape[1:]), held.dtype)
            self._buffer[: len(held)] = held
        self._write(np.arange(n, end), rows)

    def assign(self, indices, rows):
        """Replace points, given transformed `rows`."""
        self._buffer = owned(self._buffer)
        self._write(indices, rows)

    def keep(self, mask):
        """Keep the points where `mask` is True."""
        self.load(self.view(len(mask))[mask])

    def check(self, n):
        """Assert that the squared lengths are those of the columns."""
        squares = self.blocks(n)[:, -1].ravel()[:n]
        truth = row_squares(self.view(n))
        floats = np.finfo(squares.dtype)
        limit = 1e3 * floats.eps * truth + floats.tiny
        assert (np.abs(squares - truth) <= limit).all(), "squared lengths"

    def _write(self, indices, rows):
        new, at = self.project(rows), (indices // CHUNK, indices % CHUNK)
        self._buffer[at[0], :-1, at[1]] = new
        self._buffer[at[0], -1, at[1]] = row_squares(new)

    @staticmethod
    def _as_rows(blocks):
        return blocks[:, :-1].transpose(0, 2, 1).reshape(-1, blocks.shape[1] - 1)


def _fill(chunks, rows):
    """Write rows to chunks of as many points, with their squared lengths."""
    _, columns, width = chunks.shape
    by_chunk = rows.reshape(-1, width, columns - 1)
    chunks[:, :-1] = by_chunk.transpose(0, 2, 1)
    chunks[:, -1] = row_squares(rows).reshape(-1, width)


def add_to_columns(chunks, weights, steps):
    """Add ``weights @ steps``, (columns, points), and bring the squared lengths up."""
    if compiled.fast() is not None:
        weights, steps = np.ascontiguousarray(weights), compiled.read_only(steps)
        compiled.fast().add_to_columns(chunks, weights, steps)
        return
    for chunk, start in enumerate(range(0, steps.shape[1], CHUNK)):
        part = steps[:, start : start + CHUNK]
        block = chunks[chunk, :, : part.shape[1]]
        block[:-1] += weights @ part
        block[-1] = row_squares(block[:-1].T)


def _aligned_zeros(shape, dtype):
    """Zeros that begin at a line of the cache, so that no vector is in two."""
    size = int(np.prod(shape)) * dtype.itemsize
    raw = np.zeros(size + _ALIGNMENT, dtype=np.uint8)
    start = -raw.ctypes.data % _ALIGNMENT
    return raw[start : start + size].view(dtype).reshape(shape)

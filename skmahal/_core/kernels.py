"""From lower bounds on squared distances to exact neighbours, a tile of queries a call.

Bounds are one number for each query and point, never above the squared distance, always
or with the promised probability; an array of them, or an `Expansion` that can be made
one. Candidates know exact squared distances. Ties go to the lower index.

With numba the loops of :mod:`._fast` do the work, else NumPy does; the answers are the
same.
"""

import numpy as np

from . import compiled
from .tiles import ColumnPart, Expansion, row_squares

_AHEAD = 10
_STRIDE = 32
_LEAST_SAMPLED = 4096
_GATHERED_BYTES = 1 << 20


class HeldCandidates:
    """Points whose rows are held: ``rows[i] + Σ_p steps[p, i] weights[p]``."""

    def __init__(self, queries, rows, weights, steps):
        self.queries = compiled.read_only(np.ascontiguousarray(queries))
        self.rows = compiled.read_only(rows)
        self.weights = compiled.read_only(weights)
        self.steps = compiled.read_only(steps)

    @property
    def held(self):
        """What the loops take them as."""
        return self.rows, self.weights, self.steps

    def squares(self, q, indices):
        """Exact squared distances from query `q` to the given points."""
        squares = np.empty(len(indices))
        if compiled.fast() is not None:
            compiled.fast().squares_to(self.queries[q], self.held, indices, squares)
            return squares
        step = max(1, _GATHERED_BYTES // (self.rows.itemsize * self.rows.shape[1]))
        for start in range(0, len(indices), step):
            part = slice(start, start + step)
            gaps = self.rows[indices[part]] - self.queries[q]
            if len(self.weights):
                gaps += self.steps[:, indices[part]].T @ self.weights
            squares[part] = row_squares(gaps)
        return squares

    def nearest(self, bounds, most, indices, squares):
        """See :func:`nearest`; by compiled loops."""
        count, K = indices.shape
        undecided = np.zeros(count, dtype=bool)
        ahead = looked_at_first(K, len(self.rows))
        asked, found = (self.queries, self.held, ahead), (indices, squares)
        answer = most, found, undecided
        if not isinstance(bounds, Expansion):
            compiled.fast().nearest(bounds, *asked, *answer)
        elif isinstance(bounds.parts[0], ColumnPart):
            self._by_columns(bounds, asked, answer)
        else:
            self._by_rows(bounds, asked, answer)
        return undecided

    def _by_columns(self, bounds, asked, answer):
        *lead, front = [
            (compiled.read_only(part.chunks), part.queries, part.weight)
            for part in bounds.parts
        ]
        lead = lead[0] if lead else (front[0][:0], front[1][:0], front[2])
        points = lead, front, bounds.parts[0].n
        how = bounds.slack, bounds.room, asked, answer
        compiled.fast().nearest_by_columns(points, *how)

    def _by_rows(self, bounds, asked, answer):
        (part,) = bounds.parts
        rows, squares = map(compiled.read_only, (part.points, part.squares))
        how = bounds.slack, bounds.room, asked, answer
        compiled.fast().nearest_by_rows((rows, squares, part.queries), *how)

    def nearest_of_all(self, K):
        """The nearest by a compiled loop that evaluates every point."""
        shape = len(self.queries), K
        found = np.empty(shape, dtype=np.intp), np.empty(shape)
        compiled.fast().nearest_by_reading(self.queries, self.held, found)
        return found


class TakenCandidates:
    """Points whose rows `take` makes when they are asked for, as those of CSR."""

    def __init__(self, queries, take):
        self.queries = queries
        self.take = take

    def squares(self, q, indices):
        """Exact squared distances from query `q` to the given points."""
        squares = np.empty(len(indices))
        width = self.queries.itemsize * self.queries.shape[1]
        step = max(1, _GATHERED_BYTES // width)
        for start in range(0, len(indices), step):
            part = slice(start, start + step)
            squares[part] = row_squares(self.take(indices[part]) - self.queries[q])
        return squares


def nearest(bounds, candidates, most, indices, squares):
    """Fill `indices` and `squares`, (queries, K), with the nearest points, in order.

    Some points of smallest bound are evaluated first. The K-th of their distances, τ,
    is at least the K-th smallest of all, so a neighbour has a distance, and then a
    bound, of at most τ: evaluating every point whose bound is at most τ misses none.

    Returns a mask of the queries that are left out, as over `most` points would have to
    be evaluated for them.

    Examples
    --------
    >>> rows, empty = np.array([[3.0], [1.0], [2.0], [5.0]]), np.empty((0, 4))
    >>> points = HeldCandidates(np.zeros((1, 1)), rows, np.empty((0, 1)), empty)
    >>> indices, squares = np.empty((1, 2), dtype=np.intp), np.empty((1, 2))
    >>> nearest(0.5 * rows.T**2, points, 4, indices, squares)
    array([False])
    >>> indices, squares
    (array([[1, 2]]), array([[1., 4.]]))
    """
    if compiled.fast() is not None and isinstance(candidates, HeldCandidates):
        return candidates.nearest(bounds, most, indices, squares)
    if isinstance(bounds, Expansion):
        bounds = bounds.multiplied()
    undecided, K = np.zeros(len(bounds), dtype=bool), indices.shape[1]
    for q, lower in enumerate(bounds):
        first = smallest_bounds(lower, looked_at_first(K, len(lower)))
        exact = candidates.squares(q, first)
        rest = np.flatnonzero(lower <= np.partition(exact, K - 1)[K - 1])
        if rest.size > most:
            undecided[q] = True
            continue
        rest = np.setdiff1d(rest, first, assume_unique=True)
        found = np.concatenate([first, rest])
        exact = np.concatenate([exact, candidates.squares(q, rest)])
        put_smallest(found, exact, indices[q], squares[q])
    return undecided


def looked_at_first(K, n):
    """How many points to evaluate before the others are judged by them.

    With K alone, one far point that a sketch takes for a near one would spoil τ.
    """
    return min(K + _AHEAD, n)


def smallest_bounds(lower, K):
    """Indices of the K smallest, in no order.

    At least K numbers are at most the K-th smallest of a sample; few others are.
    """
    if len(lower) < _LEAST_SAMPLED or len(lower) // _STRIDE < K:
        return np.argpartition(lower, K - 1)[:K]
    limit = np.partition(lower[::_STRIDE], K - 1)[K - 1]
    few = np.flatnonzero(lower <= limit)
    return few[np.argpartition(lower[few], K - 1)[:K]]


def budgeted(estimates, candidates, count, indices, squares):
    """The same among the `count` points of smallest estimate alone."""
    for q, values in enumerate(estimates):
        found = smallest_bounds(values, count)
        put_smallest(found, candidates.squares(q, found), indices[q], squares[q])


def put_smallest(found, exact, indices, squares):
    """Fill in the smallest of some points, by square and then by index."""
    order = np.lexsort((found, exact))[: len(indices)]
    indices[:], squares[:] = found[order], exact[order]

"""From squared distances to distances, with those near zero taken from the truth."""

import numpy as np

from . import compiled
from .tiles import row_squares

_AT_ONCE = 256


class Roots:
    """Distances that are right also where squares have cancelled.

    Rows drift from the truth by a stated tolerance, so a square below what that may
    amount to says nothing. Such distances are few, and are computed from the points
    themselves; equal points are at distance zero exactly.
    """

    def __init__(self, state):
        self._state = state

    def of_tile(self, Q, u, squares):
        """Of a tile (queries, n), in place; `u` are the transformed queries."""
        size = row_squares(u)[:, np.newaxis] + self._state.current_norms()
        near = squares <= self._indistinct(size)
        np.maximum(squares, 0, out=squares)
        roots = np.sqrt(squares, out=squares)
        if near.any():
            queries, points = np.nonzero(near)
            roots[near] = self._from_truth(Q, queries, points)
        return roots

    def of_found(self, Q, squares, points):
        """Of some points for each query, (queries, points of each)."""
        state = self._state
        norms = state.current_norms()
        share = self._indistinct(1.0)
        if compiled.fast() is not None:
            roots = np.empty(squares.shape, dtype=state.dtype)
            asked = squares, points, compiled.read_only(norms), share
            if not compiled.fast().roots(*asked, roots):
                return roots
        else:
            roots = np.sqrt(squares).astype(state.dtype)
        near = squares <= share * norms[points]
        if near.any():
            queries, places = np.nonzero(near)
            roots[near] = self._from_truth(Q, queries, points[queries, places])
        return roots

    def of_pairs(self, squares, i, j):
        """Of pairs of points."""
        state = self._state
        roots = np.sqrt(np.maximum(squares, 0)).astype(state.dtype)
        norms = state.current_norms()
        near = np.flatnonzero(squares <= self._indistinct(norms[i] + norms[j]))
        for start in range(0, len(near), _AT_ONCE):
            part = near[start : start + _AT_ONCE]
            rows = state.points.dense(i[part])
            roots[part] = self._from_truth(rows, np.arange(len(rows)), j[part])
        return roots

    def _indistinct(self, size):
        """Squares that cannot be told from zero at the drift that is allowed."""
        return (16 * self._state.tolerance) ** 2 * size

    def _from_truth(self, Q, queries, points):
        """``‖U (q - x)‖`` from the points themselves."""
        state = self._state
        distances = np.zeros(len(queries), dtype=state.dtype)
        for start in range(0, len(queries), _AT_ONCE):
            part = slice(start, start + _AT_ONCE)
            gaps = Q[queries[part]] - state.points.dense(points[part])
            apart = np.flatnonzero(gaps.any(axis=1))
            if apart.size:
                rows = state.metric.transform(gaps[apart])
                distances[part][apart] = np.sqrt(row_squares(rows))
        return distances

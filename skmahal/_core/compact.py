"""An index without its points: distances from sketches or 8-bit codes alone."""

from __future__ import annotations

from typing import Any, Literal, overload

import numpy as np
from numpy.typing import ArrayLike

from .bounds import failure
from .checks import as_count, as_pairs, as_points
from .codes import eight_bits
from .guarantees import probability_text
from .points import row_squares
from .saved import FLOATS, array_from, expecting, opened, require, stamped
from .sketches import toarray
from .threads import slices
from .types import FloatOrFloats, Floats, Indices, Rows

_TILE_BYTES = 1 << 23

# Squares below this share of the squared lengths are computed from differences.
_NEAR = 1e-3


class SketchesOnly:
    r"""Distances and neighbours from sketches, or codes, of points that are not held.

    This is the setting of the paper's queries: given only the data structure, with no
    access to the points. It is made by
    :meth:`SketchedMahalanobisNeighbors.sketches_only`, and it cannot be changed. It is
    compression and not privacy: a sketch of enough rows determines the points.

    Parameters
    ----------
    kind : {"sketch", "codes"}
        What is held of a point x: :math:`\Pi U x`, where :math:`\Pi` has m Gaussian
        rows, or :math:`Ux` in 8 bits a row of U.
    map : ndarray of shape (w, d), or None
        What points and queries are multiplied by: :math:`\Pi U`, or U, over the unit.
        None stands for the unit alone.
    origin : ndarray of shape (d,)
        What is subtracted from them before.
    rows : ndarray of shape (n, w)
        The points under the map, in the type of the points, or their codes.
    unit : float
        The length that rows are in units of.
    eps, delta : float
        All distances of a query are within 1 ± eps with probability at least 1 - delta,
        if the kind is "sketch" and queries do not depend on earlier results.
    steps : ndarray of shape (n,), default=None
        What codes are multiplied by.
    errors : ndarray of shape (n,), default=None
        If the kind is "codes", every distance to point i is within ``errors[i]`` of the
        exact one, for all queries, up to rounding in float64.

    Attributes
    ----------
    n, d : int
        Points and features.
    nbytes : int
        Size of all arrays.

    Examples
    --------
    >>> import numpy as np
    >>> from skmahal import SketchedMahalanobisNeighbors
    >>> X = np.random.default_rng(0).normal(size=(1000, 100))
    >>> index = SketchedMahalanobisNeighbors(random_state=0).fit(X)
    >>> codes = index.sketches_only("codes")
    >>> distances = codes.distances(X[:3] + 1)
    >>> errors = np.abs(distances - np.linalg.norm(X[:3, np.newaxis] + 1 - X, axis=2))
    >>> bool((errors <= codes.errors).all())
    True
    """

    def __init__(
        self,
        kind: Literal["sketch", "codes"],
        map: Floats | None,
        origin: Floats,
        rows: np.ndarray,
        unit: float,
        eps: float,
        delta: float,
        steps: Floats | None = None,
        errors: Floats | None = None,
    ) -> None:
        self.kind, self.map, self.origin = kind, map, origin
        self.rows, self.steps, self.errors = rows, steps, errors
        self.unit, self.eps, self.delta = unit, eps, delta
        self.n, self.d = len(rows), len(origin)
        # The errors of codes are bounds, to which float32 would add its own.
        self.dtype = np.dtype(np.float64) if kind == "codes" else rows.dtype
        self.sizes = np.empty(self.n, self.dtype)
        for here in slices(self.n, self._step(1)):
            self.sizes[here] = row_squares(self._points(here))
        arrays = map, origin, rows, steps, errors, self.sizes
        self.nbytes = sum(array.nbytes for array in arrays if array is not None)

    def __repr__(self):
        size = f"n={self.n}, d={self.d}, {self.nbytes / 1e6:.1f} MB"
        return f"SketchesOnly({self.kind!r}, {size})"

    def __getattr__(self, name):
        changes = ("update_metric", "update_points", "remove_points", "partial_fit")
        if name in (*changes, "fit", "refresh_sketches"):
            raise AttributeError(
                f"SketchesOnly has no {name!r}: it holds no points. Change the index "
                "that it was made of, and call its sketches_only() again."
            )
        raise AttributeError(f"SketchesOnly has no attribute {name!r}.")

    def guarantee(self) -> str:
        """What is promised, in words. O(n)."""
        if self.errors is not None:
            return (
                "Every distance to point i is within errors[i] of the exact one, for "
                f"all queries.\nThe largest error is {self.errors.max():.3g}."
            )
        off = min(1.0, self.n * float(failure(self.eps, self.rows.shape[1])))
        return (
            f"All {self.n} distances of a query are within 1 ± {self.eps:g} of the "
            f"exact ones with\nprobability at least {probability_text(off)}, if the "
            "query does not depend on earlier results.\nFor other queries nothing is "
            "promised."
        )

    def distances(self, X: Rows) -> Floats:
        """Estimated distances from queries to all points, (queries, n).

        O(wd + nw) a query, with w numbers held of a point.
        """
        z = toarray(as_points("X", X, columns=self.d)) - self.origin
        z = z / self.unit if self.map is None else z @ self.map.T
        z = z.astype(self.dtype)
        D = np.empty((len(z), self.n), self.dtype)
        bases = row_squares(z)[:, np.newaxis]
        for here in slices(self.n, self._step(len(z))):
            points, sizes = self._points(here), bases + self.sizes[here]
            squares = sizes - 2 * (z @ points.T)
            near = squares <= _NEAR * sizes
            for at in np.flatnonzero(near.any(axis=1)):
                gaps = z[at] - points[near[at]]
                squares[at, near[at]] = row_squares(gaps)
            D[:, here] = self.unit * np.sqrt(np.maximum(squares, 0))
        return D

    def pair_distances(self, i: ArrayLike, j: ArrayLike) -> FloatOrFloats:
        """Estimated distances between points, whose positions are broadcast. O(w)."""
        i, j, shape = as_pairs(i, j, self.n)
        found = np.empty(len(i), self.dtype)
        for here in slices(len(i), self._step(1)):
            gaps = self._points(i[here]) - self._points(j[here])
            found[here] = self.unit * np.sqrt(row_squares(gaps))
        return found.reshape(shape) if shape else found[0]

    # Without distances, the positions alone are returned.
    @overload
    def kneighbors(
        self,
        X: Rows,
        n_neighbors: int = 5,
        return_distance: Literal[True] = True,
    ) -> tuple[Floats, Indices]: ...

    @overload
    def kneighbors(
        self,
        X: Rows,
        n_neighbors: int = 5,
        return_distance: bool = True,
    ) -> Any: ...

    def kneighbors(
        self, X: Rows, n_neighbors: int = 5, return_distance: bool = True
    ) -> Any:
        """The points of smallest estimated distance, and these distances.

        Both of shape (queries, n_neighbors), in ascending order. O(wd + nw) a query.
        """
        K = as_count("n_neighbors", n_neighbors, most=self.n)
        X = as_points("X", X, columns=self.d)
        distances = np.empty((X.shape[0], K), self.dtype)
        indices = np.empty((X.shape[0], K), np.intp)
        for here in slices(X.shape[0], max(1, _TILE_BYTES // (4 * self.n))):
            D = self.distances(X[here])
            for at, values in enumerate(D, here.start):
                near = np.flatnonzero(values <= np.partition(values, K - 1)[K - 1])
                indices[at] = near[np.lexsort((near, values[near]))[:K]]
                distances[at] = values[indices[at]]
        return (distances, indices) if return_distance else indices

    def _points(self, here):
        """Some of the points under the map."""
        rows = self.rows[here].astype(self.dtype)
        return rows if self.steps is None else rows * self.steps[here][:, np.newaxis]

    def _step(self, queries):
        """How many points are worked on at a time."""
        return max(1, _TILE_BYTES // (4 * (self.rows.shape[1] + 3 * queries)))

    def __getstate__(self):
        names = ("kind", "map", "origin", "rows", "steps", "errors")
        names += ("unit", "eps", "delta")
        return stamped("SketchesOnly", {name: vars(self)[name] for name in names})

    def __setstate__(self, state):
        state = opened("SketchesOnly", state)
        with expecting("SketchesOnly"):
            kind, single, double = state["kind"], FLOATS[:1], FLOATS[1:]
            require(kind in ("sketch", "codes"), f"there is no kind {kind!r}")
            coded = kind == "codes"
            origin = array_from(state, "origin", double, (None,))
            kinds = (np.dtype(np.int8),) if coded else FLOATS
            rows = array_from(state, "rows", kinds, (None, None))
            require(len(rows), "there are no points")
            shape = rows.shape[1], len(origin)
            if state["map"] is not None:
                array_from(state, "map", double, shape)
            else:
                require(shape[0] == shape[1], f"rows have {shape[0]} columns")
            if coded:
                array_from(state, "steps", single, (len(rows),))
                array_from(state, "errors", double, (len(rows),))
            self.__init__(**state)


def from_images(map, origin, images, unit, eps, delta):
    """The index of codes of rows ``map (x - origin)``, an iterable of blocks."""
    blocks = [eight_bits(block, block.shape[1])[:3] for block in images]
    rows, steps, errors = (np.concatenate(part) for part in zip(*blocks, strict=True))
    rest = unit, eps, delta, steps, unit * errors
    return SketchesOnly("codes", map, origin, rows, *rest)

"""Outlier scores of the points of an index, which follow changes of the points."""

from contextlib import contextmanager, nullcontext
from typing import NamedTuple

import numpy as np

from .points import grown, kept_rows
from .saved import array_from, integer_from, require
from .search import NEAR, without_own
from .threads import one_blas_thread, slices

METHODS = "lof", "knn"

# Added to mean distances so that none is zero, as in scikit-learn.
_LEAST_MEAN = 1e-10

# The offset of local outlier factors for contamination="auto", as in scikit-learn.
_AUTO_FACTOR = -1.5

# If a larger share of the points has to be searched again, all are, when needed.
_MANY = 0.25


def local_densities(distances, k_distances):
    """Local reachability density of points, from the distances of their K neighbours.

    It is the inverse of the mean of ``max(distance, k-distance of the neighbour)``, as
    in :class:`sklearn.neighbors.LocalOutlierFactor`. O(K) each.

    >>> local_densities(np.array([[1.0, 3.0]]), np.array([[2.0, 2.0]]))
    array([0.4])
    """
    reach = np.maximum(distances, k_distances)
    return 1.0 / (np.mean(reach, axis=1) + _LEAST_MEAN)


def negative_factors(densities, neighbor_densities):
    """Negative local outlier factors: how dense neighbours are, relative to the point.

    O(K) each. Inliers have about -1, and outliers less.

    >>> negative_factors(np.array([0.5]), np.array([[1.0, 2.0]]))
    array([-3.])
    """
    return -np.mean(neighbor_densities / densities[:, np.newaxis], axis=1)


def offset_of(scores, method, contamination):
    """The score below which points are outliers. O(n).

    A number for `contamination` is the share of the points that are. With "auto" it is
    -1.5 for local outlier factors. For mean distances it is Tukey's fence: their third
    quartile plus one and a half interquartile ranges.

    >>> scores = -np.array([1.0, 2.0, 3.0, 4.0, 50.0])
    >>> offset_of(scores, "lof", "auto"), offset_of(scores, "knn", "auto")
    (-1.5, -7.0)
    >>> offset_of(scores, "lof", 0.25)
    -4.0
    """
    if contamination != "auto":
        return float(np.percentile(scores, 100.0 * contamination))
    if method == "lof":
        return _AUTO_FACTOR
    low, high = np.percentile(scores, [25, 75])
    return float(low - 1.5 * (high - low))


class _Rows(NamedTuple):
    """What is held of each point; arrays may have more rows than there are points.

    Distances and positions of its K neighbours, (n, K), in ascending order, its local
    reachability density, and its score.
    """

    distances: np.ndarray
    indices: np.ndarray
    densities: np.ndarray
    scores: np.ndarray

    def first(self, n):
        """The rows of the first n points, as views."""
        return _Rows(*(array[:n] for array in self))


class OutlierScores:
    """Outlier scores of all points of an index, and of queries.

    The scores of the "lof" method are negative local outlier factors, and those of
    "knn" negative mean distances of the K neighbours. K is `n_neighbors`, or the number
    of other points if these are fewer.

    What is held is of one version of the index. After points have changed,
    :meth:`follow_removal` and :meth:`follow_points` update it to the next version.
    After any other change, or if an update was interrupted, the next reader computes
    all of it. While it is updated it has no version, and readers wait for the lock of
    changes before they compute anything.
    """

    def __init__(self, index, n_neighbors, method="lof", contamination="auto"):
        self.index, self.n_neighbors = index, n_neighbors
        self.method, self.contamination = method, contamination
        self.n_searches, self._version, self._rows = 0, None, None

    @property
    def K(self):
        """Number of neighbours at present; at least one."""
        return max(1, min(self.n_neighbors, self.index.n - 1))

    @contextmanager
    def reading(self, jobs=1):
        """A context in which nothing changes and what is held is of this version.

        O(1), or n searches for neighbours if it has to be computed.
        """
        lock = self.index.lock
        with lock.reading():
            current = self._version == self.index.version
            if current:
                yield self
        if current:
            return
        # A thread that changes points may be about to update the scores.
        with lock.changing(), lock.reading():
            if self._version != self.index.version:
                with one_blas_thread() if jobs > 1 else nullcontext():
                    self._compute(jobs)
            yield self

    @property
    def scores(self):
        """Scores of all points; inside `reading`, and not to be written to."""
        return self._rows.scores[: self.index.n]

    @property
    def offset(self):
        """The score below which points are outliers; inside `reading`. O(n)."""
        return offset_of(self.scores, self.method, self.contamination)

    def of_queries(self, Q, jobs=1):
        """Scores of queries, none of which is a point; inside `reading`.

        A search for K neighbours each.
        """
        distances, indices = self.index.kneighbors(Q, self.K, jobs)
        if self.method == "knn":
            return -np.mean(distances, axis=1)
        held = self._rows
        densities = local_densities(distances, held.distances[indices, -1])
        return negative_factors(densities, held.densities[indices])

    def follow_removal(self, version, positions, jobs=1):
        """Update what is held after points were removed; inside `changing`.

        `version` is that of the index before it, and `positions` are distinct. Points
        that have lost a neighbour are searched anew. O(n K) beside that.
        """
        with self._following(version, bool(len(positions))) as follows:
            if not follows:
                return
            n = self.index.n
            before = n + len(positions)
            kept = np.ones(before, dtype=bool)
            kept[positions] = False
            has_lost = (~kept)[self._rows.indices[:before]].any(axis=1)
            lost = np.flatnonzero(has_lost[kept])
            if len(lost) > _MANY * n:
                return
            self._version = None
            self._rows = _Rows(*(kept_rows(array, kept) for array in self._rows))
            held = self._rows.first(n)
            # Positions of points that are gone are replaced by the search.
            held.indices[:] = (np.cumsum(kept) - 1)[held.indices]
            k_distances = held.distances[:, -1].copy()
            self._search(lost, jobs)
            self._update(lost, k_distances)
            self._version = self.index.version

    def follow_points(self, version, replaced, appended, jobs=1):
        """Update what is held after points were replaced or added; inside `changing`.

        `version` is that of the index before they were `replaced`, at distinct
        positions, and a number of them `appended`, in one step. New points, and
        those that have lost a neighbour, are searched anew. A new point becomes a
        neighbour of the points to which it is nearer than their last one: O(nd + nK) to
        find these, and O(Kd) for each.
        """
        replaced = np.asarray(replaced, dtype=np.intp)
        with self._following(version, len(replaced) + appended > 0) as follows:
            if not follows:
                return
            n = self.index.n
            new = np.concatenate([replaced, np.arange(n - appended, n)])
            searched = np.zeros(n, dtype=bool)
            if len(replaced):
                searched[replaced] = True
                held = self._rows.first(n - appended)
                searched[: n - appended] = searched[held.indices].any(axis=1)
            searched[new] = True
            if np.count_nonzero(searched) > _MANY * n:
                return
            self._version = None
            self._rows = _Rows(*(grown(rows, n - appended, n) for rows in self._rows))
            k_distances = self._rows.distances[:n, -1].copy()
            k_distances[new] = np.nan
            self._search(np.flatnonzero(searched), jobs)
            merged = self._merge(new, np.where(searched, -1, k_distances), jobs)
            searched[merged] = True
            self._update(np.flatnonzero(searched), k_distances)
            self._version = self.index.version

    @contextmanager
    def _following(self, version, has_changed):
        """A context that says whether what is held can be updated to this version.

        It can if it is of `version`, if that was the last one, and if there are still
        as many neighbours. The index is locked for reading.
        """
        with self.index.lock.reading():
            held = has_changed and self._version == version
            current = held and self.index.version == version + 1
            yield current and self._rows.indices.shape[1] == self.K

    def _compute(self, jobs):
        """Compute all that is held."""
        n, self._version = self.index.n, None
        found = self._neighbors(None, jobs)
        self._rows = _Rows(*found, *(np.empty(n, self.index.dtype) for _ in range(2)))
        self._update(np.arange(n), np.full(n, np.nan))
        self._version = self.index.version

    def _neighbors(self, positions, jobs):
        """Distances and positions of the K nearest other points; None is all points."""
        X, K = self.index.X, self.K
        rows = X if positions is None else X[positions]
        own = np.arange(self.index.n) if positions is None else positions
        found = self.index.kneighbors(rows, K + 1, jobs)
        self.n_searches += len(own)
        return without_own(own, *found)

    def _search(self, positions, jobs):
        """Search for the neighbours of some points again."""
        if len(positions):
            held = self._rows
            found = self._neighbors(positions, jobs)
            held.distances[positions], held.indices[positions] = found

    def _merge(self, new, k_distances, jobs):
        """Make new points neighbours of the points whose K-th one is farther away.

        Returns positions of points whose neighbours may have changed.
        """
        points, nearer = self._nearer(new, k_distances, jobs)
        if not len(points):
            return points
        held, order = self._rows, np.argsort(points, kind="stable")
        points, starts = np.unique(points[order], return_index=True)
        groups = np.split(nearer[order], starts[1:])
        candidates = [
            np.concatenate([held.indices[point], group])
            for point, group in zip(points, groups, strict=True)
        ]
        found = self.index.evaluate(self.index.X[points], candidates, self.K)
        held.distances[points], held.indices[points] = found
        return points

    def _nearer(self, new, limits, jobs):
        """Pairs of a point and a new point that is within its limit, up to rounding.

        Distances to all points are from products, whose rounding is relative to lengths
        of points. Squares that are a smaller share of these than `share` are exact.
        """
        index, share = self.index, 1e-3 if self.index.dtype == np.float32 else NEAR
        rounding = (index.d + 16) * float(np.finfo(index.dtype).eps) / share
        limits, pairs = limits * (1 + min(1.0, rounding)), []
        for here in slices(len(new), max(1, index.working_bytes // (8 * index.n))):
            distances = index.distances(index.X[new[here]], jobs)
            rows, points = np.nonzero(distances <= limits)
            pairs.append((points, new[here][rows]))
        return map(np.concatenate, zip(*pairs, strict=True))

    def _update(self, changed, k_distances):
        """Update densities and scores, after neighbours of some points have changed.

        `k_distances` are those before. A density depends on the k-distances of the
        neighbours, and a score on their densities.
        """
        held = self._rows.first(self.index.n)
        if self.method == "knn":
            held.scores[changed] = -np.mean(held.distances[changed], axis=1)
            return
        differ = held.distances[:, -1] != k_distances
        affected = differ[held.indices].any(axis=1)
        affected[changed] = True
        at = np.flatnonzero(affected)
        new = local_densities(held.distances[at], held.distances[held.indices[at], -1])
        affected[at] = new != held.densities[at]
        held.densities[at] = new
        affected |= affected[held.indices].any(axis=1)
        affected[changed] = True
        at = np.flatnonzero(affected)
        rest = held.densities[at], held.densities[held.indices[at]]
        held.scores[at] = negative_factors(*rest)

    def check(self):
        """Assert that what is held is correct; inside `reading`. O(n²d)."""
        held, searches = self._rows.first(self.index.n), self.n_searches
        distances, _ = self._neighbors(None, 1)
        self.n_searches = searches
        rounding = {"rtol": 1e3 * np.finfo(self.index.dtype).eps}
        rounding["atol"] = 1e-9 * float(np.sqrt(self.index.norms.max()))
        assert np.allclose(held.distances, distances, **rounding), "neighbours"
        if self.method == "lof":
            ends = held.distances[held.indices, -1]
            densities = local_densities(held.distances, ends)
            assert np.array_equal(held.densities, densities), "densities"
            factors = negative_factors(densities, densities[held.indices])
            assert np.array_equal(held.scores, factors), "scores"

    def saved(self):
        """Parameters, neighbours and their version as plain values. O(n K)."""
        with self.index.lock.reading():
            names = "n_neighbors", "method", "contamination", "n_searches"
            values = {name: getattr(self, name) for name in names}
            values |= {"version": None, "distances": None, "indices": None}
            if self._version == self.index.version:
                held = self._rows.first(self.index.n)
                values["version"] = self._version
                values["distances"] = held.distances.copy()
                values["indices"] = held.indices.copy()
            return values

    @classmethod
    def restored(cls, values, index):
        """The scores that were saved, for the restored index. O(n K)."""
        n_neighbors = integer_from(values, "n_neighbors", least=1)
        method, contamination = values["method"], values["contamination"]
        require(method in METHODS, f"method is {method!r}")
        if contamination != "auto":
            contamination = float(contamination)
            require(0 < contamination <= 0.5, f"contamination is {contamination}")
        scores = cls(index, n_neighbors, method, contamination)
        scores.n_searches = integer_from(values, "n_searches")
        # Another thread may have changed the index while both were saved.
        if values["version"] is not None and values["version"] == index.version:
            n, shape = index.n, (index.n, scores.K)
            distances = array_from(values, "distances", (index.dtype,), shape)
            indices = array_from(values, "indices", (np.dtype(np.intp),), shape)
            require(indices.min() >= 0 and indices.max() < n, "a position is not valid")
            require(distances.min() >= 0, "a distance is not valid")
            rest = (np.empty(n, index.dtype) for _ in range(2))
            scores._rows = _Rows(distances, indices, *rest)
            scores._update(np.arange(n), np.full(n, np.nan))
            scores._version = index.version
        return scores

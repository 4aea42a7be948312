"""Neighbour queries with scikit-learn's signatures."""

from contextlib import nullcontext

import numpy as np
from scipy import sparse

from skmahal._core.checks import as_choice, as_count, as_length
from skmahal._threads import one_blas_thread

_MODES = ("connectivity", "distance")

# Numbers at work for each neighbour of a query: those that are found, what puts them in
# order, and those of the batch before.
_FOUND = 10

# Numbers at work for each feature of a query that chooses its sketch, and for each of
# its coordinates under the metric.
_HASHED = 2
_TRANSFORMED = 2


class KNeighborsQueries:
    """`kneighbors` and its graph, for a `SketchedNeighborsBase`."""

    def kneighbors(self, X=None, n_neighbors=None, return_distance=True):
        """Find the nearest points of each query.

        They are the exact ones with probability at least 1 - `delta` a query, unless
        `n_candidates` sets a budget; their distances are exact in any case.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_queries, n_features), default=None
            Queries. None asks for the neighbours of every point of the index, each
            other than itself.
        n_neighbors : int, default=None
            Number of neighbours; None is the one given to the constructor.
        return_distance : bool, default=True
            Whether to return the distances.

        Returns
        -------
        neigh_dist : ndarray of shape (n_queries, n_neighbors)
            Distances, in ascending order. Only with `return_distance`.
        neigh_ind : ndarray of shape (n_queries, n_neighbors)
            Positions of the points; ties go to the lower one.

        Notes
        -----
        A query costs O(kd + n(m + lead)) and k for every point that the sketches cannot
        exclude, O(kd + nk) at the most.
        """
        distances, indices = self._searched(X, n_neighbors, lambda *found: found)
        return (distances, indices) if return_distance else indices

    def kneighbors_graph(self, X=None, n_neighbors=None, mode="connectivity"):
        """Graph of the nearest points of each query. O(kd + n(m + lead)) a query.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_queries, n_features), default=None
            As in :meth:`kneighbors`.
        n_neighbors : int, default=None
            As in :meth:`kneighbors`.
        mode : {"connectivity", "distance"}, default="connectivity"
            Ones, or distances.

        Returns
        -------
        A : sparse matrix of shape (n_queries, n_samples_fit), CSR
            The graph; the entries of a row are in order of distance.
        """
        as_choice("mode", mode, _MODES)
        self._check_fitted()
        with self._engine.reading():
            distances, indices = self.kneighbors(X, n_neighbors)
            n = self.n_samples_fit_
        counts = np.full(len(indices), indices.shape[1])
        return _graph(distances.ravel(), indices.ravel(), counts, n, mode)

    def _searched(self, X, n_neighbors, answer, width=0):
        """``answer(distances, indices)``, some arrays, for all queries in batches.

        `width` is how many numbers the answer needs at work for a query.
        """
        self._check_fitted()
        if X is None:
            # All batches are of one version: that whose points are asked about.
            with self._engine.reading():
                return self._answered(self._engine.X, n_neighbors, answer, width, 1)
        return self._answered(self._points(X), n_neighbors, answer, width, 0)

    def _answered(self, queries, n_neighbors, answer, width, own):
        """The same; `own` says that queries are the points, each without itself."""
        K = self._checked_n_neighbors(n_neighbors, self.n_samples_fit_ - own)
        jobs = self._thread_count(queries)
        width += _FOUND * (K + own)
        if self.engine_ == "sketched":
            width += _HASHED * queries.shape[1] + _TRANSFORMED * self._engine.k
        batches = self._batches(queries, width, threads=jobs)

        def answers():
            for batch in batches:
                with self._engine.reading():
                    found = self._nearest(self._as_held(queries[batch]), K, own, jobs)
                    if own:
                        found = _without_self(*found, batch.start)
                    answered = answer(*found)
                yield answered

        return _joined(answers(), queries.shape[0])

    def _nearest(self, queries, K, own, jobs):
        """K neighbours, and `own` of them more for queries that are points."""
        engine, budget = self._engine, {}
        if self.n_candidates != "certified" and self.engine_ == "sketched":
            count = as_count("n_candidates", self.n_candidates, least=K) + own
            budget = {"candidates": min(count, engine.n)}
        # Where no other thread is at work, there is none for BLAS to disturb.
        alone = len(queries) == jobs == 1
        with nullcontext() if alone else one_blas_thread():
            return engine._nearest(queries, K + own, jobs, **budget)


class RadiusNeighborsQueries:
    """`radius_neighbors` and its graph, for a `SketchedNeighborsBase`."""

    def radius_neighbors(
        self, X=None, radius=None, return_distance=True, sort_results=False
    ):
        """Find all points within a distance of each query.

        None is left out with probability at least 1 - `delta` a query; distances are
        exact.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_queries, n_features), default=None
            Queries. None asks for every point of the index, each without itself.
        radius : float, default=None
            The distance; None is the one given to the constructor.
        return_distance : bool, default=True
            Whether to return the distances.
        sort_results : bool, default=False
            Whether to order by distance rather than by position.

        Returns
        -------
        neigh_dist : ndarray of shape (n_queries,) of arrays
            Distances. Only with `return_distance`.
        neigh_ind : ndarray of shape (n_queries,) of arrays
            Positions of the points.

        Notes
        -----
        A query costs O(kd + n(m + lead)) and k for every point that the sketches cannot
        exclude, as in :meth:`kneighbors`.
        """
        self._check_fitted()
        radius = self.radius if radius is None else radius
        radius = as_length("radius", radius)
        if X is None:
            with self._engine.reading():
                found = self._within(self._engine.X, radius)
            found = [_others(*pair, i) for i, pair in enumerate(found)]
        else:
            found = self._within(self._points(X), radius)
        if sort_results:
            found = [_sorted(*pair) for pair in found]
        distances, indices = (_ragged(arrays) for arrays in zip(*found, strict=True))
        return (distances, indices) if return_distance else indices

    def _within(self, queries, radius):
        """Distances and positions of the points within `radius`, a pair a query."""
        parts = self._in_batches(
            lambda rows: self._engine.radius_neighbors(rows, radius), queries
        )
        return [pair for part in parts for pair in zip(*part, strict=True)]

    def radius_neighbors_graph(
        self, X=None, radius=None, mode="connectivity", sort_results=False
    ):
        """Graph of all points within a distance. O(kd + n(m + lead)) a query.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_queries, n_features), default=None
            As in :meth:`radius_neighbors`.
        radius : float, default=None
            As in :meth:`radius_neighbors`.
        mode : {"connectivity", "distance"}, default="connectivity"
            Ones, or distances.
        sort_results : bool, default=False
            Whether the entries of a row are ordered by distance.

        Returns
        -------
        A : sparse matrix of shape (n_queries, n_samples_fit), CSR
            The graph.
        """
        as_choice("mode", mode, _MODES)
        self._check_fitted()
        with self._engine.reading():
            found = self.radius_neighbors(X, radius, sort_results=sort_results)
            n = self.n_samples_fit_
        counts = np.array([len(indices) for indices in found[1]])
        distances, indices = (np.concatenate(arrays) for arrays in found)
        return _graph(distances, indices, counts, n, mode)


def _joined(parts, count):
    """Arrays for batches of `count` queries as whole arrays, which are not held twice.

    Examples
    --------
    >>> _joined(iter([[np.array([1, 2])], [np.array([3])]]), 3)
    [array([1, 2, 3])]
    """
    whole, start = None, 0
    for part in parts:
        here = slice(start, start + len(part[0]))
        if here == slice(0, count):
            return list(part)
        if whole is None:
            whole = [np.empty((count, *rows.shape[1:]), rows.dtype) for rows in part]
        for out, rows in zip(whole, part, strict=True):
            out[here] = rows
        start = here.stop
    return whole


def _graph(values, indices, counts, n_points, mode):
    """CSR rows of `counts` entries each; ones in place of `values` for connectivity."""
    values = (
        np.asarray(values, dtype=float) if mode == "distance" else np.ones(len(indices))
    )
    ends = np.concatenate([[0], np.cumsum(counts)])
    return sparse.csr_matrix((values, indices, ends), shape=(len(counts), n_points))


def _without_self(distances, indices, start):
    """Drop each point from its own neighbours, or the last where it is not there.

    It is not where others at the same place come before it.

    Examples
    --------
    >>> _without_self(np.zeros((1, 3)), np.array([[4, 5, 6]]), start=7)
    (array([[0., 0.]]), array([[4, 5]]))
    """
    others = indices != np.arange(start, start + len(indices))[:, np.newaxis]
    absent = others.all(axis=1)
    others[absent, -1] = False
    shape = len(indices), indices.shape[1] - 1
    return distances[others].reshape(shape), indices[others].reshape(shape)


def _others(distances, indices, i):
    others = indices != i
    return distances[others], indices[others]


def _sorted(distances, indices):
    order = np.lexsort((indices, distances))
    return distances[order], indices[order]


def _ragged(arrays):
    """A 1-d array of arrays, also where they have equal lengths."""
    out = np.empty(len(arrays), dtype=object)
    out[:] = arrays
    return out

"""The estimators: queries to all shards, and what their answers are merged to."""

from dataclasses import replace
from typing import NamedTuple

import dask
import dask.array as da
import numpy as np
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted

from skmahal import neighbors
from skmahal._compat import fit_context
from skmahal._core import checks
from skmahal._core.guarantees import Audit, audit_pairs
from skmahal._core.threads import slices
from skmahal._core.tree import draw
from skmahal._estimator import generator_from, undo_on_error
from skmahal.neighbors._classification import _vote, codes_of, with_new_classes
from skmahal.neighbors._regression import _mean_targets
from skmahal.neighbors._supervised import neighbour_weights

from ._base import PARAMETERS, ShardedBase
from ._shards import (
    Wanted,
    answer_later,
    doubtful,
    in_order,
    joined,
    labels_of,
    merged,
    pair_distances,
)

# Pairs of points whose rows are held at a time.
_PAIRS = 4096

# Rounds of draws before the distances of all points are summed, and how many draws of
# power 1 are tried for one that is needed.
_ROUNDS, _TRIED = 8, 1.5

_CONSTRAINTS = neighbors.SketchedMahalanobisNeighbors._parameter_constraints


class KNeighborsQueries(ShardedBase):
    """Fitting, and `kneighbors`, of all estimators on a cluster."""

    _parameter_constraints = {
        **{name: _CONSTRAINTS[name] for name in PARAMETERS},
        "client": "no_validation",
    }

    def kneighbors(self, X=None, n_neighbors=None, return_distance=True):
        """Find the nearest points of each query, and their exact distances.

        Every shard is searched as a local index is, and sends `n_neighbors` distances
        and positions for a query.

        Parameters
        ----------
        X : array-like or dask array of shape (n_queries, n_features), default=None
            Queries. Those of a dask array are answered by lazy dask arrays, as of the
            present state of the index. None finds the neighbours of every point, each
            without the point itself, as lazy arrays.
        n_neighbors : int, default=None
            Number of neighbours; None is the one given to the constructor.
        return_distance : bool, default=True
            Whether to return the distances.

        Returns
        -------
        neigh_dist : ndarray or dask array of shape (n_queries, n_neighbors)
            Distances, in ascending order. Only with `return_distance`.
        neigh_ind : ndarray or dask array of shape (n_queries, n_neighbors)
            Positions of the points; ties go to the lower position.
        """
        state = self._fitted()
        K = self.n_neighbors if n_neighbors is None else n_neighbors
        most = int(state.starts[-1]) - (X is None)
        why = ", the number of other points" if X is None else ", the number of points"
        K = checks.as_count("n_neighbors", K, most=most, why=why)
        K = self._searched(K, X is None)
        X = None if X is None else self._queries(X)
        if X is None or isinstance(X, da.Array):
            later = self._neighbours_later(state, X, K)
            D = lazy_rows(*later, 0, (K,), self.dtype_)
            at = lazy_rows(*later, 1, (K,), np.intp)
        else:
            D, at, _ = self._nearest(state, X, K)
        return (D, at) if return_distance else at

    def to_local(self):
        """The index on this machine: an estimator of the local class.

        It has all points, the present U as its metric, and the other parameters.

        Returns
        -------
        local : estimator
            Of the class of the same name in :mod:`skmahal`.
        """
        state = self._fitted()
        X, y = zip(*self._ask_all(state, "all_points"), strict=True)
        y = None if y[0] is None else np.concatenate(y)
        parameters = self.get_params(deep=False)
        del parameters["client"]
        parameters |= {"metric": "minkowski", "metric_params": None}
        parameters["metric_learner"] = None if state.U is None else {"U": state.U}
        return self._local_class(**parameters).fit(np.concatenate(X), y)

    def _searched(self, K, own=False):
        """K neighbours, if the candidates are as many; `own` if queries are points."""
        local = self._local
        if not isinstance(local.n_candidates, str) and not local.adaptive:
            checks.as_count("n_candidates", local.n_candidates, least=K + own)
        return K

    def _queries(self, X):
        """Queries: a dask array, or contiguous rows in the type of the points."""
        X = self._points(X)
        return X if isinstance(X, da.Array) else np.ascontiguousarray(X)

    def _nearest(self, state, Q, K, with_targets=False):
        """Distances, positions and targets of the K nearest points of all shards.

        Squared lengths that have come to the metric in different ways are rounded
        differently. Distances that are so close that this may change their order are
        computed anew, in one way for all.
        """
        found = self._ask_all(state, "nearest", Q, K, with_targets)
        D, at, targets = joined(found, state.starts[:-1])
        D, at, targets = in_order(D, at, D.shape[1], targets)
        queries, places = np.nonzero(doubtful(D, K))
        if queries.size:
            D = D.astype(np.float64)
            for here in slices(len(queries), _PAIRS):
                some, which = queries[here], places[here]
                rows, where = self._rows(state, at[some, which])
                D[some, which] = pair_distances(Q[some], rows[where], state.U)
        D, at, targets = in_order(D, at, K, targets)
        return D.astype(self.dtype_), at, targets

    def _rows(self, state, positions):
        """Rows of the distinct positions, and which row belongs to each position."""
        distinct, where = np.unique(positions, return_inverse=True)
        rows = np.empty((len(distinct), self.n_features_in_), self.dtype_)
        located = list(state.located(distinct))
        calls = [(number, "rows", inside) for number, _, inside in located]
        for (_, places, _), found in zip(located, self._ask(calls, state), strict=True):
            rows[places] = found
        return rows, where.reshape(-1)

    def _later(self, state):
        """What lazy tasks need for every shard, whatever happens until they run."""
        U = self._metric_on(self.client_, state)
        return [
            (shard.chunk, Wanted(shard.edits, state.steps), U, self._local)
            for shard in state.shards
        ]

    def _neighbours_later(self, state, X, K, with_targets=False):
        """Tasks of distances, positions and targets, and how many rows each has."""
        shards, starts = self._later(state), state.starts
        ask, U = dask.delayed(answer_later, pure=False), shards[0][2]
        if X is None:
            blocks = [ask(*shard, "rows") for shard in shards]
            sizes, own = np.diff(starts).tolist(), starts[:-1].tolist()
        else:
            blocks, sizes = X.to_delayed()[:, 0], X.chunks[0]
            own = [None] * len(sizes)
        merge = dask.delayed(merged, nout=3, pure=False)
        found = []
        for block, first in zip(blocks, own, strict=True):
            # Exact distances do not need a check of their order.
            nearest = "nearest", block, K + (first is not None), with_targets, U, True
            parts = [ask(*shard, *nearest) for shard in shards]
            found.append(merge(parts, starts[:-1], K, self.dtype_, first))
        return found, sizes


def lazy_rows(tasks, sizes, part, shape, dtype):
    """A lazy array of one part of what tasks return, each with so many rows."""
    pairs = zip(tasks, sizes, strict=True)
    blocks = (da.from_delayed(one[part], (n, *shape), dtype) for one, n in pairs)
    return da.concatenate(list(blocks))


class SketchedMahalanobisNeighbors(KNeighborsQueries):
    r"""Nearest neighbours under a changing metric, of points on a Dask cluster.

    The counterpart of :class:`skmahal.SketchedMahalanobisNeighbors` for more points
    than one machine holds. Neighbours, sums and samples are those of that class for the
    same points and metric, ties included. When a worker is lost, its points are
    computed again from the tasks that made them, and no change is lost.

    Parameters
    ----------
    n_neighbors, radius, m, L, R, eps, delta : as in skmahal
        See :class:`skmahal.SketchedMahalanobisNeighbors`.
    metric_learner : None, array-like of shape (k, n_features), dict, or estimator
        As there, but an estimator must be fitted, and wrapped in
        :class:`sklearn.frozen.FrozenEstimator`.
    lead, sketch, n_candidates, recall, adaptive : as there
        For every shard. A requested recall is kept by each for its own points.
    metric, p, metric_params, random_state : as there
        The metric as scikit-learn spells it, and the seed.
    n_jobs : int or None, default=None
        Threads of a shard. None is as many as BLAS may use on the worker.
    client : distributed.Client or None, default=None
        The client of the cluster. None is the current one of this process, or, if there
        is none, that of a cluster of threads, which is closed with the estimator.

    Attributes
    ----------
    client_ : distributed.Client
        The client in use.
    components_ : ndarray of shape (k, n_features)
        U of the metric as it is now.
    n_samples_fit_ : int
        Number of points.
    shard_sizes_ : tuple of int
        Number of points of each shard.
    n_features_in_, feature_names_in_
        As in all estimators of scikit-learn.

    Examples
    --------
    >>> import dask.array as da
    >>> import numpy as np
    >>> from skmahal.dask import SketchedMahalanobisNeighbors
    >>> X = da.random.default_rng(0).normal(size=(1000, 8), chunks=(250, 8))
    >>> index = SketchedMahalanobisNeighbors(2).fit(X)
    >>> index.shard_sizes_
    (250, 250, 250, 250)
    >>> index = index.update_metric(low_rank=(np.ones(8), np.ones(8)))
    >>> index.kneighbors(X[:2].compute(), return_distance=False)[:, 0]
    array([0, 1])
    >>> index.close()
    """

    _local_class = neighbors.SketchedMahalanobisNeighbors
    _parameter_constraints = {
        **KNeighborsQueries._parameter_constraints,
        "radius": _CONSTRAINTS["radius"],
    }

    def __init__(
        self,
        n_neighbors=5,
        *,
        radius=1.0,
        metric_learner=None,
        m="auto",
        L=10,
        R="auto",
        eps=0.2,
        delta=0.01,
        lead="auto",
        sketch="gaussian",
        n_candidates="exact",
        recall=None,
        adaptive=False,
        metric="minkowski",
        p=2,
        metric_params=None,
        random_state=None,
        n_jobs=None,
        client=None,
    ):
        self.n_neighbors = n_neighbors
        self.radius = radius
        self.metric_learner = metric_learner
        self.m = m
        self.L = L
        self.R = R
        self.eps = eps
        self.delta = delta
        self.lead = lead
        self.sketch = sketch
        self.n_candidates = n_candidates
        self.recall = recall
        self.adaptive = adaptive
        self.metric = metric
        self.p = p
        self.metric_params = metric_params
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.client = client

    @fit_context(prefer_skip_nested_validation=False)
    def fit(self, X, y=None):
        """Index the points, one shard for every chunk. O(nkd), on all workers.

        Parameters
        ----------
        X : dask array or DataFrame, or array-like, of shape (n_samples, n_features)
            Points, in chunks of whole rows. A NumPy array is split, and stays in the
            memory of the scheduler.
        y : None
            Ignored.

        Returns
        -------
        self : object
        """
        with undo_on_error(self):
            self._begin(X, None)
        return self

    @fit_context(prefer_skip_nested_validation=False)
    def partial_fit(self, X, y=None):
        """Add points at the end; the first call is `fit`.

        Few rows of an array go to the last shard, O(kd) each. A dask array makes new
        shards, and so do rows with which the last one would be the largest.

        Parameters
        ----------
        X, y : as in :meth:`fit`
            Points to add.

        Returns
        -------
        self : object
        """
        if "_state" not in vars(self):
            return self.fit(X)
        self._append(self._points(X))
        return self

    def update_points(self, indices, X):
        """Replace points. O(kd) each, on their shards.

        Parameters
        ----------
        indices : int, array-like of int, or array-like of bool
            Positions, each at most once, or a mask.
        X : array-like of shape (n_points, n_features)
            The new points.

        Returns
        -------
        self : object
        """
        self._fitted()
        self._replace(indices, np.asarray(self._points(X)))
        return self

    def radius_neighbors(
        self, X, radius=None, return_distance=True, sort_results=False
    ):
        """Find all points within a distance, exactly.

        Parameters
        ----------
        X : array-like of shape (n_queries, n_features)
            Queries.
        radius, return_distance, sort_results : as in skmahal
            The distance, and whether to return the distances and to sort by them.

        Returns
        -------
        neigh_dist, neigh_ind : ndarrays of shape (n_queries,) of arrays
            Distances, only with `return_distance`, and positions of the points.
        """
        state, Q = self._fitted(), np.asarray(self._queries(X))
        radius = checks.as_length("radius", self.radius if radius is None else radius)
        found = self._ask_all(state, "radius_neighbors", Q, radius)
        distances, indices = (np.empty(len(Q), dtype=object) for _ in range(2))
        for query in range(len(Q)):
            near = np.concatenate([part[0][query] for part in found])
            places = zip(found, state.starts[:-1], strict=True)
            at = np.concatenate([part[1][query] + start for part, start in places])
            if sort_results:
                order = np.lexsort((at, near))
                near, at = near[order], at[order]
            distances[query], indices[query] = near, at
        return (distances, indices) if return_distance else indices

    def distances(self, X):
        """Distances from each query to all points, within 1 ± `eps`, when computed.

        Parameters
        ----------
        X : array-like or dask array of shape (n_queries, n_features)
            Queries.

        Returns
        -------
        distances : dask array of shape (n_queries, n_samples_fit)
            A lazy array, in chunks of queries and shards, as of the present state of
            the index. A chunk costs what it costs a local index.
        """
        state, X = self._fitted(), self._queries(X)
        if not isinstance(X, da.Array):
            X = da.from_array(X, chunks=(-1, -1))
        far = dask.delayed(answer_later, pure=False)
        shards, sizes = self._later(state), np.diff(state.starts).tolist()
        blocks = []
        for block, count in zip(X.to_delayed()[:, 0], X.chunks[0], strict=True):
            found = [far(*shard, "distances", block) for shard in shards]
            pairs = zip(found, sizes, strict=True)
            blocks.append(
                [da.from_delayed(one, (count, n), self.dtype_) for one, n in pairs]
            )
        return da.block(blocks)

    def pair_distances(self, i, j):
        """Exact distances between points of the index. O(kd) each, at the client.

        Parameters
        ----------
        i, j : int or array-like of int
            Positions of the points; broadcast against each other.

        Returns
        -------
        distances : float or ndarray
        """
        state = self._fitted()
        i, j, shape = checks.as_pairs(i, j, int(state.starts[-1]))
        found = np.empty(len(i), self.dtype_)
        for here in slices(len(i), _PAIRS):
            rows, where = self._rows(state, np.concatenate([i[here], j[here]]))
            first, second = rows[where].reshape(2, -1, rows.shape[1])
            found[here] = pair_distances(first, second, state.U)
        return found.reshape(shape) if shape else found[0]

    def sum_distances(self, X, start=0, stop=None, power=2):
        """Sum exact ``distance ** power`` from each query to a range of points.

        Parameters
        ----------
        X : array-like of shape (n_queries, n_features)
            Queries.
        start, stop, power : as in skmahal
            The range of points, and whether to sum distances or their squares.

        Returns
        -------
        sums : ndarray of shape (n_queries,)
        """
        state, Q = self._fitted(), np.asarray(self._queries(X))
        checks.as_choice("power", power, (1, 2))
        n = int(state.starts[-1])
        start = checks.as_count("start", start, least=0, most=n)
        stop = n if stop is None else checks.as_count("stop", stop, least=start, most=n)
        calls = []
        for number, first in enumerate(state.starts[:-1].tolist()):
            size = state.shards[number].n
            inside = max(start - first, 0), min(stop - first, size)
            if inside[0] < inside[1]:
                calls.append((number, "sum_distances", Q, *inside, power))
        return np.sum([np.zeros(len(Q)), *self._ask(calls, state)], axis=0)

    def sample(self, X, n_samples=1, power=1, random_state=None):
        """Draw points with probability exactly proportional to their distance.

        A shard is drawn by the bound at the root of its tree, and then a point by a
        walk down the tree, which is rejected as a whole with the probability that the
        bounds are too large by. So no shard reads all its points.

        Parameters
        ----------
        X : array-like of shape (n_queries, n_features)
            Queries.
        n_samples, power, random_state : as in skmahal
            Draws for each query, 2 for squares of the distance, and a seed.

        Returns
        -------
        indices : ndarray of shape (n_queries, n_samples)
            Positions of the points drawn. Uniform if all distances are zero.
        """
        state, Q = self._fitted(), np.asarray(self._queries(X))
        size = checks.as_count("n_samples", n_samples)
        checks.as_choice("power", power, (1, 2))
        rng = generator_from(random_state)
        weights = self._shard_sums(state, Q, 2)
        if power == 2:
            return self._drawn(state, Q, weights, size, rng, "sample", 2)
        weights = np.sqrt(weights * np.diff(state.starts))
        draws, left = np.full((len(Q), size), -1, dtype=np.intp), np.arange(len(Q))
        for _ in range(_ROUNDS):
            tried = int(_TRIED * np.count_nonzero(draws < 0, axis=1).max()) + 1
            found = self._drawn(state, Q[left], weights[left], tried, rng, "attempts")
            _fill(draws, left, found)
            left = np.flatnonzero((draws < 0).any(axis=1))
            if not left.size:
                return draws
        # Bounds that are far too large: the sums of all distances are not.
        weights = self._shard_sums(state, Q[left], 1)
        _fill(draws, left, self._drawn(state, Q[left], weights, size, rng, "sample", 1))
        return draws

    def _shard_sums(self, state, Q, power):
        """Sums of powers of distances to each shard, (queries, shards)."""
        sums = self._ask_all(state, "sum_distances", Q, 0, None, power)
        return np.maximum(np.stack(sums, axis=1), 0)

    def _drawn(self, state, Q, weights, size, rng, method, *power):
        """Positions, (queries, size): shards by their weights, points by a method."""
        sizes = np.diff(state.starts)
        # Where all distances are zero, points are drawn uniformly.
        weights = np.where(weights.any(axis=1)[:, np.newaxis], weights, sizes)
        owners = np.stack([draw(row, size, rng) for row in weights])
        calls, served = [], []
        for number in np.unique(owners).tolist():
            counts = np.count_nonzero(owners == number, axis=1)
            queries, seed = np.flatnonzero(counts), int(rng.integers(1 << 32))
            rest = Q[queries], int(counts.max()), *power, seed
            calls.append((number, method, *rest))
            served.append(queries)
        draws = np.full(owners.shape, -1, dtype=np.intp)
        answers = zip(calls, served, self._ask(calls, state), strict=True)
        for (number, *_), queries, found in answers:
            found = np.where(found < 0, -1, found + state.starts[number])
            for query, row in zip(queries, found, strict=True):
                mine = np.flatnonzero(owners[query] == number)
                draws[query, mine] = row[: len(mine)]
        return draws

    def audit(self, n_pairs=1000, random_state=None):
        """Compare estimated distances with exact ones, on every shard.

        Parameters
        ----------
        n_pairs : int, default=1000
            Number of pairs of points, drawn from the shards in proportion to their
            sizes.
        random_state : int, RandomState instance or None, default=None
            Determines the pairs.

        Returns
        -------
        audit : Audit
            As that of a local index, for the pairs of all shards. Its `recall` is that
            of the shard with the smallest one.
        """
        state, n_pairs = self._fitted(), checks.as_count("n_pairs", n_pairs)
        rng, sizes = generator_from(random_state), np.diff(state.starts)
        counts = np.maximum(rng.multinomial(n_pairs, sizes / sizes.sum()), 1)
        seeds = rng.integers(1 << 32, size=len(sizes))
        pairs = zip(counts.tolist(), seeds.tolist(), strict=True)
        calls = [(number, "audit", *pair) for number, pair in enumerate(pairs)]
        found = self._ask(calls, state)
        recalls = [audit.recall for audit in found if audit.recall is not None]
        worst = min(recalls, key=lambda one: (one.passed, one.least), default=None)
        pools = (
            _pooled([getattr(each, name) for each in found], self.eps, self.delta)
            for name in ("random", "recent")
        )
        return Audit(*pools, self.eps, worst)

    def guarantee(self, n_queries=1000):
        """State what the index promises at present, in numbers and in words.

        Parameters
        ----------
        n_queries : int, default=1000
            As for a local index.

        Returns
        -------
        guarantee : Guarantee
            Probabilities are sums over the shards, bytes are those of all, and seconds
            those of the slowest. See :class:`skmahal.inspection.Guarantee`.
        """
        state, n_queries = self._fitted(), checks.as_count("n_queries", n_queries)
        return _together(self._ask_all(state, "guarantee", n_queries), self.delta)


def _fill(draws, queries, found):
    """Fill in draws that are missing by those that were found, in order."""
    for query, row in zip(queries, found, strict=True):
        missing = np.flatnonzero(draws[query] < 0)
        accepted = row[row >= 0][: len(missing)]
        draws[query, missing[: len(accepted)]] = accepted


def _pooled(audits, eps, delta):
    """One audit of the pairs of all shards; None if there are none."""
    audits = [audit for audit in audits if audit is not None]
    if not audits:
        return None
    ratios = np.concatenate([audit.sample for audit in audits])
    if not len(ratios):
        # All pairs are of equal points.
        return min(audits, key=lambda audit: audit.passed)
    promised = max(audit.promised for audit in audits)
    return audit_pairs(ratios, np.ones(len(ratios)), eps, promised, delta)


def _together(found, delta):
    """The guarantee of all shards, from those of each."""
    engines = {each.engine for each in found}
    engine = next(one for one in ("sketched", "enclosed", "exact") if one in engines)
    sides = {}
    for side in ("fixed", "adaptive"):
        columns = zip(*(getattr(each, side) for each in found), strict=True)
        total = [min(1.0, sum(column)) for column in columns]
        # Pairs are not estimated here.
        sides[side] = type(found[0].fixed)(*total)._replace(pair_distances=0.0)
    recalls = [each.recall for each in found if each.recall is not None]
    costs = {}
    for way in set.intersection(*(set(each.costs) for each in found)):
        sizes, *times = zip(*(each.costs[way] for each in found), strict=True)
        slowest = (max(filter(None, each), default=None) for each in times)
        costs[way] = sum(sizes), *slowest
    return replace(
        found[0],
        engine=engine,
        n=sum(each.n for each in found),
        delta=delta,
        recall=min(recalls, key=lambda one: one.least, default=None),
        enough_sketches=all(each.enough_sketches for each in found),
        costs=costs,
        **sides,
    )


class SupervisedQueries(KNeighborsQueries):
    """Points with targets, and predictions from the targets of neighbours."""

    _parameter_constraints = {
        **KNeighborsQueries._parameter_constraints,
        "weights": neighbors.SketchedMahalanobisRegressor._parameter_constraints[
            "weights"
        ],
    }

    def __init__(
        self,
        n_neighbors=5,
        *,
        weights="uniform",
        metric_learner=None,
        m="auto",
        L=10,
        R="auto",
        eps=0.2,
        delta=0.01,
        lead="auto",
        sketch="gaussian",
        n_candidates="exact",
        recall=None,
        adaptive=False,
        metric="minkowski",
        p=2,
        metric_params=None,
        random_state=None,
        n_jobs=None,
        client=None,
    ):
        self.n_neighbors = n_neighbors
        self.weights = weights
        self.metric_learner = metric_learner
        self.m = m
        self.L = L
        self.R = R
        self.eps = eps
        self.delta = delta
        self.lead = lead
        self.sketch = sketch
        self.n_candidates = n_candidates
        self.recall = recall
        self.adaptive = adaptive
        self.metric = metric
        self.p = p
        self.metric_params = metric_params
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.client = client

    @fit_context(prefer_skip_nested_validation=False)
    def fit(self, X, y):
        """Index the points with their targets, one shard for every chunk. O(nkd).

        Parameters
        ----------
        X : as in :meth:`SketchedMahalanobisNeighbors.fit`
            Points.
        y : dask array or array-like of shape (n_samples,) or (n_samples, n_outputs)
            Targets.

        Returns
        -------
        self : object
        """
        with undo_on_error(self):
            looks = self._begin(X, self._targets(y))
            self._output_shape = looks[0].outputs
            self._take([look.labels for look in looks], reset=True)
        return self

    @fit_context(prefer_skip_nested_validation=False)
    def partial_fit(self, X, y):
        """Add points with targets at the end; the first call is `fit`.

        Parameters
        ----------
        X, y : as in :meth:`fit`
            Points to add, and their targets.

        Returns
        -------
        self : object
        """
        if "_state" not in vars(self):
            return self.fit(X, y)
        self._fitted()
        X = self._points(X)
        y = self._targets(y, len(X), at_client=not isinstance(X, da.Array))
        with self._lock, undo_on_error(self):
            looks = self._append(X, y)
            lists = [look.labels for look in looks] or [labels_of(y)]
            self._take(lists if self._has_labels else [])
        return self

    def update_points(self, indices, X, y):
        """Replace points and their targets. O(kd) each, on their shards.

        Parameters
        ----------
        indices : int, array-like of int, or array-like of bool
            Positions, each at most once, or a mask.
        X, y : array-like
            The new points and their targets.

        Returns
        -------
        self : object
        """
        self._fitted()
        X = np.asarray(self._points(X))
        y = self._targets(y, len(X), at_client=True)
        with self._lock, undo_on_error(self):
            self._replace(indices, X, y)
            self._take([labels_of(y)] if self._has_labels else [])
        return self

    def predict(self, X):
        """Predict from the targets of the neighbours; cost as in :meth:`kneighbors`.

        Parameters
        ----------
        X : array-like or dask array of shape (n_queries, n_features)
            Queries.

        Returns
        -------
        y : ndarray or dask array of shape (n_queries,) or (n_queries, n_outputs)
            For a dask array a lazy one.
        """
        return self._decided(X, "winner")[0]

    def _targets(self, y, count=None, at_client=False):
        """Targets as a dask array or an array: `count`, like those that there are."""
        if y is None:
            raise ValueError("y must be given: one target for each point.")
        if hasattr(y, "to_dask_array"):
            y = y.to_dask_array(lengths=True)
        if at_client and isinstance(y, da.Array):
            y = self.client_.compute(y).result()
        if not isinstance(y, da.Array):
            y = np.asarray(y)
            if not self._has_labels:
                y = checks.as_array("y", y, np.float64)
                checks.check_finite("y", y)
            elif y.dtype.kind in "fO":
                labels_of(y)
        if y.ndim not in (1, 2):
            raise ValueError(f"y must have one or two dimensions, got shape {y.shape}.")
        if count is not None and y.shape[1:] != self._output_shape:
            expected = (len(y), *self._output_shape)
            raise ValueError(f"y has shape {y.shape}, expected {expected}.")
        if count is not None and len(y) != count:
            raise ValueError(f"y has {len(y)} targets, expected {count}.")
        return y

    def _decided(self, X, result):
        """Predictions for every output, in a list of one if these are in one array."""
        state, X = self._fitted(), self._queries(X)
        K = min(checks.as_count("n_neighbors", self.n_neighbors), int(state.starts[-1]))
        self._searched(K)
        if not isinstance(X, da.Array):
            D, _, targets = self._nearest(state, X, K, with_targets=True)
            return decided((D, None, targets), self.weights, self._decider(), result)
        found, sizes = self._neighbours_later(state, X, K, with_targets=True)
        # What the decision about no neighbours has the shape of.
        nothing = np.ones((1, 1), self.dtype_), None, self._some_target()
        like = decided(nothing, None, self._decider(), result)
        decide = dask.delayed(decided, nout=len(like), pure=False)
        parts = [decide(one, self.weights, self._decider(), result) for one in found]
        return [
            lazy_rows(parts, sizes, at, one.shape[1:], one.dtype)
            for at, one in enumerate(like)
        ]


def decided(found, weights, decider, result):
    """A task: what a decider makes of the distances and targets of neighbours."""
    D, _, targets = found
    return decider.decide(targets, neighbour_weights(D, weights), result)


class Means(NamedTuple):
    """Regression: the mean of targets."""

    outputs_2d_: bool

    def decide(self, targets, weights, _):
        return _mean_targets(self, targets.reshape(*targets.shape[:2], -1), weights)


class Votes:
    """Classification: the votes of labels."""

    def __init__(self, classes, outputs_2d):
        self._classes, self.outputs_2d_ = classes, outputs_2d

    def _class_weights(self, output):
        return 1.0

    def decide(self, labels, weights, result):
        codes = np.empty((*labels.shape[:2], len(self._classes)), np.intp)
        labels = labels.reshape(codes.shape)
        for output, classes in enumerate(self._classes):
            codes[..., output].flat = codes_of(labels[..., output].ravel(), classes)
        return _vote(self, codes, weights, result)


class SketchedMahalanobisClassifier(ClassifierMixin, SupervisedQueries):
    """Classify by the neighbours under a changing metric, of points on a Dask cluster.

    The counterpart of :class:`skmahal.SketchedMahalanobisClassifier`, without weights
    of points or classes, and without points that have no label.

    Parameters
    ----------
    n_neighbors, weights : as in skmahal
        See :class:`skmahal.SketchedMahalanobisClassifier`.
    metric_learner, m, L, R, eps, delta, lead, sketch, n_candidates : as in this module
        See :class:`SketchedMahalanobisNeighbors`.
    recall, adaptive, metric, p, metric_params, random_state, n_jobs, client : as there
        See :class:`SketchedMahalanobisNeighbors`.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,), or a list of them for several outputs
        The classes, in ascending order. Labels that come later may add to them.
    client_, components_, n_samples_fit_, shard_sizes_ and others
        As in :class:`SketchedMahalanobisNeighbors`.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from skmahal.dask import SketchedMahalanobisClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> knn = SketchedMahalanobisClassifier().fit(X[::2], y[::2])
    >>> round(knn.score(X[1::2], y[1::2]), 2)
    0.99
    >>> knn.close()
    """

    _has_labels = True
    _local_class = neighbors.SketchedMahalanobisClassifier

    def predict_proba(self, X):
        """Predict the share of each class in the votes; cost as in :meth:`kneighbors`.

        Parameters
        ----------
        X : as in :meth:`predict`
            Queries.

        Returns
        -------
        p : ndarray or dask array of shape (n_queries, n_classes), or a list of them
            Shares, in the order of `classes_`.
        """
        shares = self._decided(X, "shares")
        return shares if len(self._output_shape) else shares[0]

    @property
    def classes_(self):
        """The classes in ascending order, or a list of them for several outputs."""
        check_is_fitted(self, "_state")
        classes = [np.sort(known) for known in self._classes]
        return classes if len(self._output_shape) else classes[0]

    def _take(self, lists, reset=False):
        """Take the labels of new points as classes; `lists` has those of all chunks."""
        columns = [np.concatenate(each) for each in zip(*lists, strict=True)]
        if reset:
            self._classes = [np.unique(column) for column in columns]
            check_classification_targets(np.concatenate(self._classes))
            return
        pairs = zip(self._classes, columns, strict=True)
        self._classes = [with_new_classes(*pair) for pair in pairs]

    def _decider(self):
        return Votes(self._classes, len(self._output_shape) == 1)

    def _some_target(self):
        return np.array([known[0] for known in self._classes]).reshape(
            1, 1, *self._output_shape
        )


class SketchedMahalanobisRegressor(RegressorMixin, SupervisedQueries):
    """Regress on the neighbours under a changing metric, of points on a Dask cluster.

    The counterpart of :class:`skmahal.SketchedMahalanobisRegressor`, without weights of
    points.

    Parameters
    ----------
    n_neighbors, weights : as in skmahal
        See :class:`skmahal.SketchedMahalanobisRegressor`.
    metric_learner, m, L, R, eps, delta, lead, sketch, n_candidates : as in this module
        See :class:`SketchedMahalanobisNeighbors`.
    recall, adaptive, metric, p, metric_params, random_state, n_jobs, client : as there
        See :class:`SketchedMahalanobisNeighbors`.

    Attributes
    ----------
    client_, components_, n_samples_fit_, shard_sizes_ and others
        As in :class:`SketchedMahalanobisNeighbors`.

    Examples
    --------
    >>> from skmahal.dask import SketchedMahalanobisRegressor
    >>> X, y = [[0.0], [1.0], [2.0], [3.0]], [0.0, 1.0, 4.0, 9.0]
    >>> knn = SketchedMahalanobisRegressor(2).fit(X, y)
    >>> knn.predict([[0.4], [2.6]])
    array([0.5, 6.5])
    >>> knn.close()
    """

    _local_class = neighbors.SketchedMahalanobisRegressor

    def _take(self, lists, reset=False):
        """Targets are numbers, of which nothing is held."""

    def _decider(self):
        return Means(len(self._output_shape) == 1)

    def _some_target(self):
        return np.zeros((1, 1, *self._output_shape))

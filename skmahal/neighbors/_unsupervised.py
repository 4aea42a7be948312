"""The index as an unsupervised estimator."""

from collections import deque
from copy import copy
from numbers import Real
from weakref import WeakKeyDictionary

import numpy as np
from scipy import sparse

from skmahal._compat import Interval, fit_context
from skmahal._core import bounds
from skmahal._core.checks import as_choice, as_count
from skmahal._core.guarantees import Audit, audit_pairs, relative_errors
from skmahal._core.threads import slices
from skmahal._estimator import generator_from, validated

from ._base import (
    ROWS,
    KNeighborsQueries,
    RadiusNeighborsQueries,
    SketchedNeighborsBase,
    memory,
    workers,
)

# Recent queries of every index, for its audit: so many, or as many as fit these bytes.
# They are not attributes, so that no pickle and no deep copy of an index has them.
_MOST_ROWS, _MOST_BYTES = 64, 1 << 20
_RECENT = WeakKeyDictionary()


class UnlabelledNeighborsBase(SketchedNeighborsBase):
    """An index of points without targets."""

    @fit_context(prefer_skip_nested_validation=False)
    def fit(self, X, y=None):
        """Learn the metric and index the points. O(nkd).

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Points. A copy is kept.
        y : array-like of shape (n_samples,), default=None
            Targets, for a `metric_learner` that needs them.

        Returns
        -------
        self : object
        """
        fitted = copy(self)
        fitted._build(validated(fitted, X, reset=True, **ROWS), y)
        self.__dict__ = vars(fitted)
        return self

    @fit_context(prefer_skip_nested_validation=False)
    def partial_fit(self, X, y=None):
        """Add points at the end. O(k(d + lead + Lm)) each; the first call is `fit`.

        Parameters
        ----------
        X, y : as in :meth:`fit`
            Points to add, and targets for a `metric_learner` that needs them in the
            first call, or that learns online and continues; no other is fitted again.

        Returns
        -------
        self : object
        """
        if not hasattr(self, "_maintenance"):
            return self.fit(X, y)
        self._append(validated(self, X, reset=False, **ROWS), y)
        return self

    def update_points(self, indices, X):
        """Replace points. O(k(d + lead + Lm) + d log n) each.

        Parameters
        ----------
        indices : int or array-like of shape (n_points,)
            Positions, each at most once.
        X : {array-like, sparse matrix} of shape (n_points, n_features)
            The new points.

        Returns
        -------
        self : object
        """
        self._fitted()
        self._replace(indices, validated(self, X, reset=False, **ROWS))
        return self


class SketchedMahalanobisNeighbors(
    KNeighborsQueries, RadiusNeighborsQueries, UnlabelledNeighborsBase
):
    r"""Nearest neighbours under a Mahalanobis metric that keeps changing.

    The metric is :math:`d(x, z) = \|U(x - z)\|`. Neighbours are exact: bounds from
    8-bit codes, which do not depend on the metric, exclude most points with certainty.
    Distances to all points are estimated from random sketches of the points under U.
    When the metric or the points change, the index is updated and not built again.

    Parameters
    ----------
    n_neighbors : int, default=5
        Number of neighbours that :meth:`kneighbors` finds.
    radius : float, default=1.0
        Distance within which :meth:`radius_neighbors` finds points.
    metric_learner : None, array-like of shape (k, n_features), dict, or estimator
        The matrix U. None is the Euclidean metric. An estimator is cloned, fitted with
        the data given to `fit`, and its `components_` are U; one wrapped in
        :class:`sklearn.frozen.FrozenEstimator` is used as it is. A symmetric array that
        is not diagonal is used with a warning: it is nearly always another matrix. A
        dictionary says which one: ``{"U": U}``, or a keyword of
        :func:`components_from`.
    m : int or "auto", default="auto"
        Rows of a sketch. Sketches serve :meth:`distances`, :meth:`pair_distances` and
        :meth:`score`, and :meth:`kneighbors` if `n_candidates` is not "exact". "auto"
        is the smallest number for which L sketches keep the promise of `distances`.
    L : int, default=10
        Number of sketches. More of them withstand queries that are chosen by earlier
        estimates for longer.
    R : int or "auto", default="auto"
        Sketches that serve a query. "auto" is as few as the promise allows.
    eps : float, default=0.2
        Relative error of an estimated distance.
    delta : float, default=0.01
        Probability that the estimates of a query, or its certified neighbours, break
        their promise.
    lead : int or "auto", default="auto"
        Leading directions that are kept exactly and not sketched; "auto" chooses from
        the spectrum of a sample of points. 0 is the structure of the paper.
    sketch : {"gaussian", "rademacher", "countsketch", "srht"}, default="gaussian"
        Distribution of the sketches; the last two have weaker bounds.
    n_candidates : "exact", "certified" or int, default="exact"
        How :meth:`kneighbors` searches. "exact" finds the nearest points with
        certainty. "certified" excludes points by their sketches, and finds the nearest
        points with probability at least 1 - `delta` per query. An integer is the number
        of points, those of smallest estimate, whose exact distances are computed, and
        nothing is promised. If `engine_` is "exact", all three are exact.
    random_state : int, RandomState instance or None, default=None
        Determines the sketches and the secret key that assigns them to queries. An int
        gives the same estimates on every run; None is a seed of the operating system.
    n_jobs : int or None, default=None
        Threads over the queries of a call. None is as many as BLAS may use.

    Attributes
    ----------
    components_ : ndarray of shape (k, n_features)
        U of the metric as it is now, in float64.
    m_, L_, R_, lead_ : int
        The parameters of these names, with numbers in place of "auto".
    engine_ : {"sketched", "exact"}
        Whether distances are estimated: "exact" if ``m_ * R_ + lead_ >= k``.
    metric_learner_ : estimator or None
        The fitted estimator; it stays when `update_metric` changes the metric.
    n_samples_fit_ : int
        Number of points in the index.
    n_features_in_, feature_names_in_
        As in all estimators of scikit-learn.

    Notes
    -----
    The structure inside is a :class:`MetricMaintenance`. `fit` costs O(nkd); sketches
    are computed when they are first used, O(nkm) each. The sketches and the key that
    chooses among them are secrets: somebody who knows them can choose queries whose
    estimates are wrong. An int `random_state` determines both, and pickles of a fitted
    index contain both. :meth:`guarantee` says what holds for anybody else.

    Points of float32 are stored in float32, those of any other type in float64. Later
    points and queries are rounded to that type. Threads may query an index while others
    change it; every result is that of one version of points and metric.

    Examples
    --------
    >>> import numpy as np
    >>> from skmahal import SketchedMahalanobisNeighbors
    >>> rng = np.random.default_rng(0)
    >>> X, U = rng.normal(size=(500, 400)), rng.normal(size=(300, 400))
    >>> index = SketchedMahalanobisNeighbors(3, metric_learner=U, random_state=0).fit(X)
    >>> index = index.update_metric(rng.normal(size=(2, 400)), rows=[0, 5])
    >>> index = index.partial_fit(X[:1] + 1e-3)
    >>> index.kneighbors(X[:1], 2, return_distance=False)
    array([[  0, 500]])
    """

    _parameter_constraints = {
        **UnlabelledNeighborsBase._parameter_constraints,
        "radius": [Interval(Real, 0, None, closed="both")],
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
        random_state=None,
        n_jobs=None,
    ):
        self.n_neighbors = n_neighbors
        self.radius = radius
        self.metric_learner = metric_learner
        self.m, self.L, self.R = m, L, R
        self.eps, self.delta = eps, delta
        self.lead = lead
        self.sketch = sketch
        self.n_candidates = n_candidates
        self.random_state = random_state
        self.n_jobs = n_jobs

    def distances(self, X):
        """Estimate the distances from each query to all points of the index.

        All distances of a query are within 1 ± `eps` of the exact ones with probability
        at least 1 - `delta`, if `m` and `R` are "auto". If `engine_` is "exact" they
        are exact. A query costs O(kd + R(mk + nm) + n lead).

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_queries, n_features)
            Queries.

        Returns
        -------
        distances : ndarray of shape (n_queries, n_samples_fit)
            The estimates.
        """
        held = self._fitted()
        Q = self._queries(X, held.index)
        with held.index.lock.reading():
            distances = self._distances(held, Q)
        self._remember(held, Q)
        return distances

    def pair_distances(self, i, j):
        """Estimate distances between points of the index. O(mR + lead) each.

        Parameters
        ----------
        i, j : int or array-like of int
            Positions of the points; broadcast against each other.

        Returns
        -------
        distances : float or ndarray
            One estimate per pair, each within 1 ± `eps` with probability at least
            1 - `delta`; exact if `engine_` is "exact".
        """
        held = self._fitted()
        with held.index.lock.reading():
            if self.engine_ == "sketched":
                return held.query_pair(i, j)
            return held.exact_pair(i, j)

    def sample(self, X, n_samples=1, power=1, random_state=None):
        """Draw points with probability exactly proportional to their distance.

        O(kd) per query and O(d log n) per draw, expected; the first call after `fit`
        builds a tree in O(nd).

        Parameters
        ----------
        X : as in :meth:`distances`
            Queries.
        n_samples : int, default=1
            Draws for each query, with replacement.
        power : {1, 2}, default=1
            Proportional to the distance, or to its square as for k-means++.
        random_state : int, RandomState instance or None, default=None
            None draws afresh on every call.

        Returns
        -------
        indices : ndarray of shape (n_queries, n_samples)
            Positions of the points drawn. Uniform if all distances are zero.
        """
        index = self._fitted().index
        n_samples = as_count("n_samples", n_samples)
        as_choice("power", power, (1, 2))
        rng = generator_from(random_state)
        return index.sample(self._queries(X, index), n_samples, power, rng)

    def sum_distances(self, X, start=0, stop=None, power=2):
        """Sum exact ``distance ** power`` from each query to a range of points.

        O(kd + d log n) per query for squares, O(kd + (stop - start) d) for distances.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_queries, n_features)
            Queries.
        start, stop : int, default=0, None
            The points start … stop - 1; None is the number of points.
        power : {1, 2}, default=2
            Sum distances, or their squares.

        Returns
        -------
        sums : ndarray of shape (n_queries,)
        """
        index = self._fitted().index
        as_choice("power", power, (1, 2))
        Q = self._queries(X, index)
        with index.lock.reading():
            n = index.n
            start = as_count("start", start, least=0, most=n)
            stop = n if stop is None else as_count("stop", stop, least=start, most=n)
            return index.sums(Q, start, stop, power)

    def score(self, X, y=None):
        """Mean accuracy of estimated distances: 1 - relative error. O(kd + nd) each.

        Parameters
        ----------
        X, y : as in :meth:`distances`, and None
            Queries; y is ignored.

        Returns
        -------
        score : float
            1 for exact distances; an estimate of zero for zero counts as exact.
        """
        held = self._fitted()
        index, errors = held.index, []
        Q = self._queries(X, index)
        with index.lock.reading():
            step = max(1, int(memory() // (16 * index.n)))
            for rows in slices(Q.shape[0], step):
                exact = held.exact_all(Q[rows])
                found = relative_errors(self._distances(held, Q[rows]), exact)
                errors.append(found.mean(axis=1))
        return float(1 - np.mean(np.concatenate(errors)))

    def audit(self, n_pairs=1000, random_state=None):
        """Compare estimated distances with exact ones, and judge the sketches in use.

        Two pools of pairs are examined: all pairs of points, and recent queries that
        sketches have served with the `n_neighbors` points that are nearest to them now.
        Sketches that pass on the first pool and fail on the second have been learned
        from their estimates; :meth:`refresh_sketches` is the remedy.

        Parameters
        ----------
        n_pairs : int, default=1000
            Number of pairs, drawn with replacement from each pool.
        random_state : int, RandomState instance or None, default=None
            Determines the pairs.

        Returns
        -------
        audit : Audit
            `random` and `recent` are results on each pool, of the class
            :class:`skmahal.inspection.PairAudit`; `recent` is None if there was no such
            query since `fit` or loading. `passed` is False if one of them failed.

        Notes
        -----
        O(kd) per pair of points; O(kd + nd) for each recent query, of which there are
        64 or as many as fit 1 MiB: those of :meth:`distances`, and of `kneighbors` if
        `n_candidates` is not "exact". No pickle and no deep copy has them.

        Pairs are drawn independently, and so given the sketches their number outside
        1 ± `eps` is binomial. Sketches that are as promised fail on a pool with
        probability at most 0.001 + `promised` / `allowed`, at most 0.001 + 1 / n if `m`
        and `R` are "auto"; on recent queries, if these did not depend on estimates.

        Examples
        --------
        >>> import numpy as np
        >>> from skmahal import SketchedMahalanobisNeighbors
        >>> X = np.random.default_rng(0).normal(size=(500, 1000))
        >>> index = SketchedMahalanobisNeighbors(random_state=0).fit(X)
        >>> audit = index.audit(random_state=0)
        >>> audit.passed, audit.random.outside, audit.recent
        (True, 0.0, None)
        """
        fitted = copy(self)
        held = fitted._fitted()
        n_pairs, rng = as_count("n_pairs", n_pairs), generator_from(random_state)
        with held.index.lock.reading():
            promised = float(bounds.failure(held.eps, held.m, held.R, held.sketch))
            i, j = rng.integers(held.n, size=(2, n_pairs))
            pools = [(fitted.pair_distances(i, j), held.exact_pair(i, j)), None]
            K = min(as_count("n_neighbors", fitted.n_neighbors), held.n)
            if recent := list(_recent_queries(held)):
                # The exact neighbours: a point that sketches hide must be seen.
                exact, near = held.index.kneighbors(np.stack(recent), K)
                estimates = [
                    fitted._distances(held, query[np.newaxis])[0, indices]
                    for query, indices in zip(recent, near, strict=True)
                ]
                drawn = rng.integers(exact.size, size=n_pairs)
                pools[1] = np.concatenate(estimates)[drawn], exact.ravel()[drawn]
        limits = held.eps, promised, held.delta
        judged = [pool and audit_pairs(*pool, *limits) for pool in pools]
        return Audit(*judged, held.eps)

    def _distances(self, held, Q):
        """Distances to all points, by whichever of the two ways costs less."""
        jobs, limited = workers(self.n_jobs, held.index, Q.shape[0])
        with limited:
            if self.engine_ == "sketched":
                return held.query_all(Q)
            return held.index.distances(Q, jobs)

    def _remember(self, held, Q):
        """Copy the last of some queries that sketches have served, for the audit."""
        if self.engine_ == "sketched":
            recent = _recent_queries(held)
            last = Q[-recent.maxlen :]
            last = last.toarray() if sparse.issparse(last) else last
            recent.extend(map(np.copy, last))


def _recent_queries(held):
    """The last queries that sketches of an index have served; used by all threads."""
    fitting = _MOST_BYTES // (held.d * held.dtype.itemsize)
    empty = deque(maxlen=max(1, min(_MOST_ROWS, fitting)))
    return _RECENT.setdefault(held, empty)

"""The index as an unsupervised estimator."""

from numbers import Real

import numpy as np
from scipy import sparse

from skmahal._compat import Interval
from skmahal._core import bounds
from skmahal._core.audit import Audit, audit_pairs, relative_errors
from skmahal._core.checks import as_count
from skmahal._random import generator_from

from ._queries import KNeighborsQueries, RadiusNeighborsQueries
from ._recent import RecentQueries
from ._unlabelled import UnlabelledNeighborsBase


class SketchedMahalanobisNeighbors(
    KNeighborsQueries, RadiusNeighborsQueries, UnlabelledNeighborsBase
):
    r"""Nearest neighbours under a Mahalanobis metric that keeps changing.

    The metric is :math:`d(x, z) = \|U(x - z)\|`. The index keeps random sketches of the
    points under U. They exclude most points from a neighbour search, and estimate the
    distances to all points; when the metric or the points change, they are updated and
    not built again. Where sketches would not save work the index is exact by itself.

    Parameters
    ----------
    n_neighbors : int, default=5
        Number of neighbours that :meth:`kneighbors` finds.
    radius : float, default=1.0
        Distance within which :meth:`radius_neighbors` finds points.
    metric_learner : None, array-like of shape (k, n_features), or estimator
        The matrix U. None is the Euclidean metric. An estimator is cloned, fitted with
        the data given to `fit`, and its `components_` are U; one wrapped in
        :class:`sklearn.frozen.FrozenEstimator` is used as it is.
    m : int or "auto", default="auto"
        Rows of a sketch. "auto" is the smallest number for which L sketches keep the
        promise of :meth:`distances`.
    L : int, default=10
        Number of sketches. More of them withstand queries that are chosen by earlier
        answers for longer.
    R : int or "auto", default="auto"
        Sketches that serve a query. "auto" takes as few as the promise of the operation
        allows: one for :meth:`kneighbors`, unless L is so large that its promise can be
        kept for adaptive queries too.
    eps : float, default=0.2
        Relative error of an estimated distance.
    delta : float, default=0.01
        Probability that an answer breaks its promise.
    lead : int or "auto", default="auto"
        Leading directions that are kept exactly and not sketched; "auto" chooses from
        the spectrum of a sample of points.
    sketch : {"gaussian", "rademacher", "countsketch", "srht"}, default="gaussian"
        Distribution of the sketches. The promises of the last two rest on weaker
        bounds, which cost pruning.
    n_candidates : int or "certified", default="certified"
        "certified" finds the exact neighbours with probability 1 - `delta`. An integer
        is the number of points, those of smallest estimate, whose exact distances are
        computed, and then nothing is promised.
    random_state : int, RandomState instance or None, default=None
        Determines the sketches and the secret key that assigns them to queries. An int
        gives the same answers on every run; None takes them from the operating system.
    n_jobs : int or None, default=None
        Threads over the queries of a call. None is one, and then BLAS uses its own.

    Attributes
    ----------
    components_ : ndarray of shape (k, n_features)
        The metric's U as of now.
    m_, L_, R_ : int
        Rows of a sketch, number of sketches, and sketches that serve a query for
        distances.
    lead_ : int
        Leading directions in use.
    engine_ : {"sketched", "exact"}
        The engine in use: exact where ``m R + lead >= k`` for a neighbour query.
    metric_learner_ : estimator or None
        The estimator that `fit` fitted, where `metric_learner` is one; it stays when
        `update_metric` changes the metric.
    n_samples_fit_ : int
        Number of points in the index.
    n_features_in_ : int
        Number of features seen in `fit`.
    feature_names_in_ : ndarray of shape (n_features,)
        Names of features seen in `fit`, where all of them are strings.

    See Also
    --------
    MahalanobisSketch : One sketch as a transformer.
    MetricMaintenance : The data structure, for arrays.

    Notes
    -----
    `fit` costs O(nkd) for the transformed rows; sketches are built when they are first
    used, O(nkm) each.

    The sketches, and the key that chooses among them, are secrets: who knows them can
    choose queries that they answer wrongly. They are in no parameter, text or error
    message, but whoever knows an int `random_state` can draw them again. Pickles of a
    fitted index contain both. :meth:`guarantee` says what holds against who merely sees
    answers.

    Points of native float32 are held in float32, and those of any other type in
    float64; the metric, later points and queries are rounded to that type before they
    are used, so that float64 queries on float32 points are answered in float32.

    Examples
    --------
    >>> import numpy as np
    >>> from skmahal import SketchedMahalanobisNeighbors
    >>> rng = np.random.default_rng(0)
    >>> X, U = rng.normal(size=(500, 400)), rng.normal(size=(300, 400))
    >>> index = SketchedMahalanobisNeighbors(3, metric_learner=U, random_state=0).fit(X)
    >>> index.kneighbors(X[:2], return_distance=False)[:, 0]
    array([0, 1])
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
        n_candidates="certified",
        random_state=None,
        n_jobs=None,
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
        self.random_state = random_state
        self.n_jobs = n_jobs

    def distances(self, X):
        """Estimate the distances from each query to all points of the index.

        All of a query's distances are within 1 ± `eps` of the truth with probability at
        least 1 - `delta`, where `m` and `R` are "auto". Where exact distances cost no
        more than estimates, ``m R + lead >= k``, they are exact. A query costs
        O(kd + R(mk + nm) + n lead).

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_queries, n_features)
            Queries.

        Returns
        -------
        distances : ndarray of shape (n_queries, n_samples_fit)
            The estimates.
        """
        self._check_fitted()
        X = self._points(X)
        distances = np.concatenate(self._in_batches(self._distances, X))
        self._remember(self._as_held(X[-self._recent.most :]))
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
            One estimate a pair, each within 1 ± `eps` with probability at least
            1 - `delta`.
        """
        self._check_fitted()
        with self._engine.reading():
            return self._pair_distances(i, j)

    def sample(self, X, n_samples=1, power=1, random_state=None):
        """Draw points with probability exactly proportional to their distance.

        O(kd) a query and O(k log n) a draw, expected; the first call after `fit` builds
        a tree in O(nk).

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_queries, n_features)
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
            Positions of the points drawn. Uniform where all distances are zero.
        """
        self._check_fitted()
        n_samples = as_count("n_samples", n_samples)
        rng = generator_from(random_state)
        X = self._points(X)
        parts = self._in_batches(
            lambda rows: self._engine.sample_exact(rows, n_samples, power, rng),
            # In one batch, so that draws do not depend on how queries are laid out.
            X if sparse.issparse(X) else np.ascontiguousarray(X),
            jobs=1,
        )
        return np.concatenate(parts)

    def sum_distances(self, X, start=0, stop=None, power=2):
        """Sum of exact ``distance ** power`` from each query to a range of points.

        O(kd + k log n) a query for squares, O(kd + (stop - start) k) for distances.

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
            The sums.
        """
        self._check_fitted()
        n = self.n_samples_fit_
        start = as_count("start", start, least=0, most=n)
        if stop is not None:
            stop = as_count("stop", stop, least=start, most=n)
        parts = self._in_batches(
            lambda rows: self._engine.sub_sum(rows, start, stop, power),
            self._points(X),
        )
        return np.concatenate(parts)

    def score(self, X, y=None):
        """Mean accuracy of the estimated distances: one less their relative error.

        O(nk) a query.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_queries, n_features)
            Queries.
        y : None
            Ignored.

        Returns
        -------
        score : float
            1 for exact distances. Distances that are zero count as exact where their
            estimate is zero.
        """
        self._check_fitted()
        return float(1 - np.mean(np.concatenate(self._errors(self._points(X)))))

    def audit(self, n_pairs=1000, random_state=None):
        """Hold estimated distances against exact ones, and judge the sketches in use.

        Two pools of pairs are looked at: all pairs of points of the index, and the last
        queries of :meth:`kneighbors` and :meth:`distances` with the `n_neighbors`
        points that are nearest to them now. Sketches that pass on the first and fail on
        the second have been learnt by who asks; :meth:`refresh_sketches` makes this
        worth nothing.

        Parameters
        ----------
        n_pairs : int, default=1000
            Number of pairs, drawn with replacement from each pool.
        random_state : int, RandomState instance or None, default=None
            Determines the pairs.

        Returns
        -------
        audit : Audit
            `random` and `recent` are what was found on each pool; the latter is None
            where nothing was asked since `fit`, or since the index was loaded. Each has
            `n_pairs`; `ratios`, quantiles of estimate over exact distance; `outside`,
            the share of pairs off by more than `eps`; `promised`, the probability that
            a pair is; `allowed`, the larger of `promised` and `delta`; `p_value`, the
            probability of as many pairs outside where a share `allowed` of the pool is;
            and `passed`, False where that is below 0.001. The audit itself has `passed`
            for both, and the others of `random`.

        Notes
        -----
        O(k) a pair of points; O(nk) for each of the recent queries, which are
        64 or as many as fit 1 MiB. They are held in memory alone: no pickle and no deep
        copy has them. Nothing is held where the engine is exact. A recent query is
        looked at with its `n_neighbors` nearest points, so that estimates of farther
        points that somebody has learnt to mislead are not seen.

        The test is exact: pairs are drawn independently, and so given the sketches
        their number outside is binomial. What it tests is that with these sketches at
        most a share `allowed` of the pool is off by more than `eps`. Sketches that are
        as promised fail on a pool with probability at most 0.001 + `promised` /
        `allowed`; with `m` and `R` at "auto" this is at most 0.001 + 1 / n. Where `m`
        or `R` was set so small that `promised` exceeds `delta`, that bound says
        nothing, and a failed audit says only that these sketches are worse than such
        sketches are on average. For recent queries the bound holds where they were not
        chosen by earlier answers. Few pairs cannot fail: of a share of 1 % it takes 3
        pairs outside of 10, and 22 of 1000.

        Examples
        --------
        >>> import numpy as np
        >>> from skmahal import SketchedMahalanobisNeighbors
        >>> X = np.random.default_rng(0).normal(size=(500, 1000))
        >>> index = SketchedMahalanobisNeighbors(random_state=0).fit(X)
        >>> indices = index.kneighbors(X[:3] + 0.1, return_distance=False)
        >>> audit = index.audit(random_state=0)
        >>> audit.passed, audit.random.outside, audit.recent.outside
        (True, 0.0, 0.0)
        """
        self._check_fitted()
        n_pairs = as_count("n_pairs", n_pairs)
        rng = generator_from(random_state)
        eps, delta, sketch = (self._built[name] for name in ("eps", "delta", "sketch"))
        with self._engine.reading():
            promised = float(bounds.failure(eps, self.m_, self.R_, sketch))
            pools = self._random_pairs(n_pairs, rng), self._recent_pairs(n_pairs, rng)
        found = [pool and audit_pairs(*pool, eps, promised, delta) for pool in pools]
        return Audit(*found, eps)

    def _random_pairs(self, n_pairs, rng):
        """Estimated and exact distances of random pairs of points."""
        i, j = rng.integers(self.n_samples_fit_, size=(2, n_pairs))
        return self._pair_distances(i, j), self._engine.exact_pair(i, j)

    def _recent_pairs(self, n_pairs, rng):
        """The same of recent queries and points near them; None where there are none.

        Neighbours by brute force: one that sketches hide is one to look at.
        """
        K = min(as_count("n_neighbors", self.n_neighbors), self.n_samples_fit_)
        estimates, exact = [], []
        for query in self._recent.rows():
            distances, (near,) = self._engine.exact_kneighbors(query[np.newaxis], K)
            estimates.append(self._distances(query[np.newaxis])[0, near])
            exact.append(distances[0])
        if not exact:
            return None
        drawn = rng.integers(K * len(exact), size=n_pairs)
        return np.concatenate(estimates)[drawn], np.concatenate(exact)[drawn]

    def _build(self, X, y, targets=None):
        super()._build(X, y, targets)
        self._recent = RecentQueries.beside(self._engine)

    def _saved(self, state):
        # What somebody asked stays in this process.
        state.pop("_recent", None)
        return super()._saved(state)

    def _restored(self, state):
        state = super()._restored(state)
        if "_engine" in state:
            state["_recent"] = RecentQueries.beside(state["_engine"])
        return state

    def _nearest(self, queries, K, own, jobs):
        found = super()._nearest(queries, K, own, jobs)
        self._remember(queries)
        return found

    def _remember(self, queries):
        """Keep some of the queries that sketches have answered, for an audit."""
        if self.engine_ == "sketched":
            self._recent.add(queries)

    def _distances(self, rows):
        engine = self._engine
        return engine.query_all(rows) if self._estimates else engine.exact_all(rows)

    def _pair_distances(self, i, j):
        engine = self._engine
        return engine.query_pair(i, j) if self._estimates else engine.exact_pair(i, j)

    def _errors(self, X):
        """Relative errors of the distances of every query, averaged over points."""

        def errors(rows):
            exact = self._engine.exact_all(rows)
            pairs = zip(self._distances(rows), exact, strict=True)
            return [relative_errors(*pair).mean() for pair in pairs]

        # Estimates and exact distances to all points are held side by side.
        return self._in_batches(errors, X, width=2 * self.n_samples_fit_)

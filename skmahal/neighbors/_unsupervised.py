"""The index as an unsupervised estimator."""

from numbers import Real

import numpy as np

from skmahal._compat import Interval
from skmahal._core import bounds, plan
from skmahal._core.audit import audit, relative_errors
from skmahal._core.checks import as_count
from skmahal._random import seed_from

from ._queries import KNeighborsQueries, RadiusNeighborsQueries
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
        parts = self._in_batches(self._distances, self._points(X))
        return np.concatenate(parts)

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
        rng = np.random.default_rng(seed_from(random_state))
        parts = self._in_batches(
            lambda rows: self._engine.sample_exact(rows, n_samples, power, rng),
            self._points(X),
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
        """Hold estimates of random pairs against their exact distances. O(k) each.

        Parameters
        ----------
        n_pairs : int, default=1000
            Number of pairs, drawn with replacement.
        random_state : int, RandomState instance or None, default=None
            Determines the pairs.

        Returns
        -------
        audit : tuple
            Named: `n_pairs`; `ratios`, quantiles of estimate over exact distance;
            `outside`, the share of pairs off by more than `eps`; `promised`, the
            probability of that; `p_value`, by Markov's inequality; `passed`.
        """
        self._check_fitted()
        n_pairs = as_count("n_pairs", n_pairs)
        rng = np.random.default_rng(seed_from(random_state))
        eps, sketch = self._built["eps"], self._built["sketch"]
        with self._engine.reading():
            i, j = rng.integers(self.n_samples_fit_, size=(2, n_pairs))
            promised = float(bounds.failure(eps, self.m_, self.R_, sketch))
            exact = self._engine.exact_pair(i, j)
            return audit(self._pair_distances(i, j), exact, eps, promised)

    @property
    def _estimates(self):
        """Whether estimated distances cost less than exact ones."""
        if self.engine_ == "exact":
            return False
        return plan.pays(self.m_, self.R_, self.lead_, self._engine.k)

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

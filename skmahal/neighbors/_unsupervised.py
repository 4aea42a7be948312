"""The index as an unsupervised estimator."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from numbers import Real
from typing import Literal, Self

import numpy as np
from numpy.typing import ArrayLike

from skmahal._compat import Interval, fit_context, fit_tasks
from skmahal._core.checks import as_choice, as_count
from skmahal._core.compact import SketchesOnly
from skmahal._core.guarantees import Audit, relative_errors
from skmahal._core.search import LITTLE
from skmahal._core.threads import slices
from skmahal._core.types import (
    Auto,
    Candidates,
    FloatOrFloats,
    Floats,
    Indices,
    Metric,
    MetricName,
    Power,
    RandomState,
    Rows,
    Sketch,
)
from skmahal._estimator import generator_from, validated

from ._base import (
    MOST_TASKS,
    ROWS,
    KNeighborsQueries,
    RadiusNeighborsQueries,
    SketchedNeighborsBase,
    memory,
    workers,
)

# Parameters that have nothing to do with sketches.
_EXACT = ("metric_learner", "max_points", "metric", "p", "metric_params", "n_jobs")


class UnlabelledNeighborsBase(SketchedNeighborsBase):
    """An index of points without targets."""

    @fit_context(prefer_skip_nested_validation=False)
    def fit(
        self, X: Rows, y: ArrayLike | None = None, ids: ArrayLike | None = None
    ) -> Self:
        """Learn the metric and index the points. O(nkd).

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Points. A copy is kept, unless they are mapped from a file.
        y : array-like of shape (n_samples,), default=None
            Targets, for a `metric_learner` that needs them.
        ids : array-like of shape (n_samples,), default=None
            Different integers or strings that name the points. With None, the positions
            of the points are their ids, which change when points are removed.

        Returns
        -------
        self : object
        """
        fitted = copy(self)
        points = validated(fitted, X, reset=True, **ROWS)
        with fit_tasks(fitted, MOST_TASKS, X, y):
            fitted._build(points, y, ids)
        self.__dict__ = fitted.__dict__
        return self

    @fit_context(prefer_skip_nested_validation=False)
    def partial_fit(
        self, X: Rows, y: ArrayLike | None = None, ids: ArrayLike | None = None
    ) -> Self:
        """Add points at the end. O(k(d + lead + Lm)) each; the first call is `fit`.

        If there are `max_points` already, each new point takes the position of the one
        that came first, in O(k(d + lead + Lm) + d log n).

        Parameters
        ----------
        X, y : as in :meth:`fit`
            Points to add, and targets for a `metric_learner` that needs them in the
            first call, or that learns online and continues; no other is fitted again.
        ids : array-like of shape (n_samples,), default=None
            Ids that no other point has, if the index was fitted with ids.

        Returns
        -------
        self : object
        """
        if not hasattr(self, "_maintenance"):
            return self.fit(X, y, ids)
        self._append(validated(self, X, reset=False, **ROWS), y, ids)
        return self

    def update_points(
        self,
        indices: ArrayLike | None = None,
        X: Rows | None = None,
        *,
        ids: ArrayLike | None = None,
    ) -> Self:
        """Replace points, which keep their ids. O(k(d + lead + Lm) + d log n) each.

        Parameters
        ----------
        indices : int, array-like of int, or array-like of bool, default=None
            Positions, each at most once, or a mask.
        X : {array-like, sparse matrix} of shape (n_points, n_features)
            The new points.
        ids : int, str or array-like of them, default=None
            Ids of the points, in place of `indices`.

        Returns
        -------
        self : object
        """
        self._fitted()
        self._replace(indices, validated(self, X, reset=False, **ROWS), ids)
        return self


class ExactNeighborsBase(UnlabelledNeighborsBase):
    """An index that has none of the parameters of sketches: it uses nothing random."""

    _parameter_constraints = {
        name: UnlabelledNeighborsBase._parameter_constraints[name] for name in _EXACT
    }

    n_neighbors, n_candidates, recall, adaptive = 5, "exact", None, True
    m, L, R, eps, delta, lead, sketch = "auto", 10, "auto", 0.2, 0.01, 0, "gaussian"
    random_state = 0


class SketchedMahalanobisNeighbors(
    KNeighborsQueries, RadiusNeighborsQueries, UnlabelledNeighborsBase
):
    r"""Nearest neighbours under a Mahalanobis metric that keeps changing.

    The metric is :math:`d(x, z) = \|U(x - z)\|`. By default neighbours are exact:
    bounds from 8-bit codes, which do not depend on the metric, exclude most points with
    certainty. Distances to all points are within 1 ± `eps`, in the cheapest way that
    promises it. When the metric or the points change, the index is updated and not
    built again.

    Parameters
    ----------
    n_neighbors : int, default=5
        Number of neighbours that :meth:`kneighbors` finds.
    radius : float, default=1.0
        Distance within which :meth:`radius_neighbors` finds points.
    metric_learner : None, array-like of shape (k, n_features), dict, or estimator
        The matrix U. None is the Euclidean metric. An estimator is cloned, fitted with
        the data given to `fit`, and U is read from its `components_`, its matrix or its
        `transform`, which must be affine; one wrapped in
        :class:`sklearn.frozen.FrozenEstimator` is used as it is. A symmetric array that
        is not diagonal is used with a warning: it is nearly always another matrix. A
        dictionary says which one: ``{"U": U}``, or a keyword of
        :func:`components_from`.
    m : int or "auto", default="auto"
        Rows of a sketch. With a number, :meth:`distances`, :meth:`pair_distances` and
        :meth:`score` are by the median of R of L random sketches, as in the paper.
        "auto" takes the cheapest way that keeps their promise: bounds from both sides,
        one larger sketch, or exact distances.
    L : int, default=10
        Number of sketches, if `m` is a number or `n_candidates` is not "exact".
    R : int or "auto", default="auto"
        Sketches that serve a query. "auto" is as few as the promise allows.
    eps : float, default=0.2
        Relative error of a distance.
    delta : float, default=0.01
        Probability that the estimates of a query, or its certified neighbours, break
        their promise. Bounds from both sides, and exact results, never do.
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
        nothing is promised. If sketches have no fewer columns than U has rows, all
        three are exact.
    recall : float or None, default=None
        None finds the nearest points. A number in (0, 1) finds that share of them on
        average, in less time: points are grouped into cells, and only the nearest cells
        are searched. How many are needed is measured on points of the index and on
        recent queries, and measured again as metric and points change; see
        :meth:`guarantee`. For queries unlike these, nothing is promised. Distances are
        exact. If there are few points, or if it saves no time, so are the neighbours.
        :meth:`radius_neighbors` is always exact.
    adaptive : bool, default=False
        Whether queries may be chosen based on earlier results. Then nothing random is
        used: neighbours are exact, distances are within 1 ± `eps` with certainty, and
        `m`, `L`, `R`, `lead`, `sketch`, `n_candidates` and `random_state` have no
        effect. `recall` must be None.
    max_points : int or None, default=None
        Number of points that the index holds at most, a window of a stream. If there
        are so many, a new point takes the position of the one that was added or
        replaced longest ago.
    metric : {"minkowski", "euclidean", "l2", "mahalanobis"}, default="minkowski"
        As in scikit-learn: the Euclidean metric, or with `metric_params` that of a
        covariance matrix.
    p : 2
        As in scikit-learn: the power of the "minkowski" metric.
    metric_params : dict or None, default=None
        With the metric "mahalanobis", ``{"V": covariance}`` or ``{"VI": its inverse}``
        in place of `metric_learner`.
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
    engine_ : {"enclosed", "sketched", "exact"}
        How distances are computed: within 1 ± `eps` with certainty, estimated from
        sketches, or exactly. If `m` is a number, "sketched" or, if ``m_ * R_ + lead_ >=
        k``, "exact".
    recall_ : float
        Mean recall of searches by cells, as last measured; 1.0 if there are none.
    metric_learner_ : estimator or None
        The fitted estimator; it stays when `update_metric` changes the metric.
    n_samples_fit_ : int
        Number of points in the index.
    ids_ : ndarray of shape (n_samples_fit,)
        Ids of the points; their positions if none were given.
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
        n_neighbors: int = 5,
        *,
        radius: float = 1.0,
        metric_learner: Metric | None = None,
        m: int | Auto = "auto",
        L: int = 10,
        R: int | Auto = "auto",
        eps: float = 0.2,
        delta: float = 0.01,
        lead: int | Auto = "auto",
        sketch: Sketch = "gaussian",
        n_candidates: Candidates = "exact",
        recall: float | None = None,
        adaptive: bool = False,
        max_points: int | None = None,
        metric: MetricName = "minkowski",
        p: Literal[2] = 2,
        metric_params: Mapping[str, ArrayLike] | None = None,
        random_state: RandomState = None,
        n_jobs: int | None = None,
    ) -> None:
        self.n_neighbors = n_neighbors
        self.radius = radius
        self.metric_learner = metric_learner
        self.max_points = max_points
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

    def distances(self, X: Rows) -> Floats:
        """Distances from each query to all points, within 1 ± `eps`.

        :meth:`guarantee` says how they are computed, and what is promised: that all of
        them are within 1 ± `eps` of the exact ones with certainty or, for queries that
        do not depend on earlier estimates, with probability at least 1 - `delta`. A
        query costs O(kd + nd) at most, and O(kd + R(mk + nm) + n lead) if `m` is a
        number.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_queries, n_features)
            Queries.

        Returns
        -------
        distances : ndarray of shape (n_queries, n_samples_fit)
            The distances.
        """
        held = self._fitted()
        Q = self._queries(X, held.index)
        with held.index.lock.reading():
            return self._distances(held, Q, served=True)

    def pair_distances(self, i: ArrayLike, j: ArrayLike) -> FloatOrFloats:
        """Distances between points of the index, within 1 ± `eps`.

        O(mR + lead) each if `m` is a number. Otherwise they are exact, O(kd) each;
        many pairs may be estimated from one sketch.

        Parameters
        ----------
        i, j : int or array-like of int
            Positions of the points; broadcast against each other.

        Returns
        -------
        distances : float or ndarray
            One per pair, each within 1 ± `eps` with probability at least 1 - `delta`,
            if pairs do not depend on earlier results.
        """
        held = self._fitted()
        with held.index.lock.reading():
            if held.parameters["m"] != "auto" and self.engine_ == "exact":
                return held.exact_pair(i, j)
            return held.query_pair(i, j)

    def sketches_only(
        self, kind: Literal["sketch", "codes"] | None = None
    ) -> SketchesOnly:
        """A read-only index that does not hold the points, for small files.

        Parameters
        ----------
        kind : {"sketch", "codes"} or None, default=None
            "sketch" keeps of a point x the numbers ``Π U x``, for one random Π with
            enough rows that all distances of a query are within 1 ± `eps` with
            probability at least 1 - `delta`, if the query does not depend on earlier
            results. "codes" keeps U x in 8 bits per row of U; the error of every
            distance is then bounded, and the bounds are known. None is "codes" if
            `adaptive`, and else "sketch".

        Returns
        -------
        index : SketchesOnly
            It has `distances`, `pair_distances` and `kneighbors`, and cannot be
            changed. It does not hide the points: it is compression, and not privacy.

        Notes
        -----
        O(nk(d + m)) for m rows of Π.

        Examples
        --------
        >>> import numpy as np
        >>> from skmahal import SketchedMahalanobisNeighbors
        >>> X = np.random.default_rng(0).normal(size=(1000, 2000))
        >>> index = SketchedMahalanobisNeighbors(random_state=0).fit(X)
        >>> index.sketches_only().kneighbors(X[:2], 1, return_distance=False)
        array([[0],
               [1]])
        """
        return self._fitted().sketches_only(kind)

    def sample(
        self,
        X: Rows,
        n_samples: int = 1,
        power: Power = 1,
        random_state: RandomState = None,
    ) -> Indices:
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

    def sum_distances(
        self, X: Rows, start: int = 0, stop: int | None = None, power: Power = 2
    ) -> Floats:
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

    def score(self, X: Rows, y: ArrayLike | None = None) -> float:
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

    def audit(self, n_pairs: int = 1000, random_state: RandomState = None) -> Audit:
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
            query since `fit` or loading. `recall` is the recall of neighbours on random
            points and on recent queries, or None if they are exact. `passed` is False
            if one of them failed.

        Notes
        -----
        O(kd) per pair of points; O(kd + nd) for each recent query, of which there are
        128 or as many as fit 1 MiB: those of :meth:`distances`, and of `kneighbors` if
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
        K = as_count("n_neighbors", fitted.n_neighbors)
        rest = fitted.pair_distances, lambda Q: fitted._distances(held, Q)
        return held._audit(n_pairs, rng, K, *rest)

    def _distances(self, held, Q, served=False):
        """Distances to all points; `served` is as in :class:`MetricMaintenance`."""
        count, little = Q.shape[0], {"little": LITTLE}
        if count > 1 and held._way(count) == "enclosed":
            # Loops over codes have no threads of their own, as products of floats do.
            little = {} if held.index.plan.all_many == "codes" else little
        jobs, limited = workers(self.n_jobs, held.index, count, **little)
        with limited:
            if held.parameters["m"] != "auto" and self.engine_ == "exact":
                return held.index.distances(Q, jobs)
            return held._query_all(Q, jobs, served)

"""Outlier detection while points are added and removed, and the metric changes."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from copy import copy
from numbers import Integral, Real
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import OutlierMixin

from skmahal._compat import Interval, StrOptions, available_if, fit_task
from skmahal._core.outliers import METHODS, OutlierScores
from skmahal._core.types import Auto, Floats, Metric, MetricName, Rows

from ._base import KNeighborsQueries, workers
from ._unsupervised import ExactNeighborsBase

# As in scikit-learn, lower scores than this are due to duplicates.
_SUSPECT = -1e7


def _requires(novelty):
    """A check for `available_if`: whether `novelty` has this value."""

    def check(estimator):
        if estimator.novelty != novelty:
            raise AttributeError(
                f"It is available with novelty={novelty}, got {estimator.novelty!r}. "
                "negative_outlier_factor_ always has the scores of the points."
            )
        return True

    return check


class MahalanobisOutlierDetector(OutlierMixin, KNeighborsQueries, ExactNeighborsBase):
    """Find outliers in a stream, under a Mahalanobis metric that keeps changing.

    The counterpart of :class:`sklearn.neighbors.LocalOutlierFactor` on the index of
    :class:`SketchedMahalanobisNeighbors`. At any time, scores are those of a detector
    that was fitted to the present points under the present metric. When points are
    added, replaced or removed, only the points around them are scored again. After a
    change of the metric all scores are computed when they are next needed.

    Parameters
    ----------
    n_neighbors : int, default=20
        Number of neighbours of a point. If there are fewer other points, all of them
        are its neighbours.
    method : {"lof", "knn"}, default="lof"
        The score. "lof" is the negative local outlier factor: how dense the points are
        around the neighbours of a point, relative to those around itself. "knn" is the
        negative mean distance of the neighbours.
    contamination : "auto" or float, default="auto"
        Share of the points that are outliers, in (0, 0.5]. With "auto", outliers are
        points with a local outlier factor above 1.5. For "knn" they are those with a
        mean distance above Tukey's fence: the third quartile plus one and a half
        interquartile ranges.
    novelty : bool, default=False
        False is for outliers among the points, by :meth:`fit_predict` and
        `negative_outlier_factor_`. True is for outliers among new data, by
        :meth:`predict`, :meth:`decision_function` and :meth:`score_samples`.
    metric_learner : None, array-like of shape (k, n_features), dict, or estimator
        The matrix U, as in :class:`SketchedMahalanobisNeighbors`.
    max_points : int or None, default=None
        Number of points that are held at most, at least two: a window of a stream, as
        in :class:`SketchedMahalanobisNeighbors`.
    metric, p, metric_params : as there
        The metric as scikit-learn spells it.
    n_jobs : int or None, default=None
        Threads over the queries of a call. None is as many as BLAS may use.

    Attributes
    ----------
    negative_outlier_factor_ : ndarray of shape (n_samples_fit,)
        Scores of the points as they are now; a copy. The lower, the more abnormal.
        Local outlier factors of inliers are close to 1, and the scores close to -1.
    offset_ : float
        Score below which points are outliers.
    n_neighbors_ : int
        Number of neighbours in use.
    n_searches_ : int
        Searches for the neighbours of a point since `fit`, with those of `fit`.
    components_ : ndarray of shape (k, n_features)
        U of the metric as it is now, in float64.
    metric_learner_ : estimator or None
        The fitted estimator; it stays when `update_metric` changes the metric.
    n_samples_fit_ : int
        Number of points, at least two.
    n_features_in_, feature_names_in_
        As in all estimators of scikit-learn.

    Notes
    -----
    Methods that change points state the cost of the index. Scores cost more. With K
    neighbours, :meth:`fit` takes n searches, O(n²d). A point that is added costs one
    search, O(nd + nK) to find the points that it becomes a neighbour of, and O(Kd) for
    each of these. A point that is removed costs a search for each point that it was a
    neighbour of, about K. A point that is replaced costs both. Scores of all points
    within three steps along neighbours may change, O(K) each. If more than a quarter of
    the points change, all scores are computed again when they are next needed.

    A change of `n_neighbors`, `method` or `contamination` takes effect at the next
    :meth:`fit`.

    Neighbours are exact. If points are at equal distances, the lower position is the
    nearer one; scikit-learn does not say which one it takes.

    References
    ----------
    Breunig, Kriegel, Ng and Sander (2000), "LOF: identifying density-based local
    outliers". Angiulli and Pizzuti (2002), "Fast outlier detection in high dimensional
    spaces".

    Examples
    --------
    >>> from skmahal import MahalanobisOutlierDetector
    >>> detector = MahalanobisOutlierDetector(n_neighbors=2)
    >>> detector.fit_predict([[-1.1], [0.2], [101.1], [0.3]])
    array([ 1,  1, -1,  1])
    >>> detector = detector.partial_fit([[101.2], [101.4]])
    >>> detector.negative_outlier_factor_.round(2)
    array([-0.98, -1.04, -0.92, -0.98, -1.2 , -0.92])
    """

    _parameter_constraints = {
        **ExactNeighborsBase._parameter_constraints,
        "n_neighbors": [Interval(Integral, 1, None, closed="left")],
        "max_points": [Interval(Integral, 2, None, closed="left"), None],
        "method": [StrOptions(set(METHODS))],
        "contamination": [StrOptions({"auto"}), Interval(Real, 0, 0.5, closed="right")],
        "novelty": ["boolean"],
    }

    def __init__(
        self,
        n_neighbors: int = 20,
        *,
        method: Literal["lof", "knn"] = "lof",
        contamination: float | Auto = "auto",
        novelty: bool = False,
        metric_learner: Metric | None = None,
        max_points: int | None = None,
        metric: MetricName = "minkowski",
        p: Literal[2] = 2,
        metric_params: Mapping[str, ArrayLike] | None = None,
        n_jobs: int | None = None,
    ) -> None:
        self.n_neighbors = n_neighbors
        self.n_jobs = n_jobs
        self.method = method
        self.contamination = contamination
        self.novelty = novelty
        self.metric_learner = metric_learner
        self.max_points = max_points
        self.metric = metric
        self.p = p
        self.metric_params = metric_params

    @property
    def negative_outlier_factor_(self) -> Floats:
        """Scores of the points as they are now; a copy."""
        with self._current() as held:
            return held.scores.copy()

    @property
    def offset_(self) -> float:
        """Score below which points are outliers."""
        with self._current() as held:
            return held.offset

    @property
    def n_neighbors_(self) -> int:
        """Number of neighbours in use."""
        self._fitted()
        return self._scores.K

    @property
    def n_searches_(self) -> int:
        """Searches for the neighbours of a point since `fit`, with those of `fit`."""
        self._fitted()
        return self._scores.n_searches

    @available_if(_requires(novelty=False))
    def fit_predict(
        self, X: Rows, y: ArrayLike | None = None, ids: ArrayLike | None = None
    ) -> np.ndarray:
        """Fit, and predict which points are outliers; cost as in :meth:`fit`.

        Only with ``novelty=False``.

        Parameters
        ----------
        X, y, ids : as in :meth:`fit`
            Points, targets for a `metric_learner` that needs them, and ids.

        Returns
        -------
        is_inlier : ndarray of shape (n_samples,)
            -1 for outliers and 1 for inliers. If X has more than `max_points` rows,
            those of the last ones, which are kept.
        """
        with self.fit(X, y, ids)._current() as held:
            return np.where(held.scores < held.offset, -1, 1)

    @available_if(_requires(novelty=True))
    def predict(self, X: Rows) -> np.ndarray:
        """Predict which new data are outliers; cost as in :meth:`score_samples`.

        Only with ``novelty=True``.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_queries, n_features)
            New data.

        Returns
        -------
        is_inlier : ndarray of shape (n_queries,)
            -1 for outliers and 1 for inliers.
        """
        return np.where(self.decision_function(X) < 0, -1, 1)

    @available_if(_requires(novelty=True))
    def decision_function(self, X: Rows) -> Floats:
        """Score new data relative to `offset_`; cost as in :meth:`score_samples`.

        Only with ``novelty=True``.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_queries, n_features)
            New data.

        Returns
        -------
        shifted_scores : ndarray of shape (n_queries,)
            Scores less `offset_`: negative for outliers.
        """
        scores, offset = self._score(X)
        return scores - offset

    @available_if(_requires(novelty=True))
    def score_samples(self, X: Rows) -> Floats:
        """Score new data. A search for K neighbours each, O(kd + nd) at most.

        Only with ``novelty=True``. A row of X that is also a point of the index counts
        itself among its neighbours; `negative_outlier_factor_` has the scores of
        points.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_queries, n_features)
            New data.

        Returns
        -------
        scores : ndarray of shape (n_queries,)
            The lower, the more abnormal.
        """
        return self._score(X)[0]

    def check(self) -> float:
        """Assert every invariant of the index and of the scores. O(n k d + n²d).

        Returns
        -------
        drift : float
            The largest relative error of a squared length under the metric.
        """
        drift = super().check()
        with self._current() as held:
            held.check()
        return drift

    def _current(self):
        """A context with the scores of the present version, which does not change."""
        index = self._fitted().index
        jobs, _ = workers(self.n_jobs, index, index.n)
        return self._scores.reading(jobs)

    def _workers(self, n_points):
        """Threads for the searches after a change of some points, and their context."""
        held = self._scores
        return workers(self.n_jobs, held.index, max(2, n_points * held.n_neighbors))

    def _score(self, X):
        """Scores of new data, and the offset, of one version of points and metric."""
        index = self._fitted().index
        fitted, Q = copy(self), self._queries(X, index)
        with fitted._current() as held:
            jobs, limited = workers(self.n_jobs, held.index, Q.shape[0])
            with limited:
                return held.of_queries(Q, jobs), held.offset

    def _build(self, X, *args, **columns):
        n = X.shape[0]
        if n < 2:
            raise ValueError(f"X has {n} sample, expected at least 2.")
        super()._build(X, *args, **columns)
        n = self._maintenance.n
        if self.n_neighbors > n:
            warnings.warn(
                f"n_neighbors={self.n_neighbors} is more than the {n} points; "
                f"{n - 1} neighbours are used.",
                stacklevel=4,
            )
        rest = self.n_neighbors, self.method, self.contamination
        self._scores = OutlierScores(self._maintenance.index, *rest)
        with fit_task(self, "score the points"), self._current() as held:
            suspect = self.method == "lof" and held.scores.min() < _SUSPECT
        if suspect and not self.novelty:
            warnings.warn(
                "X has so many equal points that scores are wrong: increase "
                f"n_neighbors, which is {self.n_neighbors}.",
                stacklevel=4,
            )

    def _append(self, X, *args, **columns):
        index = self._maintenance.index
        with index.lock.changing():
            version, n = index.version, index.n
            jobs, limited = self._workers(X.shape[0])
            replaced = super()._append(X, *args, **columns)
            with limited:
                self._scores.follow_points(version, replaced, index.n - n, jobs)
            return replaced

    def _remove(self, positions, given):
        index = self._maintenance.index
        version, n = index.version, index.n
        if n - len(positions) == 1:
            raise ValueError(
                f"{given} would leave one of the {n} points, expected at least two."
            )
        jobs, limited = self._workers(len(positions))
        super()._remove(positions, given)
        with limited:
            self._scores.follow_removal(version, positions, jobs)

    def _replace(self, indices, X, ids=None, **columns):
        index = self._maintenance.index
        with index.lock.changing():
            version = index.version
            jobs, limited = self._workers(X.shape[0])
            indices = super()._replace(indices, X, ids, **columns)
            with limited:
                self._scores.follow_points(version, indices, 0, jobs)
            return indices

    def _saved(self, state):
        if "_scores" in state:
            state["_scores"] = state["_scores"].saved()
        return super()._saved(state)

    def _restored(self, state):
        state = super()._restored(state)
        if "_scores" in state:
            index = state["_maintenance"].index
            state["_scores"] = OutlierScores.restored(state["_scores"], index)
        return state

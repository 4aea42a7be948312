"""Graphs of neighbours as transformers."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Real
from typing import Literal

from numpy.typing import ArrayLike
from scipy import sparse
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin

from skmahal._compat import Interval, StrOptions
from skmahal._core.checks import as_count
from skmahal._core.types import (
    Auto,
    Candidates,
    Metric,
    MetricName,
    Mode,
    RandomState,
    Rows,
    Sketch,
)

from ._base import KNeighborsQueries, RadiusNeighborsQueries, of_index
from ._unsupervised import ExactNeighborsBase, UnlabelledNeighborsBase

_MODE = {"mode": [StrOptions({"connectivity", "distance"})]}


class GraphTransformer(ClassNamePrefixFeaturesOutMixin, TransformerMixin):
    """An index whose `transform` is the graph ``_graph_of(X)`` to its points."""

    _n_features_out = of_index("n", "Number of points.")

    def transform(self, X: Rows) -> sparse.csr_matrix:
        """Compute the graph from queries to points. O(kd + nd) a query at most.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_queries, n_features)
            Queries.

        Returns
        -------
        Xt : sparse matrix of shape (n_queries, n_samples_fit), CSR
            The entries of a row are in order of distance.
        """
        self._fitted()
        return self._graph_of(X)


class SketchedMahalanobisNeighborsTransformer(
    GraphTransformer, KNeighborsQueries, UnlabelledNeighborsBase
):
    """Turn points into their sparse graph of nearest neighbours.

    The counterpart of :class:`sklearn.neighbors.KNeighborsTransformer` on the index of
    :class:`SketchedMahalanobisNeighbors`, for estimators that take a precomputed graph
    (``metric="precomputed"``): one index serves them while the metric changes.

    Parameters
    ----------
    mode : {"connectivity", "distance"}, default="distance"
        Ones, or distances.
    n_neighbors : int, default=5
        Number of neighbours of a point. In the mode "distance" one more is found: many
        estimators do not count the point itself.
    metric_learner, m, L, R, eps, delta : as in SketchedMahalanobisNeighbors
        The metric, and sketches, which serve only if `n_candidates` is not "exact".
    lead, sketch, n_candidates, recall, adaptive, random_state, n_jobs : as there
        Sketches, the way to search, by default exact, seed and number of threads.
    max_points, metric, p, metric_params : as there
        A window of a stream, and the metric as scikit-learn spells it.

    Attributes
    ----------
    components_, engine_, metric_learner_, n_samples_fit_ and others
        As in :class:`SketchedMahalanobisNeighbors`.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.cluster import DBSCAN
    >>> from skmahal import SketchedMahalanobisNeighborsTransformer
    >>> X = np.array([[0.0], [0.1], [0.2], [5.0], [5.1], [5.2]])
    >>> graph = SketchedMahalanobisNeighborsTransformer(n_neighbors=2)
    >>> dbscan = DBSCAN(eps=0.5, min_samples=2, metric="precomputed")
    >>> dbscan.fit_predict(graph.fit_transform(X))
    array([0, 0, 0, 1, 1, 1])
    """

    _parameter_constraints = {**UnlabelledNeighborsBase._parameter_constraints, **_MODE}

    def __init__(
        self,
        *,
        mode: Mode = "distance",
        n_neighbors: int = 5,
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
        self.mode = mode
        self.n_neighbors = n_neighbors
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

    def _graph_of(self, X):
        n = self._maintenance.n
        K = as_count("n_neighbors", self.n_neighbors)
        if self.mode == "distance" and n <= K:
            raise ValueError(
                f"n_neighbors={K} and the extra neighbour of the mode 'distance' are "
                f"more than the {n} points."
            )
        K += self.mode == "distance"
        return self.kneighbors_graph(X, n_neighbors=K, mode=self.mode)


class SketchedMahalanobisRadiusTransformer(
    GraphTransformer, RadiusNeighborsQueries, ExactNeighborsBase
):
    """Turn points into their sparse graph of all points within a distance.

    The counterpart of :class:`sklearn.neighbors.RadiusNeighborsTransformer` on the
    index of :class:`SketchedMahalanobisNeighbors`, for estimators that take a
    precomputed graph (``metric="precomputed"``), as DBSCAN. Neighbours are exact.

    Parameters
    ----------
    mode : {"connectivity", "distance"}, default="distance"
        Ones, or distances.
    radius : float, default=1.0
        The distance.
    metric_learner : as in SketchedMahalanobisNeighbors
        The metric.
    max_points, metric, p, metric_params, n_jobs : as there
        A window of a stream, the metric as scikit-learn spells it, and number of
        threads.

    Attributes
    ----------
    components_, metric_learner_, n_samples_fit_ and others
        As in :class:`SketchedMahalanobisNeighbors`.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.cluster import DBSCAN
    >>> from skmahal import SketchedMahalanobisRadiusTransformer
    >>> X = np.array([[0.0], [0.1], [0.2], [5.0], [5.1], [9.0]])
    >>> graph = SketchedMahalanobisRadiusTransformer(radius=0.5)
    >>> dbscan = DBSCAN(eps=0.5, min_samples=2, metric="precomputed")
    >>> dbscan.fit_predict(graph.fit_transform(X))
    array([ 0,  0,  0,  1,  1, -1])
    """

    _parameter_constraints = {
        **ExactNeighborsBase._parameter_constraints,
        **_MODE,
        "radius": [Interval(Real, 0, None, closed="both")],
    }

    def __init__(
        self,
        *,
        mode: Mode = "distance",
        radius: float = 1.0,
        metric_learner: Metric | None = None,
        max_points: int | None = None,
        metric: MetricName = "minkowski",
        p: Literal[2] = 2,
        metric_params: Mapping[str, ArrayLike] | None = None,
        n_jobs: int | None = None,
    ) -> None:
        self.mode = mode
        self.radius = radius
        self.n_jobs = n_jobs
        self.metric_learner = metric_learner
        self.max_points = max_points
        self.metric = metric
        self.p = p
        self.metric_params = metric_params

    def _graph_of(self, X):
        return self.radius_neighbors_graph(X, mode=self.mode, sort_results=True)

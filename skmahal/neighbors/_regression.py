"""Regression by the mean of the neighbours."""

from __future__ import annotations

from typing import Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import RegressorMixin

from skmahal._compat import fit_context
from skmahal._core.types import Floats, Rows

from ._supervised import SupervisedNeighborsBase, divided_by_weight


class SketchedMahalanobisRegressor(RegressorMixin, SupervisedNeighborsBase):
    """Regress on the neighbours under a Mahalanobis metric that keeps changing.

    The counterpart of :class:`sklearn.neighbors.KNeighborsRegressor` on the index of
    :class:`SketchedMahalanobisNeighbors`. By default neighbours are exact.

    Parameters
    ----------
    n_neighbors : int, default=5
        Number of neighbours that are averaged, or all points if there are fewer.
    weights : {"uniform", "distance"}, callable or None, default="uniform"
        Equal weights, inverse distances, or a function from an array of distances to
        one of weights. None is "uniform".
    metric_learner, m, L, R, eps, delta : as in SketchedMahalanobisNeighbors
        The metric, and sketches, which serve only if `n_candidates` is not "exact".
    lead, sketch, n_candidates, recall, adaptive, random_state, n_jobs : as there
        Sketches, the way to search, by default exact, seed and number of threads.
    max_points, metric, p, metric_params : as there
        A window of a stream, and the metric as scikit-learn spells it.

    Attributes
    ----------
    outputs_2d_ : bool
        Whether targets have two dimensions, and then predictions have two as well.
    components_, engine_, metric_learner_, n_samples_fit_ and others
        As in :class:`SketchedMahalanobisNeighbors`.

    Examples
    --------
    >>> from skmahal import SketchedMahalanobisRegressor
    >>> X, y = [[0.0], [1.0], [2.0], [3.0]], [0.0, 1.0, 4.0, 9.0]
    >>> SketchedMahalanobisRegressor(2).fit(X, y).predict([[0.4], [2.6]])
    array([0.5, 6.5])
    """

    _numeric = True

    @fit_context(prefer_skip_nested_validation=False)
    def partial_fit(
        self,
        X: Rows,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        ids: ArrayLike | None = None,
    ) -> Self:
        """Add points with targets. O(k(d + lead + Lm)) each; the first call is `fit`.

        Parameters
        ----------
        X, y, sample_weight, ids : as in :meth:`fit`
            Points to add, their targets, weights and ids. A `metric_learner` that
            learns online continues to learn; no other is fitted again.

        Returns
        -------
        self : SketchedMahalanobisRegressor
        """
        if not hasattr(self, "_maintenance"):
            return self.fit(X, y, sample_weight, ids)
        X, y, _, columns = self._validated(X, y, sample_weight)
        self._append(X, y, ids, **columns)
        return self

    def predict(self, X: Rows) -> Floats:
        """Predict the mean target of the neighbours; cost as in :meth:`kneighbors`.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_queries, n_features), or None
            Queries. None predicts every point of the index from the others.

        Returns
        -------
        y : ndarray of shape (n_queries,) or (n_queries, n_outputs)
        """
        return self._decided(X, _mean_targets)[0]


def _mean_targets(fitted, targets, weights):
    """Weighted means of targets of shape (queries, K, outputs), in a list of one."""
    if weights is None:
        means = targets.mean(axis=1)
    else:
        sums = np.einsum("ij,ijk->ik", weights, targets)
        means = divided_by_weight(sums, weights)
    return [means if fitted.outputs_2d_ else means[:, 0]]

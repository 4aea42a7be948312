"""Regression by the mean of the neighbours."""

import numpy as np
from scipy import sparse
from sklearn.base import RegressorMixin

from skmahal._compat import fit_context
from skmahal._core.saved import require

from ._supervised import SupervisedNeighborsBase
from ._voting import mean_targets


class SketchedMahalanobisRegressor(RegressorMixin, SupervisedNeighborsBase):
    """Regress on the neighbours under a Mahalanobis metric that keeps changing.

    The counterpart of :class:`!sklearn.neighbors.KNeighborsRegressor` over the
    index of :class:`SketchedMahalanobisNeighbors`: neighbours are the exact ones with
    probability 1 - `delta`, and then predictions are those of exact kNN.

    Parameters
    ----------
    n_neighbors : int, default=5
        Number of neighbours that are averaged.
    weights : {"uniform", "distance"}, callable or None, default="uniform"
        Equal weights, inverse distances, or a function from an array of distances to
        one of weights. None is "uniform".
    metric_learner : None, array-like of shape (k, n_features), or estimator
        The metric, as in :class:`SketchedMahalanobisNeighbors`. An estimator is cloned
        and fitted with the data given to `fit`.
    m : int or "auto", default="auto"
        Rows of a sketch.
    L : int, default=10
        Number of sketches.
    R : int or "auto", default="auto"
        Sketches that serve a query.
    eps : float, default=0.2
        Relative error of an estimated distance.
    delta : float, default=0.01
        Probability that the neighbours of a query are not the exact ones.
    lead : int or "auto", default="auto"
        Leading directions that are kept exactly and not sketched.
    sketch : {"gaussian", "rademacher", "countsketch", "srht"}, default="gaussian"
        Distribution of the sketches.
    n_candidates : int or "certified", default="certified"
        "certified" finds exact neighbours, an integer is a budget of exact distances.
    random_state : int, RandomState instance or None, default=None
        Determines the sketches; None takes them from the operating system.
    n_jobs : int or None, default=None
        Threads over the queries of a call.

    Attributes
    ----------
    outputs_2d_ : bool
        Whether targets have two dimensions, and then so have predictions.
    components_ : ndarray of shape (k, n_features)
        The metric's U as of now.
    m_, L_, R_, lead_, engine_, metric_learner_, n_samples_fit_
        As in :class:`SketchedMahalanobisNeighbors`.
    n_features_in_ : int
        Number of features seen in `fit`.
    feature_names_in_ : ndarray of shape (n_features,)
        Names of features seen in `fit`, where all of them are strings.

    See Also
    --------
    SketchedMahalanobisClassifier : The same for classification.

    Examples
    --------
    >>> from skmahal import SketchedMahalanobisRegressor
    >>> X, y = [[0.0], [1.0], [2.0], [3.0]], [0.0, 1.0, 4.0, 9.0]
    >>> SketchedMahalanobisRegressor(2).fit(X, y).predict([[0.4], [2.6]])
    array([0.5, 6.5])
    """

    @fit_context(prefer_skip_nested_validation=False)
    def partial_fit(self, X, y):
        """Add points with their targets. O(k(d + lead + Lm)) each.

        The first call is `fit`. Later ones do not learn the metric again, unless
        `metric_learner` learns online (:mod:`skmahal.online`): it then learns from the
        new points too, and the index follows.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Points to add.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Their targets.

        Returns
        -------
        self : SketchedMahalanobisRegressor
            The regressor with the points.
        """
        if not self.__sklearn_is_fitted__():
            return self._fit_labelled(X, y)
        return self._append_labelled(X, y)

    def predict(self, X):
        """Mean target of the neighbours. O(kd + n(m + lead)) a query.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_queries, n_features), or None
            Queries. None predicts every point of the index from the others.

        Returns
        -------
        y : ndarray of shape (n_queries,) or (n_queries, n_outputs)
            Targets.
        """
        self._check_fitted()
        [means] = self._decided(
            X,
            lambda targets, weights: [mean_targets(targets, weights)],
            width=2 * self._engine.targets.shape[1],
        )
        return means if self.outputs_2d_ else means[:, 0]

    def _labelled(self, X, y, reset=False):
        return super()._labelled(X, _as_numbers(y), reset)

    def _learn_targets(self, columns):
        return self._known_targets(columns)

    def _known_targets(self, columns):
        return columns.astype(np.float64)

    def _check_restored(self, state, engine):
        super()._check_restored(state, engine)
        fits = engine.targets.dtype.kind == "f" and engine.targets.ndim == 2
        require(fits, "targets are not a column of numbers for each output")


def _as_numbers(y):
    """Objects and text as numbers; those that are none are refused by name.

    Examples
    --------
    >>> _as_numbers(np.array(["1", "0.5"]))
    array([1. , 0.5])
    """
    if y is None or sparse.issparse(y):
        return y
    try:
        given = np.asarray(y)
        return given.astype(np.float64) if given.dtype.kind in "OUS" else y
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"y must be an array of numbers: {error}") from error

"""Classification by the nearest class mean."""

from __future__ import annotations

from copy import copy
from numbers import Real
from typing import Literal, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse
from scipy.special import softmax
from sklearn.base import ClassifierMixin
from sklearn.covariance import shrunk_covariance
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted

from skmahal import _metric_learner as learners
from skmahal._compat import HasMethods, Interval, StrOptions, fit_context
from skmahal._core import checks
from skmahal._core.metric import components_from
from skmahal._core.saved import array_from, require
from skmahal._core.types import Auto, Floats, Metric, Rows
from skmahal._estimator import Persistent, require_width, undo_on_error, validated

from ._classification import (
    check_repeated,
    class_lists,
    codes_of,
    listed,
    with_new_classes,
)
from ._records import as_weights

_POINTS = {"dtype": (np.float64, np.float32)}
_FLOAT64 = (np.dtype(np.float64),)


class MahalanobisCentroidClassifier(ClassifierMixin, Persistent):
    r"""Classify by the nearest class mean under a Mahalanobis metric.

    The counterpart of :class:`sklearn.neighbors.NearestCentroid` for streams: means
    and covariance are updated exactly, point by point, and no point is kept. By default
    the metric is the inverse of the covariance within classes, which is the metric of
    linear discriminant analysis. A point x is given the class c with the largest score
    :math:`-\frac{1}{2} \|U(x - \mu_c)\|^2 + \log \pi_c`, where :math:`\mu_c` is the
    mean of the class and :math:`\pi_c` its prior.

    Parameters
    ----------
    metric_learner : None, array-like, dict or estimator, default="covariance"
        The metric. "covariance" is the inverse of the pooled covariance within classes,
        which every :meth:`partial_fit` updates. All else is as in
        :class:`SketchedMahalanobisNeighbors`; an online learner continues to learn in
        :meth:`partial_fit`.
    shrinkage : float from 0 to 1, or "auto", default="auto"
        The covariance is :math:`(1 - s) S + s \frac{\mathrm{tr} S}{d} I`, where S is
        the empirical covariance and s is the shrinkage. "auto" is the oracle
        approximating shrinkage of :func:`sklearn.covariance.oas`, computed from S and
        the number of points. Features should be of one scale if s is not 0. Used only
        if `metric_learner` is "covariance".
    priors : None, "empirical" or array-like of shape (n_classes,), default=None
        Prior probabilities of the classes. None is no prior, so that the nearest mean
        decides. "empirical" is the share of each class in the points. An array has a
        positive number for each class, in sorted order, and sums to 1.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        The classes, sorted.
    class_count_ : ndarray of shape (n_classes,)
        Number of points of each class, or the sum of their weights.
    class_prior_ : ndarray of shape (n_classes,) or None
        The priors; None if `priors` is None.
    centroids_ : ndarray of shape (n_classes, n_features)
        Means of the classes; not a number for a class without points.
    components_ : ndarray of shape (k, n_features)
        The matrix U.
    covariance_ : ndarray of shape (n_features, n_features)
        The covariance within classes after shrinkage, while the metric follows it.
    shrinkage_ : float or None
        The shrinkage of this covariance; None if the metric is another one.
    metric_learner_ : estimator or None
        The fitted estimator, if `metric_learner` is one.
    n_features_in_, feature_names_in_
        As in all estimators of scikit-learn.

    Notes
    -----
    With a fixed number for `shrinkage` and ``priors="empirical"``, predictions and
    probabilities are those of scikit-learn's ``LinearDiscriminantAnalysis`` with
    ``solver="lsqr"`` and the same shrinkage. With other priors they differ: there the
    covariances of the classes are weighted by the priors, here by the number of points.
    "auto" differs too: there it is the shrinkage of Ledoit and Wolf for each class.

    Directions in which the covariance is zero do not count in distances. As long as no
    two points of a class differ, the metric is Euclidean.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from skmahal import MahalanobisCentroidClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> stream = MahalanobisCentroidClassifier()
    >>> for start in range(0, 150, 2):
    ...     stream = stream.partial_fit(X[start : start + 1], y[start : start + 1])
    >>> round(stream.score(X[1::2], y[1::2]), 2)
    0.97
    """

    _parameter_constraints = {
        "metric_learner": [None, str, dict, "array-like", HasMethods("fit")],
        "shrinkage": [Interval(Real, 0, 1, closed="both"), StrOptions({"auto"})],
        "priors": [None, StrOptions({"empirical"}), "array-like"],
    }

    def __init__(
        self,
        metric_learner: Literal["covariance"] | Metric | None = "covariance",
        *,
        shrinkage: float | Auto = "auto",
        priors: Literal["empirical"] | ArrayLike | None = None,
    ) -> None:
        self.metric_learner = metric_learner
        self.shrinkage = shrinkage
        self.priors = priors

    @fit_context(prefer_skip_nested_validation=False)
    def fit(
        self, X: Rows, y: ArrayLike, sample_weight: ArrayLike | None = None
    ) -> Self:
        """Learn the metric and the means of the classes.

        O(nd), and O(nd²) for the covariance.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Points.
        y : array-like of shape (n_samples,)
            Labels.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights of the points in means, covariance and empirical priors. A weight of
            2 is a point that comes twice. A `metric_learner` that is an estimator gets
            no weights.

        Returns
        -------
        self : MahalanobisCentroidClassifier
        """
        fitted = copy(self)
        fitted._learn(X, y, None, sample_weight, restart=True)
        self.__dict__ = fitted.__dict__
        return self

    @fit_context(prefer_skip_nested_validation=False)
    def partial_fit(
        self,
        X: Rows,
        y: ArrayLike,
        classes: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> Self:
        """Learn from more points; the result is that of one `fit` with all of them.

        O(d) per point and per class, and O(d²) per point for the covariance. Its metric
        is computed by the first prediction afterwards. An estimator as `metric_learner`
        is fitted in the first call; if it learns online, it continues.

        Parameters
        ----------
        X, y, sample_weight : as in :meth:`fit`
            Points, labels and weights.
        classes : array-like of shape (n_classes,), default=None
            All classes there will be, for the first call. Later calls may repeat it. If
            it is None in the first call, any call may add classes.

        Returns
        -------
        self : MahalanobisCentroidClassifier
        """
        fitted, restart = copy(self), not hasattr(self, "class_count_")
        fitted._learn(X, y, classes, sample_weight, restart)
        self.__dict__ = fitted.__dict__
        return self

    def update_metric(
        self,
        metric: Metric | None = None,
        *,
        rows: ArrayLike | None = None,
        additive: bool = False,
        low_rank: tuple[ArrayLike, ArrayLike] | None = None,
    ) -> Self:
        """Change the metric. The means stay as they are, so this costs O(kd).

        If the metric was that of the covariance, later points do not change it any
        more, and the covariance is not kept. If `metric_learner` learns online, the
        next :meth:`partial_fit` follows it again.

        Parameters
        ----------
        metric, rows, additive, low_rank : as in SketchedMahalanobisNeighbors
            The new metric, or the change of U.

        Returns
        -------
        self : MahalanobisCentroidClassifier

        Examples
        --------
        >>> from skmahal import MahalanobisCentroidClassifier
        >>> nearest = MahalanobisCentroidClassifier(None)
        >>> nearest = nearest.fit([[0.0, 2.0], [3.0, 0.0]], ["up", "right"])
        >>> nearest.predict([[0.0, 0.0]])
        array(['up'], dtype='<U5')
        >>> nearest.update_metric([[0.0, 2.0]], rows=[1]).predict([[0.0, 0.0]])
        array(['right'], dtype='<U5')
        """
        check_is_fitted(self)
        fitted = copy(self)
        U = fitted.components_
        change = checks.as_change(metric, rows, additive, low_rank, *U.shape)
        U = learners.components_after(U, change)
        _check_squares("low_rank" if metric is None else "metric", U)
        fitted._components, fitted._cached = U, {}
        fitted._scatter = fitted.shrinkage_ = None
        self.__dict__ = fitted.__dict__
        return self

    def predict(self, X: Rows) -> np.ndarray:
        """Predict the class of the largest score. O(d n_classes) per point.

        The first prediction after a change of the means or of the metric takes O(kd
        n_classes) more, and O(d³) if the metric is that of the covariance.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Points.

        Returns
        -------
        y : ndarray of shape (n_samples,)
            Classes. Ties go to the first.
        """
        scores, fitted, _ = self._scores(X)
        return fitted.classes_[scores.argmax(axis=1)]

    def predict_proba(self, X: Rows) -> Floats:
        r"""Predict probabilities; cost as in :meth:`predict`.

        They are proportional to :math:`\pi_c \exp(-\frac{1}{2} \|U(x - \mu_c)\|^2)`,
        where all :math:`\pi_c` are equal if there are no priors. They are the
        probabilities of normal distributions with the covariance
        :math:`(U^\top U)^{-1}`, and are not calibrated otherwise.

        Parameters
        ----------
        X : as in :meth:`predict`
            Points.

        Returns
        -------
        p : ndarray of shape (n_samples, n_classes)
            Probabilities, in the order of `classes_`; 0 for a class without points.
        """
        return softmax(self._scores(X)[0], axis=1)

    def decision_function(self, X: Rows) -> Floats:
        r"""The score of each class. O(d(k + n_classes)) per point.

        It is :math:`-\frac{1}{2} \|U(x - \mu_c)\|^2 + \log \pi_c`, without the last
        term if there are no priors.

        Parameters
        ----------
        X : as in :meth:`predict`
            Points.

        Returns
        -------
        scores : ndarray of shape (n_samples, n_classes), or (n_samples,) for 2 classes
            Scores; of two classes, that of the second minus that of the first. For a
            class without points, minus infinity.
        """
        scores, fitted, X = self._scores(X)
        if len(fitted.classes_) == 2:
            return scores[:, 1] - scores[:, 0]
        U = fitted._metric()
        with np.errstate(over="ignore", invalid="ignore"):
            Z = X if U is None else X @ U.T
            squares = np.sum(Z * Z, axis=1, keepdims=True)
        checks.check_finite("X", squares)
        return scores - 0.5 * squares

    @property
    def centroids_(self) -> Floats:
        """Means of the classes, a copy; not a number for a class without points."""
        check_is_fitted(self)
        return np.where(self.class_count_[:, np.newaxis] > 0, self._means, np.nan)

    @property
    def components_(self) -> Floats:
        """U at present; a copy."""
        check_is_fitted(self)
        U = self._metric()
        return np.eye(self.n_features_in_) if U is None else U.copy()

    @property
    def covariance_(self) -> Floats:
        """The covariance within classes after shrinkage."""
        check_is_fitted(self)
        if self._scatter is None:
            raise AttributeError("The metric is not that of the covariance.")
        covariance = self._scatter / self.class_count_.sum()
        return shrunk_covariance(covariance, self.shrinkage_)

    def _learn(self, X, y, classes, sample_weight, restart):
        """Learn from points. If it raises, attributes may have changed."""
        X, y = validated(self, X, y, reset=restart, **_POINTS)
        check_classification_targets(y)
        weights = as_weights(sample_weight, len(X))
        if restart:
            self._begin(X, y, classes)
            if not weights.any():
                raise ValueError("sample_weight must not be zero for all points.")
        else:
            check_repeated(classes, [self.classes_])
        known = self.classes_
        if not self._fixed_classes:
            self.classes_ = np.sort(with_new_classes(known, y))
        count, places = len(self.classes_), codes_of(known, self.classes_)
        weight, mean = np.zeros(count), np.zeros((count, X.shape[1]))
        weight[places], mean[places] = self.class_count_, self._means
        before, codes = Moments(weight, mean, self._scatter), codes_of(y, self.classes_)
        moments = updated(before, X, codes, weights)
        self.class_count_, self._means, self._scatter = moments
        self.class_prior_ = _as_priors(self.priors, self.class_count_, self.classes_)
        self._learn_metric(X, y, restart)

    def _begin(self, X, y, classes):
        """Start without points, and decide whether the metric is of the covariance."""
        d, metric = X.shape[1], self.metric_learner
        if own := isinstance(metric, str):
            name = "metric_learner, if it is a string,"
            checks.as_choice(name, metric, ("covariance",))
        self._scatter = np.zeros((d, d)) if own else None
        self._fixed_classes = classes is not None
        self.classes_ = y[:0] if classes is None else class_lists(classes, 1)[0]
        self.class_count_ = np.zeros(len(self.classes_))
        self._means = np.zeros((len(self.classes_), d))

    def _learn_metric(self, X, y, restart):
        """Shrink the covariance, fit the learner, or let an online one continue."""
        d, self._cached, self.shrinkage_ = X.shape[1], {}, None
        if self._scatter is not None:
            n = self.class_count_.sum()
            auto = isinstance(self.shrinkage, str)
            self.shrinkage_ = oas(self._scatter, n) if auto else float(self.shrinkage)
        if restart:
            given = self.metric_learner if self._scatter is None else None
            resolved = learners.resolve_components(given, X, y, d)
            self._components, self.metric_learner_ = resolved
            if self._components is not None:
                _check_squares("metric_learner", self._components)
        elif learners.learns_online(learner := self.metric_learner_):
            with undo_on_error(learner):
                learner.partial_fit(X, y)
                self._components = learners.components_of(learner, "metric_learner", d)

    def _metric(self):
        """U, or None for the Euclidean metric."""
        if self._scatter is None:
            return self._components
        if "U" not in self._cached:
            # Not for every point of a stream, but when it is first needed, in O(d³).
            V = self.covariance_
            self._cached["U"] = components_from(V=V) if V.any() else np.eye(len(V))
        return self._cached["U"]

    def _linear(self):
        """Centre, coefficients and constants of the scores, kept until a change."""
        if "linear" not in self._cached:
            U, means, seen = self._metric(), self._means, self.class_count_ > 0
            constants, priors = np.full(len(seen), -np.inf), self.class_prior_
            constants[seen] = 0 if priors is None else np.log(priors[seen])
            # Products of points far from zero would cancel.
            centre = means[seen].mean(axis=0)
            M = coefficients = np.where(seen[:, np.newaxis], means - centre, 0)
            if U is not None:
                M = M @ U.T
                coefficients = M @ U
            constants -= 0.5 * np.sum(M * M, axis=1)
            self._cached["linear"] = centre, coefficients, constants
        return self._cached["linear"]

    def _scores(self, X):
        """Scores up to a term that all classes share, the state, and centred points."""
        check_is_fitted(self)
        # One state, also if another thread learns meanwhile.
        fitted = copy(self)
        X = validated(fitted, X, reset=False, **_POINTS)
        with np.errstate(over="ignore", invalid="ignore"):
            centre, coefficients, constants = fitted._linear()
            X = X - centre
            products = X @ coefficients.T
        checks.check_finite("X", products)
        return products + constants, fitted, X

    def _saved(self, state):
        state.pop("_cached", None)
        return super()._saved(state)

    def _restored(self, state):
        if "class_count_" in state:
            count, d = len(state["classes_"]), state["n_features_in_"]
            shapes = {"class_count_": (count,), "_means": (count, d)}
            optional = {
                "class_prior_": (count,),
                "_scatter": (d, d),
                "_components": (None, d),
            }
            shapes |= {k: v for k, v in optional.items() if state[k] is not None}
            for name, shape in shapes.items():
                state[name] = array_from(state, name, _FLOAT64, shape)
            require_width(state, d)
            follows = state["_scatter"] is not None
            require(follows == (state["shrinkage_"] is not None), "shrinkage_ is wrong")
            state["_cached"] = {}
        return super()._restored(state)


class Moments(NamedTuple):
    """Weight and mean of every class, and the scatter within classes, or None.

    The scatter is the sum of ``w (x - μ) (x - μ)ᵀ`` over all points x, where w is the
    weight of x and μ the mean of its class. A class without weight has the mean 0.
    """

    weight: np.ndarray
    mean: np.ndarray
    scatter: np.ndarray | None


def updated(moments, X, codes, weights):
    r"""Moments with more points; `codes` are the positions of their classes.

    By the formulas of Chan, Golub and LeVeque: if the points of a class have the weight
    w' and the mean :math:`\mu'`, its mean moves by
    :math:`\frac{w'}{w + w'} (\mu' - \mu)`, and the scatter grows by that of the points
    around :math:`\mu'` and by
    :math:`\frac{w w'}{w + w'} (\mu' - \mu) (\mu' - \mu)^\top`.
    O(d) per point and per class, and O(d²) per point with the scatter.

    >>> none = Moments(np.zeros(2), np.zeros((2, 1)), np.zeros((1, 1)))
    >>> updated(none, np.array([[0.0], [2.0], [7.0]]), np.zeros(3, int), np.ones(3))
    Moments(weight=array([3., 0.]), mean=array([[3.], [0.]]), scatter=array([[26.]]))
    """
    added = np.bincount(codes, weights, minlength=len(moments.weight))
    weight = moments.weight + added
    parts = weights, codes, np.arange(len(X) + 1)
    sums = sparse.csr_matrix(parts, shape=(len(X), len(weight))).T
    # Columns of divisors, with 1 for classes without points.
    of_new, of_all = (
        np.where(total > 0, total, 1)[:, np.newaxis] for total in (added, weight)
    )
    with np.errstate(over="ignore", invalid="ignore"):
        mean = sums @ X.astype(np.float64) / of_new
        centred = X - mean[codes]
        # Sums of many points are rounded; this is what they lack.
        rest = sums @ centred / of_new
        shift = mean + rest - moments.mean
        mean = moments.mean + shift * (added[:, np.newaxis] / of_all)
        scatter = moments.scatter
        if scatter is not None:
            both = (moments.weight > 0) & (added > 0)
            shares = moments.weight[both] * added[both] / weight[both]
            roots = np.sqrt(np.concatenate([weights, shares]))[:, np.newaxis]
            rows = np.concatenate([centred - rest[codes], shift[both]]) * roots
            scatter = rows.T @ rows + scatter
            checks.check_finite("X", scatter)
    _check_squares("X", mean)
    return Moments(weight, mean, scatter)


def oas(covariance, n):
    r"""Oracle approximating shrinkage of the covariance S of n points. O(d²).

    With the mean square a of the entries of S and :math:`m = \mathrm{tr}(S) / d` it is
    :math:`\min(1, (a + m^2) / ((n + 1) (a - m^2 / d)))`, as in scikit-learn. A multiple
    of S has the same shrinkage.

    >>> round(oas(np.diag([4.0, 1.0]), 10), 3)
    0.848
    """
    d = len(covariance)
    # Of one size, so that no square overflows.
    covariance = covariance / (np.abs(covariance).max() or 1)
    square = (np.trace(covariance) / d) ** 2
    mean_square = np.vdot(covariance, covariance) / d**2
    excess = (n + 1) * (mean_square - square / d)
    return float(min(1, (mean_square + square) / excess)) if excess > 0 else 1.0


def _check_squares(name, array):
    """Refuse numbers of which the sum of squares is not finite."""
    if not checks.surely_finite(array):
        raise ValueError(f"{name} has a value too large for squares in float64.")


def _as_priors(priors, weight, classes):
    """Prior of every class, which is its share for "empirical", or None for None."""
    if priors is None:
        return None
    if isinstance(priors, str):
        return weight / weight.sum()
    given = checks.as_array("priors", priors, np.float64)
    positive = given.shape == weight.shape and (given > 0).all()
    if not positive or abs(given.sum() - 1) > 1e-6:
        raise ValueError(
            f"priors must be {len(weight)} positive numbers that sum to 1, for the "
            f"classes {listed(classes)}, got {priors!r}."
        )
    return given.copy()

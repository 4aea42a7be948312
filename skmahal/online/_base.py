"""The base of the online learners: streams of pairs, thresholds, and the metric."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from copy import copy
from math import inf
from numbers import Integral, Real
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.metrics import precision_recall_curve, roc_auc_score, roc_curve
from sklearn.utils import ClassifierTags, check_array, column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, check_is_fitted

from skmahal._compat import (
    CallbackSupport,
    Interval,
    StrOptions,
    available_if,
    fit_context,
    fit_task,
    fit_tasks,
)
from skmahal._core.checks import surely_finite
from skmahal._core.metric import LowRank
from skmahal._core.saved import require
from skmahal._core.threads import slices
from skmahal._core.types import Floats, Strategy
from skmahal._estimator import (
    Persistent,
    generator_from,
    no_overflow,
    require_width,
    undo_on_error,
    validated,
)
from skmahal._metric_learner import check_components

from ._factor import MovingFactor
from ._reservoir import Reservoir

# Pairs whose differences are computed together.
_AT_ONCE = 256
_STRATEGIES = ("accuracy", "f_beta", "max_tpr", "max_tnr")


def _fitted_with_pairs(learner):
    """Like metric-learn, learners fitted with labels transform points only."""
    if not getattr(learner, "_labelled", False):
        return True
    raise AttributeError(
        "This learner was fitted with labelled points; pair_score and pair_distance "
        "take pairs."
    )


class OnlineLearner(
    CallbackSupport, ClassNamePrefixFeaturesOutMixin, TransformerMixin, Persistent
):
    """A metric that changes by a step of rank one for a pair of points.

    Subclasses define ``_steps(factor, differences, signs)``, which returns the factor
    after some pairs, and may change it in place; ``_prepare(points)``, which is called
    with the points of a batch before its steps; and ``_default_threshold``.
    """

    _parameter_constraints = {
        "init": [StrOptions({"identity"}), "array-like"],
        "reservoir_size": [Interval(Integral, 1, None, closed="left")],
        "n_pairs": [Interval(Integral, 1, None, closed="left")],
        "random_state": ["random_state"],
        "preprocessor": ["array-like", callable, None],
    }
    # Attributes that are saved as plain values.
    _parts = {"_factor": MovingFactor, "_reservoir": Reservoir}
    _n_features_out = property(lambda self: self._factor.shape[0])

    @fit_context(prefer_skip_nested_validation=True)
    def fit(
        self,
        pairs: ArrayLike,
        y: ArrayLike,
        calibration_params: Mapping[str, Any] | None = None,
    ) -> Self:
        """Learn from pairs or labelled points in their order, from the start.

        Parameters
        ----------
        pairs : array-like of shape (n_pairs, 2, n_features) or (n_samples, n_features)
            Pairs of points, or points. If `preprocessor` is given, pairs of points, or
            indices of shape (n_pairs, 2) or (n_samples,).
        y : array-like of shape (n_pairs,) or (n_samples,)
            For pairs, +1 if they are similar, else -1. For points, their labels.
        calibration_params : dict, default=None
            Arguments of :meth:`calibrate_threshold`, which is called with these pairs.
            None keeps the threshold of the learner.

        Returns
        -------
        self : object
            The fitted learner. O(kd) per pair and product, of which POLA needs several.
        """
        if not isinstance(calibration_params, dict | None):
            expected = "a dictionary or None"
            given = repr(calibration_params)
            raise TypeError(f"calibration_params must be {expected}, got {given}.")
        with undo_on_error(self), np.errstate(over="ignore", invalid="ignore"):
            self._learn(pairs, y, restart=True)
            if calibration_params is not None:
                self.calibrate_threshold(pairs, y, **calibration_params)
        return self

    @fit_context(prefer_skip_nested_validation=True)
    def partial_fit(self, pairs: ArrayLike, y: ArrayLike) -> Self:
        """Learn from more pairs or labelled points; the first call is `fit`.

        A call that raises leaves the learner as it was; cost as in :meth:`fit`.

        Parameters
        ----------
        pairs, y : array-like
            As for :meth:`fit`.
        """
        with undo_on_error(self), np.errstate(over="ignore", invalid="ignore"):
            return self._learn(pairs, y, restart="_factor" not in vars(self))

    @property
    def components_(self) -> Floats:
        """The matrix U, of shape (k, n_features), as a new array. O(kd)."""
        check_is_fitted(self)
        return self._factor.components().astype(self._dtype, copy=False)

    @property
    def version_(self) -> int:
        """Number of changes of U since `fit`."""
        check_is_fitted(self)
        return self._factor.version

    @property
    def threshold_(self) -> float:
        """Distance up to which `predict` gives +1."""
        check_is_fitted(self)
        given = self._threshold
        return float(self._default_threshold if given is None else given)

    @property
    def classes_(self) -> np.ndarray:
        """The labels of pairs, -1 and 1. Not available after a fit with labels."""
        check_is_fitted(self)
        _fitted_with_pairs(self)
        return np.array([-1, 1])

    def state_token(self) -> tuple[str, int]:
        """A name, new with every `fit` and every copy, and the version, as a tuple.

        It is the state that :meth:`updates_since` starts from. O(1).
        """
        check_is_fitted(self)
        return self._factor.stream, self._factor.version

    def updates_since(self, token: tuple[str, int] | None) -> LowRank | None:
        """All changes of U since an earlier state, as one change of low rank.

        Parameters
        ----------
        token : tuple of (str, int), or None
            A result of :meth:`state_token`; None is an unknown state.

        Returns
        -------
        change : LowRank or None
            ``(W, V)``, of shapes (k, p) and (n_features, p), with
            ``components_ == before + W @ V.T`` up to rounding; p is the number of
            steps. None if some of them are not in the log, which holds up to a quarter
            of `n_features` steps, from 16 to 64 or a 32nd of `n_features`. O(p(k + d)).
        """
        check_is_fitted(self)
        if token is None:
            return None
        pair = isinstance(token, tuple) and len(token) == 2
        if not pair or not isinstance(token[1], Integral):
            raise ValueError(
                f"token must be a result of state_token, or None, got {token!r}."
            )
        change = self._factor.since(token)
        if change is None:
            return None
        return LowRank(*(part.astype(self._dtype, copy=False) for part in change))

    def get_mahalanobis_matrix(self) -> Floats:
        """The matrix ``A = UᵀU``, of shape (n_features, n_features). O(kd²)."""
        check_is_fitted(self)
        U = self._factor.components()
        return (U.T @ U).astype(self._dtype, copy=False)

    def get_metric(self) -> Callable[..., float]:
        """A function ``metric(u, v, squared=False)`` of two points, O(kd) per call.

        It is the learned distance, and does not change with the learner. Points are
        vectors of length `n_features`; other shapes raise a ValueError.
        """
        U = self.components_

        def metric(u, v, squared=False):
            u, v = np.asarray(u, dtype=U.dtype), np.asarray(v, dtype=U.dtype)
            for name, vector in (("u", u), ("v", v)):
                if vector.shape != U.shape[1:]:
                    expected = f"a vector of shape {U.shape[1:]}"
                    message = f"{name} must be {expected}, got shape {vector.shape}."
                    raise ValueError(message)
            w = U @ (u - v)
            return w @ w if squared else np.sqrt(w @ w)

        return metric

    def transform(self, X: ArrayLike) -> Floats:
        """``X @ components_.T``, where the learned distance is Euclidean. O(kd) each.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features) or (n_samples,)
            Points, or indices if `preprocessor` is given.
        """
        check_is_fitted(self)
        points = self._formed(X, "X", (1,))
        points = validated(self, points, reset=False, dtype=self._dtype)
        Z = (self._factor @ points.T.astype(self._factor.dtype, copy=False)).T
        return np.ascontiguousarray(Z, dtype=self._dtype)

    def pair_distance(self, pairs: ArrayLike) -> Floats:
        """The learned distances of pairs, of shape (n_pairs,). O(kd) each.

        Parameters
        ----------
        pairs : array-like of shape (n_pairs, 2, n_features) or (n_pairs, 2)
            Pairs of points, or of indices if `preprocessor` is given.
        """
        check_is_fitted(self)
        points = self._check_pairs(self._formed(pairs, "pairs", (2,)), self._dtype)
        differences = points[:, 0] - points[:, 1]
        differences = differences.astype(self._factor.dtype, copy=False)
        distances = np.linalg.norm(self._factor @ differences.T, axis=0)
        return distances.astype(self._dtype, copy=False)

    def pair_score(self, pairs: ArrayLike) -> Floats:
        """Minus the learned distances of pairs; cost as in :meth:`pair_distance`."""
        return -self.pair_distance(pairs)

    @available_if(_fitted_with_pairs)
    def decision_function(self, pairs: ArrayLike) -> Floats:
        """As :meth:`pair_score`; not available after a fit with labels. O(kd) each."""
        return -self.pair_distance(pairs)

    @available_if(_fitted_with_pairs)
    def predict(self, pairs: ArrayLike) -> np.ndarray:
        """+1 for pairs up to the distance `threshold_`, else -1. O(kd) each.

        Not available after a fit with labels.

        Parameters
        ----------
        pairs : array-like
            As for :meth:`pair_distance`.
        """
        return np.where(self.pair_distance(pairs) <= self.threshold_, 1, -1)

    @available_if(_fitted_with_pairs)
    def score(self, pairs: ArrayLike, y: ArrayLike) -> float:
        """Area under the ROC curve. Not available after a fit with labels.

        It is 1 if all similar pairs are nearer than all dissimilar ones. O(kd) each.

        Parameters
        ----------
        pairs : array-like
            As for :meth:`pair_distance`.
        y : array-like of shape (n_pairs,)
            +1 if they are similar and -1 if they are not.
        """
        y, scores = _check_signs(y), self.decision_function(pairs)
        check_consistent_length(scores, y)
        return float(roc_auc_score(y, scores))

    def set_threshold(self, threshold: float) -> Self:
        """Predict pairs up to this distance as similar, until the next `fit`. O(1)."""
        check_is_fitted(self)
        real = isinstance(threshold, Real) and not isinstance(threshold, bool)
        if not real or threshold != threshold:
            raise ValueError(f"threshold must be a real number, got {threshold!r}.")
        self._threshold = float(threshold)
        return self

    def calibrate_threshold(
        self,
        pairs: ArrayLike,
        y: ArrayLike,
        strategy: Strategy = "accuracy",
        *,
        min_rate: float | None = None,
        beta: float = 1.0,
    ) -> Self:
        """Set the threshold that is best on pairs, until the next `fit`. O(kd) each.

        Parameters
        ----------
        pairs : array-like
            As for :meth:`pair_distance`.
        y : array-like of shape (n_pairs,)
            +1 if they are similar and -1 if they are not.
        strategy : {"accuracy", "f_beta", "max_tpr", "max_tnr"}, default="accuracy"
            What to maximise: the accuracy; the F score; the true positive rate while
            the true negative rate is at least `min_rate`; or the other way round.
        min_rate : float from 0 to 1, default=None
            For "max_tpr" and "max_tnr", which need it.
        beta : float, default=1.0
            For "f_beta".
        """
        check_is_fitted(self)
        y = _check_calibration(y, strategy, min_rate, beta)
        distances = self.pair_distance(pairs)
        check_consistent_length(distances, y)
        self._threshold = best_threshold(distances, y, strategy, min_rate, beta)
        return self

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.input_tags.three_d_array = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        if not vars(self).get("_labelled", True):
            # Not before it is fitted: scikit-learn's checks would predict points.
            tags.estimator_type = "classifier"
            tags.classifier_tags = ClassifierTags(multi_class=False)
        return tags

    def __copy__(self):
        # A copy learns on its own, so that its versions are those of another stream.
        other = super().__copy__()
        if "_factor" in vars(other):
            other._factor = MovingFactor.restored(other._factor.saved())
        return other

    def _saved(self, state):
        for name in self._parts:
            if state.get(name) is not None:
                state[name] = state[name].saved()
        return super()._saved(state)

    def _restored(self, state):
        for name, kind in self._parts.items():
            if state.get(name) is not None:
                state[name] = kind.restored(state[name])
                if name != "_reservoir":
                    require_width(state, state[name].shape[1])
        if "_factor" in state:
            require(state["_dtype"] in ("float32", "float64"), "the type is not known")
        return super()._restored(state)

    def _learn(self, pairs, y, restart):
        """Make the steps for a batch, and only then take the result."""
        dtype = (np.float64, np.float32) if restart else self._dtype
        pairs = self._formed(pairs, "pairs", (1, 2))
        labelled = _are_points(pairs)
        if labelled:
            _warn_of_indices(pairs, y)
            points, y = validated(self, pairs, y, reset=restart, dtype=dtype)
            check_classification_targets(y)
        else:
            pairs, y = self._check_pairs(pairs, dtype, restart), _check_signs(y)
            check_consistent_length(pairs, y)
            points = pairs.reshape(-1, pairs.shape[2])
        if restart:
            self._begin(points, labelled)
        self._prepare(points)
        if labelled:
            points, chosen, reservoir = self._reservoir.pair_up(points, y)
        else:
            first = np.arange(0, len(points), 2)
            chosen, reservoir = np.stack([first, first + 1, y], 1), self._reservoir
        factor, parts = copy(self._factor), slices(len(chosen), _AT_ONCE)
        with fit_tasks(self, len(parts), points, y):
            for part in parts:
                with fit_task(self, "learn from pairs") as task:
                    first, second, signs = chosen[part].T
                    differences = points[first] - points[second]
                    apart = differences.any(axis=1)
                    steps = differences[apart], signs[apart].tolist()
                    factor = self._steps(factor, *steps)
                    self.n_steps_ += int(apart.sum())
                    self.n_skipped_ += int((~apart).sum())
                if task.stop:
                    break
        self._factor, self._reservoir = factor, reservoir
        return self

    def _begin(self, points, labelled):
        if not labelled:
            self.n_features_in_ = points.shape[1]
            vars(self).pop("feature_names_in_", None)
        self._dtype, self._labelled, self._threshold = points.dtype.name, labelled, None
        self._factor = MovingFactor(self._initial(points.shape[1], points.dtype))
        rng = generator_from(self.random_state)
        self._reservoir = Reservoir(self.reservoir_size, self.n_pairs, rng)
        self.n_steps_ = self.n_skipped_ = 0

    def _initial(self, d, dtype):
        if isinstance(self.init, str):
            return np.eye(d, dtype=dtype)
        return check_components(self.init, "init", d, dtype)

    def _formed(self, X, name, dimensions):
        """X, or the points of `preprocessor` if X has these dimensions of indices."""
        if self.preprocessor is None or sparse.issparse(X):
            return X
        array = np.asarray(X)
        if array.ndim not in dimensions:
            return X
        if array.ndim == 2 and array.shape[1] != 2:
            expected = "indices of shape (n_pairs, 2), because preprocessor is given"
            raise ValueError(f"{name} must be {expected}, got shape {array.shape}.")
        return points_of(array, self.preprocessor, name)

    def _check_pairs(self, pairs, dtype, restart=False):
        with no_overflow("pairs"):
            pairs = check_array(
                pairs, dtype=dtype, ensure_2d=False, allow_nd=True, input_name="pairs"
            )
        if pairs.ndim != 3 or pairs.shape[1] != 2:
            expected = "an array of shape (n_pairs, 2, n_features)"
            hint = " Pairs of indices need a preprocessor." if pairs.ndim == 2 else ""
            message = f"pairs must be {expected}, got shape {pairs.shape}.{hint}"
            raise ValueError(message)
        if not pairs.shape[2]:
            raise ValueError(f"pairs has no features, got shape {pairs.shape}.")
        if not restart and pairs.shape[2] != self.n_features_in_:
            raise ValueError(
                f"pairs has {pairs.shape[2]} features, but {type(self).__name__} is "
                f"expecting {self.n_features_in_} features."
            )
        return pairs


def _warn_of_indices(points, y):
    """Warn about labelled points that look like pairs of indices."""
    if not isinstance(points, np.ndarray) or points.dtype.kind not in "iu":
        return
    if points.shape[1:] == (2,) and np.isin(np.asarray(y), (-1, 1)).all():
        warnings.warn(
            "pairs has integers in the shape (n, 2), and y only +1 and -1: used as "
            "labelled points of two features. Pairs of indices need a preprocessor.",
            UserWarning,
            stacklevel=4,
        )


def points_of(indices, preprocessor, name):
    """The points of an array of indices, in an array of one more dimension.

    The preprocessor is an array with one point per row, or a function that returns such
    an array for a vector of indices. O(d) per index, and O(nd) if it is a list.

    >>> points_of(np.array([[0, 1], [1, 1]]), [[5.0], [7.0]], "pairs").tolist()
    [[[5.0], [7.0]], [[7.0], [7.0]]]
    """
    flat = indices.ravel()
    if not callable(preprocessor) and flat.dtype.kind not in "iu":
        expected = "integers, the rows of points in preprocessor"
        raise ValueError(f"{name} must be {expected}, got {flat.dtype}.")
    try:
        if callable(preprocessor):
            points = np.asarray(preprocessor(flat))
        else:
            points = np.asarray(preprocessor)[flat]
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        message = f"preprocessor has no points for {name} ({reason})."
        raise ValueError(message) from error
    if points.ndim != 2 or len(points) != len(flat):
        raise ValueError(
            f"preprocessor must give a dense array of shape ({len(flat)}, n_features) "
            f"for as many indices, got shape {points.shape}."
        )
    return points.reshape(*indices.shape, points.shape[1])


def best_threshold(distances, y, strategy, min_rate, beta):
    """The threshold that is best for a strategy: a distance, or less than all of them.

    The parameters are those of :meth:`OnlineLearner.calibrate_threshold`. O(n log n).

    >>> distances, y = np.array([1.0, 2.0, 3.0, 4.0]), np.array([1, 1, -1, -1])
    >>> best_threshold(distances, y, "accuracy", None, 1.0)
    2.0
    """
    if strategy == "accuracy":
        order = np.argsort(distances)
        ranked = distances[order]
        gain = np.r_[0, np.cumsum(y[order])]
        # Equal distances are accepted or rejected together.
        possible = np.r_[True, ranked[1:] > ranked[:-1], True]
        thresholds = np.r_[ranked[0] - 1, ranked]
        return float(thresholds[np.argmax(np.where(possible, gain, -len(y) - 1))])
    if strategy == "f_beta":
        precision, recall, scores = precision_recall_curve(y, -distances, pos_label=1)
        below = beta**2 * precision + recall
        above = (1 + beta**2) * precision * recall
        f = np.divide(above, below, out=np.zeros_like(above), where=below > 0)
        return float(-scores[np.argmax(f[:-1])])
    fpr, tpr, scores = roc_curve(y, -distances, pos_label=1, drop_intermediate=False)
    # The first point of the curve accepts nothing, and its score is infinite.
    scores[0] = 1 - distances.min()
    best, kept = (tpr, 1 - fpr) if strategy == "max_tpr" else (1 - fpr, tpr)
    allowed = np.flatnonzero(kept >= min_rate)
    order = np.lexsort((kept[allowed], best[allowed]))
    return float(-scores[allowed[order[-1]]])


def _check_calibration(y, strategy, min_rate, beta):
    """The signs of pairs, if all arguments of a calibration are valid."""
    if not isinstance(strategy, str) or strategy not in _STRATEGIES:
        names = ", ".join(map(repr, _STRATEGIES))
        raise ValueError(f"strategy must be one of {names}, got {strategy!r}.")
    needed = {"accuracy": (), "f_beta": (1,)}.get(strategy, (1, -1))
    if len(needed) == 2 and (not isinstance(min_rate, Real) or not 0 <= min_rate <= 1):
        raise ValueError(
            f"min_rate must be a number from 0 to 1 for strategy {strategy!r}, "
            f"got {min_rate!r}."
        )
    if len(needed) == 1 and (not isinstance(beta, Real) or not 0 <= beta < inf):
        raise ValueError(f"beta must be a number of at least 0, got {beta!r}.")
    y = _check_signs(y)
    for sign in needed:
        if sign not in y:
            needs = f"which the strategy {strategy!r} needs"
            raise ValueError(f"y has no {sign:+d}, {needs}.")
    return y


def _are_points(pairs):
    """Whether points were given and not pairs, by the dimensions of the array."""
    n = pairs.ndim if hasattr(pairs, "ndim") else np.asarray(pairs).ndim
    if n > 3:
        expected = "(n_pairs, 2, n_features), or of points, (n_samples, n_features)"
        raise ValueError(
            f"pairs must be an array of shape {expected}, got one of {n} dimensions."
        )
    return n != 3


def _check_signs(y):
    """The signs of pairs as integers."""
    if y is None:
        raise ValueError("y is needed: +1 for a similar pair, -1 for a dissimilar one.")
    y = column_or_1d(y, warn=True)
    for position, value in enumerate(y.tolist()):
        if value not in (1, -1):
            raise ValueError(
                "y must be +1 for a similar pair and -1 for a dissimilar one, got "
                f"{value!r} at position {position}."
            )
    return y.astype(int)


def check_finite(value):
    """A squared distance, or a vector of a step, if it is finite."""
    if not surely_finite(value) and not np.isfinite(value).all():
        raise ValueError(
            "pairs has points too far apart: a squared distance or a step overflows."
        )
    return value

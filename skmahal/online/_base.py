"""What the online learners share: streams of pairs, the metric, and its log."""

from numbers import Integral, Real

import numpy as np
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.metrics import roc_auc_score
from sklearn.utils import check_array, column_or_1d
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    check_consistent_length,
    check_is_fitted,
)

from skmahal._atomic import as_before_on_error
from skmahal._compat import Interval, StrOptions, fit_context
from skmahal._metric_learner import check_components
from skmahal._persistence import Persistent, require_width
from skmahal._random import generator_from
from skmahal._validation import no_overflow, validated

from ._log import MovingFactor, log_room
from ._reservoir import Reservoir
from ._square import MovingSquare
from ._threshold import best_threshold, check_both_kinds, check_calibration


def _began_with_pairs(learner):
    """As in metric-learn, learners from labels transform points and classify none."""
    if not getattr(learner, "_labelled", False):
        return True
    raise AttributeError(
        "This learner was fitted with labelled points; pair_score and pair_distance "
        "take pairs."
    )


class OnlineLearner(ClassNamePrefixFeaturesOutMixin, TransformerMixin, Persistent):
    """A metric that moves by a step of rank one for a pair of points.

    Subclasses give `_step(factor, z, sign)`, the factor after a pair of difference z,
    `_prepare(points)`, called with the points of a batch before its steps, and
    `_own_threshold`.
    """

    _parameter_constraints = {
        "init": [StrOptions({"identity"}), "array-like"],
        "reservoir_size": [Interval(Integral, 1, None, closed="left")],
        "n_pairs": [Interval(Integral, 1, None, closed="left")],
        "random_state": ["random_state"],
    }

    # What is in a learner beside plain values.
    _VALUES = {"_factor": MovingFactor, "_start": MovingFactor, "_reservoir": Reservoir}

    @fit_context(prefer_skip_nested_validation=True)
    def fit(self, pairs, y):
        """Learn from pairs or labelled points in their order, from the start.

        Parameters
        ----------
        pairs : array-like of shape (n_pairs, 2, n_features) or (n_samples, n_features)
            Pairs of points, or points.
        y : array-like of shape (n_pairs,) or (n_samples,)
            For pairs, +1 where they are similar and -1 where they are not. For points,
            their labels.

        Returns
        -------
        self : object
            The fitted learner. O(kd) a pair and product, of which POLA makes several.
        """
        with as_before_on_error(self), np.errstate(over="ignore", invalid="ignore"):
            return self._learn(pairs, y, anew=True)

    @fit_context(prefer_skip_nested_validation=True)
    def partial_fit(self, pairs, y):
        """Learn from more pairs or labelled points; the first call is `fit`.

        A call that raises leaves the learner as it was before.

        Parameters
        ----------
        pairs : array-like of shape (n_pairs, 2, n_features) or (n_samples, n_features)
            Pairs of points, or points.
        y : array-like of shape (n_pairs,) or (n_samples,)
            For pairs, +1 where they are similar and -1 where they are not. For points,
            their labels.

        Returns
        -------
        self : object
            The learner after the steps. O(kd) a pair and product, of which POLA makes
            several.
        """
        with as_before_on_error(self), np.errstate(over="ignore", invalid="ignore"):
            return self._learn(pairs, y, anew=not self._is_fitted)

    @property
    def components_(self):
        """The matrix U, of shape (k, n_features), as a new array. O(kd)."""
        return self._fitted("components_").components()

    @property
    def version_(self):
        """Number of steps since `fit` that changed U."""
        return self._fitted("version_").version

    @property
    def threshold_(self):
        """Distance up to which `predict` calls a pair similar."""
        self._fitted("threshold_")
        own = self._threshold is None
        return float(self._own_threshold if own else self._threshold)

    def state_token(self):
        """Where the learner is now, for :meth:`updates_since`. O(1).

        Returns
        -------
        token : tuple of (str, int)
            The stream, new with every `fit` and every copy of a learner, and the
            version.
        """
        check_is_fitted(self)
        return self._factor.token

    def updates_since(self, token):
        """All changes of U since an earlier state, as one of low rank.

        Parameters
        ----------
        token : tuple of (str, int), or None
            What :meth:`state_token` gave; None knows of no state.

        Returns
        -------
        change : LowRank or None
            ``(W, V)``, of shapes (k, p) and (n_features, p), with
            ``components_ == before + W @ V.T`` up to rounding; p is the number of
            steps. None where they are not known: the log holds at most a quarter of
            `n_features` steps, from 16 to 64 or a 32nd of `n_features`, and at least
            half as many of the latest, begins anew where U was not changed by a step of
            low rank, and knows of no other fit. O(p(k + d)).
        """
        check_is_fitted(self)
        return None if token is None else self._factor.since(_checked_token(token))

    def get_mahalanobis_matrix(self):
        """The matrix ``A = UᵀU``. O(kd²).

        Returns
        -------
        A : ndarray of shape (n_features, n_features)
            Squared distances are ``(x - z)ᵀ A (x - z)``.
        """
        check_is_fitted(self)
        U = self._factor.components()
        return U.T @ U

    def get_metric(self):
        """The learned distance of two points, as a function that stays as it is.

        Returns
        -------
        metric : callable
            ``metric(u, v, squared=False)``, for example for the `metric` of
            scikit-learn's estimators. O(kd) a call.
        """
        check_is_fitted(self)
        U = self._factor.components()

        def metric(u, v, squared=False):
            w = U @ (np.asarray(u, dtype=U.dtype) - np.asarray(v, dtype=U.dtype))
            return w @ w if squared else np.sqrt(w @ w)

        return metric

    def transform(self, X):
        """Points in the space where the learned distance is Euclidean. O(kd) a point.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Points.

        Returns
        -------
        Z : ndarray of shape (n_samples, k)
            ``X @ components_.T``.
        """
        check_is_fitted(self)
        X = validated(self, X, reset=False, dtype=self._factor.dtype)
        return self._factor.transform(X)

    def pair_distance(self, pairs):
        """The learned distance of every pair. O(kd) each.

        Parameters
        ----------
        pairs : array-like of shape (n_pairs, 2, n_features)
            Pairs of points.

        Returns
        -------
        distances : ndarray of shape (n_pairs,)
            Distances, not squared.
        """
        check_is_fitted(self)
        pairs = self._check_pairs(pairs, self._factor.dtype)
        images = self._factor.transform(pairs[:, 0] - pairs[:, 1])
        return np.linalg.norm(images, axis=1)

    def pair_score(self, pairs):
        """Minus the learned distance of every pair: larger is more similar.

        Parameters
        ----------
        pairs : array-like of shape (n_pairs, 2, n_features)
            Pairs of points.

        Returns
        -------
        scores : ndarray of shape (n_pairs,)
            Minus the distances. O(kd) each.
        """
        return -self.pair_distance(pairs)

    @available_if(_began_with_pairs)
    def decision_function(self, pairs):
        """The same as :meth:`pair_score`. Not there after a fit with labels.

        Parameters
        ----------
        pairs : array-like of shape (n_pairs, 2, n_features)
            Pairs of points.

        Returns
        -------
        scores : ndarray of shape (n_pairs,)
            Minus the distances. O(kd) each.
        """
        return self.pair_score(pairs)

    @available_if(_began_with_pairs)
    def predict(self, pairs):
        """Whether pairs are similar. Not there after a fit with labels.

        Parameters
        ----------
        pairs : array-like of shape (n_pairs, 2, n_features)
            Pairs of points.

        Returns
        -------
        y : ndarray of shape (n_pairs,)
            +1 where the distance is at most `threshold_`, -1 where it is not. O(kd)
            each.
        """
        return np.where(self.pair_distance(pairs) <= self.threshold_, 1, -1)

    @available_if(_began_with_pairs)
    def score(self, pairs, y):
        """Area under the ROC curve of :meth:`decision_function`.

        Not there after a fit with labels.

        Parameters
        ----------
        pairs : array-like of shape (n_pairs, 2, n_features)
            Pairs of points.
        y : array-like of shape (n_pairs,)
            +1 where they are similar and -1 where they are not.

        Returns
        -------
        score : float
            1 where every similar pair is nearer than every dissimilar one. O(kd) a
            pair.
        """
        y, scores = _signs(y), self.decision_function(pairs)
        check_consistent_length(scores, y)
        return float(roc_auc_score(y, scores))

    def set_threshold(self, threshold):
        """Call pairs similar up to this distance, whatever is learned later. O(1).

        Parameters
        ----------
        threshold : float
            A distance.

        Returns
        -------
        self : object
            The learner with the threshold, until the next `fit`.
        """
        check_is_fitted(self)
        real = isinstance(threshold, Real) and not isinstance(threshold, bool)
        if not real or threshold != threshold:
            raise ValueError(f"threshold must be a real number, got {threshold!r}.")
        self._threshold = float(threshold)
        return self

    def calibrate_threshold(
        self, pairs, y, strategy="accuracy", *, min_rate=None, beta=1.0
    ):
        """Set the threshold that serves best on pairs with known answers.

        Parameters
        ----------
        pairs : array-like of shape (n_pairs, 2, n_features)
            Pairs of points.
        y : array-like of shape (n_pairs,)
            +1 where they are similar and -1 where they are not.
        strategy : {"accuracy", "f_beta", "max_tpr", "max_tnr"}, default="accuracy"
            What to make as large as possible: the share of right answers; the F score;
            the rate of true positives where that of true negatives is at least
            `min_rate`; or the other way round.
        min_rate : float from 0 to 1, default=None
            For "max_tpr" and "max_tnr", which need it.
        beta : float, default=1.0
            For "f_beta".

        Returns
        -------
        self : object
            The learner with the threshold, until the next `fit`. O(kd) a pair.
        """
        check_is_fitted(self)
        check_calibration(strategy, min_rate, beta)
        y = _signs(y)
        check_both_kinds(y, strategy)
        distances = self.pair_distance(pairs)
        check_consistent_length(distances, y)
        self._threshold = best_threshold(distances, y, strategy, min_rate, beta)
        return self

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.input_tags.three_d_array = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

    def __copy__(self):
        """A copy learns on its own, so that its versions are not the original's."""
        other = super().__copy__()
        if other._is_fitted:
            other._factor = other._factor.restarted()
        return other

    def _saved(self, state):
        return super()._saved({name: _state_of(value) for name, value in state.items()})

    def _restored(self, state):
        for name, kind in self._VALUES.items():
            if state.get(name) is not None:
                value = kind.__new__(kind)
                value.__setstate__(state[name])
                state[name] = value
        if "_factor" in state:
            state["_factor"] = state["_factor"].restarted()
            require_width(state, state["_factor"].shape[1])
        return super()._restored(state)

    @property
    def _is_fitted(self):
        return "_factor" in vars(self)

    @property
    def _n_features_out(self):
        return self._factor.shape[0]

    def _fitted(self, name):
        """The factor, or what Python says of an attribute that is not there."""
        if not self._is_fitted:
            kind = type(self).__name__
            raise AttributeError(f"{kind!r} object has no attribute {name!r}")
        return self._factor

    def _learn(self, pairs, y, anew):
        labelled = _are_points(pairs)
        read = self._read_points if labelled else self._read_pairs
        pairs, y = read(pairs, y, anew)
        points = pairs.reshape(-1, pairs.shape[-1])
        if anew:
            self._begin(points, labelled)
        self._prepare(points)
        if labelled:
            steps, reservoir = self._reservoir.pair_up(points, y)
        else:
            steps, reservoir = _differences(pairs, y), self._reservoir
        self._factor = self._after(steps)
        self._reservoir = reservoir
        return self

    def _begin(self, points, labelled):
        d = points.shape[1]
        self._labelled = labelled
        self._threshold = None
        self._factor = MovingFactor(self._initial(d, points.dtype), log_room(d))
        rng = generator_from(self.random_state)
        self._reservoir = Reservoir(self.reservoir_size, self.n_pairs, rng)
        self.n_steps_ = self.n_skipped_ = 0

    def _initial(self, d, dtype):
        if isinstance(self.init, str):
            return np.eye(d, dtype=dtype)
        return check_components(self.init, "init", d, dtype)

    def _after(self, steps):
        factor = self._factor
        for z, sign in steps:
            if z.any():
                factor = self._step(factor, z, sign)
                self.n_steps_ += 1
            else:
                self.n_skipped_ += 1
        return factor

    def _read_points(self, X, y, anew):
        dtype = _FLOATS if anew else self._factor.dtype
        X, y = validated(self, X, y, reset=anew, dtype=dtype)
        check_classification_targets(y)
        return X, y

    def _read_pairs(self, pairs, y, anew):
        pairs = self._check_pairs(pairs, _FLOATS if anew else self._factor.dtype, anew)
        y = _signs(y)
        check_consistent_length(pairs, y)
        if anew:
            self.n_features_in_ = pairs.shape[2]
            vars(self).pop("feature_names_in_", None)
        return pairs, y

    def _check_pairs(self, pairs, dtype, anew=False):
        with no_overflow("pairs"):
            pairs = check_array(
                pairs, dtype=dtype, ensure_2d=False, allow_nd=True, input_name="pairs"
            )
        if pairs.ndim != 3 or pairs.shape[1] != 2:
            raise ValueError(
                "pairs must be an array of shape (n_pairs, 2, n_features), got shape "
                f"{pairs.shape}."
            )
        if not pairs.shape[2]:
            raise ValueError(f"pairs has no features, got shape {pairs.shape}.")
        if not anew and pairs.shape[2] != self.n_features_in_:
            raise ValueError(
                f"pairs has {pairs.shape[2]} features, but {type(self).__name__} is "
                f"expecting {self.n_features_in_} features."
            )
        return pairs


_FLOATS = (np.float64, np.float32)


_KINDS = MovingFactor, MovingSquare, Reservoir


def _state_of(value):
    """A value that is saved within a learner, as plain values."""
    return value.__getstate__() if isinstance(value, _KINDS) else value


def check_squares(squares):
    """Refuse a squared distance that is beyond the floating type."""
    if not np.isfinite(squares):
        raise ValueError(
            "pairs has points too far apart: their squared distance overflows."
        )
    return squares


def moved(factor, change):
    """The factor after a change, or after none; a change must be finite. O(k + d)."""
    if change is None:
        return factor
    if not all(np.isfinite(part).all() for part in change):
        raise ValueError("pairs has points too far apart: the step overflows.")
    return factor.moved(change)


def _checked_token(token):
    """A token of any learner, or an error."""
    if isinstance(token, tuple) and len(token) == 2 and isinstance(token[1], Integral):
        return token
    raise ValueError(f"token must be what state_token gives, or None, got {token!r}.")


def _are_points(pairs):
    """Whether points were given and not pairs, by the dimensions of the array."""
    n = pairs.ndim if hasattr(pairs, "ndim") else np.asarray(pairs).ndim
    if n > 3:
        raise ValueError(
            "pairs must be an array of shape (n_pairs, 2, n_features), or of points, "
            f"(n_samples, n_features), got one of {n} dimensions."
        )
    return n != 3


def _differences(pairs, y):
    return ((a - b, int(sign)) for (a, b), sign in zip(pairs, y, strict=True))


def _signs(y):
    """Answers for pairs, or an error that says what is wrong with them."""
    if y is None:
        raise ValueError("y is needed: +1 for a similar pair, -1 for a dissimilar one.")
    y = column_or_1d(y)
    for position, value in enumerate(y.tolist()):
        if value not in (1, -1):
            raise ValueError(
                "y must be +1 for a similar pair and -1 for a dissimilar one, got "
                f"{value!r} at position {position}."
            )
    return y.astype(int)

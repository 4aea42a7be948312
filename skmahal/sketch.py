"""The Monte Carlo sketch of a Mahalanobis metric, as a transformer."""

from __future__ import annotations

import warnings
from numbers import Integral, Real
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.exceptions import DataDimensionalityWarning
from sklearn.utils.extmath import safe_sparse_dot
from sklearn.utils.validation import check_is_fitted

from skmahal._compat import HasMethods, Interval, StrOptions, fit_context
from skmahal._core.bounds import SKETCHES, failure, sketch_size
from skmahal._core.checks import check_finite
from skmahal._core.saved import FLOATS, array_from, csr_from, require, saved_csr
from skmahal._core.sketches import draw, toarray
from skmahal._core.types import Auto, Floats, Metric, RandomState, Rows, Sketch
from skmahal._estimator import (
    Persistent,
    generator_from,
    require_width,
    undo_on_error,
    validated,
)
from skmahal._metric_learner import resolve_components

_POINTS = {"accept_sparse": ("csr", "csc"), "dtype": (np.float64, np.float32)}


class MahalanobisSketch(ClassNamePrefixFeaturesOutMixin, TransformerMixin, Persistent):
    r"""Sketch points so that Euclidean distances are near Mahalanobis distances.

    The metric is :math:`d(x, z) = \|U(x - z)\|`, U a k x d matrix. The transform is
    :math:`x \mapsto \Pi U x`, with one random m x k sketch :math:`\Pi`, so that

    .. math:: (1 - \epsilon)\, d(x, z) \le \|\Pi U x - \Pi U z\|
              \le (1 + \epsilon)\, d(x, z)

    with the probability stated under `m`. Any Euclidean method can then be used on the
    m new features.

    Parameters
    ----------
    m : int or "auto", default="auto"
        Number of new features. "auto" chooses the smallest number for which the
        distances from one query, which does not depend on the sketch, to all points
        seen in `fit` are within :math:`1 \pm \epsilon` with probability at least
        1 - `delta`. If that is k or more, the transform is :math:`x \mapsto Ux`, with
        no error. Set `m` for "countsketch" and "srht": their bounds are weaker, and
        "auto" chooses far more features. A number above that of the features of X is
        used with a warning.
    eps : float, default=0.1
        Relative error :math:`\epsilon` of the distances, if `m` is "auto".
    delta : float, default=0.01
        Probability that a query has a distance with a larger error, if `m` is "auto".
    metric_learner : None, array-like of shape (k, n_features), dict, or estimator
        The matrix U, as in :class:`SketchedMahalanobisNeighbors`.
    sketch : {"gaussian", "rademacher", "countsketch", "srht"}, default="gaussian"
        Kind of the sketch: normal entries, random signs, one random sign in each
        column, or random rows of a Hadamard matrix with random signs.
    random_state : int, RandomState instance or None, default=None
        Determines the sketch. Pass an int for the same result in every call.

    Attributes
    ----------
    components_ : ndarray of shape (m, n_features)
        The matrix :math:`\Pi U`.
    m_ : int
        Number of new features.
    metric_learner_ : estimator or None
        The fitted estimator, if `metric_learner` is one.
    n_features_in_, feature_names_in_
        As in all estimators of scikit-learn.

    Notes
    -----
    In addition to the metric learner, `fit` costs O(mkd) with "gaussian" and
    "rademacher", O(kd) with "countsketch" and O(kd log k) with "srht"; with the
    Euclidean metric O(md), or O(d) with "countsketch", whose `transform` then needs one
    addition for every nonzero entry.

    Examples
    --------
    >>> import numpy as np
    >>> from skmahal import MahalanobisSketch
    >>> rng = np.random.default_rng(0)
    >>> X, U = rng.normal(size=(100, 2000)), rng.normal(size=(1000, 2000))
    >>> sketch = MahalanobisSketch(eps=0.2, metric_learner=U, random_state=0).fit(X)
    >>> Z = sketch.transform(X)
    >>> estimates = np.linalg.norm(Z[1:] - Z[0], axis=1)
    >>> distances = np.linalg.norm((X[1:] - X[0]) @ U.T, axis=1)
    >>> sketch.m_, bool(np.all(abs(estimates / distances - 1) < 0.2))
    (190, True)
    """

    _parameter_constraints = {
        "m": [Interval(Integral, 1, None, closed="left"), StrOptions({"auto"})],
        "eps": [Interval(Real, 0, None, closed="neither")],
        "delta": [Interval(Real, 0, 1, closed="neither")],
        "metric_learner": [None, "array-like", dict, HasMethods("fit")],
        "sketch": [StrOptions(set(SKETCHES))],
        "random_state": ["random_state"],
    }

    def __init__(
        self,
        m: int | Auto = "auto",
        *,
        eps: float = 0.1,
        delta: float = 0.01,
        metric_learner: Metric | None = None,
        sketch: Sketch = "gaussian",
        random_state: RandomState = None,
    ) -> None:
        self.m = m
        self.eps = eps
        self.delta = delta
        self.metric_learner = metric_learner
        self.sketch = sketch
        self.random_state = random_state

    @fit_context(prefer_skip_nested_validation=False)
    def fit(self, X: Rows, y: ArrayLike | None = None) -> Self:
        """Learn the metric and draw the sketch.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Points.
        y : array-like of shape (n_samples,), default=None
            Targets, if the `metric_learner` needs them.

        Returns
        -------
        self : MahalanobisSketch
        """
        with undo_on_error(self):
            X = validated(self, X, **_POINTS)
            n, d = X.shape
            U, learner = resolve_components(self.metric_learner, X, y, d)
            m: Any = self.m
            k, share = d if U is None else len(U), self.delta / n
            if isinstance(m, str):
                # No sketch is drawn if no number of rows below k keeps the promise.
                none = k == 1 or failure(self.eps, k - 1, sketch=self.sketch) > share
                m = None if none else sketch_size(self.eps, share, sketch=self.sketch)
            rng = generator_from(self.random_state)
            self._components = _sketched(self.sketch, m, U, d, rng, X.dtype)
            self.m_ = self._n_features_out = self._components.shape[0]
            self.metric_learner_ = learner
            if not isinstance(self.m, str) and m > d:
                warnings.warn(
                    f"m={m} is more than the {d} features of X: the transform does not "
                    "reduce their number.",
                    DataDimensionalityWarning,
                    stacklevel=3,  # the call of `fit`, which scikit-learn wraps
                )
        return self

    def transform(self, X: Rows) -> Floats:
        """Sketch points. O(nmd).

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Points.

        Returns
        -------
        Z : ndarray of shape (n_samples, m)
        """
        check_is_fitted(self)
        X = validated(self, X, reset=False, **_POINTS)
        # SciPy multiplies sparse matrices of equal types only.
        dtype = np.result_type(X.dtype, self._components.dtype)
        factors = (part.astype(dtype, copy=False) for part in (X, self._components.T))
        return safe_sparse_dot(*factors, dense_output=True)

    @property
    def components_(self) -> Floats:
        """The matrix that `transform` multiplies points by."""
        check_is_fitted(self)
        return toarray(self._components)

    def _saved(self, state):
        if sparse.issparse(state.get("_components")):
            state["_components"] = saved_csr(state["_components"])
        return super()._saved(state)

    def _restored(self, state):
        held = state.get("_components")
        if isinstance(held, dict):
            state["_components"] = csr_from(held, sparse.csr_array)
        elif held is not None:
            state["_components"] = array_from(state, "_components", FLOATS, held.shape)
        if held is not None:
            m, d = state["_components"].shape
            require_width(state, d)
            require(state["m_"] == state["_n_features_out"] == m, f"m_ is not {m}")
        return super()._restored(state)

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


def _sketched(sketch, m, U, d, rng, dtype):
    """The map to sketches, dense or CSR; m None is no sketch, U None the identity."""
    if m is None and U is None:
        return sparse.csr_array(sparse.eye(d, dtype=dtype))
    if U is None:
        return draw(sketch, m, d, rng, dtype)
    components = U if m is None else draw(sketch, m, len(U), rng, np.float64) @ U
    with np.errstate(over="ignore"):
        components = np.asarray(components, dtype=dtype)
    check_finite("metric_learner", components)
    return components

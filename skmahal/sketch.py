"""The Monte Carlo sketch of a Mahalanobis metric, as a transformer."""

from numbers import Integral, Real

import numpy as np
from scipy import sparse
from sklearn.base import (
    ClassNamePrefixFeaturesOutMixin,
    TransformerMixin,
)
from sklearn.utils.extmath import safe_sparse_dot
from sklearn.utils.validation import check_is_fitted

from skmahal._atomic import as_before_on_error
from skmahal._compat import HasMethods, Interval, StrOptions, fit_context
from skmahal._core.bounds import failure, sketch_size
from skmahal._core.projections import SKETCHES, draw, toarray
from skmahal._core.saved import FLOATS, array_from, csr_from, require, saved_csr
from skmahal._metric_learner import LearnsMetric, resolve_components
from skmahal._persistence import require_width
from skmahal._random import generator_from
from skmahal._validation import validated


class MahalanobisSketch(
    ClassNamePrefixFeaturesOutMixin, TransformerMixin, LearnsMetric
):
    r"""Sketch points so that Euclidean distances are near Mahalanobis distances.

    The metric is :math:`d(x, z) = \|U(x - z)\|`, U a k x d matrix. The transform is
    :math:`x \mapsto \Pi U x`, with one random m x k sketch :math:`\Pi`, so that

    .. math:: (1 - \epsilon)\, d(x, z) \le \|\Pi U x - \Pi U z\|
              \le (1 + \epsilon)\, d(x, z)

    with the probability stated under `m`. Any Euclidean method may then work on
    the m new features.

    Parameters
    ----------
    m : int or "auto", default="auto"
        Number of new features. With "auto" it is the smallest for which the
        distances from one query to all points seen in `fit` are within
        :math:`1 \pm \epsilon` with probability at least 1 - `delta`; where that is
        k or more there is nothing to gain, and the transform is
        :math:`x \mapsto Ux`, with k features and no error. The query must not
        depend on the sketch. For "countsketch" and "srht" only the variance of a
        squared distance is bounded, and "auto" asks for far more features than it
        does for the other two: set `m` for these.
    eps : float, default=0.1
        Relative error :math:`\epsilon` of the distances. Used when `m` is "auto".
    delta : float, default=0.01
        Probability that a query has a distance with a larger error. Used when `m`
        is "auto".
    metric_learner : None, array-like of shape (k, n_features), or estimator
        The matrix U. None is the Euclidean metric. An estimator is cloned, fitted
        with the data given to `fit`, and its `components_` are U; one wrapped in
        :class:`sklearn.frozen.FrozenEstimator` is used as it is.
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
        The fitted estimator, where `metric_learner` is one.
    n_features_in_ : int
        Number of features seen in `fit`.
    feature_names_in_ : ndarray of shape (n_features,)
        Names of features seen in `fit`, where all of them are strings.

    See Also
    --------
    sklearn.random_projection.GaussianRandomProjection :
        The same for the Euclidean metric.

    Notes
    -----
    `fit` costs O(mkd) with "gaussian" and "rademacher", O(kd) with "countsketch",
    O(kd log k) with "srht", beside the metric learner; for the Euclidean metric
    O(md), or O(d) with "countsketch". `transform` costs O(nmd); with the Euclidean
    metric and "countsketch" it costs one addition for every nonzero entry.

    Examples
    --------
    >>> import numpy as np
    >>> from skmahal import MahalanobisSketch
    >>> rng = np.random.default_rng(0)
    >>> X, U = rng.normal(size=(100, 2000)), rng.normal(size=(1000, 2000))
    >>> sketch = MahalanobisSketch(eps=0.2, metric_learner=U, random_state=0).fit(X)
    >>> sketch.m_
    190
    >>> Z = sketch.transform(X)
    >>> estimates = np.linalg.norm(Z[1:] - Z[0], axis=1)
    >>> distances = np.linalg.norm((X[1:] - X[0]) @ U.T, axis=1)
    >>> bool(np.all(abs(estimates / distances - 1) < 0.2))
    True
    """

    _parameter_constraints = {
        "m": [Interval(Integral, 1, None, closed="left"), StrOptions({"auto"})],
        "eps": [Interval(Real, 0, None, closed="neither")],
        "delta": [Interval(Real, 0, 1, closed="neither")],
        "metric_learner": [None, "array-like", HasMethods("fit")],
        "sketch": [StrOptions(set(SKETCHES))],
        "random_state": ["random_state"],
    }

    def __init__(
        self,
        m="auto",
        *,
        eps=0.1,
        delta=0.01,
        metric_learner=None,
        sketch="gaussian",
        random_state=None,
    ):
        self.m = m
        self.eps = eps
        self.delta = delta
        self.metric_learner = metric_learner
        self.sketch = sketch
        self.random_state = random_state

    @fit_context(prefer_skip_nested_validation=False)
    def fit(self, X, y=None):
        """Learn the metric and draw the sketch.

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Points.
        y : array-like of shape (n_samples,), default=None
            Targets, for a `metric_learner` that needs them.

        Returns
        -------
        self : MahalanobisSketch
            The fitted transformer.
        """
        with as_before_on_error(self):
            X = validated(self, X, **_POINTS)
            n, d = X.shape
            U, learner = resolve_components(self.metric_learner, X, y, d, X.dtype)
            m = self._size(n, d if U is None else len(U))
            rng = generator_from(self.random_state)
            self._components = _sketched(self.sketch, m, U, d, rng, X.dtype)
            self.m_ = self._components.shape[0]
            self.metric_learner_ = learner
        return self

    def transform(self, X):
        """Sketch points. O(nmd).

        Parameters
        ----------
        X : {array-like, sparse matrix} of shape (n_samples, n_features)
            Points.

        Returns
        -------
        Z : ndarray of shape (n_samples, m)
            Their sketches.
        """
        check_is_fitted(self)
        X = validated(self, X, reset=False, **_POINTS)
        # Products of two sparse matrices are of one type.
        dtype = np.result_type(X.dtype, self._components.dtype)
        both = (part.astype(dtype, copy=False) for part in (X, self._components.T))
        return safe_sparse_dot(*both, dense_output=True)

    @property
    def components_(self):
        """The matrix that `transform` multiplies points by."""
        return toarray(self._components)

    @property
    def _n_features_out(self):
        return self.m_

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
            require(state["m_"] == m, f"m_ is not {m}")
        return super()._restored(state)

    def _size(self, n, k):
        """Rows of the sketch, or None where fewer than k would not do."""
        if not isinstance(self.m, str):
            return self.m
        share = self.delta / n
        if k == 1 or failure(self.eps, k - 1, sketch=self.sketch) > share:
            return None
        return sketch_size(self.eps, share, sketch=self.sketch)

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


_POINTS = {"accept_sparse": ("csr", "csc"), "dtype": (np.float64, np.float32)}


def _sketched(sketch, m, U, d, rng, dtype):
    """The map from points to sketches: an array, or CSR where it is that sparse.

    `m` None stands for no sketch, and `U` None for the identity of order `d`, which
    is never formed as a dense matrix.
    """
    if m is None:
        return sparse.csr_array(sparse.eye(d, dtype=dtype)) if U is None else U
    P = draw(sketch, m, d if U is None else len(U), rng, dtype)
    if U is not None:
        return P @ U
    return P if sparse.issparse(P) else toarray(P)

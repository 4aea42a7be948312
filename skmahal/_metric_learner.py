"""From a `metric_learner`, or the argument of `update_metric`, to the matrix U."""

import warnings

import numpy as np
from scipy import sparse
from sklearn.base import BaseEstimator, clone
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import check_array, check_is_fitted

from skmahal._core.checks import as_array
from skmahal._core.metric import components_from

# Methods of a learner without `components_`, and what the matrix they return is called
# in components_from: metric-learn's, and those of scikit-learn's covariance estimators.
_MATRICES = {"get_mahalanobis_matrix": "A", "get_precision": "VI"}
_KEYS = ("U", "A", "VI", "V")
_MISSING = object()


def resolve_components(metric_learner, X, y, n_features):
    """U of the metric that a parameter gives, and the fitted learner, each or None.

    None is the Euclidean metric. Arrays and dictionaries are those of
    :func:`components_of`. An estimator is cloned and fitted on `X` and `y`, with
    numbers in place of strings in `y`; in a :class:`sklearn.frozen.FrozenEstimator` it
    is not fitted again.

    >>> from sklearn.decomposition import PCA
    >>> U, learner = resolve_components(PCA(2), np.eye(9, 4), None, 4)
    >>> U.shape, learner
    ((2, 4), PCA(n_components=2))
    """
    if metric_learner is None:
        return None, None
    if not hasattr(metric_learner, "fit"):
        return components_of(metric_learner, "metric_learner", n_features), None
    try:
        learner = clone(metric_learner)
    except TypeError as error:
        raise TypeError(f"metric_learner cannot be cloned: {error}") from error
    try:
        learner.fit(X, y if learns_online(learner) else numbered(y))
    except TypeError as error:
        if "force_all_finite" not in str(error):
            raise
        hint = "call skmahal.enable_metric_learn() to use metric-learn here"
        raise TypeError(f"{error}; {hint}.") from error
    return components_of(learner, "metric_learner", n_features), learner


def components_of(metric, name, n_features):
    """U in float64, a copy, from a fitted learner, an array or a dictionary.

    A learner has `components_`, which is read once, or a method that returns its
    Mahalanobis matrix, as in metric-learn, or its precision matrix, as scikit-learn's
    covariance estimators.

    An array is U. A square symmetric one is nearly always a Mahalanobis or covariance
    matrix and raises a UserWarning, unless it is diagonal, which is the usual way to
    weight features. A dictionary says which matrix it has: ``{"U": U}``, or one of the
    keys "A", "VI" and "V" of :func:`skmahal.components_from`.

    >>> components_of({"V": [[4.0]]}, "metric", 1), components_of([[4.0]], "metric", 1)
    (array([[0.5]]), array([[4.]]))
    """
    if isinstance(metric, type):
        given = f"the class {metric.__name__}"
        raise TypeError(f"{name} must be an instance, got {given}.")
    kind = type(metric).__name__
    components = getattr(metric, "components_", _MISSING)
    if components is not _MISSING:
        U = check_components(components, f"{name}.components_", n_features)
        return _whitened(U, metric)
    for method, key in _MATRICES.items():
        if hasattr(metric, method):
            try:
                if isinstance(metric, BaseEstimator):
                    check_is_fitted(metric)
            except NotFittedError as error:
                message = f"{name} must be fitted, and this {kind} is not."
                raise ValueError(message) from error
            matrix, source = getattr(metric, method)(), f"{name}.{method}"
            return _factored(key, matrix, source, n_features)
    if hasattr(metric, "fit"):
        raise ValueError(
            f"{name} must have one of components_, {', '.join(_MATRICES)} once fitted, "
            f"and {kind} has none."
        )
    if isinstance(metric, dict):
        if len(metric) != 1 or not metric.keys() <= set(_KEYS):
            raise ValueError(
                f"{name} must have exactly one of the keys {', '.join(_KEYS)} if it "
                f"is a dictionary, got {list(metric)}."
            )
        [(key, matrix)] = metric.items()
        return _factored(key, matrix, f"{name}[{key!r}]", n_features)
    U = check_components(metric, name, n_features)
    _warn_if_symmetric(U, name)
    return U


def check_components(components, name, n_features, dtype=np.float64):
    """A dense finite copy of U of the given type, or an error that names it."""
    expected = f"{name} must be a dense array of shape (k, {n_features})"
    try:
        scalar = np.ndim(components) == 0
    except ValueError:  # Rows of different lengths, which as_array reports.
        scalar = False
    if sparse.issparse(components) or scalar:
        raise TypeError(f"{expected}, got {components!r}.")
    array = np.asarray(as_array(name, components, dtype))
    if array.ndim != 2 or array.shape[0] == 0 or array.shape[1] != n_features:
        raise ValueError(f"{expected} to match X, got shape {array.shape}.")
    # The sum of infinities of both signs, which are refused, would warn.
    with np.errstate(invalid="ignore"):
        return check_array(array, dtype=dtype, order="C", copy=True, input_name=name)


def learns_online(learner):
    """Whether a learner continues to learn and reports the steps of its metric."""
    needed = ("partial_fit", "state_token", "updates_since")
    return all(hasattr(learner, name) for name in needed)


def token_of(learner):
    """The present state of an online learner; None for any other."""
    return learner.state_token() if learns_online(learner) else None


def numbered(y):
    """Targets with numbers in place of strings, which not every learner accepts.

    >>> numbered(np.array(["b", "a", "b"]))
    array([1, 0, 1])
    """
    if y is None or np.asarray(y).dtype.kind not in "OUS":
        return y
    columns = np.asarray(y).reshape(len(y), -1).T
    codes = [np.unique(column, return_inverse=True)[1] for column in columns]
    return np.stack(codes, axis=1).reshape(np.shape(y))


def _factored(kind, matrix, source, n_features):
    """U from a matrix that :func:`skmahal.components_from` calls `kind`, or from U."""
    if kind == "U":
        return check_components(matrix, source, n_features)
    shape = as_array(source, matrix, np.float64).shape
    if shape != (n_features, n_features):
        raise ValueError(
            f"{source} must give an array of shape ({n_features}, {n_features}) to "
            f"match X, got shape {shape}."
        )
    try:
        U = components_from(**{kind: matrix})
    except ValueError as error:
        raise ValueError(f"{source} gives no metric: {error}") from error
    return check_components(U, source, n_features)


def _whitened(U, learner):
    """U with the rows divided as `transform` of PCA with ``whiten=True`` does it."""
    variances = getattr(learner, "explained_variance_", None)
    if variances is None or getattr(learner, "whiten", False) is not True:
        return U
    scales = np.sqrt(variances)
    # The smallest divisor that their transform uses, also for a variance of zero.
    least = np.finfo(scales.dtype).eps
    return U / np.maximum(scales, least)[:, np.newaxis]


def _warn_if_symmetric(U, name):
    """Warn if U is square, symmetric up to rounding, and not diagonal."""
    if U.shape[0] != U.shape[1] or not (U - np.diag(np.diag(U))).any():
        return
    if np.abs(U - U.T).max() <= 1e-6 * np.abs(U).max():
        warnings.warn(
            f"{name} is a symmetric matrix and is used as U, with d(x, z) = "
            "||U(x - z)||. If it is a Mahalanobis matrix A, an inverse covariance VI "
            "or a covariance V, pass components_from(A=...), components_from(VI=...) "
            "or components_from(V=...). If it is U, pass {'U': ...}.",
            UserWarning,
            stacklevel=2,
        )

"""From the `metric_learner` parameter of an estimator to the matrix U."""

import numpy as np
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import check_array, check_is_fitted

from skmahal._core.factor import components_from


def resolve_components(metric_learner, X, y, n_features, dtype):
    """Matrix U of the metric :math:`d(x, z) = ||U(x - z)||` that a parameter names.

    Parameters
    ----------
    metric_learner : None, array-like of shape (k, n_features), or estimator
        None is the Euclidean metric. An array is U itself. An estimator is cloned
        and fitted on `X` and `y`, and gives U as :func:`components_of` says; wrap it
        in :class:`sklearn.frozen.FrozenEstimator` to use it as it is.
    X : {array-like, sparse matrix} of shape (n_samples, n_features)
        Points to fit the estimator on.
    y : array-like of shape (n_samples,), or None
        Targets to fit the estimator on.
    n_features : int
        Columns that U must have.
    dtype : numpy dtype
        Floating type of U.

    Returns
    -------
    components : ndarray of shape (k, n_features), or None
        A copy of U; None for the Euclidean metric.
    learner : estimator or None
        The fitted estimator; None where `metric_learner` is not one.

    Raises
    ------
    TypeError
        If `metric_learner` is none of the above.
    ValueError
        If there is no U, or it has the wrong shape, or is not finite.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.decomposition import PCA
    >>> from skmahal._metric_learner import resolve_components
    >>> X = np.random.default_rng(0).normal(size=(20, 4))
    >>> U, learner = resolve_components(PCA(2), X, None, 4, np.float64)
    >>> U.shape, learner
    ((2, 4), PCA(n_components=2))
    """
    if metric_learner is None:
        return None, None
    learner, name = None, "metric_learner"
    if is_learner(metric_learner):
        learner = metric_learner = clone(metric_learner).fit(X, y)
    return components_of(metric_learner, name, n_features, dtype), learner


def is_learner(metric):
    """Whether `metric` stands for a metric, rather than being the matrix U."""
    return any(hasattr(metric, name) for name in ("fit", *_SOURCES))


def components_of(metric, name, n_features, dtype):
    """U, from a fitted learner or from U itself; errors call it `name`.

    A learner has `components_`, or a method that gives its Mahalanobis matrix as those
    of metric-learn do, or its precision matrix as scikit-learn's covariance estimators.
    """
    if not is_learner(metric):
        return check_components(metric, name, n_features, dtype)
    for source, extract in _SOURCES.items():
        if hasattr(metric, source):
            if source != "components_":
                _check_fitted(metric, name)
            return check_components(
                extract(metric), f"{name}.{source}", n_features, dtype
            )
    raise ValueError(
        f"{name} must have one of {', '.join(_SOURCES)} once fitted, and "
        f"{type(metric).__name__} has none."
    )


def _check_fitted(learner, name):
    """Methods may be there before there is anything to get from them."""
    try:
        if hasattr(learner, "fit"):
            check_is_fitted(learner)
    except NotFittedError as error:
        kind = type(learner).__name__
        raise ValueError(f"{name} must be fitted, and this {kind} is not.") from error


_SOURCES = {
    "components_": lambda learner: learner.components_,
    "get_mahalanobis_matrix": lambda learner: components_from(
        A=learner.get_mahalanobis_matrix()
    ),
    "get_precision": lambda learner: components_from(VI=learner.get_precision()),
}


def check_components(components, name, n_features, dtype):
    """Dense finite copy of U of the given type, or an error that names it."""
    expected = f"{name} must be a dense array of shape (k, {n_features})"
    if sparse.issparse(components) or np.ndim(components) == 0:
        raise TypeError(f"{expected}, got {components!r}.")
    if np.iscomplexobj(components):
        raise ValueError(f"{name} must be real, got complex numbers.")
    shape = np.shape(components)
    if len(shape) != 2 or shape[0] == 0 or shape[1] != n_features:
        raise ValueError(f"{expected} to match X, got shape {shape}.")
    # A value too large for `dtype` becomes infinite, which check_array refuses.
    with np.errstate(over="ignore"):
        return check_array(components, dtype=dtype, copy=True, input_name=name)

"""From the `metric_learner` parameter of an estimator to the matrix U."""

import numpy as np
from scipy import sparse
from sklearn.base import clone
from sklearn.utils.validation import check_array


def resolve_components(metric_learner, X, y, n_features, dtype):
    """Matrix U of the metric :math:`d(x, z) = ||U(x - z)||` that a parameter names.

    Parameters
    ----------
    metric_learner : None, array-like of shape (k, n_features), or estimator
        None is the Euclidean metric. An array is U itself. An estimator is cloned
        and fitted on `X` and `y`, and its `components_` are U; wrap it in
        :class:`sklearn.frozen.FrozenEstimator` to use it as it is.
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
    if not hasattr(metric_learner, "fit"):
        return check_components(
            metric_learner, "metric_learner", n_features, dtype
        ), None
    learner = clone(metric_learner).fit(X, y)
    if not hasattr(learner, "components_"):
        raise ValueError(
            "metric_learner must have a `components_` attribute after fit, and "
            f"{type(metric_learner).__name__} has none."
        )
    name = "metric_learner.components_"
    return check_components(learner.components_, name, n_features, dtype), learner


def check_components(components, name, n_features, dtype):
    """Dense finite copy of U of the given type, or an error that names it."""
    expected = f"{name} must be a dense array of shape (k, {n_features})"
    if sparse.issparse(components) or np.ndim(components) == 0:
        raise TypeError(f"{expected}, got {components!r}.")
    shape = np.shape(components)
    if len(shape) != 2 or shape[0] == 0 or shape[1] != n_features:
        raise ValueError(f"{expected} to match X, got shape {shape}.")
    # A value too large for `dtype` becomes infinite, which check_array refuses.
    with np.errstate(over="ignore"):
        return check_array(components, dtype=dtype, copy=True, input_name=name)

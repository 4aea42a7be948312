"""From the `metric_learner` parameter of an estimator to the matrix U."""

from copy import copy
from sys import intern

import numpy as np
from scipy import sparse
from sklearn.base import BaseEstimator, clone
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import check_array, check_is_fitted

from skmahal._compat import enable_metric_learn, metric_learn_is_enabled
from skmahal._core.checks import as_array
from skmahal._core.factor import components_from
from skmahal._persistence import Persistent


def resolve_components(metric_learner, X, y, n_features, dtype):
    """Matrix U of the metric :math:`d(x, z) = ||U(x - z)||` that a parameter names.

    Parameters
    ----------
    metric_learner : None, array-like of shape (k, n_features), or estimator
        None is the Euclidean metric. An array is U itself. An estimator is cloned
        and fitted on `X` and `y`, where labels that are names are numbered, and gives U
        as :func:`components_of` says; wrap it in
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
    name = "metric_learner"
    if not is_learner(metric_learner):
        return check_components(metric_learner, name, n_features, dtype), None
    learner = _fitted(metric_learner, X, y)
    return _extracted(learner, name, n_features, dtype), learner


def components_of(metric, name, n_features, dtype):
    """U, from a fitted learner or from U itself; errors call it `name`.

    A learner has `components_`, or a method that gives its Mahalanobis matrix as those
    of metric-learn do, or its precision matrix as scikit-learn's covariance estimators.
    """
    if not is_learner(metric):
        return check_components(metric, name, n_features, dtype)
    if not hasattr(metric, "components_"):
        _check_fitted(metric, name)
    return _extracted(metric, name, n_features, dtype)


def learns_online(learner):
    """Whether a learner goes on learning, and says which steps its metric has made."""
    return all(hasattr(learner, name) for name in _ONLINE)


def token_of(learner):
    """Where an online learner stands; None for any other."""
    return learner.state_token() if learns_online(learner) else None


def steps_since(learner, token):
    """Low-rank steps of an online learner since it stood there; None if unknown."""
    if token is None or not learns_online(learner):
        return None
    return learner.updates_since(token)


def is_learner(metric):
    """Whether `metric` stands for a metric, rather than being the matrix U."""
    return any(hasattr(metric, name) for name in ("fit", *_SOURCES))


class LearnsMetric(Persistent):
    """An estimator with a `metric_learner` that can be fitted in other processes too.

    Where :func:`~skmahal.enable_metric_learn` was called here, it is called wherever an
    estimator that needs it is unpickled, as in the workers of a grid search.
    """

    def _saved(self, state):
        if _is_of_metric_learn(self.metric_learner) and metric_learn_is_enabled():
            state[_ENABLED] = True
        return super()._saved(state)

    def _restored(self, state):
        if state.pop(_ENABLED, False):
            enable_metric_learn()
        return super()._restored(state)


def _is_of_metric_learn(learner):
    return type(learner).__module__.split(".")[0] == "metric_learn"


def _as_before_pickling(learner):
    """A copy whose words are the same objects as equal ones in the code of a library.

    Learners of metric-learn set ``"deprecated"`` in place of what they were given,
    which :func:`sklearn.base.clone` takes for a change once they have been pickled.
    """
    learner = copy(learner)
    for name, value in vars(learner).items():
        if type(value) is str:
            setattr(learner, name, intern(value))
    return learner


def _fitted(learner, X, y):
    """A fitted clone of the learner, which gets numbers for labels."""
    try:
        learner = clone(_as_before_pickling(learner))
    except TypeError as error:
        raise TypeError(f"metric_learner cannot be cloned: {error}") from error
    try:
        learner.fit(X, y if learns_online(learner) else numbered(y))
    except TypeError as error:
        if "force_all_finite" not in str(error):
            raise
        hint = "call skmahal.enable_metric_learn() for metric-learn to work here"
        raise TypeError(f"{error}; {hint}.") from error
    return learner


def numbered(y):
    """Targets with numbers in place of names, which not every learner takes.

    Examples
    --------
    >>> numbered(np.array(["b", "a", "b"]))
    array([1, 0, 1])
    """
    if y is None or np.asarray(y).dtype.kind not in "OUS":
        return y
    columns = np.asarray(y).reshape(len(y), -1).T
    codes = [np.unique(column, return_inverse=True)[1] for column in columns]
    return np.stack(codes, axis=1).reshape(np.shape(y))


def _extracted(learner, name, n_features, dtype):
    for source, factored in _SOURCES.items():
        if not hasattr(learner, source):
            continue
        given, what = getattr(learner, source), f"{name}.{source}"
        if factored is not None:
            given = _factored(given(), factored, what, n_features)
        return check_components(given, what, n_features, dtype)
    raise ValueError(
        f"{name} must have one of {', '.join(_SOURCES)} once fitted, and "
        f"{type(learner).__name__} has none."
    )


def _factored(matrix, kind, what, n_features):
    """U from the matrix that a method of a learner gives."""
    if np.shape(matrix) != (n_features, n_features):
        raise ValueError(
            f"{what} must give an array of shape ({n_features}, {n_features}) to match "
            f"X, got shape {np.shape(matrix)}."
        )
    try:
        return components_from(**{kind: matrix})
    except ValueError as error:
        raise ValueError(f"{what} gives no metric: {error}") from error


def _check_fitted(learner, name):
    """Methods may be there before there is anything to get from them.

    What is no estimator of scikit-learn cannot be asked.
    """
    if isinstance(learner, type):
        kind = learner.__name__
        raise TypeError(f"{name} must be an instance, got the class {kind}.")
    try:
        if isinstance(learner, BaseEstimator):
            check_is_fitted(learner)
    except NotFittedError as error:
        kind = type(learner).__name__
        raise ValueError(f"{name} must be fitted, and this {kind} is not.") from error


# Where a learner may have its metric, and what the matrix of a method is.
_SOURCES = {
    "components_": None,
    "get_mahalanobis_matrix": "A",
    "get_precision": "VI",
}
_ONLINE = ("partial_fit", "state_token", "updates_since")
_ENABLED = "_metric_learn_enabled"


def check_components(components, name, n_features, dtype):
    """Dense finite copy of U of the given type, or an error that names it."""
    expected = f"{name} must be a dense array of shape (k, {n_features})"
    if sparse.issparse(components) or _is_one_thing(components):
        raise TypeError(f"{expected}, got {components!r}.")
    array = as_array(name, components, dtype)
    shape = array.shape
    if len(shape) != 2 or shape[0] == 0 or shape[1] != n_features:
        raise ValueError(f"{expected} to match X, got shape {shape}.")
    # Infinities of both signs, which it refuses, have no sum.
    with np.errstate(invalid="ignore"):
        return check_array(array, dtype=dtype, copy=True, input_name=name)


def _is_one_thing(components):
    """Whether it has no dimensions; what is ragged has, though NumPy knows of none."""
    try:
        return np.ndim(components) == 0
    except ValueError:
        return False

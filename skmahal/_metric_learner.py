"""From a `metric_learner`, or the argument of `update_metric`, to the matrix U."""

import warnings
from contextlib import nullcontext, suppress

import numpy as np
from scipy import sparse
from sklearn.base import BaseEstimator, clone
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.utils.validation import check_array, check_is_fitted

from skmahal._core.checks import as_array
from skmahal._core.metric import components_from
from skmahal._core.saved import FLOATS
from skmahal._core.threads import slices

# Methods of a learner without `components_`, and what the matrix they return is called
# in components_from: metric-learn's, and those of scikit-learn's covariance estimators.
_MATRICES = {"get_mahalanobis_matrix": "A", "get_precision": "VI"}
_KEYS = ("U", "A", "VI", "V")
_MISSING = object()

# A step from zero that shows a column of an affine map. The mean of data is rounding
# error beside it, and a product with it is finite in float32.
_STEP = 2.0**90
_ROWS_AT_ONCE = 512
# Share of the digits of a type in which a transform must agree with an affine map.
_DIGITS = 0.4
# Lengths of the vectors that show whether a map is affine.
_LENGTHS = np.repeat(2.0 ** np.arange(0, 81, 8), 2)


def resolve_components(
    metric_learner, X, y, n_features, name="metric_learner", within=nullcontext
):
    """U of the metric that a parameter gives, and the fitted learner, each or None.

    None is the Euclidean metric. Arrays and dictionaries are those of
    :func:`components_of`. An estimator is cloned and fitted on `X` and `y`, with
    numbers in place of strings in `y`; in a :class:`sklearn.frozen.FrozenEstimator` it
    is not fitted again. It is fitted in the context ``within(learner)``.

    >>> from sklearn.decomposition import PCA
    >>> U, learner = resolve_components(PCA(2), np.eye(9, 4), None, 4)
    >>> U.shape, learner
    ((2, 4), PCA(n_components=2))
    """
    if metric_learner is None:
        return None, None
    if not hasattr(metric_learner, "fit"):
        return components_of(metric_learner, name, n_features), None
    try:
        learner = clone(metric_learner)
    except TypeError as error:
        raise TypeError(f"metric_learner cannot be cloned: {error}") from error
    try:
        with within(learner):
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
    covariance estimators, or a `transform` that is affine, as that of a pipeline.

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
        U = _whitened(U, metric)
        if learns_online(metric) or _transforms_by(metric, U, name):
            return U
        return affine_components(metric, name, n_features)
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
        if not hasattr(metric, "transform"):
            raise ValueError(
                f"{name} must have one of components_, {', '.join(_MATRICES)}, "
                f"transform once fitted, and {kind} has none."
            )
        return affine_components(metric, name, n_features)
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


def _transforms_by(learner, U, name):
    """Whether `transform` of a learner, if it has one, is ``x -> Ux + b``, on 4 rows.

    Components of some estimators are something else, as those of FactorAnalysis.
    """
    if not hasattr(learner, "transform"):
        return True
    rows = np.abs(np.random.default_rng(0).normal(size=(4, U.shape[1])))
    try:
        Z = _transformed(learner, rows, name)
    except ValueError:
        return True  # It takes no such rows, and is taken at its word.
    if Z.shape[1] != len(U):
        return False
    expected = (rows[1:] - rows[0]) @ U.T
    size = np.abs(rows).sum(axis=0) @ np.abs(U).T + np.abs(Z).max(axis=0)
    rounding = np.finfo(Z.dtype).eps ** _DIGITS * size
    return bool((np.abs(Z[1:] - Z[0] - expected) <= rounding).all())


def affine_components(learner, name, n_features):
    """U of a fitted transformer whose `transform` is ``x -> Ux + b``.

    Column j is the difference that a long step along feature j makes, so that an offset
    of the data, as the mean in a scaler, costs no precision. Points at other distances
    from zero show whether `transform` is affine; ValueError if it is not. It is called
    with d + 23 rows in all, at most 512 at once.

    >>> from sklearn.preprocessing import StandardScaler
    >>> scaler = StandardScaler().fit([[1e8, 0.0], [1e8 + 2, 8.0]])
    >>> affine_components(scaler, "metric", 2)
    array([[1.  , 0.  ],
           [0.  , 0.25]])
    """
    offset, columns = _transformed(learner, np.zeros((1, n_features)), name), []
    for part in slices(n_features, _ROWS_AT_ONCE):
        steps = _STEP * np.eye(part.stop - part.start, n_features, part.start)
        columns.append(_transformed(learner, steps, name) - offset)
    U = np.vstack(columns).astype(np.float64).T / _STEP
    points = np.random.default_rng(0).normal(size=(len(_LENGTHS), n_features))
    points *= _LENGTHS[:, np.newaxis]
    with np.errstate(all="ignore"):
        errors = np.abs(_transformed(learner, points, name) - (points @ U.T + offset))
        sizes = np.abs(points) @ np.abs(U).T + np.abs(offset)
        rounding = np.finfo(offset.dtype).eps ** _DIGITS * sizes
        # A comparison with NaN is False.
        if not (errors <= rounding).all():
            raise ValueError(
                f"{name}.transform must be affine, x -> Ux + b, to give a metric, and "
                f"that of this {type(learner).__name__} is not."
            )
    return check_components(U, f"{name}.transform", n_features)


def _transformed(learner, rows, name):
    """What `transform` makes of rows, as a dense array of floats."""
    kind, names = type(learner).__name__, getattr(learner, "feature_names_in_", None)
    try:
        # Points so far from the data may cause warnings.
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            if names is not None:
                with suppress(ModuleNotFoundError):
                    from pandas import DataFrame

                    rows = DataFrame(rows, columns=names)
            Z = learner.transform(rows)
            Z = np.asarray(Z.toarray() if sparse.issparse(Z) else Z)
            Z = Z if Z.dtype in FLOATS else Z.astype(np.float64)
    except NotFittedError as error:
        message = f"{name} must be fitted, and this {kind} is not."
        raise ValueError(message) from error
    except Exception as error:
        message = f"{name}.transform of this {kind} gives no metric: {error}"
        raise ValueError(message) from error
    if Z.ndim != 2 or len(Z) != len(rows):
        raise ValueError(
            f"{name}.transform must give an array of shape ({len(rows)}, k) for "
            f"{len(rows)} points, got shape {Z.shape}."
        )
    return Z


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
    """Whether a learner continues to learn and reports the steps of its metric.

    One in a :class:`sklearn.frozen.FrozenEstimator`, which has its methods, does not.
    """
    needed = ("partial_fit", "state_token", "updates_since")
    frozen = isinstance(learner, FrozenEstimator)
    return not frozen and all(hasattr(learner, name) for name in needed)


def token_of(learner):
    """The present state of an online learner; None for any other."""
    return learner.state_token() if learns_online(learner) else None


def steps_since(followed, learner, token):
    """Steps of an online learner since the state `followed`, and the present `token`.

    The steps are None if they are not known. Both are None if the learner has changed
    since the token was read: U, which was read after it, may have some of the steps.
    """
    steps = None
    if followed is not None and learns_online(learner):
        steps = learner.updates_since(followed)
    return (steps, token) if token_of(learner) == token else (None, None)


def components_after(U, change):
    """U after a :class:`~skmahal._core.checks.Change`."""
    if change.low_rank is not None:
        W, V = change.low_rank
        with np.errstate(over="ignore", invalid="ignore"):
            return U + W @ V.T
    if change.rows is None:
        return components_of(change.metric, "metric", U.shape[1])
    U, rows = U.copy(), change.rows
    U[rows] = U[rows] + change.metric if change.additive else change.metric
    return U


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

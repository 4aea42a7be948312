"""From neighbours and their targets to predictions."""

import numpy as np

from skmahal._core.checks import as_matrix

_NAMES = ("uniform", "distance", None)


def neighbour_weights(distances, weights):
    """Weights of neighbours, or None for equal ones.

    "distance" is the inverse distance; where a neighbour is at distance zero, only such
    neighbours count. A function must give a finite number for every distance, and not
    zero for all neighbours of a query.

    Examples
    --------
    >>> neighbour_weights(np.array([[1.0, 2.0], [0.0, 2.0]]), "distance")
    array([[1. , 0.5],
           [1. , 0. ]])
    """
    if callable(weights):
        return _checked(weights(distances), distances.shape)
    _check_name(weights)
    if weights != "distance":
        return None
    with np.errstate(divide="ignore", over="ignore"):
        inverse = 1 / distances
    at_zero = np.isinf(inverse)
    rows = at_zero.any(axis=1)
    inverse[rows] = at_zero[rows]
    return inverse


def _check_name(weights):
    if not isinstance(weights, str | None) or weights not in _NAMES:
        raise ValueError(
            f"weights must be 'uniform', 'distance', None or a function, got "
            f"{weights!r}."
        )


def _checked(weights, shape):
    if np.shape(weights) != shape:
        raise ValueError(
            f"weights must give an array of the shape of the distances, {shape}, got "
            f"{np.shape(weights)}."
        )
    weights = as_matrix("weights", weights, dtype=np.float64)
    if not weights.any(axis=1).all():
        raise ValueError("weights must not be zero for all neighbours of a query.")
    return weights


def class_votes(labels, weights, n_classes):
    """Sum of the weights of each class among the neighbours, (queries, classes).

    Examples
    --------
    >>> class_votes(np.array([[0, 2, 2, 1]]), np.array([[4.0, 1.0, 2.0, 1.0]]), 3)
    array([[4., 1., 3.]])
    """
    starts = n_classes * np.arange(len(labels))
    cells = (labels + starts[:, np.newaxis]).ravel()
    weights = np.ones(labels.size) if weights is None else weights.ravel()
    votes = np.bincount(cells, weights, minlength=len(labels) * n_classes)
    return votes.reshape(len(labels), n_classes)


def class_shares(votes):
    """Votes over their sum, (queries, classes), in place.

    Examples
    --------
    >>> class_shares(np.array([[4.0, 1.0, 3.0]]))
    array([[0.5  , 0.125, 0.375]])
    """
    votes /= _not_zero(votes.sum(axis=1))[:, np.newaxis]
    return votes


def mean_targets(targets, weights):
    """Weighted mean over the neighbours of targets of shape (queries, K, outputs).

    Examples
    --------
    >>> mean_targets(np.array([[[1.0], [4.0]]]), np.array([[2.0, 1.0]]))
    array([[2.]])
    """
    if weights is None:
        return targets.mean(axis=1)
    total = _not_zero(weights.sum(axis=1))
    return np.einsum("ij,ijk->ik", weights, targets) / total[:, np.newaxis]


def _not_zero(total):
    """Sums of weights, by which to divide."""
    if not total.all():
        raise ValueError("weights must not sum to zero over the neighbours of a query.")
    return total

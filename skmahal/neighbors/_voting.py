"""From neighbours and their targets to predictions."""

import numpy as np


def neighbour_weights(distances, weights):
    """Weights of neighbours, or None for equal ones.

    "distance" is the inverse distance; where a neighbour is at distance zero, only such
    neighbours count. A function must give a number for every distance, and not zero for
    all neighbours of a query.

    Examples
    --------
    >>> neighbour_weights(np.array([[1.0, 2.0], [0.0, 2.0]]), "distance")
    array([[1. , 0.5],
           [1. , 0. ]])
    """
    if weights == "uniform":
        return None
    if callable(weights):
        return _checked(np.asarray(weights(distances)), distances.shape)
    with np.errstate(divide="ignore", over="ignore"):
        inverse = 1 / distances
    at_zero = np.isinf(inverse)
    rows = at_zero.any(axis=1)
    inverse[rows] = at_zero[rows]
    return inverse


def _checked(weights, shape):
    if weights.shape != shape:
        raise ValueError(
            f"weights must give an array of the shape of the distances, {shape}, got "
            f"{weights.shape}."
        )
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
    rows = np.repeat(np.arange(len(labels)), labels.shape[1])
    weights = None if weights is None else weights.ravel()
    cells = rows * n_classes + labels.ravel()
    votes = np.bincount(cells, weights, minlength=len(labels) * n_classes)
    return votes.reshape(len(labels), n_classes)


def class_shares(votes):
    """Votes over their sum, (queries, classes).

    Examples
    --------
    >>> class_shares(np.array([[4, 1, 3]]))
    array([[0.5  , 0.125, 0.375]])
    """
    total = votes.sum(axis=1, keepdims=True)
    return votes / np.where(total == 0, 1, total)


def mean_targets(targets, weights):
    """Weighted mean over the neighbours of targets of shape (queries, K, outputs).

    Examples
    --------
    >>> mean_targets(np.array([[[1.0], [4.0]]]), np.array([[2.0, 1.0]]))
    array([[2.]])
    """
    if weights is None:
        return targets.mean(axis=1)
    total = weights.sum(axis=1)
    return np.einsum("ij,ijk->ik", weights, targets) / total[:, np.newaxis]

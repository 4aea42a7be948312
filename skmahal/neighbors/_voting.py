"""From neighbours and their targets to predictions."""

import numpy as np


def neighbour_weights(distances, weights):
    """Weights of neighbours, or None for equal ones.

    "distance" is the inverse distance; where a neighbour is at distance zero, only such
    neighbours count.

    Examples
    --------
    >>> neighbour_weights(np.array([[1.0, 2.0], [0.0, 2.0]]), "distance")
    array([[1. , 0.5],
           [1. , 0. ]])
    """
    if weights == "uniform":
        return None
    if callable(weights):
        return weights(distances)
    with np.errstate(divide="ignore"):
        inverse = 1 / distances
    at_zero = np.isinf(inverse)
    rows = at_zero.any(axis=1)
    inverse[rows] = at_zero[rows]
    return inverse


def class_shares(labels, weights, n_classes):
    """Share of each class in the votes of the neighbours, (queries, classes).

    Examples
    --------
    >>> class_shares(np.array([[0, 2, 2, 1]]), None, 3)
    array([[0.25, 0.25, 0.5 ]])
    """
    rows = np.repeat(np.arange(len(labels)), labels.shape[1])
    weights = None if weights is None else weights.ravel()
    cells = rows * n_classes + labels.ravel()
    votes = np.bincount(cells, weights, minlength=len(labels) * n_classes)
    votes = votes.reshape(len(labels), n_classes)
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

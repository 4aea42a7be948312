"""From lower bounds on squared distances to exact neighbours.

Bounds come as one number for each point, never above the squared distance (always, or
with the promised probability); `evaluate(indices)` gives exact squared distances. Ties
go to the lower index.
"""

import numpy as np


def nearest(bounds, K, evaluate, most):
    """The K points of smallest distance; None where over `most` points need a look.

    The K smallest bounds are evaluated first. The largest of those distances, τ, is at
    least the K-th smallest of all, so a neighbour has a distance, and then a bound, of
    at most τ: evaluating every point whose bound is at most τ misses none.

    Overwrites `bounds`.

    Examples
    --------
    >>> squares = np.array([9.0, 1.0, 4.0, 25.0])
    >>> nearest(0.5 * squares, 2, lambda i: squares[i], most=4)
    (array([1, 2]), array([1., 4.]))
    """
    first = np.argpartition(bounds, K - 1)[:K]
    squares = evaluate(first)
    bounds[first] = np.inf
    rest = np.flatnonzero(bounds <= squares.max())
    if rest.size > most:
        return None
    if rest.size:
        first = np.concatenate([first, rest])
        squares = np.concatenate([squares, evaluate(rest)])
    return smallest(first, squares, K)


def budgeted(estimates, K, evaluate, candidates):
    """The K points of smallest distance among those of smallest estimate."""
    indices = np.argpartition(estimates, candidates - 1)[:candidates]
    return smallest(indices, evaluate(indices), K)


def smallest(indices, squares, K):
    """The K smallest, in order."""
    order = np.lexsort((indices, squares))[:K]
    return indices[order], squares[order]

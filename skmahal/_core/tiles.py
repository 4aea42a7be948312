"""Distances by the block: matrix products, the median network, near-zero repairs."""

import numpy as np
from scipy.linalg import get_blas_funcs

_REPAIR_ROWS = 4096


def row_squares(rows):
    """Squared length of every row, summed in float64 and kept there.

    Examples
    --------
    >>> row_squares(np.array([[3.0, 4.0], [0.0, 1.0]]))
    array([25.,  1.])
    """
    return np.einsum("ij,ij->i", rows, rows, dtype=np.float64)


def add_product(C, A, B):
    """``C += A Bᵀ`` in place, by one BLAS call with no temporary of C's size.

    Examples
    --------
    >>> C = np.ones((2, 2))
    >>> add_product(C, np.array([[1.0], [2.0]]), np.array([[3.0], [4.0]]))
    >>> C
    array([[4., 5.],
           [7., 9.]])
    """
    if not A.shape[1]:
        return
    gemm = get_blas_funcs("gemm", (C, A, B))
    B = np.asarray(B, dtype=C.dtype, order="F")
    out = gemm(1.0, B, A, beta=1.0, c=C.T, trans_b=1, overwrite_c=1)
    if not np.shares_memory(out, C):
        C[...] = out.T


def squared_distances(A, B, a_squares, b_squares):
    """Squared Euclidean distances between the rows of A and of B, (a, b).

    ``‖a‖² + ‖b‖² - 2 a·b`` by one matrix product. Where that cancels to less than the
    square root of the precision, the distance is computed from the difference.
    """
    D = _expanded(A, B, a_squares, b_squares)
    near = np.sqrt(np.finfo(D.dtype).eps)
    limit = near * (a_squares.max() + b_squares.max())
    if D.min() < limit:
        close = near * (a_squares[:, np.newaxis] + b_squares) > D
        _repair(D, A, B, *np.nonzero(close))
    return D


def lower_bounds(A, B, a_squares, b_squares, slack):
    """Like :func:`squared_distances`, less ``slack (‖a‖² + ‖b‖²)``, which must cover
    the rounding error: a number that is never above the truth. May be negative."""
    return _expanded(A, B, (1 - slack) * a_squares, (1 - slack) * b_squares)


def _expanded(A, B, a_squares, b_squares):
    D = (-2 * A) @ B.T
    D += b_squares.astype(D.dtype)
    D += a_squares.astype(D.dtype)[:, np.newaxis]
    return D


def _repair(D, A, B, i, j):
    for start in range(0, len(i), _REPAIR_ROWS):
        part = slice(start, start + _REPAIR_ROWS)
        D[i[part], j[part]] = row_squares(A[i[part]] - B[j[part]])


def median_of(votes):
    """Median over the first axis, by a network of elementwise minima and maxima.

    An even number of votes gives the mean of the middle two. Destroys `votes`. Each
    pass carries the largest of what is left to the end, and half the passes decide the
    middle: for 5 votes, 9 exchanges of whole arrays in place of a sort per element.

    Examples
    --------
    >>> median_of(np.array([[3.0], [1.0], [2.0]]))
    array([2.])
    """
    count = len(votes)
    spare = np.empty_like(votes[0])
    for last in range(count - 1, (count - 1) // 2 - 1, -1):
        for i in range(last):
            np.minimum(votes[i], votes[i + 1], out=spare)
            np.maximum(votes[i], votes[i + 1], out=votes[i + 1])
            votes[i][...] = spare
    middle = votes[count // 2]
    return middle if count % 2 else (middle + votes[count // 2 - 1]) / 2

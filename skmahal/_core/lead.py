"""Leading directions: kept exactly, so that only what is left is sketched.

For orthonormal P (k × r), ``d² = ‖Pᵀ(u - y)‖² + ‖(I - PPᵀ)(u - y)‖²``. The first term
is held exactly, the second is estimated from ``Π (I - PPᵀ) y``; a relative error of the
second is at most the same relative error of d.
"""

import numpy as np
from scipy import linalg

_OVERSAMPLING = 8
_POWER_ITERATIONS = 2
SAMPLE = 2000
MOST = 128


def leading_directions(rows, most, rng):
    """The top right-singular vectors of centred `rows`, and their variances.

    Randomised range finder with power iterations. O(rows · k · most).

    Returns
    -------
    directions : ndarray of shape (k, at most `most`)
        Orthonormal columns, by decreasing variance.
    variances : ndarray
        Their share of the total variance.
    """
    rows = rows - rows.mean(axis=0)
    with np.errstate(over="ignore", invalid="ignore"):
        total = float(np.einsum("ij,ij->", rows, rows, dtype=np.float64))
    if not total < np.finfo(rows.dtype).max:
        raise ValueError(f"X is too large under the metric for {rows.dtype}.")
    width = min(most + _OVERSAMPLING, *rows.shape)
    if total == 0 or width == 0 or most == 0:
        return np.zeros((rows.shape[1], 0), dtype=rows.dtype), np.zeros(0)
    basis = rows.T @ rng.standard_normal((len(rows), width)).astype(rows.dtype)
    for _ in range(_POWER_ITERATIONS):
        basis, _ = linalg.qr(basis, mode="economic")
        basis = rows.T @ (rows @ basis)
    basis, _ = linalg.qr(basis, mode="economic")
    image = rows @ basis
    squares, turn = linalg.eigh(image.T @ image)
    top = slice(None, -most - 1, -1)
    return basis @ turn[:, top], np.maximum(squares[top], 0, dtype=np.float64) / total


def worthwhile(variances, m):
    """How many leading directions to keep beside a sketch of m rows.

    The error of an estimated d² is about ``res² sqrt(2/m)``. One more column spent on
    direction r lowers it in proportion to its variance λ, one more sketch row in
    proportion to ``res² / 2m``; so directions are kept while ``λ ≥ res² / 2m``.

    Examples
    --------
    >>> worthwhile(np.array([0.5, 0.3, 0.01, 0.01]), m=4)
    2
    >>> worthwhile(np.full(100, 0.001), m=32)
    0
    """
    left = 1 - np.cumsum(variances)
    enough = variances >= np.maximum(left, 0) / (2 * m)
    return int(np.argmin(enough)) if not enough.all() else len(variances)

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
MOST = 256


def leading_directions(rows, most, rng):
    """The top right-singular vectors of centred `rows`, (k, at most `most`).

    Orthonormal columns, by decreasing variance. Randomised range finder with power
    iterations. O(rows · k · most).
    """
    rows = rows - rows.mean(axis=0)
    with np.errstate(over="ignore", invalid="ignore"):
        total = float(np.einsum("ij,ij->", rows, rows, dtype=np.float64))
    if not total < np.finfo(rows.dtype).max:
        raise ValueError(f"X is too large under the metric for {rows.dtype}.")
    width = min(most + _OVERSAMPLING, *rows.shape)
    if total == 0 or width == 0 or most == 0:
        return np.zeros((rows.shape[1], 0), dtype=rows.dtype)
    basis = rows.T @ rng.standard_normal((len(rows), width)).astype(rows.dtype)
    for _ in range(_POWER_ITERATIONS):
        basis, _ = linalg.qr(basis, mode="economic")
        basis = rows.T @ (rows @ basis)
    basis, _ = linalg.qr(basis, mode="economic")
    image = rows @ basis
    _, turn = linalg.eigh(image.T @ image)
    return basis @ turn[:, : -most - 1 : -1]

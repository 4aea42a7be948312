"""From a Mahalanobis matrix, or a covariance, to U with ``A = UᵀU``."""

import numpy as np
from scipy import linalg

from .checks import as_matrix

_MATRICES = ("A", "VI", "V")


def components_from(*, A=None, VI=None, V=None):
    r"""U with :math:`U^\top U = A`, from A itself or from a covariance matrix.

    The squared distance is :math:`(x - z)^\top A (x - z)`. Exactly one matrix is given,
    by name, so that a covariance cannot be taken for its inverse:

    - `A`: the Mahalanobis matrix, as `get_mahalanobis_matrix()` of metric-learn;
    - `VI`: the inverse of a covariance matrix, which is the same thing; the `VI` of
      ``metric_params`` in scikit-learn and of SciPy's `mahalanobis`;
    - `V`: a covariance matrix, and then A is its (pseudo-)inverse.

    Parameters
    ----------
    A, VI, V : array-like of shape (d, d)
        A symmetric positive semi-definite matrix.

    Returns
    -------
    U : ndarray of shape (rank, d)
        Scaled eigenvectors, by decreasing length. Directions whose eigenvalue is zero
        up to rounding are left out: they do not count under A, and under V, where
        nothing varies along them, they are not measured. O(d³).

    Raises
    ------
    ValueError
        If the matrix is not square, not symmetric, zero, or indefinite.

    Examples
    --------
    >>> import numpy as np
    >>> from skmahal import components_from
    >>> components_from(V=np.diag([4.0, 1.0])).round(3) ** 2
    array([[0.  , 1.  ],
           [0.25, 0.  ]])
    >>> components_from(A=[[1.0, 2.0], [2.0, 1.0]])
    Traceback (most recent call last):
    ...
    ValueError: A must be positive semi-definite, and has the eigenvalue -1.
    """
    given = {
        name: matrix
        for name, matrix in zip(_MATRICES, (A, VI, V), strict=True)
        if matrix is not None
    }
    if len(given) != 1:
        names = ", ".join(given) or "none"
        raise ValueError(f"Give exactly one of A, VI and V by name, got {names}.")
    [(name, matrix)] = given.items()
    values, vectors = _eigen(name, matrix)
    values = 1 / values if name == "V" else values
    order = np.argsort(-values)
    return np.sqrt(values[order])[:, np.newaxis] * vectors.T[order]


def _eigen(name, matrix):
    """The eigenvalues that are not zero, and their vectors in columns."""
    matrix = _symmetric(name, matrix)
    values, vectors = linalg.eigh(matrix)
    rounding = len(values) * np.finfo(matrix.dtype).eps * np.abs(values).max()
    if values[0] < -rounding:
        raise ValueError(
            f"{name} must be positive semi-definite, and has the eigenvalue "
            f"{values[0]:.6g}."
        )
    counts = values > rounding
    if not counts.any():
        raise ValueError(f"{name} is zero: all points would be at distance zero.")
    return values[counts], vectors[:, counts]


def _symmetric(name, matrix):
    dtype = np.float32 if getattr(matrix, "dtype", None) == np.float32 else np.float64
    matrix = as_matrix(name, matrix, dtype=dtype)
    if matrix.shape[0] != matrix.shape[1]:
        raise ValueError(f"{name} must be square, got shape {matrix.shape}.")
    gap = np.abs(matrix - matrix.T).max()
    if gap > 1e3 * np.finfo(dtype).eps * np.abs(matrix).max():
        raise ValueError(f"{name} must be symmetric, and differs by {gap:.3g}.")
    return (matrix + matrix.T) / 2

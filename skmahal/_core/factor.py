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
        Rows by decreasing length. Features are brought to one scale before anything is
        taken for zero, so that units do not matter. Directions that are zero up to
        rounding are left out: they do not count under A, and under V, where nothing
        varies along them, they are not measured. O(d³).

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
    matrix, dtype = _symmetric(name, matrix)
    scales, values, vectors = _scaled_eigen(name, matrix, np.finfo(dtype).eps)
    if name == "V":
        values = 1 / values
        scales = np.divide(1, scales, where=scales > 0, out=np.zeros_like(scales))
    U = np.sqrt(values)[:, np.newaxis] * vectors.T * scales
    lengths = np.linalg.norm(U / np.abs(U).max(), axis=1)
    return U[np.argsort(-lengths, kind="stable")].astype(dtype)


def _scaled_eigen(name, matrix, eps):
    """Scales of the features, and what is not zero of the spectrum at those scales."""
    scales = np.sqrt(np.maximum(np.diag(matrix), 0))
    spectrum = _spectrum(matrix, scales, eps)
    if spectrum is None:
        # Scaling may also have made rounding errors large.
        scales = np.ones_like(scales)
        spectrum = _spectrum(matrix, scales, eps)
    if spectrum is None:
        raise ValueError(
            f"{name} must be positive semi-definite, and has the eigenvalue "
            f"{linalg.eigvalsh(matrix)[0]:.6g}."
        )
    values, vectors = spectrum
    if not values.size:
        raise ValueError(f"{name} is zero: all points would be at distance zero.")
    return scales, values, vectors


def _spectrum(matrix, scales, eps):
    """Eigenvalues that are not zero, and their vectors; None where one is negative."""
    unit = np.where(scales > 0, scales, 1)
    values, vectors = linalg.eigh(matrix / unit / unit[:, np.newaxis])
    rounding = len(values) * eps * np.abs(values).max()
    if values[0] < -rounding:
        return None
    return values[values > rounding], vectors[:, values > rounding]


def _symmetric(name, matrix):
    """The matrix in float64, symmetric to the last digit, and the type it came in."""
    dtype = np.float32 if getattr(matrix, "dtype", None) == np.float32 else np.float64
    matrix = as_matrix(name, matrix, dtype=np.float64)
    if matrix.shape[0] != matrix.shape[1]:
        raise ValueError(f"{name} must be square, got shape {matrix.shape}.")
    with np.errstate(over="ignore"):
        gap, size = np.abs(matrix - matrix.T).max(), np.abs(matrix).max()
    # Inverses of ill-conditioned matrices lose half the digits of their symmetry.
    if gap > np.sqrt(np.finfo(dtype).eps) * size:
        raise ValueError(
            f"{name} must be symmetric, and {name} - {name}ᵀ has entries up to "
            f"{gap:.3g} where {name} has {size:.3g}."
        )
    return matrix / 2 + matrix.T / 2, np.dtype(dtype)

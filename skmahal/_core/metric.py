"""The metric ``A = UᵀU``: its factor U, and changes of it as low-rank values.

A change of U that keeps its number of rows is ``U' = U + W Vᵀ``, of rank one for a step
of ITML or LEGO. U is held in float64, whatever the type of the points.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import linalg

from .checks import as_matrix
from .types import Floats

# What a low-rank difference may leave out of a row, in units of its rounding error.
_ROUNDING = 16

# Looking for a low rank must cost little beside what it may save.
_MOST_RANK = 32

_MATRICES = ("A", "VI", "V")


def components_from(
    *,
    A: ArrayLike | None = None,
    VI: ArrayLike | None = None,
    V: ArrayLike | None = None,
) -> Floats:
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


class LowRank(NamedTuple):
    """``W Vᵀ``: W is k × p, V is d × p."""

    W: np.ndarray
    V: np.ndarray

    @property
    def rank(self):
        """Number of columns, p."""
        return self.W.shape[1]


def row_change(rows, values, k):
    """The change that adds `values` to the rows `rows` of a U of k rows."""
    rows, values = np.asarray(rows), np.asarray(values, dtype=np.float64)
    W = np.zeros((k, rows.size))
    W[rows, np.arange(rows.size)] = 1
    return LowRank(W, values.T)


def change_between(U, new, most_rank, eps=None):
    """``new - U`` as a :class:`LowRank` of rank at most `most_rank`, else None.

    Rows that did not change cost nothing. Where too many changed, a randomised range
    finder looks for a low-rank difference, and accepts it only where what it leaves out
    is rounding error of `new`, of relative size `eps`, in its row and in its column: a
    point may be zero wherever U is large. O(kd), times a rank of at most 32.
    """
    difference = new - U
    rows = np.flatnonzero(difference.any(axis=1))
    if rows.size <= most_rank:
        return row_change(rows, difference[rows], len(U))
    eps = np.finfo(np.float64).eps if eps is None else eps
    sizes = np.abs(new)
    sizes = np.minimum(sizes.max(axis=1)[:, np.newaxis], sizes.max(axis=0))
    (k, d), most_rank = difference.shape, min(most_rank, _MOST_RANK)
    width = min(most_rank + 1, k, d)
    probe = np.random.default_rng(0).standard_normal((d, width))
    basis, _ = linalg.qr(difference @ probe, mode="economic")
    inner, values, outer = linalg.svd(basis.T @ difference, full_matrices=False)
    rank = int(np.sum(values > eps * sizes.max() * np.sqrt(k * d)))
    if not 0 < rank <= most_rank:
        return None
    W = basis @ (inner[:, :rank] * values[:rank])
    V = outer[:rank].T
    left_out = np.abs(difference - W @ V.T)
    return LowRank(W, V) if (left_out <= _ROUNDING * eps * sizes).all() else None

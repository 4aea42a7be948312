r"""Sketch matrices: a random generator in, an m x k matrix out.

All of them keep squared norms on average, :math:`E\|\Pi v\|^2 = \|v\|^2`, with
variance at most :math:`2\|v\|^4/m`; :mod:`skmahal._core.bounds` says how far a norm
may fall from that.
"""

import numpy as np
from scipy import sparse

from skmahal._core.checks import as_count

SKETCHES = ("gaussian", "rademacher", "countsketch", "srht")


def draw(sketch, m, k, rng, dtype=np.float64):
    r"""Draw an m x k sketch.

    ============ ========================================== ==================
    sketch       :math:`\Pi`                                cost of ``P @ v``
    ============ ========================================== ==================
    gaussian     entries :math:`N(0, 1/m)`                  O(mk)
    rademacher   entries :math:`\pm 1/\sqrt m`              O(mk)
    countsketch  one :math:`\pm 1` in each column           O(k)
    srht         rows of a Hadamard matrix, signed columns  O(k log k)
    ============ ========================================== ==================

    Parameters
    ----------
    sketch : {"gaussian", "rademacher", "countsketch", "srht"}
        Kind of the sketch.
    m : int
        Rows. For "srht", at most k rounded up to a power of two.
    k : int
        Columns.
    rng : numpy.random.Generator
        Source of randomness. The same state gives the same sketch in either
        `dtype`, up to rounding.
    dtype : numpy dtype, default=numpy.float64
        Floating type of the entries.

    Returns
    -------
    ndarray, scipy.sparse.csr_array or SubsampledHadamard
        An object P of shape (m, k) with ``P @ M`` for a dense M of shape (k,) or
        (k, p): an array, CSR for "countsketch", an operator for "srht".

    Examples
    --------
    >>> import numpy as np
    >>> from skmahal._core.projections import draw
    >>> P = draw("rademacher", 4, 3, np.random.default_rng(0))
    >>> P.shape
    (4, 3)
    >>> np.unique(P)
    array([-0.5,  0.5])
    """
    m, k = as_count("m", m), as_count("k", k)
    if sketch not in SKETCHES:
        kinds = ", ".join(map(repr, SKETCHES))
        raise ValueError(f"sketch must be one of {kinds}, got {sketch!r}.")
    return _DRAWS[sketch](m, k, rng, np.dtype(dtype))


def toarray(P):
    """A sketch as a dense array; an array is returned as it is.

    Examples
    --------
    >>> import numpy as np
    >>> from skmahal._core.projections import draw, toarray
    >>> P = draw("countsketch", 2, 5, np.random.default_rng(0))
    >>> abs(toarray(P)).sum(axis=0)
    array([1., 1., 1., 1., 1.])
    """
    return P if isinstance(P, np.ndarray) else P.toarray()


class SubsampledHadamard:
    r"""Random rows of a Hadamard matrix with random signs on its columns.

    .. math:: \Pi = \frac{1}{\sqrt m} S H_K D,

    where D flips signs at random, :math:`H_K` is the Hadamard matrix of order K, the
    power of two at or above k (vectors are padded with zeros), with entries ±1, and
    S keeps m of its rows. ``P @ M`` takes O(K log K) for each column of M, however
    many rows are kept.

    Parameters
    ----------
    signs : ndarray of shape (k,)
        The diagonal of D, of the floating type of the sketch.
    rows : integer ndarray of shape (m,)
        Distinct rows of the Hadamard matrix, from 0 to K - 1.

    Examples
    --------
    With all rows kept, norms are kept too:

    >>> import numpy as np
    >>> from skmahal._core.projections import SubsampledHadamard
    >>> P = SubsampledHadamard(np.array([1.0, -1.0, 1.0]), np.arange(4))
    >>> P @ np.array([1.0, 2.0, 3.0])
    array([ 1.,  3., -2.,  0.])
    >>> P.toarray() @ np.array([1.0, 2.0, 3.0])
    array([ 1.,  3., -2.,  0.])
    """

    def __init__(self, signs, rows):
        self.signs = signs
        self.rows = rows

    @property
    def shape(self):
        """Rows and columns of the sketch."""
        return len(self.rows), len(self.signs)

    @property
    def dtype(self):
        """Floating type of the sketch."""
        return self.signs.dtype

    def __matmul__(self, M):
        M = np.asarray(M)
        if M.ndim not in (1, 2) or len(M) != len(self.signs):
            raise ValueError(f"cannot multiply {self.shape} by {M.shape}.")
        padded = np.zeros(
            (_padded(len(M)), *M.shape[1:]), dtype=np.result_type(self.dtype, M.dtype)
        )
        np.multiply(M.T, self.signs, out=padded[: len(M)].T)
        walsh_hadamard(padded)
        return padded[self.rows] * self._scale

    def toarray(self):
        """The sketch as a dense array. O(mk)."""
        odd = _odd_ones(self.rows[:, None] & np.arange(len(self.signs)))
        return np.where(odd, -self.signs, self.signs) * self._scale

    @property
    def _scale(self):
        # Of the sketch's type: a float64 scalar would turn float32 into float64.
        return self.dtype.type(1 / np.sqrt(len(self.rows)))


def walsh_hadamard(x):
    r"""Multiply by the Hadamard matrix along the first axis, in place. O(K log K).

    .. math:: x_i \leftarrow \sum_j (-1)^{\mathrm{popcount}(i \wedge j)} x_j

    Parameters
    ----------
    x : ndarray of shape (K,) or (K, p), C-contiguous
        K must be a power of two.

    Examples
    --------
    >>> import numpy as np
    >>> from skmahal._core.projections import walsh_hadamard
    >>> x = np.array([1.0, 2.0, 3.0, 4.0])
    >>> walsh_hadamard(x)
    >>> x
    array([10., -2., -4.,  0.])
    """
    half = 1
    while half < len(x):
        pairs = x.reshape(len(x) // (2 * half), 2, half, *x.shape[1:])
        difference = pairs[:, 0] - pairs[:, 1]
        pairs[:, 0] += pairs[:, 1]
        pairs[:, 1] = difference
        half *= 2


def _gaussian(m, k, rng, dtype):
    return (rng.standard_normal((m, k)) / np.sqrt(m)).astype(dtype, copy=False)


def _rademacher(m, k, rng, dtype):
    return _signs((m, k), rng, dtype) * dtype.type(1 / np.sqrt(m))


def _countsketch(m, k, rng, dtype):
    buckets = rng.integers(m, size=k)
    entries = _signs(k, rng, dtype), (buckets, np.arange(k))
    return sparse.csr_array(entries, shape=(m, k))


def _srht(m, k, rng, dtype):
    order = _padded(k)
    if m > order:
        raise ValueError(
            f"m must be at most {order} for sketch='srht' of vectors of size {k}, "
            f"got {m}."
        )
    rows = rng.choice(order, size=m, replace=False)
    return SubsampledHadamard(_signs(k, rng, dtype), rows)


_DRAWS = dict(zip(SKETCHES, (_gaussian, _rademacher, _countsketch, _srht), strict=True))


def _signs(shape, rng, dtype):
    return (2 * rng.integers(2, size=shape, dtype=np.int8) - 1).astype(dtype)


def _padded(k):
    """The smallest power of two that is at least k."""
    return 1 << (k - 1).bit_length()


def _odd_ones(bits):
    """Whether the binary form of each number below 2**32 has an odd count of ones."""
    for shift in (16, 8, 4, 2, 1):
        bits = bits ^ (bits >> shift)
    return (bits & 1).astype(bool)

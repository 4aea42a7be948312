"""``(A + sI)⁻¹`` in single precision, as A moves."""

import numpy as np
from scipy.linalg import lapack

from skmahal._core.saved import integer_from, require

from ._terms import TermSum

# Of terms in single precision there may be more, as they are half as long.
_ROOM = 128

# Shifts and scales, up and down, that leave float32 its range.
_MOST = 1e20


class Resolvent(TermSum):
    """The matrix ``M = (A + sI)⁻¹`` in float32, as a value that never changes.

    A term of A makes one of M, by the formula of Sherman and Morrison. Rounding errors
    add up along with them, above all where A is small.

    Parameters
    ----------
    shift : float
        The number s.
    stored : ndarray of shape (d, d)
        The matrix M to start from. It is kept, not copied.

    Attributes
    ----------
    shift : float
        The number s.
    age : int
        Terms since M was made from A.

    Examples
    --------
    >>> before = Resolvent.of(np.eye(2), shift=1.0)
    >>> after = before.followed(2.0, np.array([1.0, 0.0]))
    >>> before @ np.ones(2), after @ np.ones(2)
    (array([0.5, 0.5], dtype=float32), array([0.25, 0.5 ], dtype=float32))
    """

    def __init__(self, shift, stored):
        super().__init__(stored, _ROOM)
        self.shift, self.age = float(shift), 0

    @classmethod
    def of(cls, A, shift):
        """M from A by a Cholesky factor in float64; O(d³), or O(d²) if A is diagonal.

        None where A has none, for all that is added to it.
        """
        diagonal = A.diagonal()
        if np.count_nonzero(A) == np.count_nonzero(diagonal):
            stored = np.zeros(A.shape, np.float32)
            stored.flat[:: len(A) + 1] = 1 / (diagonal + shift)
            return cls(shift, stored)
        shifted = A.copy()
        shifted.flat[:: len(A) + 1] += shift
        factor, failed = lapack.dpotrf(shifted.T, lower=True, overwrite_a=True)
        if failed:
            return None
        inverse, _ = lapack.dpotri(factor, lower=True, overwrite_c=True)
        lower = np.tril(inverse.astype(np.float32))
        return cls(shift, lower + np.tril(lower, -1).T)

    def followed(self, scale, term):
        """M after ``A += c x xᵀ``, or None where it has left float32; one product."""
        image = self @ term
        scale = -scale / (1 + scale * (term @ image))
        if not (np.isfinite(image).all() and abs(scale) < _MOST):
            return None
        now = self.plus(scale, image)
        now.age += 1
        return now

    def __getstate__(self):
        return {**super().__getstate__(), "shift": self.shift, "age": self.age}

    def __setstate__(self, state):
        self._begin(state, np.float32, _ROOM)
        self.shift, self.age = state["shift"], integer_from(state, "age")
        holds = isinstance(self.shift, float) and 1 / _MOST < self.shift < _MOST
        require(holds, f"a matrix is shifted by {self.shift!r}")

"""``A = UᵀU`` as it moves, where products with A are many and U is large."""

import numpy as np

from skmahal._core.saved import array_from, require

from ._log import StepLog

# Terms beside the stored matrix: few enough to cost little in a product with it.
_ROOM = 64

# Numbers up to this have products in float32, and sums of them.
_MOST_IN_SINGLE = 1e15


class MovingSquare:
    """The matrix ``A = UᵀU`` after so many steps, as a value that never changes.

    ``A = stored + Σ c x xᵀ`` in float64, whatever U is. A product with A reads one
    matrix, where the two with U and its transpose read a larger one twice. A step is
    O(d), and once in `_ROOM` terms it is O(d²) for each.

    Parameters
    ----------
    A : ndarray of shape (d, d)
        The matrix to start from, symmetric. It is kept, not copied.

    Examples
    --------
    >>> from skmahal._core.metric import LowRank
    >>> U, (w, v) = np.eye(2), ([1.0, 0.0], [0.0, 3.0])
    >>> change = LowRank(np.array([w]).T, np.array([v]).T)
    >>> after = MovingSquare(U.T @ U).moved(change, w @ U)
    >>> after @ np.array([1.0, 0.0])
    array([1., 3.])
    """

    def __init__(self, A):
        self._stored, self._stored_in_single = A, None
        self._terms, self._count = StepLog(_ROOM, 1, len(A), np.float64), 0

    def __matmul__(self, q):
        """``A @ q``; O(d²)."""
        scales, terms = self._terms.between(0, self._count)
        return self._stored @ q + (scales[:, 0] * (terms @ q)) @ terms

    def in_single(self):
        """The same for products in float32, or None where A is too large for that.

        O(d²) once in as many steps as make a new stored matrix.
        """
        scales, terms = self._terms.between(0, self._count)
        # Of a semi-definite matrix, the largest number is on the diagonal.
        sizes = np.concatenate([self._stored.diagonal(), abs(scales[:, 0])])
        if not sizes.max() < _MOST_IN_SINGLE:
            return None
        if self._stored_in_single is None:
            self._stored_in_single = self._stored.astype(np.float32)
        parts = scales[:, 0].astype(np.float32), terms.astype(np.float32)
        return SingleSquare(self._stored_in_single, *parts)

    def moved(self, change, image):
        """``A`` after ``U += w vᵀ``, where `image` is ``w @ U`` before.

        ``A + v xᵀ + x vᵀ`` with ``x = Uᵀw + ½‖w‖² v``, as two squares, which lose least
        where v and x are of one length.
        """
        w, v = (factor[:, 0].astype(np.float64) for factor in change)
        x = image + (w @ w / 2) * v
        sizes = np.sqrt(v @ v), np.sqrt(x @ x)
        if not min(sizes):
            return self
        v, x = v / sizes[0], x / sizes[1]
        scale = sizes[0] * sizes[1] / 2
        return self._with(scale, v + x)._with(-scale, v - x)

    def _with(self, scale, term):
        now = object.__new__(MovingSquare)
        now.__dict__.update(self.__dict__)
        if self._count == _ROOM:
            scales, terms = self._terms.between(0, _ROOM)
            now._stored = self._stored + (scales * terms).T @ terms
            now._stored_in_single = None
            now._terms, now._count = self._terms.latest(0, _ROOM), 0
        now._terms = now._terms.followed(now._count, [scale], term)
        now._count += 1
        return now

    def __getstate__(self):
        scales, terms = self._terms.between(0, self._count)
        return {"A": self._stored, "scales": scales, "terms": terms}

    def __setstate__(self, state):
        doubles = (np.dtype(np.float64),)
        A = array_from(state, "A", doubles, (None, None))
        scales = array_from(state, "scales", doubles, (None, 1))
        terms = array_from(state, "terms", doubles, (len(scales), len(A)))
        require(A.shape == (len(A), len(A)), "A is not square")
        require(len(terms) <= _ROOM, "A has too many terms")
        self.__init__(A)
        self._terms.begin(scales, terms)
        self._count = len(terms)


class SingleSquare:
    """``A + Σ c x xᵀ`` for products in float32."""

    def __init__(self, A, scales, terms):
        self._A, self._scales, self._terms = A, scales, terms

    def __matmul__(self, q):
        q = q.astype(np.float32, copy=False)
        return self._A @ q + (self._scales * (self._terms @ q)) @ self._terms

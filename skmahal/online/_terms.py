"""A symmetric matrix that moves by terms of rank one."""

from copy import copy

import numpy as np

from skmahal._core.saved import array_from, require

from ._log import StepLog


class TermSum:
    """The matrix ``stored + Σ c x xᵀ``, as a value that never changes.

    Few terms cost little in a product beside the stored matrix. One more is O(d), and
    once in as many as there is room for they are added in, O(d²) for each.

    Parameters
    ----------
    stored : ndarray of shape (d, d)
        The matrix to start from. It is kept, not copied.
    room : int
        Terms that there may be.

    Examples
    --------
    >>> before = TermSum(np.eye(2), room=4)
    >>> after = before.plus(2.0, np.array([1.0, 0.0]))
    >>> before @ np.ones(2), after @ np.ones(2)
    (array([1., 1.]), array([3., 1.]))
    """

    def __init__(self, stored, room):
        self._stored = stored
        self._terms = StepLog(room, 1, len(stored), stored.dtype)
        self._count = 0

    @property
    def shape(self):
        return self._stored.shape

    def __matmul__(self, q):
        """The product with a vector, in the matrix' floating type; O(d²)."""
        q = q.astype(self._stored.dtype, copy=False)
        scales, terms = self._since(0)
        return self._stored @ q + (scales * (terms @ q)) @ terms

    def plus(self, scale, term):
        """The matrix with one more term."""
        now = copy(self)
        if self._count == self._terms.room:
            now._add_in()
        now._terms = now._terms.followed(now._count, [scale], term)
        now._count += 1
        return now

    def __copy__(self):
        """The same value as another object. O(1)."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        return other

    def _since(self, count):
        """The scales and the terms that came after so many."""
        scales, terms = self._terms.between(count, self._count)
        return scales[:, 0], terms

    def dense(self):
        """The matrix as a new array; O(d²) for each term."""
        scales, terms = self._since(0)
        total = (scales[:, np.newaxis] * terms).T @ terms
        total += self._stored
        return total

    def _add_in(self):
        self._stored = self.dense()
        self._terms, self._count = self._terms.latest(0, self._count), 0

    def __getstate__(self):
        scales, terms = self._since(0)
        return {"stored": self._stored, "scales": scales, "terms": terms}

    def _begin(self, state, dtype, room):
        """Be what a state says."""
        dtypes = (np.dtype(dtype),)
        stored = array_from(state, "stored", dtypes, (None, None))
        scales = array_from(state, "scales", dtypes, (None,))
        terms = array_from(state, "terms", dtypes, (len(scales), len(stored)))
        require(stored.shape == (len(stored), len(stored)), "a matrix is not square")
        require(len(terms) <= room, "a matrix has too many terms")
        TermSum.__init__(self, stored, room)
        self._terms.begin(scales[:, np.newaxis], terms)
        self._count = len(terms)

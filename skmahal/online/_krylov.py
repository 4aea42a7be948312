"""Krylov spaces, by which large matrices are known from products alone."""

import numpy as np


class Krylov:
    """An orthonormal basis of span{v, Av, A²v, …}, on which A is tridiagonal.

    Lanczos' process with every vector made orthogonal to all before it.

    Parameters
    ----------
    A : array of shape (d, d)
        Semi-definite, or anything that ``A @ q`` works on.
    v : ndarray of shape (d,)
        Not zero.
    rank : int
        That A has at the most.
    dtype : dtype or None
        What products with A are precise to, if not that of v.

    Attributes
    ----------
    size : int
        Number of basis vectors.
    length : float
        That of v.
    border : float
        Times the last coordinate of a vector of the space, what A takes out of it.
    following : ndarray of shape (d,)
        The basis vector that comes next: where A takes it to.
    scale : float
        The largest eigenvalue of A, from below.

    Examples
    --------
    >>> space = Krylov(np.diag([2.0, 1.0, 0.0]), np.array([1.0, 1.0, 0.0]), rank=2)
    >>> space.extend()
    >>> space.extend()
    >>> space.exhausted, np.linalg.eigvalsh(space.matrix()).round(6)
    (True, array([1., 2.]))
    """

    def __init__(self, A, v, rank, dtype=None):
        self._A, self._dtype = A, np.dtype(v.dtype if dtype is None else dtype)
        self._most, self._d = min(rank + 1, len(v)), len(v)
        self.size, self.border, self.scale = 0, 0.0, np.finfo(float).tiny
        self._reserve(min(self._most, 16))
        v = v.astype(np.float64)
        self.length = np.sqrt(v @ v)
        self.following = v / self.length

    @property
    def exhausted(self):
        """Whether A maps the space into itself."""
        return self.border == 0

    @property
    def noise(self):
        """Rounding errors of A."""
        return np.finfo(self._dtype).eps * self.scale

    @property
    def basis(self):
        return self._vectors[: self.size]

    def solved(self, factor, b):
        """``(I - factor A)⁻¹ b`` on the space."""
        reduced = np.eye(self.size) - factor * self.matrix()
        return np.linalg.solve(reduced, self.basis @ b) @ self.basis

    def matrix(self):
        """A on the basis."""
        return self._matrix[: self.size, : self.size].copy()

    def extend(self):
        """One more basis vector: one product with A."""
        if self.size == len(self._vectors):
            self._reserve(min(2 * self.size, self._most))
        last = self.size
        q = self._vectors[last] = self.following
        if last:
            self._matrix[last, last - 1] = self._matrix[last - 1, last] = self.border
        rest = (self._A @ q).astype(np.float64, copy=False)
        size = np.sqrt(rest @ rest)
        self._matrix[last, last] = q @ rest
        self.size += 1
        self.scale = max(self.scale, self._matrix[last, last])
        for _ in range(2):
            rest -= (self.basis @ rest) @ self.basis
        border = np.sqrt(rest @ rest)
        noise = 4 * np.finfo(self._dtype).eps * max(size, self.scale)
        self.border = border if self.size < self._most and border > noise else 0.0
        if self.border:
            self.following = rest / border

    def _reserve(self, most):
        """Room for `most` vectors; what is there is kept."""
        vectors, matrix = np.empty((most, self._d)), np.zeros((most, most))
        if self.size:
            vectors[: self.size] = self.basis
            matrix[: self.size, : self.size] = self.matrix()
        self._vectors, self._matrix = vectors, matrix

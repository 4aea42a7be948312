"""What ``A - α vvᵀ`` has below zero, or that it has nothing there.

Both answers solve ``(A - λI) x = v``: with the negative eigenvalue λ of ``A - α vvᵀ``,
for which ``α vᵀx = 1``, or with λ = 0. They are found by products with A alone, which
is large; of those, the ones in single precision are several times faster.
"""

from typing import NamedTuple

import numpy as np

# From this many features on a product takes longer than the instructions around it.
_MANY_FEATURES = 256

# What products in single precision are trusted with: a first answer, and then by how
# much each of a few corrections brings what is left down.
_COARSE = 1e-5
_ROUNDS = 4
_MOST_PRODUCTS = 100
_BETWEEN_CHECKS = 3

# Of rounding errors of A, what may be expected in the square of one vector.
_SHARE = 1 / 16


class TakenOut(NamedTuple):
    """Whether an eigenvalue λ is negative, and what the step is made of.

    Where it is, `vector` is its eigenvector, of unit length, and `root` is
    ``σ = √(-λ/α)``; otherwise ``A⁺v`` and ``√(1 - α vᵀA⁺v)``. `along` is ``vᵀvector``.
    """

    negative: bool
    vector: np.ndarray
    along: float
    root: float

    @classmethod
    def of_eigenvector(cls, vector, along, value, alpha):
        return cls(True, vector, along, np.sqrt(-value / alpha))

    @classmethod
    def of_solution(cls, vector, along, alpha):
        return cls(False, vector, along, np.sqrt(max(1 - alpha * along, 0)))

    def error(self, off, alpha, length):
        """Of the step in A, where ``(A - λI) vector`` is off by as much.

        `length` is that of v.
        """
        if self.negative:
            return off * (length + self.root) / (self.along + self.root)
        return 2 * alpha * length * off

    def rounding_error(self, rounding, alpha, length):
        """The same for an eigenvector, where squares under A are off by `rounding`.

        Where v is all but orthogonal to the eigenvector, that is divided by next to
        nothing, in the step and in the root.
        """
        gap = np.sqrt(self.root**2 + rounding / alpha) - self.root
        off = rounding * (length + self.root) + alpha * length**2 * gap
        return off / (self.along + self.root)


class Square:
    """``UᵀU`` that is not formed."""

    def __init__(self, U):
        self._U = U

    def __matmul__(self, q):
        image = self._U @ q.astype(self._U.dtype)
        return (image @ self._U).astype(np.float64)


def taken_out(A, v, alpha, tol, rank):
    """What a step is made of, once it changes A by what it should up to `tol`.

    Parameters
    ----------
    A : array of shape (d, d)
        Semi-definite, or anything that ``A @ q`` works on. Where it has `in_single`,
        that gives the same in single precision.
    v : ndarray of shape (d,)
        Not zero.
    alpha : float
        Positive.
    tol : float
        Error that is allowed, in units of the largest eigenvalue of A.
    rank : int
        That A has at the most.

    Returns
    -------
    found : TakenOut

    Examples
    --------
    >>> found = taken_out(np.diag([2.0, 1.0]), np.array([0.0, 1.0]), 5.0, 1e-12, 2)
    >>> found.negative, abs(found.vector), round(float(found.root) ** 2, 6)
    (True, array([0., 1.]), 0.8)
    """
    found = None
    if len(v) >= _MANY_FEATURES and hasattr(A, "in_single"):
        # What leaves the range of float32 comes to nothing, which is seen.
        with np.errstate(all="ignore"):
            found = _refined(A, v, alpha, tol, rank)
    if found is None:
        space = _Krylov(A, v, rank)
        found = _from_space(space, alpha, tol, lambda size: max(1, size // 16))
    return found


def _from_space(space, alpha, tol, wait):
    """The answer on a Krylov space that grows until it is near enough.

    It is looked at again after ``wait(size)`` products.
    """
    found, check = None, 2
    while found is None:
        space.extend()
        if space.size >= check or space.exhausted:
            found = _settled(space, alpha, tol)
            check = space.size + wait(space.size)
    return found


def _settled(space, alpha, tol):
    """The answer on a Krylov space, or None where it is not near enough."""
    reduced = space.matrix()
    reduced[0, 0] -= alpha * space.length**2
    values, vectors = np.linalg.eigh(reduced)
    if values[0] < 0:
        vector = np.copysign(1, vectors[0, 0]) * vectors[:, 0]
        along = space.length * vector[0]
        found = TakenOut.of_eigenvector(vector, along, values[0], alpha)
    else:
        vector, _ = _solution(space, alpha)
        found = TakenOut.of_solution(vector, space.length * vector[0], alpha)
    error = found.error(space.border * abs(vector[-1]), alpha, space.length)
    if error > tol * space.scale:
        return None
    if found.negative:
        error = found.rounding_error(_SHARE * space.noise, alpha, space.length)
        if error > tol * space.scale:
            found = _nearer(found, error, space, alpha)
    return found._replace(vector=found.vector @ space.basis)


def _nearer(found, error, space, alpha):
    """An eigenvector with that error, or a solution without it if that is nearer.

    The eigenvalue is all but zero where its error is large, and so is what of v has to
    be left out for ``α vᵀx ≤ 1``.
    """
    vector, left = _solution(space, alpha)
    other = TakenOut.of_solution(vector, space.length * vector[0], alpha)
    return other if other.error(left, alpha, space.length) < error else found


def _solution(space, alpha):
    """``A⁺v`` on the Krylov space, and the length of what of v it leaves out.

    Eigenvalues of A that rounding may have made are left out, by the error that they
    would bring and that leaving them out does; and so are the smallest as long as
    ``α vᵀx`` is above 1.
    """
    values, vectors = np.linalg.eigh(space.matrix())
    parts, noise = space.length * vectors[0], space.noise
    values = np.maximum(values, noise)
    brought = noise / values * (1 + alpha * space.length * abs(parts) / values)
    taken = brought < 1
    shares = alpha * np.where(taken, parts, 0) ** 2 / values
    taken &= np.cumsum(shares[::-1])[::-1] <= 1
    return vectors @ (np.where(taken, parts, 0) / values), np.linalg.norm(parts[~taken])


def _refined(A, v, alpha, tol, rank):
    """The same by products in single precision, mended by a few in double.

    Each round takes what is left of ``(A - λI) x = v`` by a product in double, and
    solves for the correction in single; λ follows as a Rayleigh quotient. What is
    returned was held against A itself. None where that does not come near enough, as
    for an A that is singular but for rounding.
    """
    dtype, v = v.dtype, v.astype(np.float64)
    single, eps = A.in_single(), _SHARE * np.finfo(dtype).eps
    if single is None:
        return None
    space = _Krylov(single, v, rank, np.float32)
    coarse = max(tol, _COARSE)
    first = _from_space(space, alpha, coarse, lambda _: _BETWEEN_CHECKS)
    x = first.vector
    for _ in range(_ROUNDS):
        found, shift, rest = _held_against(A, v, alpha, x, first.negative)
        error = found.error(np.linalg.norm(rest), alpha, space.length)
        if not np.isfinite(error) or _has_other_sign(found, shift, alpha):
            return None
        if error <= tol * space.scale:
            if found.negative:
                error = found.rounding_error(eps * space.scale, alpha, space.length)
            return found if error <= tol * space.scale else None
        x = found.vector + _conjugate_gradients(single, shift, rest)
    return None


def _held_against(A, v, alpha, x, negative):
    """An answer from `x`, its λ, and what is left of its equation; one product.

    The equation is ``(A - λI) vector = v`` or, of an eigenvector, that times
    ``α vᵀvector``.
    """
    if not negative:
        return TakenOut.of_solution(x, v @ x, alpha), 0.0, v - A @ x
    x = x / np.linalg.norm(x)
    image, along = A @ x, v @ x
    value = x @ image - alpha * along**2
    rest = alpha * along * v - image + value * x
    return TakenOut.of_eigenvector(x, along, value, alpha), value, rest


def _has_other_sign(found, shift, alpha):
    """Whether single precision was wrong about there being a negative eigenvalue."""
    return shift > 0 if found.negative else alpha * found.along > 1


def _conjugate_gradients(A, shift, b):
    """``(A - shift I)⁻¹ b`` in single precision, up to `_COARSE`."""
    length = np.sqrt(b @ b)
    rest = (b / length).astype(np.float32)
    x, direction, shift = np.zeros_like(rest), rest.copy(), np.float32(shift)
    square = rest @ rest
    for _ in range(_MOST_PRODUCTS):
        image = A @ direction
        image -= shift * direction
        curvature = direction @ image
        if not curvature > 0:
            break
        step = square / curvature
        x += step * direction
        rest -= step * image
        before, square = square, rest @ rest
        if square <= _COARSE**2:
            break
        direction *= square / before
        direction += rest
    return length * x.astype(np.float64)


class _Krylov:
    """An orthonormal basis of span{v, Av, A²v, …}, on which A is tridiagonal.

    Lanczos' process with every vector made orthogonal to all before it. `border`
    times the last coordinate of a vector of the space is what A takes out of it.
    `dtype` is what products with A are precise to.
    """

    def __init__(self, A, v, rank, dtype=None):
        self._A, self._dtype = A, np.dtype(v.dtype if dtype is None else dtype)
        self._most, self._d = min(rank + 1, len(v)), len(v)
        self.size, self.border, self.scale = 0, 0.0, np.finfo(float).tiny
        self._reserve(min(self._most, 16))
        self.length = np.sqrt(squared_length(v))
        self._next = v / self.length

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

    def matrix(self):
        """A on the basis."""
        return self._matrix[: self.size, : self.size].copy()

    def extend(self):
        """One more basis vector: one product with A."""
        if self.size == len(self._vectors):
            self._reserve(min(2 * self.size, self._most))
        last = self.size
        q = self._vectors[last] = self._next
        if last:
            self._matrix[last, last - 1] = self._matrix[last - 1, last] = self.border
        rest = (self._A @ q).astype(np.float64, copy=False)
        size = np.sqrt(rest @ rest)
        self._matrix[last, last] = q @ rest
        self.size += 1
        # The largest eigenvalue of A, from below.
        self.scale = max(self.scale, self._matrix[last, last])
        for _ in range(2):
            rest -= (self.basis @ rest) @ self.basis
        border = np.sqrt(rest @ rest)
        noise = 4 * np.finfo(self._dtype).eps * max(size, self.scale)
        self.border = border if self.size < self._most and border > noise else 0.0
        if self.border:
            self._next = rest / border

    def _reserve(self, most):
        """Room for `most` vectors; what is there is kept."""
        vectors, matrix = np.empty((most, self._d)), np.zeros((most, most))
        if self.size:
            vectors[: self.size] = self.basis
            matrix[: self.size, : self.size] = self.matrix()
        self._vectors, self._matrix = vectors, matrix


def squared_length(w):
    """‖w‖², in float64."""
    w = w.astype(np.float64)
    return float(w @ w)

"""What ``A - α vvᵀ`` has below zero, or that it has nothing there.

Both answers solve ``(A - λI) x = v``: with the negative eigenvalue λ of ``A - α vvᵀ``,
for which ``α vᵀx = 1``, or with λ = 0.
"""

import numpy as np

from ._krylov import Krylov
from ._refined import refined
from ._taken_out import TakenOut, solvable

# From this many features on an inverse saves more than it takes.
_MANY_FEATURES = 16


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
        Semi-definite, or anything that ``A @ q`` works on. Where it has `near_inverse`,
        as :class:`~._square.MovingSquare` has, that saves most products if there are
        some features.
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
    if len(v) >= _MANY_FEATURES and hasattr(A, "near_inverse"):
        # What leaves the range of float32 comes to nothing, which is seen.
        with np.errstate(all="ignore"):
            found = refined(A, v, alpha, tol, rank)
    return _from_krylov(A, v, alpha, tol, rank) if found is None else found


def _from_krylov(A, v, alpha, tol, rank):
    """The answer on a Krylov space that grows until it is near enough.

    It is looked at again after a share of the products that there were.
    """
    space, found, check = Krylov(A, v, rank), None, 2
    while found is None:
        space.extend()
        if space.size >= check or space.exhausted:
            found = _settled(space, alpha, tol)
            check = space.size + max(1, space.size // 16)
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
        error = found.rounding_error(space.noise, alpha, space.length)
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
    """``A⁺v`` on the Krylov space, and the length of what of v it leaves out."""
    values, vectors = np.linalg.eigh(space.matrix())
    values, parts = np.maximum(values, space.noise), space.length * vectors[0]
    taken = solvable(values, parts, alpha, space.noise)
    return vectors @ (np.where(taken, parts, 0) / values), np.linalg.norm(parts[~taken])


def squared_length(w):
    """‖w‖², in float64."""
    w = w.astype(np.float64)
    return float(w @ w)

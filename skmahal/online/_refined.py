"""Answers of single precision, mended until double precision finds them right.

To solve ``(A - λI) x = v`` takes many products with A where λ is near to its smallest
eigenvalues, and A is large. Those with ``M = (A + sI)⁻¹`` in single precision are few
and fast: as ``I - (s + λ)M = (A - λI) M``, it is to solve ``(I - (s + λ)M) y = v`` and
take ``x = My``, with eigenvalues that are all near to one but for those of A around s.
"""

from typing import NamedTuple

import numpy as np

from ._krylov import Krylov
from ._taken_out import TakenOut, solvable

# Errors in units of A: of the first answer, and what a correction leaves of one.
_COARSE = 1e-7
_LEFT = 1e-5

_FIRST_LOOK, _MOST_WAIT = 3, 8
_ROUNDS = 12
_MOST_PRODUCTS = 100

# M is made anew where so many rounds are needed, after so many terms of A.
_MANY_ROUNDS = 6
_OLD = 32

_EPS = float(np.finfo(np.float32).eps)


def refined(A, v, alpha, tol, rank):
    """What a step is made of, as :func:`~._projection.taken_out` gives it.

    A first answer is found on the Krylov space of M. Each round then takes the answer
    on a small space where A is known in double precision, and adds a correction to it,
    which is solved for in single.

    Parameters
    ----------
    A : MovingSquare
        The matrix, which is asked for its inverse and told how that served.
    v, alpha, tol, rank
        As there.

    Returns
    -------
    found : TakenOut or None
        None where rounding errors of single precision are in the way.
    """
    for _ in range(2):
        inverse = A.near_inverse()
        if inverse is None:
            break
        space = Krylov(inverse, v, rank, np.float32)
        noise = np.finfo(v.dtype).eps * A.scale
        problem = _Problem(A, inverse, space, alpha, noise)
        found, rounds = _answered(problem, v.astype(np.float64), tol * A.scale)
        old = inverse.age > _OLD
        if old and rounds >= _MANY_ROUNDS:
            A.forget_inverse()
        if found is not None or rounds < _ROUNDS or not old:
            return found
    return None


def _answered(problem, v, most):
    """An answer with an error of at most `most` or None, and the rounds to it.

    These are `_ROUNDS` where another inverse might come to an answer.
    """
    A, _, space, alpha, noise = problem
    try:
        first = _first_answer(problem, max(most, _COARSE * A.scale))
        found, error, rounds = _mended(problem, v, first, most)
        if not error <= most:
            return None, _ROUNDS
        if found.negative:
            # Corrections take about as many products again as the first answer.
            A.worked(-alpha * found.root**2, 2 * space.size)
            error = found.rounding_error(noise, alpha, space.length)
            if error > most:
                found = _nearer(found, error, problem, v, most)
        return found, rounds
    except np.linalg.LinAlgError:
        # Numbers have left the range of single precision.
        return None, _ROUNDS


class _Problem(NamedTuple):
    """A, M, the Krylov space of M, α, and the size of rounding errors of A."""

    A: object
    inverse: object
    space: Krylov
    alpha: float
    noise: float

    def spectrum(self):
        """Eigenvalues of M and of A on the space, their vectors, and parts of v."""
        inverses, vectors = np.linalg.eigh(self.space.matrix())
        inverses = np.maximum(inverses, _EPS * inverses[-1])[::-1]
        shift, vectors = self.inverse.shift, vectors[:, ::-1]
        values = np.maximum(1 / inverses - shift, _EPS * shift)
        return inverses, values, vectors, self.space.length * vectors[0]


def _first_answer(problem, most):
    """x on the Krylov space of M, where it has come to an error of `most`.

    It is looked at when, by how fast the error became smaller, that may be.
    """
    space, check, looks = problem.space, _FIRST_LOOK, []
    while True:
        space.extend()
        if space.size >= check or space.exhausted:
            x, error = _from_inverse(problem)
            if not error > most or space.exhausted:
                return x
            looks.append((space.size, np.log(error / most)))
            check = space.size + _wait(looks)


def _wait(looks):
    """Products until the logarithm of the error comes to zero, at its latest rate."""
    if len(looks) < 2:
        return _FIRST_LOOK
    (before, above), (now, left) = looks[-2:]
    rate = max((above - left) / (now - before), left / _MOST_WAIT)
    return int(np.ceil(left / rate))


def _from_inverse(problem):
    """x on the Krylov space of M, and the error of the step with it."""
    _, inverse, space, alpha, _ = problem
    inverses, values, vectors, parts = problem.spectrum()
    lowest = np.linalg.eigvalsh(np.diag(values) - alpha * np.outer(parts, parts))[0]
    value = min(lowest, 0.0)
    y = vectors @ (parts / (inverses * (values - value)))
    outside = space.border * y[-1]
    x = (space.matrix() @ y) @ space.basis + outside * space.following
    off = abs((inverse.shift + value) * outside)
    if value == 0:
        found = TakenOut.of_solution(x, 0.0, alpha)
        return x, found.error(off, alpha, space.length)
    size = np.sqrt(x @ x)
    found = TakenOut.of_eigenvector(x, 1 / (alpha * size), value, alpha)
    return x, found.error(off / size, alpha, space.length)


def _mended(problem, v, x, most, definite=False):
    """The answer that x comes to, its error, and the rounds.

    It ends with an error of `most`, or where that does not become any smaller.
    `definite` says that no eigenvalue is negative.
    """
    _, _, space, alpha, noise = problem
    answers = _Answers(problem.A, v, 0.0 if definite else alpha, noise)
    error, rounds = np.inf, 0
    while True:
        rounds += 1
        answers.extend(x)
        vector, value, rest = answers.latest()
        along, left = v @ vector, np.sqrt(rest @ rest)
        if value < 0:
            found = TakenOut.of_eigenvector(vector, along, value, alpha)
        else:
            found = TakenOut.of_solution(vector, along, alpha)
        before, error = error, found.error(left, alpha, space.length)
        if error <= most or not error < before / 2 or rounds == _ROUNDS:
            return found, error, rounds
        share = max(most / error / 4, _LEFT)
        x = left * _correction(problem, value, rest / left, share)


def _correction(problem, value, rest, share):
    """``(A - λI)⁻¹ rest`` in single precision, but for a share of `rest`.

    By conjugate gradients, which begin with the answer on the Krylov space.
    """
    inverse = problem.inverse
    factor = inverse.shift + value
    y = problem.space.solved(factor, rest).astype(np.float32)
    rest, factor, x = rest.astype(np.float32), np.float32(factor), inverse @ y
    rest -= y - factor * x
    direction, square = rest.copy(), rest @ rest
    for _ in range(_MOST_PRODUCTS):
        if not square > share**2:
            break
        image = inverse @ direction
        moved = direction - factor * image
        curvature = direction @ moved
        if not curvature > 0:
            break
        step = square / curvature
        x += step * image
        rest -= step * moved
        before, square = square, rest @ rest
        direction *= square / before
        direction += rest
    return x.astype(np.float64)


def _nearer(found, error, problem, v, most):
    """An eigenvector with that error, or a solution without it if that is nearer.

    None where single precision cannot tell what rounding errors of A may have made.
    """
    _, inverse, space, alpha, noise = problem
    if noise < _EPS * inverse.shift:
        return None
    _, values, vectors, parts = problem.spectrum()
    taken = solvable(values, parts, alpha, noise)
    left = vectors @ np.where(taken, 0, parts) @ space.basis
    x = vectors @ (np.where(taken, parts, 0) / values) @ space.basis
    other = TakenOut.of_solution(x, v @ x, alpha)
    error -= other.error(np.sqrt(left @ left), alpha, space.length)
    if not error > 0:
        return found
    other, off, _ = _mended(problem, v - left, x, most, definite=True)
    return other if off < error else found


class _Answers:
    """Answers on a space that grows, on which A is known in double precision."""

    def __init__(self, A, v, alpha, noise):
        self._A, self._v, self._alpha, self._noise = A, v, alpha, noise
        self._basis = self._images = np.empty((0, len(v)))

    def extend(self, direction):
        """One more direction: one product with A."""
        for _ in range(2):
            direction = direction / np.sqrt(direction @ direction)
            direction -= (self._basis @ direction) @ self._basis
        direction /= np.sqrt(direction @ direction)
        self._basis = np.concatenate([self._basis, [direction]])
        self._images = np.concatenate([self._images, [self._A @ direction]])

    def latest(self):
        """A vector, its λ, and what is left of its equation.

        The equation is ``(A - λI) vector = v`` or, where λ is negative and the vector
        of unit length, that times ``α vᵀvector``.
        """
        matrix, parts = self._basis @ self._images.T, self._basis @ self._v
        reduced = matrix - self._alpha * np.outer(parts, parts)
        values, vectors = np.linalg.eigh(reduced)
        if self._alpha and values[0] < 0:
            x, value = np.copysign(1, parts @ vectors[:, 0]) * vectors[:, 0], values[0]
            target = self._alpha * (parts @ x) * self._v
        else:
            x, value = _solution(matrix, parts, self._noise), 0.0
            target = self._v
        vector = x @ self._basis
        return vector, value, target - x @ self._images + value * vector


def _solution(matrix, parts, noise):
    """x of ``matrix @ x = parts`` but for eigenvalues that rounding may have made."""
    values, vectors = np.linalg.eigh(matrix)
    inverses = np.divide(1, values, out=np.zeros_like(values), where=values > noise)
    return vectors @ (inverses * (parts @ vectors))

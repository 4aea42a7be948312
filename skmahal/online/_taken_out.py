"""What a step takes out of A, whichever way it is found."""

from typing import NamedTuple

import numpy as np

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

    def rounding_error(self, noise, alpha, length):
        """The same for an eigenvector, where A has rounding errors of such a size.

        Where v is all but orthogonal to the eigenvector, they are divided by next to
        nothing, in the step and in the root.
        """
        rounding = _SHARE * noise
        gap = np.sqrt(self.root**2 + rounding / alpha) - self.root
        off = rounding * (length + self.root) + alpha * length**2 * gap
        return off / (self.along + self.root)


def solvable(values, parts, alpha, noise):
    """Which parts of v to solve ``A x = v`` for, where ``α vᵀx`` must not be above 1.

    Eigenvalues of A that rounding may have made are left out, by the error that they
    would bring and that leaving them out does; and so are the smallest as long as
    ``α vᵀx`` is above 1.

    Parameters
    ----------
    values : ndarray of shape (size,)
        Eigenvalues of A, ascending and positive.
    parts : ndarray of shape (size,)
        What v has of their eigenvectors.
    alpha : float
        Positive.
    noise : float
        Rounding errors of A.

    Examples
    --------
    >>> solvable(np.array([1e-9, 0.1, 2.0]), np.ones(3), alpha=1.0, noise=1e-6)
    array([False, False,  True])
    """
    length = np.sqrt(parts @ parts)
    brought = noise / values * (1 + alpha * length * abs(parts) / values)
    taken = brought < 1
    shares = alpha * np.where(taken, parts, 0) ** 2 / values
    return taken & (np.cumsum(shares[::-1])[::-1] <= 1)

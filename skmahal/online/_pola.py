"""POLA, the pseudo-metric online learning algorithm, and its projection."""

from __future__ import annotations

from collections import namedtuple
from copy import copy
from numbers import Real
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import lapack

from skmahal._compat import Interval, StrOptions
from skmahal._core.saved import integer_from
from skmahal._core.types import Preprocessor, RandomState

from ._base import OnlineLearner, check_finite
from ._factor import FIRST_SHIFT, MovingFactor, ShiftedInverse

_EPS = float(np.finfo(float).eps)

# An old inverse with which a step needs more products is computed again.
_MANY_PRODUCTS = 32
# Rounds of a solution, and least shifts, over the largest eigenvalue of A, in turn.
_ROUNDS = 4
_FLOORS = (4 * _EPS, 64 * _EPS, 1024 * _EPS)


def triangular_factor(U):
    """A matrix with the same ``UᵀU`` up to rounding, and as many rows as its rank."""
    A = U.T @ U
    least = _EPS * A.diagonal().max()
    upper, order, rank, _ = lapack.dpstrf(A.T, tol=least, overwrite_a=True)
    R = np.empty((rank, len(A)))
    R[:, order - 1] = np.triu(upper[:rank])
    return R


# x, p = Ux and ℓ of a step, and how they were found; see subtraction.
Solution = namedtuple("Solution", "x p shift clipped error converged products")


def subtraction(U, v, alpha, tol, inverse):
    r"""The change of U that subtracts :math:`\alpha vv^\top` from A, and projects.

    Let :math:`B = A - \alpha vv^\top`, with :math:`A = U^\top U`. By interlacing, B has
    at most one negative eigenvalue, and the nearest semi-definite matrix is B without
    it. Let :math:`\ell \ge 0` be the smallest shift with :math:`\alpha v^\top x \le 1`
    for :math:`x = (A + \ell I)^{-1} v`, let :math:`p = Ux` and
    :math:`\rho = \sqrt{1 - \alpha \|p\|^2}`. Then

    .. math:: U' = U - \frac{\alpha}{1 + \rho}\, p q^\top, \qquad
              q = v + \frac{\rho}{\alpha \|x\|^2}\, x
              \text{ if } \ell > 0, \text{ else } v.

    If :math:`\ell > 0`, then :math:`\alpha v^\top x = 1` and :math:`Bx = -\ell x`: x is
    the eigenvector of the negative eigenvalue, :math:`U'x = 0`, and
    :math:`U'^\top U' = B + \ell xx^\top / \|x\|^2`. Otherwise :math:`U'^\top U' = B`.

    A residual r of :math:`(A + \ell I) x = v` changes :math:`U'^\top U'` by at most
    :math:`2 \alpha \|v\| \|r\|`. It is computed with U and corrected until that is at
    most `tol`, in units of the largest eigenvalue of A, so that rounding errors of the
    inverse do not add up. If A is singular except for rounding, the shift is at least a
    small multiple of the rounding error of A, and :math:`q = v - \ell x`.

    Returns w and q, with ``U' = U + w qᵀ``, and the solution they come from. O(kd) per
    round, of which there is mostly one.
    """
    solutions = []
    with np.errstate(all="ignore"):
        for floor in _FLOORS:
            solutions.append(_solution(U, v, alpha, tol, inverse, floor))
            if solutions[-1].converged:
                break
    found = min(solutions, key=lambda solution: solution.error)
    if not found.error < np.inf:
        raise ValueError("pairs has points too far apart: the step overflows.")
    x, p = found.x, found.p
    root = np.sqrt(max(1 - alpha * (p @ p), 0.0))
    q = v + (root / (alpha * (x @ x)) if found.clipped else -found.shift) * x
    return -alpha / (1 + root) * p, q, found


def _solution(U, v, alpha, tol, inverse, floor):
    """x and ℓ of :func:`subtraction`, where ``ℓ / λ_max(A)`` is at least `floor`."""
    length, error = np.sqrt(v @ v), np.inf
    target = tol / (2 * alpha * length)
    x, shift, size, products = inverse.solve(v, target / 4, alpha=alpha, floor=floor)
    best = Solution(x, x, shift, False, np.inf, False, products)
    for _ in range(_ROUNDS):
        p = U @ x
        pulled, clipped = U.pull_back(p), False
        if shift > floor * size or alpha * (v @ x) > 1:
            # x should be an eigenvector: scale it, and compute its eigenvalue.
            scale = 1 / (alpha * (v @ x))
            x, p, pulled = scale * x, scale * p, scale * pulled
            shift = (1 / alpha - p @ p) / (x @ x)
            clipped = bool(shift > floor * size)
        shift = max(float(shift), floor * size)
        rest = v - shift * x - pulled
        before, error = error, np.sqrt(rest @ rest)
        if not error < before / 2:
            break
        bound = np.sqrt(x @ x)
        noise = _EPS * (4 * size * bound + length)
        enough = bool(error <= max(target * size, noise))
        bias = 0.0 if clipped else shift * bound
        best = Solution(x, p, shift, clipped, float(error + bias), enough, products)
        if enough:
            break
        x = x + inverse.solve(rest, max(target * size / 4, 1e-4 * error), shift)[0]
    return best


class POLA(OnlineLearner):
    r"""Online metric learning by projections, with a learned threshold.

    The metric is :math:`d(x, z) = \|U(x - z)\|`, with :math:`A = U^\top U`, and there
    is a threshold b on squared distances. A similar pair (y = 1) should have
    :math:`d^2 \le b - 1`, a dissimilar one (y = -1) :math:`d^2 \ge b + 1`. A pair with
    difference v that has the loss :math:`\ell = 1 + y (d^2 - b) > 0` moves both:

    .. math:: \alpha = \frac{\ell}{\|v\|^4 + 1}, \quad A \leftarrow A - y \alpha
              vv^\top, \quad b \leftarrow \max(b + y \alpha, 1),

    and if A then has a negative eigenvalue, it is projected to the nearest positive
    semi-definite matrix. Pairs of identical points change nothing. The margin is 1 in
    squared units of the features, so that points should have a length of about 1.

    Parameters
    ----------
    init : {"identity", "zeros"} or array-like of shape (k, n_features)
        The initial matrix U, by default the identity; "zeros" is the paper's.
    tol : float, default=1e-10
        Error of A in one step, relative to about its largest eigenvalue. It can be up
        to the square root of the rounding error if A is singular except for rounding,
        as with points of low rank. A larger value needs fewer products.
    reservoir_size, n_pairs, random_state, preprocessor : default=128, 4, None and None
        As for :class:`LEGO`.

    Attributes
    ----------
    components_ : ndarray of shape (k, n_features)
        The matrix U, of up to ``n_features + max(8, n_features // 8)`` rows, of which
        the last may be zero.
    b_ : float
        The threshold on squared distances.
    threshold_ : float
        The square root of `b_`, until it is set or calibrated.
    n_clipped_ : int
        Number of steps since `fit` that had to be projected.
    classes_, version_, n_steps_, n_skipped_, n_features_in_, feature_names_in_
        As for :class:`LEGO`.

    See Also
    --------
    LEGO : LogDet steps towards target distances.
    OnlineITML : LogDet projections onto target distances.

    Notes
    -----
    A dissimilar pair costs O(kd), and O(kd²) once in d / 8 such pairs. A similar pair
    with a loss costs O(kd) for three products with U, and O(d²) for each of five to
    thirty products with an inverse of ``A + sI``, for a small s, which is kept beside U
    and rarely computed again, in O(d³). All computations are in float64.

    References
    ----------
    S. Shalev-Shwartz, Y. Singer, A. Y. Ng: Online and Batch Learning of Pseudo-Metrics,
    ICML 2004.

    Examples
    --------
    >>> import numpy as np
    >>> from skmahal.online import POLA
    >>> rng = np.random.default_rng(0)
    >>> pairs = rng.normal(size=(300, 2, 2))
    >>> y = np.where(abs(pairs[:, 0, 0] - pairs[:, 1, 0]) < 0.5, 1, -1)
    >>> learner = POLA().fit(pairs, y)
    >>> learner.score(pairs, y) > 0.95
    True
    """

    _parameter_constraints = {
        **OnlineLearner._parameter_constraints,
        "init": [StrOptions({"identity", "zeros"}), "array-like"],
        "tol": [Interval(Real, 0, None, closed="neither")],
    }
    _parts = {**OnlineLearner._parts, "_inverse": ShiftedInverse}
    _default_threshold = property(lambda self: np.sqrt(self.b_))

    def __init__(
        self,
        *,
        init: Literal["identity"] | ArrayLike = "identity",
        tol: float = 1e-10,
        reservoir_size: int = 128,
        n_pairs: int = 4,
        random_state: RandomState = None,
        preprocessor: Preprocessor | None = None,
    ) -> None:
        self.init = init
        self.tol = tol
        self.preprocessor = preprocessor
        self.reservoir_size = reservoir_size
        self.n_pairs = n_pairs
        self.random_state = random_state

    def _begin(self, points, labelled):
        super()._begin(points, labelled)
        self.b_, self.n_clipped_, self._inverse = 1.0, 0, None
        if isinstance(self.init, str) and self.init == "identity":
            M = np.eye(points.shape[1]) / (1 + FIRST_SHIFT)
            self._inverse = ShiftedInverse(M, FIRST_SHIFT)

    def _prepare(self, points):
        # Steps change the inverse in place, and an error must undo them.
        self._inverse = copy(self._inverse)

    def _initial(self, d, dtype):
        zeros = isinstance(self.init, str) and self.init == "zeros"
        U = np.empty((0, d)) if zeros else super()._initial(d, np.float64)
        self._rows = len(U)
        return np.concatenate([U, np.zeros((max(8, d // 8), d))])

    def _steps(self, factor, differences, signs):
        rows = (z.astype(np.float64) for z in differences)
        for z, sign in zip(rows, signs, strict=True):
            transformed = factor @ z
            distance = check_finite(transformed @ transformed)
            loss, square = 1 + sign * (distance - self.b_), z @ z
            alpha = loss / (check_finite(square * square) + 1) if loss > 0 else 0
            if not alpha > 0:
                continue
            self.b_ = max(float(self.b_ + sign * alpha), 1.0)
            if sign < 0:
                factor = self._add(factor, z, alpha)
            elif distance > 0:
                factor = self._subtract(factor, z, alpha)
            else:
                # A maps z to zero: all that would be subtracted is projected away.
                self.n_clipped_ += 1
        return factor

    def _add(self, factor, v, alpha):
        """Make the step to ``A + α vvᵀ``: it fills a zero row of U."""
        if self._rows == factor.shape[0]:
            R = triangular_factor(factor.components())
            self._rows, d = R.shape
            U = np.concatenate([R, np.zeros((max(8, d // 8), d))])
            version, stream = factor.version + 1, factor.stream
            factor = MovingFactor(U, None, version, stream)
        row = np.zeros(factor.shape[0])
        row[self._rows] = 1
        self._rows += 1
        factor.append(row, check_finite(np.sqrt(alpha) * v))
        if self._inverse is not None:
            self._inverse.add(alpha, v)
        return factor

    def _subtract(self, factor, v, alpha):
        """Make the step to ``A - α vvᵀ``, projected; see :func:`subtraction`."""
        if self._inverse is None:
            self._inverse = ShiftedInverse.of(factor)
        w, q, found = subtraction(factor, v, alpha, self.tol, self._inverse)
        old = self._inverse.age > len(v) // 8
        if old and not found.converged:
            self._inverse = ShiftedInverse.of(factor, found.shift)
            w, q, found = subtraction(factor, v, alpha, self.tol, self._inverse)
        self.n_clipped_ += found.clipped
        factor.append(check_finite(w), check_finite(q))
        if old and found.products > _MANY_PRODUCTS:
            self._inverse = ShiftedInverse.of(factor, found.shift)
        elif found.clipped:
            self._inverse.remove(found.x, found.shift)
        else:
            self._inverse.add(-alpha, q)
        return factor

    def _restored(self, state):
        state = super()._restored(state)
        if "_rows" in state:
            integer_from(state, "_rows", most=state["_factor"].shape[0])
        return state

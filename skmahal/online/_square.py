"""``A = UᵀU`` as it moves, where products with A are many and U is large."""

import numpy as np
from scipy.linalg import lapack

from skmahal._core.saved import integer_from, require

from ._resolvent import Resolvent
from ._terms import TermSum

# Terms beside the stored matrix: few enough to cost little in a product with it.
_ROOM = 64

# Squared length of a sum of two unit vectors that is nothing but rounding.
_NOTHING = 1e-28

# Sizes of A, up and down, whose inverse float32 holds, and products with it.
_MOST = 1e15

# By how much A is shifted to be inverted, in units of its mean eigenvalue: at first,
# and within which bounds. A shift that is so many times off is worth another inverse.
_SHIFT, _LEAST_SHIFT, _MOST_SHIFT = 0.01, 1e-3, 0.5
_FAR_OFF = 3

_POWERS = 10

# Steps, their products, and the sum of the logarithms of their eigenvalues.
_NO_WORK = 0, 0, 0.0


class MovingSquare(TermSum):
    """The matrix ``A = UᵀU`` after so many steps, as a value that never changes.

    It is in float64, whatever U is. A product with A reads one matrix, where the two
    with U and its transpose read a larger one twice. A step is two terms or one.

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
        super().__init__(A, _ROOM)
        self._diagonal = A.diagonal()
        self._scale = self._inverse = None
        self._shift, self._work = _SHIFT, _NO_WORK

    @property
    def scale(self):
        """About the largest eigenvalue of A, from when its terms were last added in.

        Or from later, where A has moved far since. O(d²) when it is found.
        """
        size = self._diagonal.max(), self._diagonal.sum()
        before, largest = self._scale or (size, None)
        near = all(a < 2 * b and b < 2 * a for a, b in zip(size, before, strict=True))
        if largest is None or not near:
            image = self @ np.eye(1, len(self._diagonal), self._diagonal.argmax())[0]
            for _ in range(_POWERS):
                direction = image / (np.sqrt(image @ image) or 1.0)
                image = self @ direction
            largest = float(direction @ image)
            self._scale = size, largest
        return largest

    def near_inverse(self):
        """``(A + sI)⁻¹`` for a small s, or None where float32 has no room for it.

        O(d³) when it is first asked for, and then O(d²) for each term of A.
        """
        if not 1 / _MOST < self.scale < _MOST:
            return None
        if self._inverse is None:
            shift = self._shift * self._diagonal.mean()
            self._inverse, self._known = Resolvent.of(self._stored, shift), 0
        with np.errstate(all="ignore"):
            for scale, term in zip(*self._since(self._known), strict=True):
                if self._inverse is not None:
                    self._inverse = self._inverse.followed(scale, term)
        self._known = self._count
        return self._inverse

    def forget_inverse(self):
        """Let :meth:`near_inverse` begin anew, from A without terms."""
        self._inverse = None
        self._add_in()

    def worked(self, value, products):
        """Take note of a negative eigenvalue, and what it took to find by the inverse.

        Fewest products are needed where s is about as large. After d of them, another
        inverse costs no more than they did.
        """
        steps, spent, logs = self._work
        logs += float(np.log(max(-value, np.finfo(float).tiny)))
        self._work = steps + 1, spent + products, logs
        if spent + products > len(self._stored):
            self._choose_shift()

    def _choose_shift(self):
        steps, _, logs = self._work
        mean = self._diagonal.mean()
        best = float(np.clip(np.exp(logs / steps) / mean, _LEAST_SHIFT, _MOST_SHIFT))
        if not 1 / _FAR_OFF < best * mean / self._inverse.shift < _FAR_OFF:
            self._shift = best
            self.forget_inverse()
        self._work = _NO_WORK

    def moved(self, change, image):
        """``A`` after ``U += w vᵀ``, where `image` is ``w @ U`` before.

        ``A + v xᵀ + x vᵀ`` with ``x = Uᵀw + ½‖w‖² v``, as two squares, which lose least
        where v and x are of one length. One of them is nothing where v and x are
        parallel.
        """
        w, v = (factor[:, 0].astype(np.float64) for factor in change)
        x = image + (w @ w / 2) * v
        sizes = np.sqrt(v @ v), np.sqrt(x @ x)
        if not min(sizes):
            return self
        v, x = v / sizes[0], x / sizes[1]
        now, scale = self, sizes[0] * sizes[1] / 2
        for sign in (1, -1):
            term = v + sign * x
            if term @ term > _NOTHING:
                now = now.plus(sign * scale, term)
        return now

    def factor(self):
        """R of as many rows as A has rank, with ``RᵀR = A`` up to rounding; O(d³)."""
        least = np.finfo(float).eps * self._diagonal.max()
        upper, order, rank, _ = lapack.dpstrf(
            self.dense().T, tol=least, overwrite_a=True
        )
        R = np.empty((rank, len(upper)))
        R[:, order - 1] = np.triu(upper[:rank])
        return R

    def plus(self, scale, term):
        now = super().plus(scale, term)
        now._diagonal = now._diagonal + scale * term**2
        return now

    def _add_in(self):
        if self._inverse is not None:
            self._inverse = self.near_inverse()
        super()._add_in()
        self._diagonal, self._scale = self._stored.diagonal(), None
        self._known = 0

    def __getstate__(self):
        state = super().__getstate__()
        state.update(scale=self._scale, shift=self._shift, work=self._work)
        if self._inverse is not None:
            state.update(inverse=self._inverse.__getstate__(), known=self._known)
        return state

    def __setstate__(self, state):
        self._begin(state, np.float64, _ROOM)
        self._diagonal = self._stored.diagonal()
        for scale, term in zip(*self._since(0), strict=True):
            self._diagonal = self._diagonal + scale * term**2
        self._scale, self._shift = _scale_from(state), _shift_from(state)
        self._work, self._inverse = _work_from(state), None
        if "inverse" in state:
            self._inverse = Resolvent.__new__(Resolvent)
            self._inverse.__setstate__(state["inverse"])
            require(self._inverse.shape == self.shape, "an inverse has another shape")
            self._known = integer_from(state, "known", most=self._count)


def _scale_from(state):
    """The bounds and the scale that a saved state holds."""
    if state["scale"] is None:
        return None
    (top, total), largest = state["scale"]
    numbers = float(top), float(total), float(largest)
    require(np.isfinite(numbers).all(), f"scale is {numbers}")
    return numbers[:2], numbers[2]


def _shift_from(state):
    shift = float(state["shift"])
    require(_LEAST_SHIFT <= shift <= _MOST_SHIFT, f"shift is {shift}")
    return shift


def _work_from(state):
    """What steps took, as a saved state notes it."""
    steps, spent, logs = state["work"]
    counts = {"steps": steps, "spent": spent}
    steps, spent = (integer_from(counts, name) for name in counts)
    require(np.isfinite(logs), f"logarithms add up to {logs}")
    return steps, spent, float(logs)

"""Steps of the online learners, as low-rank changes of U where ``A = UᵀU``.

`U` is k × d: an array, or anything that ``U @ z`` and ``w @ U`` work on. Every step is
of rank one and is returned as :class:`~skmahal._core.metric.LowRank`; None stands for
no change. A stays positive semi-definite whatever the rounding, since it is ``UᵀU``.
"""

import numpy as np

from skmahal._core.metric import LowRank

from ._projection import Square, squared_length, taken_out


def lego_change(U, w, target, eta):
    r"""A step of LEGO: the squared length of ``w = Uz`` moves towards `target`.

    With :math:`\hat y = z^\top A z` and the target y, A moves to the minimiser of the
    LogDet divergence to A plus :math:`\frac{\eta}{2}(z^\top A' z - y)^2`, where

    .. math:: \bar y = z^\top A' z = \frac{\eta \hat y y - 1 +
              \sqrt{(\eta \hat y y - 1)^2 + 4 \eta \hat y^2}}{2 \eta \hat y}, \qquad
              A' = A - \frac{\eta (\bar y - y) A z z^\top A}
                            {1 + \eta (\bar y - y) \hat y}.

    O(kd).

    Examples
    --------
    >>> U, z = np.eye(2), np.array([2.0, 0.0])
    >>> W, V = lego_change(U, U @ z, target=1.0, eta=1.0)
    >>> w = (U + W @ V.T) @ z
    >>> round(float(w @ w), 4)  # 4 before
    1.443
    """
    return _stretched(U, w, lambda y: lego_length(y, target, eta) / y)


def itml_change(U, w, target, gamma):
    r"""A step of ITML: ``w = Uz`` is projected towards squared length `target`.

    Bregman's projection of A, under the LogDet divergence, onto the constraint that
    :math:`\xi = z^\top A' z`, where the target :math:`\xi_0` may give way at a price of
    `gamma` times its own divergence. :math:`1/z^\top A z` moves by the share
    :math:`\gamma / (\gamma + 1)` of its way to :math:`1/\xi_0`, and infinity projects
    onto the target itself. O(kd).

    Examples
    --------
    >>> U, z = np.eye(2), np.array([2.0, 0.0])
    >>> W, V = itml_change(U, U @ z, target=1.0, gamma=np.inf)
    >>> w = (U + W @ V.T) @ z
    >>> round(float(w @ w), 4)  # 4 before
    1.0
    """
    return _stretched(U, w, lambda y: itml_stretch(y, target, gamma))


def added_row(k, row, v, alpha):
    """The change that gives ``A + α vvᵀ`` by a zero row of U. O(k + d)."""
    W = np.zeros((k, 1), dtype=v.dtype)
    W[row] = 1
    return LowRank(W, np.sqrt(alpha).astype(v.dtype) * v[:, np.newaxis])


def subtracted(U, v, alpha, tol, square=None):
    r"""The change that gives ``A - α vvᵀ``, projected to the semi-definite matrices.

    Write :math:`B = A - \alpha vv^\top`. By interlacing, B has at most one negative
    eigenvalue, and the nearest semi-definite matrix in Frobenius norm is B without it.

    *None is negative.* Then v is in the row space of U, :math:`v = U^\top p`, with
    :math:`\alpha \|p\|^2 \le 1` for the shortest such p, and

    .. math:: U' = U - c\, p v^\top, \quad
              c = \alpha / (1 + \sqrt{1 - \alpha \|p\|^2}).

    *One is negative*: :math:`B\mu = \lambda\mu`, of unit length, with
    :math:`t = v^\top \mu > 0`. Let :math:`g = U\mu`. The eigenvector equation reads
    :math:`U^\top g = \alpha t v + \lambda \mu`, so that with
    :math:`\tilde U = U - g\mu^\top` and :math:`\tilde v = v - t\mu` it is
    :math:`\tilde v = \tilde U^\top g / (\alpha t)`, while
    :math:`\|g\|^2 = \mu^\top A \mu = \alpha t^2 + \lambda`. The projected matrix is
    :math:`\tilde U^\top \tilde U - \alpha \tilde v \tilde v^\top`: the first case for
    :math:`p = g / (\alpha t)`, and the two rank-one changes have the same left
    factor. Together, with :math:`\sigma = \sqrt{-\lambda / \alpha}`,

    .. math:: U' = U - U\mu \, \frac{(v + \sigma \mu)^\top}{t + \sigma}.

    No basis of the null space is needed, only :math:`\mu` or p. Both come from solving
    :math:`(A - \lambda I) x = v`, as :math:`\mu \propto (A - \lambda I)^{-1} v` and
    :math:`p = U A^{+} v`, until what is left out changes :math:`U'^\top U'` by at most
    `tol` in units of the largest eigenvalue of A. That takes products with A, O(kd)
    each, or O(d²) where A is known, and few of them where an inverse of it is; see
    :mod:`._projection`.

    Parameters
    ----------
    U : array of shape (k, d)
        Factor of A.
    v : ndarray of shape (d,)
        Not zero.
    alpha : float
        Positive.
    tol : float
        Error that is allowed, relative to A.
    square : array of shape (d, d), or None
        A, or anything that ``square @ q`` works on; None takes products with U.

    Returns
    -------
    change : LowRank or None
        None where v is orthogonal to the rows of U: all of it is projected away.
    clipped : bool
        Whether an eigenvalue was negative.

    Examples
    --------
    >>> U, v = np.diag([2.0, 1.0]), np.array([0.0, 1.0])
    >>> (W, V), clipped = subtracted(U, v, alpha=3.0, tol=1e-12)
    >>> clipped
    True
    >>> U + W @ V.T
    array([[2., 0.],
           [0., 0.]])
    """
    A = Square(U) if square is None else square
    found = taken_out(A, v, alpha, tol, U.shape[0])
    image = U @ found.vector.astype(v.dtype)
    if not found.negative:
        return _low_rank(-alpha / (1 + found.root) * image, v), False
    if not image.any():
        return None, True
    direction = v + found.root * found.vector
    direction /= found.along + found.root
    return _low_rank(-image, direction.astype(v.dtype)), True


def _stretched(U, w, stretch):
    """The change after which ``w = Uz`` has `stretch` times its squared length.

    ``A' = A + β (Az)(Az)ᵀ`` where ``1 + β‖w‖²`` is the stretch.
    """
    squares = squared_length(w)
    if not squares > 0:
        return None
    scale = (np.sqrt(stretch(squares)) - 1) / squares
    return _low_rank(scale * w, w @ U) if scale else None


def _low_rank(w, v):
    return LowRank(w[:, np.newaxis].astype(v.dtype), v[:, np.newaxis])


def lego_length(y, target, eta):
    """The positive root of ``ηŷ ȳ² + (1 - ηŷy) ȳ - ŷ = 0``, without cancellation."""
    b = eta * y * target - 1
    root = np.hypot(b, 2 * np.sqrt(eta) * y)
    return (b + root) / (2 * eta * y) if b > 0 else 2 * y / (root - b)


def itml_stretch(y, target, gamma):
    if np.isinf(gamma):
        return target / y
    return (1 + gamma) * target / (target + gamma * y)

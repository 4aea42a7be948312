"""POLA: the pseudo-metric online learning algorithm."""

from copy import copy
from numbers import Real

import numpy as np

from skmahal._compat import Interval, StrOptions
from skmahal._persistence import require_width

from ._base import OnlineLearner, check_squares, moved
from ._square import MovingSquare
from ._steps import added_row, squared_length, subtracted


class POLA(OnlineLearner):
    r"""Online metric learning by projections, with a learned threshold.

    The metric is :math:`d(x, z) = \|U(x - z)\|`, with :math:`A = U^\top U`, and there
    is a threshold b on squared distances. A similar pair (y = 1) should have
    :math:`d^2 \le b - 1`, a dissimilar one (y = -1) :math:`d^2 \ge b + 1`. A pair with
    difference v that has the loss :math:`\ell = 1 + y (d^2 - b) > 0` moves both:

    .. math:: \alpha = \frac{\ell}{\|v\|^4 + 1}, \quad A \leftarrow A - y \alpha
              vv^\top, \quad b \leftarrow \max(b + y \alpha, 1),

    and where A then has a negative eigenvalue it is projected to the nearest positive
    semi-definite matrix, which takes that one direction out. The metric stays a matrix
    U: a dissimilar pair fills a row of it, and a similar one is a change of rank one.
    Pairs of identical points change nothing.

    The margin is 1 in squared units of the features: bring points to a length of about
    1 before.

    Parameters
    ----------
    init : {"identity", "zeros"} or array-like of shape (k, n_features)
        The matrix U to start from, by default the identity; "zeros" is the paper's.
    tol : float, default=1e-10
        Error of a projected A in a step, relative to about its largest eigenvalue; at
        least the rounding error of the floating type, and up to about its square root
        where A is singular but for rounding, as with points of low rank and a little
        noise. A larger one takes fewer products. A is semi-definite whatever it is.
    reservoir_size : int, default=128
        Points that are held to make pairs of labelled points.
    n_pairs : int, default=4
        Pairs for every labelled point, in turn of the same and of another label.
    random_state : int, RandomState instance or None, default=None
        Determines the pairs of labelled points.

    Attributes
    ----------
    components_ : ndarray of shape (k, n_features)
        The matrix U. Rows of zeros at its end are room for dissimilar pairs; k grows
        to at most ``n_features + max(8, n_features // 8)``.
    b_ : float
        The threshold on squared distances.
    threshold_ : float
        Distance up to which pairs are called similar: the square root of `b_`, until
        it is set or calibrated.
    n_clipped_ : int
        Number of steps since `fit` that would have left A indefinite, and were
        projected.
    version_ : int
        Number of changes of U since `fit`.
    n_steps_ : int
        Number of pairs since `fit`, without those skipped.
    n_skipped_ : int
        Number of pairs of identical points since `fit`.
    n_features_in_ : int
        Number of features.
    feature_names_in_ : ndarray of shape (n_features,)
        Names of features, where labelled points came with names that are strings.

    See Also
    --------
    LEGO : LogDet steps towards target distances.
    OnlineITML : LogDet projections onto target distances.

    Notes
    -----
    A dissimilar pair costs O(d²), one product with A. When the zero rows are used up, a
    Cholesky or QR decomposition makes room, O(kd²) once in d / 8 such pairs, so O(kd)
    each. A similar pair with a loss costs O(kd) for U and O(d²) a product with A or
    with an inverse of it, of which there are ten to forty mostly, and at most about
    rank(A).

    For these, A is held beside U from the start, or from the first such pair on where U
    does not start as the identity, d² numbers in float64 that follow U; and from the
    first such pair on the inverse, as many in float32, that follows A. The inverse is
    made in O(d³), once unless many products show that another would need fewer. All of
    it is saved with a learner.

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
    >>> bool(np.linalg.eigvalsh(learner.get_mahalanobis_matrix())[0] > -1e-12)
    True
    """

    _parameter_constraints = {
        **OnlineLearner._parameter_constraints,
        "init": [StrOptions({"identity", "zeros"}), "array-like"],
        "tol": [Interval(Real, 0, None, closed="neither")],
    }

    _VALUES = {**OnlineLearner._VALUES, "_square": MovingSquare}

    def __init__(
        self,
        *,
        init="identity",
        tol=1e-10,
        reservoir_size=128,
        n_pairs=4,
        random_state=None,
    ):
        self.init = init
        self.tol = tol
        self.reservoir_size = reservoir_size
        self.n_pairs = n_pairs
        self.random_state = random_state

    def _restored(self, state):
        state = super()._restored(state)
        square = state.get("_square")
        if square is not None:
            require_width(state, square.shape[0])
        return state

    @property
    def _own_threshold(self):
        return np.sqrt(self.b_)

    def _begin(self, points, labelled):
        super()._begin(points, labelled)
        known = isinstance(self.init, str) and self.init == "identity"
        self._square = MovingSquare(np.eye(points.shape[1])) if known else None
        self.b_ = 1.0
        self.n_clipped_ = 0

    def _prepare(self, points):
        pass

    def _initial(self, d, dtype):
        if isinstance(self.init, str) and self.init == "zeros":
            U = np.empty((0, d), dtype)
        else:
            U = super()._initial(d, dtype)
        self._rows = len(U)
        return _with_zero_rows(U)

    def _step(self, factor, z, sign):
        loss = 1 + sign * (check_squares(self._squared(factor, z)) - self.b_)
        if loss <= 0:
            return factor
        squares = squared_length(z)
        alpha = loss / (check_squares(squares * squares) + 1)
        self.b_ = max(self.b_ + sign * alpha, 1.0)
        if not alpha > 0:
            return factor
        return (self._nearer if sign > 0 else self._farther)(factor, z, alpha)

    def _squared(self, factor, z):
        """``zᵀAz``, from A where it is held."""
        if self._square is None:
            return squared_length(factor @ z)
        z = z.astype(np.float64)
        return z @ (self._square @ z)

    def _nearer(self, factor, z, alpha):
        if self._square is None:
            U = factor.components().astype(np.float64)
            self._square = MovingSquare(U.T @ U)
        # What it comes to know of its inverse is lost with the step if that fails.
        square = copy(self._square)
        tol = max(self.tol, np.finfo(factor.dtype).eps)
        change, clipped = subtracted(factor, z, alpha, tol, square)
        self.n_clipped_ += clipped
        if change is not None:
            square = square.moved(change, change.W[:, 0] @ factor)
        self._square = square
        return moved(factor, change)

    def _with_fewer_rows(self, factor):
        """A matrix of at most d rows with the same ``UᵀU``."""
        if self._square is not None:
            return self._square.factor().astype(factor.dtype)
        U = factor.components()
        return U if len(U) <= U.shape[1] else np.linalg.qr(U, mode="r")

    def _farther(self, factor, z, alpha):
        if self._rows == factor.shape[0]:
            U = self._with_fewer_rows(factor)
            self._rows = len(U)
            factor = factor.replaced(_with_zero_rows(U))
        change = added_row(factor.shape[0], self._rows, z, alpha)
        self._rows += 1
        if self._square is not None:
            self._square = self._square.moved(change, np.zeros(len(z)))
        return moved(factor, change)


def _with_zero_rows(U):
    d = U.shape[1]
    return np.concatenate([U, np.zeros((max(8, d // 8), d), U.dtype)])

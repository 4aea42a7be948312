"""LEGO and OnlineITML: LogDet steps that move distances towards two targets."""

from __future__ import annotations

from math import hypot, inf, sqrt
from numbers import Real
from operator import attrgetter
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy.spatial.distance import pdist

from skmahal._compat import Interval, StrOptions
from skmahal._core.types import Auto, Preprocessor, RandomState

from ._base import OnlineLearner, check_finite

# The automatic targets are final after _ENOUGH points. A batch gives up to _MOST.
_ENOUGH, _MOST = 64, 256
# LEGO's automatic step size, times the fourth power of the larger target.
_AUTO_ETA = 0.2


def lego_square(square, target, eta):
    r"""The squared distance of a pair after a step of LEGO.

    With the squared distance :math:`\hat y` and the squared target y, it is the
    positive root :math:`\bar y` of

    .. math:: \eta \hat y \bar y^2 + (1 - \eta \hat y y) \bar y - \hat y = 0.

    >>> round(lego_square(4.0, 1.0, eta=1.0), 4)
    1.443
    """
    b = eta * square * target - 1
    root = hypot(b, 2 * sqrt(eta) * square)
    # Of two equal forms, the one without cancellation.
    return (b + root) / (2 * eta * square) if b > 0 else 2 * square / (root - b)


def itml_square(square, target, gamma):
    r"""The squared distance of a pair after a step of ITML.

    Its inverse moves by the share :math:`\gamma / (\gamma + 1)` of the way to the
    inverse of the squared target.

    >>> itml_square(4.0, 1.0, gamma=np.inf), round(itml_square(4.0, 1.0, gamma=1.0), 4)
    (1.0, 1.6)
    """
    if gamma == inf:
        return target
    return (1 + gamma) * target * square / (target + gamma * square)


class TargetLearner(OnlineLearner):
    """Similar pairs should be nearer than one distance, others farther than another.

    Subclasses define ``_moved(square, target, parameter)``, the squared distance after
    a step of a pair on the wrong side of its squared target, and ``_parameter``.
    """

    _parameter_constraints = {
        **OnlineLearner._parameter_constraints,
        "similar_target": [None, Interval(Real, 0, None, closed="neither")],
        "dissimilar_target": [None, Interval(Real, 0, None, closed="neither")],
    }
    _default_threshold = property(
        lambda self: np.nan if self.targets_ is None else self.targets_.mean()
    )

    def _begin(self, points, labelled):
        super()._begin(points, labelled)
        near, far = self.similar_target, self.dissimilar_target
        self._sample, self.targets_ = points[:0], None
        if near is not None and far is not None:
            if near > far:
                raise ValueError(
                    "similar_target must be at most dissimilar_target, got "
                    f"{near:.6g} and {far:.6g}."
                )
            self._sample, self.targets_ = None, np.array([near, far], dtype=np.float64)

    def _prepare(self, points):
        """Set targets that are not given from distances under the initial metric."""
        if self._sample is None:
            return
        spread = points[:: -(-len(points) // _MOST)]
        sample = np.concatenate([self._sample, spread])
        Z = sample @ self._initial(sample.shape[1], sample.dtype).T
        distances = pdist(Z)
        distances = distances[distances > 0]
        if not distances.size:
            self._sample = sample[:1]
            return
        lower, upper = np.percentile(distances, (5, 95))
        near, far = self.similar_target, self.dissimilar_target
        if near is None:
            near = lower if far is None else min(lower, far)
        far = max(upper, near) if far is None else far
        self.targets_ = np.array([near, far], dtype=np.float64)
        self._sample = sample if len(sample) < _ENOUGH else None

    def _steps(self, factor, differences, signs):
        if self.targets_ is None:
            return factor
        near, far = (self.targets_**2).tolist()
        narrow, largest = factor.dtype == np.float32, np.finfo(factor.dtype).max.item()
        differences = differences.astype(factor.dtype, copy=False)
        moved, parameter, v = self._moved, None, np.zeros(1)
        # Some releases of BLAS round depending on where an array begins, hence copies.
        for z, sign in zip(map(np.copy, differences), signs, strict=True):
            w = factor @ z
            wide = w.astype(np.float64) if narrow else w
            square, target = float(wide.dot(wide)), near if sign > 0 else far
            if not square < inf:
                check_finite(wide.dot(wide))
            if sign * (square - target) <= 0 or not square > 0:
                continue
            if parameter is None:
                parameter = self._parameter
            # A' = A + β (Az)(Az)ᵀ, where 1 + β‖w‖² is the ratio of the squares.
            scale = (sqrt(moved(square, target, parameter) / square) - 1) / square
            if not abs(scale) * sqrt(square) < largest:
                check_finite(scale * w)
            if scale:
                v = factor.pull_back(w)
                factor.append(w, v, scale)
        # If an earlier v overflowed, so did the next squared distance.
        check_finite(v)
        return factor


class LEGO(TargetLearner):
    r"""Online metric learning by LogDet steps with the exact gradient.

    The metric is :math:`d(x, z) = \|U(x - z)\|`, with :math:`A = U^\top U`. A similar
    pair that is farther apart than `similar_target`, or a dissimilar one that is nearer
    than `dissimilar_target`, moves A to the minimiser of

    .. math:: D_{\mathrm{ld}}(A', A) + \frac{\eta}{2} (d_{A'}^2 - y)^2,

    where y is the squared target and :math:`D_{\mathrm{ld}}` the LogDet divergence. The
    step has rank one, keeps A positive definite for every `eta`, and is made on U
    itself, in O(kd) for two products with U. Other pairs change nothing and cost one
    product. Pairs of identical points change nothing.

    Parameters
    ----------
    eta : float or "auto", default="auto"
        Size of the steps: the larger it is, the farther a squared distance moves
        towards its target. "auto" is 0.2 divided by the fourth power of
        `dissimilar_target`, so that the unit of the features does not matter.
    similar_target : float, default=None
        Distance that similar pairs should not exceed. None takes the 5th percentile of
        the distances between points of the first batch, under `init`, or of as many
        batches as have 64 points.
    dissimilar_target : float, default=None
        Distance that dissimilar pairs should reach. None takes the 95th percentile.
    init : "identity" or array-like of shape (k, n_features), default="identity"
        The initial matrix U. Directions outside its row space never count.
    reservoir_size : int, default=128
        Number of labelled points that are kept to form pairs.
    n_pairs : int, default=4
        Pairs for every labelled point, alternately of the same and of another label.
    random_state : int, RandomState instance or None, default=None
        Determines the pairs of labelled points.
    preprocessor : array-like of shape (n_points, n_features) or callable, default=None
        Points by their row, or a function that returns an array of points for an array
        of indices. Then methods take indices in place of points.

    Attributes
    ----------
    components_ : ndarray of shape (k, n_features)
        The matrix U.
    targets_ : ndarray of shape (2,), or None
        The targets, as distances; None while all points were identical.
    eta_ : float
        The value of `eta`.
    threshold_ : float
        Distance up to which pairs are predicted to be similar; by default the mean of
        the targets.
    classes_ : ndarray of shape (2,)
        The labels of pairs, -1 and 1, unless it was fitted with labelled points.
    version_, n_steps_, n_skipped_ : int
        Numbers of steps that changed U, of pairs, and of pairs of identical points,
        which are skipped, since `fit`.
    n_features_in_, feature_names_in_ : int, ndarray of shape (n_features,)
        Number of features, and their names if labelled points came with names.

    See Also
    --------
    OnlineITML : The same constraints by projections.
    POLA : Squared distances with a margin around a learned threshold.

    References
    ----------
    P. Jain, B. Kulis, I. S. Dhillon, K. Grauman: Online Metric Learning and Fast
    Similarity Search, NIPS 2008.

    Examples
    --------
    >>> import numpy as np
    >>> from skmahal.online import LEGO
    >>> rng = np.random.default_rng(0)
    >>> pairs = rng.normal(size=(300, 2, 2))
    >>> y = np.where(abs(pairs[:, 0, 0] - pairs[:, 1, 0]) < 0.5, 1, -1)
    >>> learner = LEGO().fit(pairs[:200], y[:200])
    >>> token, before = learner.state_token(), learner.components_
    >>> learner = learner.partial_fit(pairs[200:210], y[200:210])
    >>> W, V = learner.updates_since(token)
    >>> np.allclose(learner.components_, before + W @ V.T)
    True
    >>> learner.score(pairs[210:], y[210:]) > 0.95  # 0.7 for Euclidean distances
    True
    """

    _parameter_constraints = {
        **TargetLearner._parameter_constraints,
        "eta": [Interval(Real, 0, None, closed="neither"), StrOptions({"auto"})],
    }
    _moved = staticmethod(lego_square)

    def __init__(
        self,
        eta: float | Auto = "auto",
        *,
        similar_target: float | None = None,
        dissimilar_target: float | None = None,
        init: Literal["identity"] | ArrayLike = "identity",
        reservoir_size: int = 128,
        n_pairs: int = 4,
        random_state: RandomState = None,
        preprocessor: Preprocessor | None = None,
    ) -> None:
        self.eta = eta
        self.similar_target = similar_target
        self.dissimilar_target = dissimilar_target
        self.init = init
        self.preprocessor = preprocessor
        self.reservoir_size = reservoir_size
        self.n_pairs = n_pairs
        self.random_state = random_state

    @property
    def eta_(self) -> float:
        """Size of the steps."""
        targets = self.targets_
        if not isinstance(self.eta, str):
            return self.eta
        if targets is None:
            return np.nan
        square = targets.item(1) * targets.item(1)
        # Divided twice, since a fourth power may raise an OverflowError.
        return _AUTO_ETA / square / square if square else np.inf

    @property
    def _parameter(self):
        eta = float(self.eta_)
        if not 0 < eta < np.inf:
            how = "near each other" if eta == np.inf else "far apart"
            raise ValueError(
                f"pairs has points too {how} for eta='auto', which is {eta:g} at "
                f"distances of about {self.targets_[1]:.3g}: scale the points."
            )
        return eta


class OnlineITML(TargetLearner):
    r"""Online metric learning by Bregman projections with slack.

    The metric is :math:`d(x, z) = \|U(x - z)\|`, with :math:`A = U^\top U`. This is the
    projection of ITML, made once for every pair as it comes: a similar pair that is
    farther apart than `similar_target`, or a dissimilar one that is nearer than
    `dissimilar_target`, moves A to the minimiser of

    .. math:: D_{\mathrm{ld}}(A', A) + \gamma\, D_{\mathrm{ld}}(\xi, \xi_0)
              \quad \text{where} \quad d_{A'}^2 = \xi,

    with the LogDet divergence :math:`D_{\mathrm{ld}}` and the squared target
    :math:`\xi_0`. Multipliers of earlier pairs are not kept, and no pair is corrected
    twice. The online section of the paper makes gradient steps towards exact target
    distances instead, and needs the inverse of A to keep it definite; here A always
    stays definite. Steps cost as those of :class:`LEGO`.

    Parameters
    ----------
    gamma : float, default=0.1
        Price of missing the target. The inverse of a squared distance moves by the
        share ``gamma / (gamma + 1)`` of its way; infinity is the exact projection.
    similar_target, dissimilar_target : float, default=None
        As for :class:`LEGO`.
    init, reservoir_size, n_pairs : default="identity", 128 and 4
        As for :class:`LEGO`.
    random_state, preprocessor : default=None
        As for :class:`LEGO`.

    Attributes
    ----------
    components_, targets_, threshold_, classes_, version_, n_steps_, n_skipped_
        As for :class:`LEGO`, and so are `n_features_in_` and `feature_names_in_`.

    See Also
    --------
    LEGO : The same constraints by gradient steps.
    POLA : Squared distances with a margin around a learned threshold.

    References
    ----------
    J. V. Davis, B. Kulis, P. Jain, S. Sra, I. S. Dhillon: Information-Theoretic Metric
    Learning, ICML 2007.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.datasets import load_iris
    >>> from skmahal.online import OnlineITML
    >>> X, y = load_iris(return_X_y=True)
    >>> order = np.random.default_rng(0).permutation(len(X))
    >>> learner = OnlineITML(random_state=0)
    >>> for batch in np.array_split(order, 10):
    ...     learner = learner.partial_fit(X[batch], y[batch])
    >>> learner.transform(X).shape
    (150, 4)
    """

    _parameter_constraints = {
        **TargetLearner._parameter_constraints,
        "gamma": [Interval(Real, 0, None, closed="neither")],
    }
    _moved = staticmethod(itml_square)
    _parameter = property(attrgetter("gamma"))

    def __init__(
        self,
        gamma: float = 0.1,
        *,
        similar_target: float | None = None,
        dissimilar_target: float | None = None,
        init: Literal["identity"] | ArrayLike = "identity",
        reservoir_size: int = 128,
        n_pairs: int = 4,
        random_state: RandomState = None,
        preprocessor: Preprocessor | None = None,
    ) -> None:
        self.gamma = gamma
        self.similar_target = similar_target
        self.dissimilar_target = dissimilar_target
        self.init = init
        self.preprocessor = preprocessor
        self.reservoir_size = reservoir_size
        self.n_pairs = n_pairs
        self.random_state = random_state

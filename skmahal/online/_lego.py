"""LEGO: LogDet exact gradient online metric learning."""

from numbers import Real

import numpy as np

from skmahal._compat import Interval, StrOptions

from ._steps import lego_change
from ._targets import TargetLearner


class LEGO(TargetLearner):
    r"""Online metric learning by LogDet steps with the exact gradient.

    The metric is :math:`d(x, z) = \|U(x - z)\|`, with :math:`A = U^\top U`. A similar
    pair that is farther apart than `similar_target`, or a dissimilar one that is nearer
    than `dissimilar_target`, moves A to the minimiser of

    .. math:: D_{\mathrm{ld}}(A', A) + \frac{\eta}{2} (d_{A'}^2 - y)^2,

    where y is the squared target and :math:`D_{\mathrm{ld}}` the LogDet divergence. The
    step is of rank one, keeps A positive definite for every `eta`, and is taken on U
    itself. Other pairs change nothing, and neither do pairs of identical points.

    Parameters
    ----------
    eta : float or "auto", default="auto"
        Size of the steps; a squared distance moves farther towards its target the
        larger it is. "auto" is 0.2 divided by the fourth power of `dissimilar_target`,
        so that the unit of the features does not matter.
    similar_target : float, default=None
        Distance that similar pairs should not exceed. None takes the 5th percentile of
        the distances, under `init`, between points of the first batch; as long as fewer
        than 64 points have come, between all of them.
    dissimilar_target : float, default=None
        Distance that dissimilar pairs should reach. None takes the 95th percentile.
    init : "identity" or array-like of shape (k, n_features), default="identity"
        The matrix U to start from. Directions outside its row space stay unmeasured.
    reservoir_size : int, default=128
        Points that are held to make pairs of labelled points.
    n_pairs : int, default=4
        Pairs for every labelled point, in turn of the same and of another label.
    random_state : int, RandomState instance or None, default=None
        Determines the pairs of labelled points.

    Attributes
    ----------
    components_ : ndarray of shape (k, n_features)
        The matrix U.
    targets_ : ndarray of shape (2,), or None
        The targets, as distances; None as long as all points were identical.
    eta_ : float
        The value of `eta`.
    threshold_ : float
        Distance up to which pairs are called similar: the mean of the targets, until
        it is set or calibrated.
    version_ : int
        Number of steps that changed U since `fit`.
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
    OnlineITML : The same constraints by projections.
    POLA : Squared distances with a margin around a learned threshold.

    Notes
    -----
    A step costs O(kd), and two passes over U; a pair that is where it should be costs
    one.

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
    >>> token = learner.state_token()
    >>> before = learner.components_
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

    def __init__(
        self,
        eta="auto",
        *,
        similar_target=None,
        dissimilar_target=None,
        init="identity",
        reservoir_size=128,
        n_pairs=4,
        random_state=None,
    ):
        self.eta = eta
        self.similar_target = similar_target
        self.dissimilar_target = dissimilar_target
        self.init = init
        self.reservoir_size = reservoir_size
        self.n_pairs = n_pairs
        self.random_state = random_state

    @property
    def eta_(self):
        """Size of the steps."""
        self._fitted("eta_")
        if not isinstance(self.eta, str):
            return self.eta
        if self.targets_ is None:
            return np.nan
        with np.errstate(all="ignore"):
            return _AUTO / self.targets_[1] ** 4

    @property
    def _compiled_step(self):
        return True, self._finite_eta()

    def _change(self, factor, w, target):
        return lego_change(factor, w, target, self._finite_eta())

    def _finite_eta(self):
        eta = float(self.eta_)
        if not 0 < eta < np.inf:
            how = "near each other" if eta == np.inf else "far apart"
            raise ValueError(
                f"pairs has points too {how} for eta='auto', which is {eta:g} at "
                f"distances of about {self.targets_[1]:.3g}: scale the points."
            )
        return eta


_AUTO = 0.2

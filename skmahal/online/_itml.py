"""Online ITML: LogDet projections, one pair at a time."""

from numbers import Real

from skmahal._compat import Interval

from ._steps import itml_change
from ._targets import TargetLearner


class OnlineITML(TargetLearner):
    r"""Online metric learning by Bregman projections with slack.

    The metric is :math:`d(x, z) = \|U(x - z)\|`, with :math:`A = U^\top U`. This is the
    projection of ITML made once for every pair as it comes: a similar pair that is
    farther apart than `similar_target`, or a dissimilar one that is nearer than
    `dissimilar_target`, moves A to the minimiser of

    .. math:: D_{\mathrm{ld}}(A', A) + \gamma\, D_{\mathrm{ld}}(\xi, \xi_0)
              \quad \text{where} \quad d_{A'}^2 = \xi,

    with the LogDet divergence :math:`D_{\mathrm{ld}}` and the squared target
    :math:`\xi_0`. A pair met for the first time has a multiplier of zero, so pairs that
    are where they should be change nothing; multipliers of pairs that are gone are not
    kept, and no pair is corrected twice. The paper's own online section takes gradient
    steps towards exact target distances instead, and needs the inverse of A to keep it
    definite; here A stays definite by itself. Pairs of identical points change nothing.

    Parameters
    ----------
    gamma : float, default=0.1
        Price of missing the target. The inverse of a squared distance moves by the
        share ``gamma / (gamma + 1)`` of its way; infinity is the exact projection.
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
    LEGO : The same constraints by gradient steps.
    POLA : Squared distances with a margin around a learned threshold.

    Notes
    -----
    A step costs O(kd), and two passes over U; a pair that is where it should be costs
    one.

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

    def __init__(
        self,
        gamma=0.1,
        *,
        similar_target=None,
        dissimilar_target=None,
        init="identity",
        reservoir_size=128,
        n_pairs=4,
        random_state=None,
    ):
        self.gamma = gamma
        self.similar_target = similar_target
        self.dissimilar_target = dissimilar_target
        self.init = init
        self.reservoir_size = reservoir_size
        self.n_pairs = n_pairs
        self.random_state = random_state

    @property
    def _compiled_step(self):
        return False, float(self.gamma)

    def _change(self, factor, w, target):
        return itml_change(factor, w, target, self.gamma)

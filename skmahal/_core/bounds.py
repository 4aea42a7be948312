r"""Sketch sizes, votes and accuracies from exact tails.

A sketch is a random m x k matrix :math:`\Pi` with
:math:`E\|\Pi v\|^2 = \|v\|^2`. Every function here answers one question about
:math:`\|\Pi v\| / \|v\|`, or about the median of that ratio over R independent
sketches, with no hidden constant: a statement made here is a theorem for the
numbers given, for every fixed vector v. The vector must not depend on the
sketches; :func:`representative_sketches`, :func:`adaptive_votes` and
:func:`adaptive_failure` are for vectors that do.
"""

import math

import numpy as np
from scipy.special import betainc, gammainc, gammaincc
from scipy.stats import hypergeom

from skmahal._core.checks import as_count, as_fraction

_MOST_ROWS = 2**62
_MOST_VOTES = 2**31 - 1


def tails(eps, m, sketch="gaussian"):
    r"""Probability that one sketch reports a norm too small, and too large.

    For a unit vector v these are (bounds on)

    .. math::

        P(\|\Pi v\| < 1 - \epsilon), \qquad P(\|\Pi v\| > 1 + \epsilon).

    *gaussian*: :math:`m\|\Pi v\|^2` is :math:`\chi^2_m`, so both are exact:
    :math:`F_m(m(1-\epsilon)^2)` and :math:`1 - F_m(m(1+\epsilon)^2)`.

    *countsketch*, *srht*: :math:`Z = \|\Pi v\|^2` has mean 1 and variance at
    most 2/m, so Cantelli's inequality gives

    .. math::

        P(Z \ge 1 + t), P(Z \le 1 - t) \le \frac{2/m}{2/m + t^2},

    with :math:`t = (1+\epsilon)^2 - 1` above and
    :math:`t = 1 - (1-\epsilon)^2` below.

    *rademacher*: the smaller of Cantelli's bound and Chernoff's. Above, the
    moments of :math:`X = (\sum_i \sigma_i v_i)^2` are at most those of a squared
    normal [1]_, so with :math:`a = (1+\epsilon)^2`

    .. math:: P(Z \ge a) \le \exp(-\tfrac{m}{2}(a - 1 - \ln a)).

    Below, :math:`e^{-x} \le 1 - x + x^2/2`, :math:`EX = 1` and
    :math:`EX^2 \le 3` give, with :math:`a = (1-\epsilon)^2`,

    .. math:: P(Z \le a) \le \min_h (e^{ha}(1 - h + \tfrac32 h^2))^m,

    and the minimum is where :math:`\tfrac32 a h^2 + (3-a)h - (1-a) = 0`. It never
    exceeds :math:`\exp(-m(1-a)^2/6)`, and for small :math:`\epsilon` it has the
    exponent of the Gaussian tail.

    Parameters
    ----------
    eps : float or array-like
        Relative error, positive. It may exceed 1, where the lower tail is 0.
    m : int
        Rows of the sketch.
    sketch : {"gaussian", "rademacher", "countsketch", "srht"}
        Kind of the sketch.

    Returns
    -------
    lower, upper : float or ndarray
        The two probabilities, of the shape of `eps`.

    Notes
    -----
    The variance, for unit v. Write :math:`q = \sum_i v_i^4`.

    - gaussian: 2/m. rademacher: the mean of m independent copies of X, whose
      variance is :math:`2(1 - q)`, so :math:`2(1-q)/m`.
    - countsketch: :math:`Z - 1` is the sum over pairs i < j of
      :math:`2\sigma_i\sigma_j v_i v_j [h(i) = h(j)]`. The terms are uncorrelated
      and coordinates collide with probability 1/m:
      :math:`\frac{4}{m}\sum_{i<j} v_i^2 v_j^2 = 2(1-q)/m`.
    - srht: let :math:`y = HDv`, with entries of H in ±1 and K of them. Given the
      signs D, Z is the mean of m of the :math:`y_i^2`, drawn without replacement
      from K numbers whose mean is 1 by Parseval. So the covariance of two of them
      is at most 0, E(Z | D) = 1, and the variance is at most 1/m times
      :math:`E y_i^4 - 1 = 2(1-q)`.

    References
    ----------
    .. [1] D. Achlioptas, "Database-friendly random projections:
       Johnson-Lindenstrauss with binary coins", J. Comput. Syst. Sci., 2003.

    Examples
    --------
    >>> from skmahal._core.bounds import tails
    >>> lower, upper = tails([0.1, 0.2], m=100)
    >>> print(lower.round(4), upper.round(4))
    [0.082  0.0019] [0.0751 0.0026]
    >>> lower, upper = tails(0.2, m=100, sketch="countsketch")
    >>> print(f"{lower:.3f} {upper:.3f}")
    0.134 0.094
    """
    _check_eps(eps)
    as_count("m", m)
    _check_sketch(sketch)
    return _tails(np.asarray(eps, dtype=float), m, sketch)


def median_tails(eps, m, R=1, sketch="gaussian"):
    r"""Probability that the median of R sketches is too small, and too large.

    The median is off to one side only if at least :math:`\lceil R/2 \rceil` of
    the sketches are; for even R the middle two are averaged, and one of them being
    off already takes R/2. With p that side of :func:`tails`,

    .. math:: P(\mathrm{Binomial}(R, p) \ge \lceil R/2 \rceil).

    For odd R this is exact where `tails` is.

    Parameters
    ----------
    eps : float or array-like
        Relative error, positive.
    m : int
        Rows of a sketch.
    R : int
        Sketches under the median.
    sketch : {"gaussian", "rademacher", "countsketch", "srht"}
        Kind of the sketch.

    Returns
    -------
    lower, upper : float or ndarray
        The two probabilities, of the shape of `eps`.

    Examples
    --------
    >>> from skmahal._core.bounds import median_tails
    >>> lower, upper = median_tails(0.2, m=100, R=3)
    >>> print(f"{lower:.1e} {upper:.1e}")
    1.1e-05 2.1e-05
    """
    _check_eps(eps)
    as_count("m", m)
    as_count("R", R)
    _check_sketch(sketch)
    return _median_tails(np.asarray(eps, dtype=float), m, R, sketch)


def failure(eps, m, R=1, sketch="gaussian"):
    r"""Probability that a median of R sketches is off by more than eps.

    The sum of both sides of :func:`median_tails`, at most 1:

    .. math:: P(|\mathrm{med}_r \|\Pi_r v\| - \|v\|| > \epsilon \|v\|).

    Parameters
    ----------
    eps : float or array-like
        Relative error, positive.
    m : int
        Rows of a sketch.
    R : int
        Sketches under the median.
    sketch : {"gaussian", "rademacher", "countsketch", "srht"}
        Kind of the sketch.

    Returns
    -------
    float or ndarray
        The probability, of the shape of `eps`.

    Examples
    --------
    >>> from skmahal._core.bounds import failure
    >>> print(f"{failure(0.2, m=100):.4f} {failure(0.2, m=100, R=5):.1e}")
    0.0046 2.5e-07
    """
    return np.minimum(1.0, sum(median_tails(eps, m, R, sketch)))


def sketch_size(eps, failure, R=1, sketch="gaussian"):
    """Smallest m whose median of R sketches is off by eps at most that often.

    Parameters
    ----------
    eps : float
        Relative error, positive.
    failure : float
        Probability in (0, 1) that the median may be off by more.
    R : int
        Sketches under the median.
    sketch : {"gaussian", "rademacher", "countsketch", "srht"}
        Kind of the sketch.

    Returns
    -------
    int
        Rows of a sketch.

    Examples
    --------
    >>> from skmahal._core.bounds import sketch_size
    >>> sketch_size(0.1, 0.01), sketch_size(0.1, 0.01, R=5)
    (332, 97)
    """
    _check_eps(eps)
    as_fraction("failure", failure)
    as_count("R", R)
    _check_sketch(sketch)
    m = _smallest(lambda m: _miss(eps, m, R, sketch) <= failure, _MOST_ROWS)
    if m is None:
        raise ValueError(f"eps must be larger: no sketch reaches {eps!r}.")
    return m


def votes(eps, m, failure, sketch="gaussian", most=None):
    """Smallest odd R whose median is off by eps at most that often.

    Each side of the binomial tail falls as odd R grows when one sketch fails on
    that side with probability below 1/2, and does not when it is above.

    Parameters
    ----------
    eps : float
        Relative error, positive.
    m : int
        Rows of a sketch.
    failure : float
        Probability in (0, 1) that the median may be off by more.
    sketch : {"gaussian", "rademacher", "countsketch", "srht"}
        Kind of the sketch.
    most : int, default=None
        The largest R allowed; None allows any.

    Returns
    -------
    int or None
        The number of votes; None where voting does not get there.

    Examples
    --------
    >>> from skmahal._core.bounds import votes
    >>> votes(0.2, m=32, failure=0.01), votes(0.2, m=32, failure=0.01, most=3)
    (5, None)
    """
    _check_eps(eps)
    as_count("m", m)
    as_fraction("failure", failure)
    _check_sketch(sketch)
    if most is not None:
        as_count("most", most)
    if _miss(eps, m, 1, sketch) <= failure:
        return 1
    if max(_tails(eps, m, sketch)) >= 0.5:
        return None
    return _smallest_odd(lambda R: _miss(eps, m, R, sketch) <= failure, most)


def accuracy(m, R, failure, sketch="gaussian"):
    """Relative error that the median of R sketches keeps, on both sides.

    The smallest eps with ``failure(eps, m, R) <= failure``, to 13 digits and
    rounded up. It may exceed 1: then only the upper side says something.

    Parameters
    ----------
    m : int
        Rows of a sketch.
    R : int
        Sketches under the median.
    failure : float
        Probability in (0, 1) that the median may be off by more.
    sketch : {"gaussian", "rademacher", "countsketch", "srht"}
        Kind of the sketch.

    Returns
    -------
    float
        The relative error.

    Examples
    --------
    >>> from skmahal._core.bounds import accuracy
    >>> print(f"{accuracy(100, 1, 0.01):.3f} {accuracy(100, 5, 0.01):.3f}")
    0.182 0.098
    """
    as_count("m", m)
    as_count("R", R)
    as_fraction("failure", failure)
    _check_sketch(sketch)
    return _smallest_eps(lambda eps: _miss(eps, m, R, sketch) <= failure)


def upper_accuracy(m, R, failure, sketch="gaussian"):
    """Relative error above which the median of R sketches rarely rises.

    The smallest eps whose upper side of `median_tails` is at most `failure`, to
    13 digits and rounded up; 0 (to those digits) where the side is that rare at
    every positive eps.

    Parameters
    ----------
    m : int
        Rows of a sketch.
    R : int
        Sketches under the median.
    failure : float
        Probability in (0, 1) that the median may be larger.
    sketch : {"gaussian", "rademacher", "countsketch", "srht"}
        Kind of the sketch.

    Returns
    -------
    float
        The relative error.

    Examples
    --------
    For R = 1 this is the quantile of a chi-squared distribution:

    >>> import numpy as np
    >>> from scipy.stats import chi2
    >>> from skmahal._core.bounds import upper_accuracy
    >>> eps = upper_accuracy(64, 1, 0.001)
    >>> print(f"{eps:.6f} {np.sqrt(chi2.isf(0.001, 64) / 64) - 1:.6f}")
    0.279137 0.279137
    """
    as_count("m", m)
    as_count("R", R)
    as_fraction("failure", failure)
    _check_sketch(sketch)
    return _smallest_eps(lambda eps: _median_tails(eps, m, R, sketch)[1] <= failure)


def representative_sketches(k, m, eps, delta, beta=0.1):
    r"""Number L of Gaussian sketches that serve every vector of R^k at once.

    L independent m x k sketches are (eps, beta)-representative when *every* unit
    vector has its norm distorted by more than eps by at most beta L of them. Then
    the answers stay right however a query was chosen, by an adversary who has seen
    all the sketches too. The value returned is enough with probability 1 - delta:

    .. math::

        L = \min_{\epsilon', t} \left\lceil
            \frac{\ln N(\gamma) + \ln(1/\delta)}{KL(\beta \| p)} \right\rceil .

    Parameters
    ----------
    k : int
        Dimension of the sketched vectors.
    m : int
        Rows of a sketch.
    eps : float
        Relative error, positive.
    delta : float
        Probability in (0, 1) that the sketches drawn are not representative.
    beta : float, default=0.1
        Share in (0, 1) of the sketches that may be off at some vector.

    Returns
    -------
    float
        The whole number L, or ``math.inf`` where this argument gives none: a
        single sketch is then off too often for any number of them to help.

    Notes
    -----
    Let N be a set of unit vectors such that every unit vector is within
    :math:`\gamma` of one of them or of its negative. Take vectors one by one
    while they are further than :math:`\gamma` from all ± earlier ones: the balls of
    radius :math:`\gamma/2` about ± them are disjoint and lie between the spheres of
    radius :math:`1 \pm \gamma/2`. Comparing volumes,

    .. math:: 2 N(\gamma) \le (2/\gamma + 1)^k - (2/\gamma - 1)^k.

    Call a sketch bad at v' in N if it distorts :math:`\|v'\|` by more than
    :math:`\epsilon' < \epsilon`, or if its operator norm exceeds
    :math:`s = 1 + \sqrt{k/m} + t/\sqrt m`, of probability at most
    :math:`e^{-t^2/2}` (Davidson and Szarek). A sketch that is good at v' is
    within :math:`\epsilon' + \gamma s` at every v that v' stands for: choose
    :math:`\gamma = (\epsilon - \epsilon')/s`. The number of sketches bad at v' is
    at most Binomial(L, p), p the sum of both probabilities, so for
    :math:`p < \beta` it exceeds :math:`\beta L` with probability at most
    :math:`e^{-L\,KL(\beta\|p)}` (Chernoff), and the union over N gives L.

    Examples
    --------
    >>> from skmahal._core.bounds import representative_sketches
    >>> representative_sketches(k=128, m=32, eps=0.3, delta=0.01)
    9768.0
    >>> representative_sketches(k=128, m=256, eps=0.3, delta=0.01)
    380.0
    >>> representative_sketches(k=128, m=8, eps=0.3, delta=0.01)
    inf
    """
    as_count("k", k)
    as_count("m", m)
    _check_eps(eps)
    as_fraction("delta", delta)
    as_fraction("beta", beta)
    near = eps * np.linspace(0.01, 0.99, 99)[:, None]
    t = np.linspace(0.1, 20, 200)
    p = sum(_tails(near, m, "gaussian")) + np.exp(-(t**2) / 2)
    gamma = (eps - near) / (1 + math.sqrt(k / m) + t / math.sqrt(m))
    # Nearer to beta the divergence is lost in rounding, and L is astronomical.
    rare = p < 0.999 * beta
    if not rare.any():
        return math.inf
    evidence = _log_net(gamma[rare], k) - math.log(delta)
    return float(np.ceil(np.min(evidence / _divergence(beta, p[rare]))))


def adaptive_votes(L, beta, failure):
    r"""Smallest odd R of L sketches, a share beta of them bad, that outvotes them.

    R sketches are sampled without replacement from L, of which at most
    :math:`\lfloor\beta L\rfloor` are bad at the vector asked about. The median is
    off only if at least (R+1)/2 of the sampled are bad,

    .. math:: P(\mathrm{Hypergeometric}(L, \lfloor\beta L\rfloor, R) \ge (R+1)/2).

    Parameters
    ----------
    L : int
        Sketches held.
    beta : float
        Share in (0, 1) of them that may be bad.
    failure : float
        Probability in (0, 1) that the median may be off.

    Returns
    -------
    int or None
        The number of votes; None where all L of them are not enough.

    Examples
    --------
    >>> from skmahal._core.bounds import adaptive_votes
    >>> adaptive_votes(100, 0.1, 0.01), adaptive_votes(100, 0.6, 0.01)
    (5, None)
    """
    as_count("L", L)
    as_fraction("beta", beta)
    as_fraction("failure", failure)
    bad = math.floor(beta * L)
    if bad <= failure * L:
        return 1
    if 2 * bad >= L:
        return None
    return _smallest_odd(lambda R: _outvoted(L, bad, R) <= failure, L)


def adaptive_failure(L, beta, R):
    r"""Probability that R of L sketches, a share beta of them bad, are outvoted.

    What :func:`adaptive_votes` makes small: R sketches are sampled without replacement
    from L, of which at most :math:`\lfloor\beta L\rfloor` are bad, and the median is
    off only if at least :math:`\lceil R/2 \rceil` of the sampled are,

    .. math:: P(\mathrm{Hypergeometric}(L, \lfloor\beta L\rfloor, R)
        \ge \lceil R/2 \rceil).

    Parameters
    ----------
    L : int
        Sketches held.
    beta : float
        Share in (0, 1) of them that may be bad.
    R : int
        Sketches under the median, at most L.

    Returns
    -------
    float
        The probability.

    Examples
    --------
    >>> from skmahal._core.bounds import adaptive_failure
    >>> [round(adaptive_failure(100, 0.1, R), 4) for R in (1, 5)]
    [0.1, 0.0066]
    """
    as_count("L", L)
    as_fraction("beta", beta)
    as_count("R", R, most=L)
    return float(_outvoted(L, math.floor(beta * L), R))


def _outvoted(L, bad, R):
    return hypergeom.sf((R + 1) // 2 - 1, L, bad, R)


def _tails(eps, m, sketch):
    # No norm is below (1 - eps) <= 0; at 1 the formulas are still defined.
    lower, upper = _TAILS[sketch](np.minimum(eps, 1.0), eps, m)
    return np.where(np.less(eps, 1), lower, 0.0)[()], upper


def _gaussian(below, above, m):
    below, above = (1 - below) ** 2, (1 + above) ** 2
    return gammainc(m / 2, m * below / 2), gammaincc(m / 2, m * above / 2)


def _cantelli(below, above, m):
    below, above = below * (2 - below), above * (2 + above)
    return 1 / (1 + m * below**2 / 2), 1 / (1 + m * above**2 / 2)


def _chernoff(below, above, m):
    below, above = below * (2 - below), above * (2 + above)
    a = 1 - below
    h = 2 * below / (3 - a + np.sqrt((3 - a) ** 2 + 6 * a * below))
    lower = np.exp(m * (h * a + np.log1p(h * (1.5 * h - 1))))
    return lower, np.exp(-m / 2 * (above - np.log1p(above)))


def _rademacher(below, above, m):
    return np.minimum(_cantelli(below, above, m), _chernoff(below, above, m))


_TAILS = {
    "gaussian": _gaussian,
    "rademacher": _rademacher,
    "countsketch": _cantelli,
    "srht": _cantelli,
}


def _median_tails(eps, m, R, sketch):
    lower, upper = _tails(eps, m, sketch)
    return _majority(lower, R), _majority(upper, R)


def _majority(p, R):
    """P(Binomial(R, p) >= ceil(R/2)), as a regularised incomplete beta function."""
    half = (R + 1) // 2
    return betainc(half, R - half + 1, p)


def _miss(eps, m, R, sketch):
    return sum(_median_tails(eps, m, R, sketch))


def _log_net(gamma, k):
    gamma = np.minimum(gamma, 1.0)
    shell = np.log1p(-(((2 - gamma) / (2 + gamma)) ** k))
    return k * np.log1p(2 / gamma) + shell - math.log(2)


def _divergence(beta, p):
    """KL divergence of a coin that falls heads with probability beta from one of p."""
    return beta * np.log(beta / p) + (1 - beta) * np.log((1 - beta) / (1 - p))


def _smallest(holds, most):
    """Smallest whole number in [1, most] at which a monotone condition holds."""
    low, high = 0, 1
    while not holds(high):
        if high >= most:
            return None
        low, high = high, min(2 * high, most)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def _smallest_odd(holds, most=None):
    most = _MOST_VOTES if most is None else min(most, _MOST_VOTES)
    half = _smallest(lambda i: holds(2 * i - 1), (most + 1) // 2)
    return None if half is None else 2 * half - 1


def _smallest_eps(holds):
    """Smallest eps at which a monotone condition holds, from above.

    Bisection rather than a faster root finder: bounds jump at eps = 1, and the end
    returned is one where the condition was seen to hold.
    """
    low, high = 0.0, 1.0
    while not holds(high):
        low, high = high, 2 * high
    while high - low > 1e-13 * high + 1e-15:
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def _check_eps(eps):
    if not np.all((np.asarray(eps) > 0) & np.isfinite(eps)):
        raise ValueError(f"eps must be positive and finite, got {eps!r}.")


def _check_sketch(sketch):
    if sketch not in _TAILS:
        kinds = ", ".join(map(repr, _TAILS))
        raise ValueError(f"sketch must be one of {kinds}, got {sketch!r}.")

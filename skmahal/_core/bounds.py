r"""Sketch sizes, votes and accuracies from exact tails.

A sketch is a random m x k matrix :math:`\Pi` with :math:`E\|\Pi v\|^2 = \|v\|^2`. Every
function here is about :math:`\|\Pi v\| / \|v\|`, or about the median of that ratio over
R independent sketches, for every fixed vector v. There are no hidden constants. The
vector must not depend on the sketches; :func:`representative_sketches`,
:func:`adaptive_votes` and :func:`adaptive_failure` are for vectors that do. The last
functions choose m and R where a parameter is "auto".
"""

import math
from functools import lru_cache

import numpy as np
from scipy.special import betainc, gammainc, gammaincc
from scipy.stats import hypergeom

from skmahal._core.checks import as_count, as_fraction

SKETCHES = ("gaussian", "rademacher", "countsketch", "srht")

# Share of the sketches that may be bad at some vector, as in the paper.
BETA = 0.1

_MOST_ROWS = 2**62
_MOST_VOTES = 2**31 - 1
_MULTIPLE = 8


def check(**arguments):
    """Refuse arguments that are out of range, by name."""
    for name, value in arguments.items():
        if name == "eps":
            if not np.all((np.asarray(value) > 0) & np.isfinite(value)):
                raise ValueError(f"eps must be positive and finite, got {value!r}.")
        elif name == "sketch":
            if value not in SKETCHES:
                kinds = ", ".join(map(repr, SKETCHES))
                raise ValueError(f"sketch must be one of {kinds}, got {value!r}.")
        elif name in ("failure", "delta", "beta"):
            as_fraction(name, value)
        else:
            as_count(name, value)


def tails(eps, m, sketch="gaussian"):
    r"""Probability that one sketch reports a norm too small, and too large.

    For a unit vector v and :math:`Z = \|\Pi v\|^2`, these are (bounds on)
    :math:`P(Z < (1-\epsilon)^2)` and :math:`P(Z > (1+\epsilon)^2)`.

    *gaussian*: :math:`mZ` is :math:`\chi^2_m`, so both are exact:
    :math:`F_m(m(1-\epsilon)^2)` and :math:`1 - F_m(m(1+\epsilon)^2)`.

    *countsketch*, *srht*: Z has mean 1 and variance at most 2/m, so Cantelli's
    inequality gives, with :math:`t = 1 - (1-\epsilon)^2` below and
    :math:`t = (1+\epsilon)^2 - 1` above,

    .. math:: P(Z \le 1 - t), P(Z \ge 1 + t) \le \frac{2/m}{2/m + t^2}.

    *rademacher*: the smaller of Cantelli's bound and Chernoff's. Above, the
    moments of :math:`X = (\sum_i \sigma_i v_i)^2` are at most those of a squared
    normal (Achlioptas, 2003), so with :math:`a = (1+\epsilon)^2`

    .. math:: P(Z \ge a) \le \exp(-\tfrac{m}{2}(a - 1 - \ln a)).

    Below, :math:`e^{-x} \le 1 - x + x^2/2`, :math:`EX = 1` and
    :math:`EX^2 \le 3` give, with :math:`a = (1-\epsilon)^2`,

    .. math:: P(Z \le a) \le \min_h (e^{ha}(1 - h + \tfrac32 h^2))^m,

    and the minimum is where :math:`\tfrac32 a h^2 + (3-a)h - (1-a) = 0`.

    `eps` is a positive number or an array of them; above 1 the lower tail is 0. Both
    results have its shape.

    Notes
    -----
    The variance of Z, with :math:`q = \sum_i v_i^4`:

    - rademacher: Z is the mean of m independent copies of X: :math:`2(1-q)/m`.
    - countsketch: :math:`Z - 1` is the sum over pairs i < j of
      :math:`2\sigma_i\sigma_j v_i v_j [h(i) = h(j)]`, which are uncorrelated and not 0
      with probability 1/m: :math:`\frac{4}{m}\sum_{i<j} v_i^2 v_j^2 = 2(1-q)/m`.
    - srht: let :math:`y = HDv`, with entries of H in ±1. Given the signs D, Z is the
      mean of m of the :math:`y_i^2`, drawn without replacement from numbers whose
      mean is 1 by Parseval. So E(Z | D) = 1, no covariance of two of them is positive,
      and the variance is at most 1/m times :math:`E y_i^4 - 1 = 2(1-q)`.

    >>> lower, upper = tails([0.1, 0.2], m=100)
    >>> print(lower.round(4), upper.round(4))
    [0.082  0.0019] [0.0751 0.0026]
    """
    check(eps=eps, m=m, sketch=sketch)
    eps = np.asarray(eps, dtype=float)
    # No norm is below (1 - eps) <= 0; at 1 the formulas are still defined.
    e = np.minimum(eps, 1.0)
    below, above = e * (2 - e), eps * (2 + eps)
    if sketch == "gaussian":
        lower = gammainc(m / 2, m * (1 - e) ** 2 / 2)
        upper = gammaincc(m / 2, m * (1 + eps) ** 2 / 2)
    else:
        lower, upper = 1 / (1 + m * below**2 / 2), 1 / (1 + m * above**2 / 2)
    if sketch == "rademacher":
        a = 1 - below
        h = 2 * below / (3 - a + np.sqrt((3 - a) ** 2 + 6 * a * below))
        chernoff = np.exp(m * (h * a + np.log1p(h * (1.5 * h - 1))))
        lower = np.minimum(lower, chernoff)
        upper = np.minimum(upper, np.exp(-m / 2 * (above - np.log1p(above))))
    return np.where(eps < 1, lower, 0.0)[()], upper


def median_tails(eps, m, R=1, sketch="gaussian"):
    r"""Probability that the median of R sketches is too small, and too large.

    The median is off to one side only if at least :math:`\lceil R/2 \rceil` of
    the sketches are; for even R the middle two are averaged, and one of them being
    off already takes R/2. With p that side of :func:`tails`,

    .. math:: P(\mathrm{Binomial}(R, p) \ge \lceil R/2 \rceil).

    For odd R this is exact where `tails` is. Other arguments and results are those of
    `tails`.

    >>> lower, upper = median_tails(0.2, m=100, R=3)
    >>> print(f"{lower:.1e} {upper:.1e}")
    1.1e-05 2.1e-05
    """
    lower, upper = tails(eps, m, sketch)
    check(R=R)
    # P(Binomial(R, p) >= half), as a regularised incomplete beta function.
    half = (R + 1) // 2
    return betainc(half, R - half + 1, lower), betainc(half, R - half + 1, upper)


def failure(eps, m, R=1, sketch="gaussian"):
    r"""Probability that a median of R sketches is off by more than eps.

    The sum of both sides of :func:`median_tails`, whose arguments it takes, at most 1:

    .. math:: P(|\mathrm{med}_r \|\Pi_r v\| - \|v\|| > \epsilon \|v\|).

    >>> print(f"{failure(0.2, m=100):.4f} {failure(0.2, m=100, R=5):.1e}")
    0.0046 2.5e-07
    """
    return np.minimum(1.0, sum(median_tails(eps, m, R, sketch)))


def sketch_size(eps, failure, R=1, sketch="gaussian"):
    """Smallest m whose median of R sketches is off by eps at most that often.

    `failure` is the probability in (0, 1) that the median may be off by more.

    >>> sketch_size(0.1, 0.01), sketch_size(0.1, 0.01, R=5)
    (332, 97)
    """
    check(eps=eps, failure=failure, R=R, sketch=sketch)
    m = _smallest(lambda m: sum(median_tails(eps, m, R, sketch)) <= failure, _MOST_ROWS)
    if m is None:
        raise ValueError(f"eps must be larger: no sketch reaches {eps!r}.")
    return m


def votes(eps, m, failure, sketch="gaussian", most=None):
    """Smallest odd R up to `most` whose median is off by eps at most that often.

    None where voting does not reach `failure`. Each side of the binomial tail falls as
    odd R grows if one sketch fails on that side with probability below 1/2.

    >>> votes(0.2, m=32, failure=0.01), votes(0.2, m=32, failure=0.01, most=3)
    (5, None)
    """
    most = _MOST_VOTES if most is None else min(as_count("most", most), _MOST_VOTES)
    check(failure=failure)
    one = tails(eps, m, sketch)
    if sum(one) <= failure:
        return 1
    if max(one) >= 0.5:
        return None
    return _smallest(lambda R: sum(median_tails(eps, m, R, sketch)) <= failure, most, 2)


def upper_accuracy(m, R, failure, sketch="gaussian"):
    """Smallest eps whose upper side of :func:`median_tails` is at most `failure`.

    To 13 digits and rounded up; 0 (to those digits) where the side is that rare at
    every positive eps. Arguments are those of :func:`sketch_size`.

    For R = 1 this is the quantile of a chi-squared distribution:

    >>> import numpy as np
    >>> from scipy.stats import chi2
    >>> eps = upper_accuracy(64, 1, 0.001)
    >>> print(f"{eps:.6f} {np.sqrt(chi2.isf(0.001, 64) / 64) - 1:.6f}")
    0.279137 0.279137
    """
    check(m=m, R=R, failure=failure, sketch=sketch)
    # Bisection rather than a faster root finder: bounds jump at eps = 1, and the end
    # returned is one where the condition was seen to hold.
    low, high = 0.0, 1.0
    while median_tails(high, m, R, sketch)[1] > failure:
        low, high = high, 2 * high
    while high - low > 1e-13 * high + 1e-15:
        middle = (low + high) / 2
        if median_tails(middle, m, R, sketch)[1] <= failure:
            high = middle
        else:
            low = middle
    return high


def representative_sketches(k, m, eps, delta, beta=BETA):
    r"""Number L of Gaussian sketches that serve every vector of R^k at once.

    L independent m x k sketches are (eps, beta)-representative when *every* unit
    vector has its norm distorted by more than eps by at most beta L of them. Then
    results stay right however a query was chosen, even by an adversary that has seen
    all the sketches. The value returned is enough with probability 1 - delta:

    .. math:: L = \min_{\epsilon', t} \left\lceil
        \frac{\ln N(\gamma) + \ln(1/\delta)}{KL(\beta \| p)} \right\rceil .

    It is a whole number, or ``math.inf`` where a single sketch is off too often for
    any number of them to help.

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

    >>> [representative_sketches(128, m, eps=0.3, delta=0.01) for m in (8, 32, 256)]
    [inf, 9768.0, 380.0]
    """
    check(k=k, m=m, eps=eps, delta=delta, beta=beta)
    near = eps * np.linspace(0.01, 0.99, 99)[:, None]
    t = np.linspace(0.1, 20, 200)
    p = sum(tails(near, m)) + np.exp(-(t**2) / 2)
    gamma = (eps - near) / (1 + math.sqrt(k / m) + t / math.sqrt(m))
    # Nearer to beta the divergence is lost in rounding, and L is astronomical.
    rare = p < 0.999 * beta
    if not rare.any():
        return math.inf
    p, gamma = p[rare], np.minimum(gamma[rare], 1.0)
    shell = np.log1p(-(((2 - gamma) / (2 + gamma)) ** k))
    log_net = k * np.log1p(2 / gamma) + shell - math.log(2)
    divergence = beta * np.log(beta / p) + (1 - beta) * np.log((1 - beta) / (1 - p))
    return float(np.ceil(np.min((log_net - math.log(delta)) / divergence)))


def adaptive_votes(L, beta, failure):
    """Smallest odd R for which :func:`adaptive_failure` is at most `failure`.

    None where all L sketches are not enough.

    >>> adaptive_votes(100, 0.1, 0.01), adaptive_votes(100, 0.6, 0.01)
    (5, None)
    """
    check(L=L, beta=beta, failure=failure)
    bad, most = math.floor(beta * L), min(L, _MOST_VOTES)
    if bad <= failure * L:
        return 1
    if 2 * bad >= L:
        return None
    return _smallest(lambda R: adaptive_failure(L, beta, R) <= failure, most, 2)


def adaptive_failure(L, beta, R):
    r"""Probability that R of L sketches, a share beta of them bad, are outvoted.

    R sketches are sampled without replacement from L, of which at most
    :math:`\lfloor\beta L\rfloor` are bad at the vector in question. The median is
    off only if at least :math:`\lceil R/2 \rceil` of the sampled are bad,

    .. math:: P(\mathrm{Hypergeometric}(L, \lfloor\beta L\rfloor, R)
        \ge \lceil R/2 \rceil).

    >>> [round(adaptive_failure(100, 0.1, R), 4) for R in (1, 5)]
    [0.1, 0.0066]
    """
    check(L=L, beta=beta)
    as_count("R", R, most=L)
    return float(hypergeom.sf((R + 1) // 2 - 1, L, math.floor(beta * L), R))


@lru_cache(maxsize=1024)
def sketch_rows(n, L, eps, delta, sketch):
    """m for "auto": all n distances of a query are within 1 ± eps.

    A median of the largest odd number of L sketches keeps that with probability at
    least 1 - delta. Rounded up to a multiple of 8.

    >>> sketch_rows(10_000, L=10, eps=0.2, delta=0.01, sketch="gaussian")
    56
    """
    m = sketch_size(eps, delta / n, L - 1 + L % 2, sketch)
    return -(-m // _MULTIPLE) * _MULTIPLE


@lru_cache(maxsize=1024)
def pooled_rows(n, eps, delta, sketch):
    """Rows of one sketch that keeps all n distances of a query within 1 ± eps.

    With probability at least 1 - delta, for queries that do not depend on it. A median
    of several sketches takes more rows in all. Rounded up to a multiple of 8.

    >>> pooled_rows(10_000, eps=0.2, delta=0.01, sketch="gaussian")
    304
    """
    m = sketch_size(eps, delta / n, 1, sketch)
    return -(-m // _MULTIPLE) * _MULTIPLE


@lru_cache(maxsize=1024)
def votes_for_all(n, k, m, L, eps, delta, sketch):
    """R for "auto": all n distances of a query are within 1 ± eps.

    Enough votes for adaptive queries where the sketches are representative. The largest
    odd number up to L where no number of votes is enough.

    >>> votes_for_all(10_000, 784, 128, 10, eps=0.2, delta=0.01, sketch="gaussian")
    5
    """
    R = representative_votes(n, k, m, L, eps, delta, sketch)
    if R is None:
        R = votes(eps, m, delta / n, sketch, most=L)
    return L - 1 + L % 2 if R is None else R


@lru_cache(maxsize=1024)
def sufficient_sketches(k, m, eps, delta, sketch):
    """L from which sketches of m rows are representative; None where none is proven.

    >>> [sufficient_sketches(64, m, 0.2, 0.01, "gaussian") for m in (8, 128)]
    [None, 1377]
    """
    if sketch != "gaussian":
        return None
    enough = representative_sketches(k, m, eps, delta)
    return int(enough) if math.isfinite(enough) else None


def representative_votes(count, k, m, L, eps, delta, sketch):
    """R that keeps `count` estimates within 1 ± eps under adaptive queries, or None.

    Half of delta is for sketches that are not representative, half for the votes.

    >>> [representative_votes(10, k, 200, 200, 0.3, 0.1, "gaussian") for k in (4, 640)]
    [7, None]
    """
    enough = sufficient_sketches(k, m, eps, delta / 2, sketch)
    if enough is None or enough > L:
        return None
    return adaptive_votes(L, BETA, delta / count / 2)


@lru_cache(maxsize=1024)
def certificate(count, k, m, L, R, eps, delta, sketch):
    """``(R, eps')``: no estimate of `count` points is above (1 + eps') times distance.

    This holds with probability at least 1 - delta: for adaptive queries where the
    sketches are representative, and else for queries that do not depend on earlier
    results, where one Gaussian sketch is the cheapest. An R that is not None is kept.

    >>> certificate(10, 784, 64, 10, None, eps=0.2, delta=0.01, sketch="gaussian")
    (1, 0.279...)
    """
    if R is None:
        R = representative_votes(count, k, m, L, eps, delta, sketch)
        if R is not None:
            return R, eps
        R = 1 if sketch == "gaussian" else L - 1 + L % 2
    return R, upper_accuracy(m, R, delta / count, sketch)


def _smallest(holds, most, step=1):
    """Smallest of 1, 1 + step, … up to `most` at which a monotone condition holds."""
    low, high, last = -1, 0, (most - 1) // step
    while not holds(1 + step * high):
        if high >= last:
            return None
        low, high = high, min(2 * high + 1, last)
    while high - low > 1:
        middle = (low + high) // 2
        if holds(1 + step * middle):
            high = middle
        else:
            low = middle
    return 1 + step * high

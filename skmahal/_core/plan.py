"""How many sketches, how large, how many of them for a query: "auto", resolved.

Pure functions of the promise (eps, delta) and of n, k; cached, as queries ask again.
"""

import math
from functools import lru_cache

from . import bounds

BETA = 0.1
_MULTIPLE = 8

# Neighbour queries with one vote look at parts or banks of sketches, and representative
# are whole ones. Three votes fail less often than one where few sketches are bad.
_LEAST_ADAPTIVE = 3


def largest_odd(L):
    """An odd number of votes has a middle one.

    >>> largest_odd(10), largest_odd(1)
    (9, 1)
    """
    return L - 1 if L % 2 == 0 else L


@lru_cache(maxsize=1024)
def sketch_rows(n, L, eps, delta, sketch):
    """m for which L sketches hold n distances of a query within 1 ± eps, but for delta.

    >>> sketch_rows(10_000, L=10, eps=0.2, delta=0.01, sketch="gaussian")
    56
    """
    m = bounds.sketch_size(eps, delta / n, largest_odd(L), sketch)
    return -(-m // _MULTIPLE) * _MULTIPLE


@lru_cache(maxsize=1024)
def votes_for_all(n, k, m, L, eps, delta, sketch):
    """R for the distances of a query to all n points; the most there are if too few.

    Where the sketches are representative, votes enough for adaptive queries, as in
    :func:`certificate`.

    >>> votes_for_all(10_000, k=784, m=128, L=10, eps=0.2, delta=0.01,
    ...               sketch="gaussian")
    5
    """
    R = adaptive_votes(n, k, m, L, eps, delta, sketch)
    if R is None:
        R = bounds.votes(eps, m, delta / n, sketch, most=L)
    return largest_odd(L) if R is None else R


@lru_cache(maxsize=1024)
def adaptively_safe(k, m, L, eps, delta, sketch):
    """Whether L sketches are (eps, β)-representative for every vector of R^k.

    >>> adaptively_safe(64, m=128, L=10, eps=0.2, delta=0.01, sketch="gaussian")
    False
    """
    enough = sufficient_sketches(k, m, eps, delta, sketch)
    return enough is not None and enough <= L


@lru_cache(maxsize=1024)
def sufficient_sketches(k, m, eps, delta, sketch):
    """L from which sketches of m rows are representative; None where no proof has one.

    >>> sufficient_sketches(64, m=128, eps=0.2, delta=0.01, sketch="gaussian")
    1377
    >>> sufficient_sketches(64, m=8, eps=0.2, delta=0.01, sketch="gaussian") is None
    True
    """
    if sketch != "gaussian":
        return None
    enough = bounds.representative_sketches(k, m, eps, delta, BETA)
    return int(enough) if math.isfinite(enough) else None


def adaptive_votes(misses, k, m, L, eps, delta, sketch):
    """R that keeps `misses` estimates within 1 ± eps under adaptive queries, or None.

    Half of delta is for sketches that are not representative, half for the votes.

    >>> adaptive_votes(10, k=4, m=200, L=200, eps=0.3, delta=0.1, sketch="gaussian")
    7
    >>> adaptive_votes(10, k=64, m=200, L=10, eps=0.3, delta=0.1, sketch="gaussian")
    """
    if not adaptively_safe(k, m, L, eps, delta / 2, sketch):
        return None
    return bounds.adaptive_votes(L, BETA, delta / misses / 2)


@lru_cache(maxsize=1024)
def certificate(misses, k, m, L, R, eps, delta, sketch):
    """``(R, eps')``: none of `misses` estimates is above (1 + eps') d, but for delta.

    Where the sketches are representative the bound holds for adaptive queries, with
    votes enough that the bad ones among L cannot make a majority. Otherwise the queries
    must not depend on earlier answers, and then one Gaussian sketch is the cheapest. An
    R that was asked for is kept.

    >>> R, eps = certificate(10, 784, m=64, L=10, R=None, eps=0.2, delta=0.01,
    ...                      sketch="gaussian")
    >>> R, round(eps, 3)
    (1, 0.279)
    """
    if R is None:
        R = adaptive_votes(misses, k, m, L, eps, delta, sketch)
        if R is not None:
            return max(R, _LEAST_ADAPTIVE), eps
        R = 1 if sketch == "gaussian" else largest_odd(L)
    return R, upper_accuracy(m, R, delta / misses, sketch)


upper_accuracy = lru_cache(maxsize=1024)(bounds.upper_accuracy)


def pays(m, R, lead, k):
    """Whether R sketches of m rows and `lead` directions cost less than exact rows.

    >>> pays(m=64, R=1, lead=32, k=784), pays(m=64, R=5, lead=32, k=300)
    (True, False)
    """
    return m * R + lead < k

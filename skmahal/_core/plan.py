"""How many sketches, how large, how many of them for a query: "auto", resolved.

Pure functions of the promise (eps, delta) and of n, k; cached, as queries ask again.
"""

from functools import lru_cache

from . import bounds

BETA = 0.1
_MULTIPLE = 8


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
def votes_for_all(n, m, L, eps, delta, sketch):
    """R for the distances of a query to all n points; the most there are if too few.

    >>> votes_for_all(10_000, m=128, L=10, eps=0.2, delta=0.01, sketch="gaussian")
    5
    """
    R = bounds.votes(eps, m, delta / n, sketch, most=L)
    return largest_odd(L) if R is None else R


@lru_cache(maxsize=1024)
def adaptively_safe(k, m, L, eps, delta, sketch):
    """Whether L sketches are (eps, β)-representative for every vector of R^k.

    >>> adaptively_safe(64, m=128, L=10, eps=0.2, delta=0.01, sketch="gaussian")
    False
    """
    if sketch != "gaussian":
        return False
    return bounds.representative_sketches(k, m, eps, delta, BETA) <= L


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
    failure = delta / misses
    if R is None and adaptively_safe(k, m, L, eps, delta / 2, sketch):
        R = bounds.adaptive_votes(L, BETA, failure / 2)
        if R is not None:
            return R, eps
    if R is None:
        R = 1 if sketch == "gaussian" else largest_odd(L)
    return R, upper_accuracy(m, R, failure, sketch)


upper_accuracy = lru_cache(maxsize=1024)(bounds.upper_accuracy)


def pays(m, R, lead, k):
    """Whether R sketches of m rows and `lead` directions cost less than exact rows.

    >>> pays(m=64, R=1, lead=32, k=784), pays(m=64, R=5, lead=32, k=300)
    (True, False)
    """
    return m * R + lead < k

"""What an index promises, and how its estimates compare with exact distances."""

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from scipy.stats import binom

from . import bounds

QUANTILES = (0.0, 0.01, 0.25, 0.5, 0.75, 0.99, 1.0)

# Probability that the binomial test of an audit rejects sketches that it should not.
LEVEL = 1e-3

_ROUNDING = 1e-9
_PROMISES = {
    "kneighbors": "the neighbours are the exact ones",
    "radius_neighbors": "all points within the radius are found",
    "distances": "all {n} are within 1 ± {eps:g} of the exact ones",
    "pair_distances": "the distance is within 1 ± {eps:g} of the exact one",
}


class Failures(NamedTuple):
    """Upper bounds of the probability that a result breaks its promise.

    The first three are per query, `pair_distances` is per pair. 0 is an exact result, 1
    is no promise, and None stands for a method that the estimator does not have.
    """

    kneighbors: float | None = None
    radius_neighbors: float | None = None
    distances: float | None = None
    pair_distances: float | None = None


@dataclass(frozen=True)
class Guarantee:
    """What an index promises at present; ``str()`` puts it in words.

    Attributes
    ----------
    engine : {"sketched", "exact"}
        Whether distances are estimated from sketches or exact.
    n, k, m, L, R, lead : int
        Points, rows of U, rows of a sketch, sketches, sketches that serve a query for
        distances, and leading directions. Where distances are exact, m and R are what
        they would be.
    R_neighbors : int
        Sketches that serve a query for neighbours; 0 where the search is exact.
    eps, delta : float
        The relative error, and the probability of a larger one, of the parameters.
    fixed, adaptive : Failures
        For queries that do not depend on results from these sketches, and for any
        number of queries that may be chosen by earlier results.
    enough_sketches : bool
        Whether L sketches suffice for adaptive queries; True where nothing is random.
    sufficient_L : int or None
        A number of sketches that suffices at this m; None where none is proven to.
    refresh_every : int or None
        Number of calls after which `refresh_sketches` makes `fixed` hold for adaptive
        queries: 1; or None where `adaptive` promises as much without.
    """

    engine: str
    n: int
    k: int
    m: int
    L: int
    R: int
    R_neighbors: int
    lead: int
    eps: float
    delta: float
    fixed: Failures
    adaptive: Failures
    enough_sketches: bool
    sufficient_L: int | None
    refresh_every: int | None

    def __str__(self):
        if not any(self.fixed) and not any(self.adaptive):
            return (
                f"An exact index of {self.n} points: nothing in its results is random,"
                "\nand they hold for every query, however it was chosen."
            )
        used = f"R={self.R} for a query for distances"
        if self.R_neighbors:
            used += f", {self.R_neighbors} for a query for neighbours"
        lines = [
            f"An index of {self.n} points under k={self.k} rows of U.",
            f"L={self.L} sketches of m={self.m} rows: {used}.",
        ]
        if self.lead:
            lines.append(f"{self.lead} leading directions are not sketched.")
        for which, failures in (("do not", self.fixed), ("may", self.adaptive)):
            lines.append(f"For queries that {which} depend on earlier results:")
            lines += _in_words(failures, self.n, self.eps)
        if self.refresh_every is not None:
            lines += self._advice()
        return "\n".join(lines)

    def _advice(self):
        """How to get promises for queries that depend on earlier results."""
        more = f"L={self.sufficient_L} sketches would suffice"
        first = f"{more}, with m={self.m} set and R at 'auto'."
        if self.sufficient_L is None:
            first = f"No number of sketches of m={self.m} rows is proven to suffice."
        elif self.enough_sketches:
            first = f"L={self.L} sketches suffice, but the R that was set does not."
        lines = [
            first,
            f"With m={self.k} everything is exact. Other m, L and R need a new fit.",
            "If refresh_sketches() is called after every call, the first list holds "
            "for\nall queries. Longer intervals are not promised.",
        ]
        if self.fixed.kneighbors and self.fixed.kneighbors < 1:
            lines.append(
                "While only neighbours are seen, the first t queries are all exact\n"
                f"with probability at least 1 - {self.fixed.kneighbors:g} t."
            )
        return lines


def guarantee(
    *, sketch, n_neighbors, auto_R=True, neighbors="exact", offers=_PROMISES, **numbers
):
    """The promises that follow from the numbers of an index.

    `numbers` are engine, n, k, m, L, R, lead, eps and delta of :class:`Guarantee`.
    `auto_R` says whether every operation chooses its own R. `neighbors` is how
    `kneighbors` searches: "exact" uses no sketch, "certified" excludes points by
    sketches, and "budget" evaluates a number of candidates and promises nothing.
    `offers` are the methods that the estimator has.

    *fixed*: a certified query misses a neighbour with probability at most delta. Some
    of n estimates are off with at most n times the probability of
    :func:`bounds.failure`. *adaptive*: exact results depend on points, metric and query
    alone, and so reveal nothing that a later query could use. L sketches that suffice
    are representative with probability 1 - delta/2 over their draw, and the bad ones
    outvote the others with the probability of :func:`bounds.adaptive_failure`.

    >>> numbers = dict(engine="sketched", n=1000, k=512, m=48, R=5, lead=16, eps=0.2,
    ...                delta=0.01, sketch="gaussian", n_neighbors=5)
    >>> few = guarantee(L=10, neighbors="certified", **numbers)
    >>> few.fixed.kneighbors, few.adaptive.kneighbors, few.refresh_every
    (0.01, 1.0, 1)
    """
    n, k, m, L, R = (numbers[name] for name in "nkmLR")
    eps, delta = numbers["eps"], numbers["delta"]
    sufficient_L = bounds.sufficient_sketches(k, m, eps, delta / 2, sketch)
    enough = sufficient_L is not None and sufficient_L <= L
    failures, R_neighbors = dict.fromkeys(offers, (0.0, 0.0)), 0
    if neighbors != "exact":
        sizes = (None if auto_R else R), eps, delta, sketch
        R_neighbors, _ = bounds.certificate(n_neighbors, k, m, L, *sizes)
        adaptive = delta if auto_R and enough else 1.0
        certified = neighbors == "certified"
        failures["kneighbors"] = (delta, adaptive) if certified else (1.0, 1.0)
    if numbers["engine"] == "sketched":
        for name, count in {"distances": n, "pair_distances": 1}.items():
            outvoted = delta / 2 + count * bounds.adaptive_failure(L, bounds.BETA, R)
            adaptive = min(1.0, outvoted) if enough else 1.0
            off = count * float(bounds.failure(eps, m, R, sketch))
            failures[name] = (min(adaptive, off), adaptive)
    fixed = Failures(**{name: failures[name][0] for name in offers})
    adaptive = Failures(**{name: failures[name][1] for name in offers})
    sides = [failures[name] for name in offers]
    kept = all(b <= (1 + _ROUNDING) * max(delta, a) for a, b in sides)
    random = any(before for before, _ in sides)
    return Guarantee(
        **numbers,
        R_neighbors=R_neighbors,
        fixed=fixed,
        adaptive=adaptive,
        enough_sketches=enough or not random,
        sufficient_L=sufficient_L if random else 0,
        refresh_every=None if kept else 1,
    )


def _in_words(failures, n, eps):
    """One line for each method of :class:`Failures` that the estimator has."""
    lines = []
    for name, failure in failures._asdict().items():
        if failure is None:
            continue
        promise = "nothing is promised" if failure else "exact"
        if 0 < failure < 1:
            # Rounded down to four digits.
            least = f"{math.floor((1 - failure) * 1e4 + _ROUNDING) / 1e4:g}"
            if failure < 1e-4:
                least = f"1 - {1.05 * failure:.1e}"
            each = "pair" if name == "pair_distances" else "query"
            promise = _PROMISES[name].format(n=n, eps=eps)
            promise += f" with probability at least {least} per {each}"
        lines.append(f"- {name}: {promise}.")
    return lines


@dataclass(frozen=True)
class PairAudit:
    """Estimates compared with exact distances, on pairs from one pool.

    Attributes
    ----------
    n_pairs : int
        Pairs that were drawn.
    ratios : dict
        Quantiles of estimate over exact distance, where that is not zero.
    outside, promised : float
        Share of the pairs whose estimate is off by more than eps, and the probability
        of that, over the draw of the sketches.
    allowed, p_value : float
        Share of the pool that may be off, and the probability of as many pairs outside
        if that share is.
    passed : bool
        False where `p_value` is below :data:`LEVEL`.
    sample : ndarray
        The ratios, sorted.
    """

    n_pairs: int
    ratios: dict
    outside: float
    promised: float
    allowed: float
    p_value: float
    passed: bool
    sample: np.ndarray = field(repr=False, compare=False)


@dataclass(frozen=True)
class Audit:
    """What :meth:`SketchedMahalanobisNeighbors.audit` found.

    Attributes
    ----------
    random : PairAudit
        On pairs of points of the index. Its `n_pairs`, `ratios`, `outside`, `promised`,
        `allowed` and `p_value` are attributes of the audit, too.
    recent : PairAudit or None
        On recent queries and their neighbours; None where there were no queries.
    eps : float
        The relative error that was allowed.
    passed : bool
        Whether all pools passed.
    """

    random: PairAudit
    recent: PairAudit | None
    eps: float

    def __getattr__(self, name):
        if name == "passed":
            return self.random.passed and (self.recent is None or self.recent.passed)
        if name in ("n_pairs", "ratios", "outside", "promised", "allowed", "p_value"):
            return getattr(self.random, name)
        raise AttributeError(f"An audit has no attribute {name!r}.")


def relative_errors(estimates, exact):
    """``|estimate / exact - 1|``; where both are zero there is no error."""
    gaps = np.abs(np.asarray(estimates, dtype=np.float64) - exact)
    safe = np.where(exact > 0, exact, 1)
    return np.where(exact > 0, gaps / safe, np.where(gaps > 0, np.inf, 0.0))


def audit_pairs(estimates, exact, eps, promised, delta):
    """Test estimates of pairs that were drawn independently from a pool.

    Given the sketches, the number of pairs off by more than eps is binomial, and its
    rate is the share of the pool that is. The test is exact: if this share is at most
    ``allowed = max(delta, promised)``, it fails with probability at most :data:`LEVEL`.
    Sketches as promised exceed `allowed` with probability at most ``promised /
    allowed`` (Markov). A test of the rate `promised` itself would reject sound
    sketches, because pairs share sketches and on data of low dimension fail together.

    >>> estimates = np.where(np.arange(1000) < 30, 1.2, 1.0)
    >>> found = audit_pairs(estimates, np.ones(1000), 0.1, promised=1e-4, delta=0.01)
    >>> found.outside, found.passed
    (0.03, False)
    """
    exact = np.asarray(exact, dtype=np.float64)
    misses = int(np.sum(relative_errors(estimates, exact) > eps))
    apart = exact > 0
    sample = np.sort(np.asarray(estimates)[apart] / exact[apart])
    sample.flags.writeable = False
    quantiles = np.quantile(sample, QUANTILES) if apart.any() else np.ones(7)
    allowed = max(delta, promised)
    p_value = float(binom.sf(misses - 1, len(exact), allowed))
    return PairAudit(
        n_pairs=len(exact),
        ratios=dict(zip(QUANTILES, quantiles.tolist(), strict=True)),
        outside=misses / len(exact),
        promised=promised,
        allowed=allowed,
        p_value=p_value,
        passed=p_value >= LEVEL,
        sample=sample,
    )

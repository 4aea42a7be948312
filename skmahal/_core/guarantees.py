"""What an index promises, and how its estimates compare with exact distances."""

import math
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from scipy.stats import binom

from . import bounds
from .recall import mean_bounds
from .sketches import toarray

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
METHODS = tuple(_PROMISES)

# Recent queries of every index, for its audit: so many, or as many as fit these bytes.
# They are not attributes, so that no pickle and no deep copy of an index has them.
_MOST_ROWS, _MOST_BYTES = 128, 1 << 20
_RECENT = WeakKeyDictionary()


class Failures(NamedTuple):
    """Upper bounds of the probability that a result breaks its promise.

    The first three are per query, `pair_distances` is per pair. 0 is a result that is
    certain, 1 is no promise, and None stands for a method that the estimator does not
    have.
    """

    kneighbors: float | None = None
    radius_neighbors: float | None = None
    distances: float | None = None
    pair_distances: float | None = None


class Recall(NamedTuple):
    """The recall of approximate neighbours, as it was measured.

    Attributes
    ----------
    target : float
        The parameter `recall`.
    measured, least : float
        Mean recall of the queries that it was measured on, and a lower bound of the
        mean over all queries like these, with 95 % confidence.
    n_queries : int
        Number of these queries: points of the index or recent queries, whichever have
        the smaller bound.
    version : int
        Number of changes of metric and points before it was measured.
    share : float
        Share of the points that are looked at.
    """

    target: float
    measured: float
    least: float
    n_queries: int
    version: int
    share: float


@dataclass(frozen=True)
class Guarantee:
    """What an index promises at present; ``str()`` puts it in words.

    Attributes
    ----------
    engine : {"enclosed", "sketched", "exact"}
        How distances are computed: within 1 ± eps with certainty, estimated from
        sketches, or exactly.
    n, k : int
        Points, and rows of U.
    m, L, R, lead : int
        Rows of a sketch, sketches, sketches that serve a query, and leading directions;
        if no sketches are used, the numbers that would be.
    pooled : int
        Rows of the single sketch that serves distances in place of these; 0 if none.
    R_neighbors : int
        Sketches that serve a query for neighbours; 0 where the search is exact.
    eps, delta : float
        The relative error, and the probability of a larger one, of the parameters.
    n_queries : int
        Number of queries that `adaptive.kneighbors` is about.
    recall : Recall or None
        The recall of `kneighbors`, if one is requested and points are left out.
    fixed, adaptive : Failures
        For queries that do not depend on earlier results, and for any number of queries
        that may. Certified neighbours are an exception: `adaptive` is the probability
        that one of `n_queries` queries, chosen by the neighbours of earlier ones,
        misses a neighbour.
    sufficient_L : int or None
        A number of sketches of m rows that suffices for adaptive queries; 0 where
        nothing is random, and None where no number is proven to suffice.
    enough_sketches : bool
        Whether L is at least that.
    costs : dict
        For each way to compute distances, the bytes that it keeps beside the points and
        the estimated seconds of a query in a batch and of a single one, or None.
    """

    engine: str
    n: int
    k: int
    m: int
    L: int
    R: int
    R_neighbors: int
    lead: int
    pooled: int
    eps: float
    delta: float
    n_queries: int
    fixed: Failures
    adaptive: Failures
    sufficient_L: int | None
    enough_sketches: bool
    recall: Recall | None
    costs: dict = field(compare=False)

    def __str__(self):
        lines = [f"An index of {self.n} points under k={self.k} rows of U."]
        lines += self._recall_in_words()
        fixed, adaptive = self.fixed, self.adaptive
        if self.recall:
            # What is measured is no promise.
            fixed, adaptive = (
                each._replace(kneighbors=None) for each in (fixed, adaptive)
            )
        if not any(fixed) and not any(adaptive):
            lines += ["For every query, however it was chosen:"]
            lines += self._in_words(fixed)
        else:
            lines += self._sketches_in_words()
            for which, failures in (("do not", fixed), ("may", adaptive)):
                lines.append(f"For queries that {which} depend on earlier results:")
                lines += self._in_words(failures, per_run=which == "may")
            lines += self._advice()
        if self.fixed.distances is not None and self.costs:
            lines += [
                "Ways to compute distances: memory beside the points, and about how "
                "long a query\ntakes in a batch or alone:"
            ]
            for way, (size, many, one) in self.costs.items():
                times = [f"{1e6 * each:,.0f}" for each in (many, one) if each]
                cost = f"{size / 1e6:,.1f} MB, {' or '.join(times)} µs"
                if len(times) == 1:
                    cost += " in a batch" if many else " alone"
                lines += [f"- {way}: {cost}."]
        return "\n".join(lines)

    def _recall_in_words(self):
        if self.recall is None:
            return []
        target, measured, least, count, version, share = self.recall
        return [
            "For queries like its points, or like recent queries:",
            f"- kneighbors: the mean recall was {measured:.4g} on {count} of them at "
            f"version {version},\n  and is at least {least:.4g} with 95 % confidence; "
            f"{target:g} is requested.\n  {100 * share:.2g} % of the points are looked "
            "at. Distances are exact. Nothing is promised for\n  queries unlike these.",
        ]

    def _sketches_in_words(self):
        lines, uses = [], []
        if self.pooled:
            lines += [f"One sketch of {self.pooled} rows serves {self._unsafe()}."]
        elif self.engine == "sketched":
            uses += [f"R={self.R} for a query for distances"]
        if self.R_neighbors:
            uses += [f"{self.R_neighbors} for a query for neighbours"]
        if uses:
            lines += [f"L={self.L} sketches of m={self.m} rows: {', '.join(uses)}."]
        if uses and self.lead:
            lines += [f"{self.lead} leading directions are not sketched."]
        return lines

    def _unsafe(self):
        """The estimates that are not promised to queries chosen by earlier results."""
        names = ("distances", "pair_distances")
        return " and ".join(name for name in names if getattr(self.adaptive, name) == 1)

    def _in_words(self, failures, per_run=False):
        """One line for each method of :class:`Failures` that the estimator has."""
        lines = []
        for name, failure in failures._asdict().items():
            if failure is None:
                continue
            promise = "nothing is promised" if failure else "exact"
            if failure == 0 and name == "distances" and self.engine == "enclosed":
                promise = f"all {self.n} are certain to be within 1 ± {self.eps:g}"
            if 0 < failure < 1:
                least = probability_text(failure)
                each = "pair" if name == "pair_distances" else "query"
                promise = _PROMISES[name].format(n=self.n, eps=self.eps)
                promise += f" with probability at least {least} per {each}"
                if per_run and name == "kneighbors" and failure > self.delta:
                    promise = promise.removesuffix(" per query")
                    promise += f" for all of {self.n_queries} queries"
            lines.append(f"- {name}: {promise}.")
        return lines

    def _advice(self):
        """How to get promises for queries that depend on earlier results."""
        lines, safe = [], self.adaptive
        if 1 in (safe.distances, safe.pair_distances):
            lines += [
                f"adaptive=True promises {self._unsafe()} for all queries, with "
                "certainty."
            ]
            if self.sufficient_L and not self.enough_sketches:
                size = 4e-9 * self.n * self.m * self.sufficient_L
                size = f"{size:,.0f}" if size >= 1 else f"{size:.1g}"
                lines += [
                    f"L={self.sufficient_L} sketches promise it with high probability. "
                    f"In float32 they take {size} GB."
                ]
        if self.fixed.kneighbors == self.delta and safe.kneighbors == 1:
            least = self.delta / self.n_queries
            lines += [
                "n_candidates='exact' promises neighbours for all queries. If results "
                f"are neighbours\nalone, delta={least:.1g} does for {self.n_queries} "
                f"queries, with probability {1 - self.delta:g}."
            ]
        return lines


def guarantee(
    *,
    ways,
    costs,
    n_neighbors,
    n_queries=1000,
    neighbors="exact",
    recall=None,
    auto_R=True,
    offers=METHODS,
    **numbers,
):
    """The promises that follow from the numbers of an index.

    `numbers` are those of :class:`Guarantee`, d, and `pooled`, the rows of a single
    sketch. `ways` says how `distances` and `pair_distances` are computed: "exact",
    "enclosed", by "sketched" medians, or by one "pooled" sketch. `neighbors` is how
    `kneighbors` searches: "exact" uses no sketch, "certified" excludes points by
    sketches, and "budget" evaluates a number of candidates and promises nothing.
    `recall` is its :class:`Recall`, if that is less than all.
    `auto_R` says whether every operation chooses its own R, and `offers` are the
    methods that there are.

    *fixed*: a certified query misses a neighbour with probability at most delta. Some
    of n estimates are off with at most n times the probability of
    :func:`bounds.failure`. *adaptive*: exact and enclosed results depend on nothing
    random, and reveal nothing that a later query could use. Nor do certified neighbours
    until one is missed, which happens in T queries with probability at most T delta, if
    nothing else is seen of their sketches: no estimate, no audit, and not the time that
    a query takes. L sketches that suffice are representative with probability
    1 - delta/2 over their draw, and the bad ones outvote the others with the
    probability of :func:`bounds.adaptive_failure`.
    """
    k, m, L, R = (numbers[name] for name in "kmLR")
    eps, delta, sketch = (numbers[name] for name in ("eps", "delta", "sketch"))
    d, pooled = numbers.pop("d"), numbers.pop("pooled")
    sufficient_L = bounds.sufficient_sketches(min(k, d), m, eps, delta / 2, sketch)
    enough = sufficient_L is not None and sufficient_L <= L
    failures = _estimates(ways, pooled, numbers, enough, offers)
    R_neighbors = 0
    if neighbors != "exact":
        sizes = (None if auto_R else R), eps, delta, sketch
        R_neighbors, _ = bounds.certificate(n_neighbors, k, m, L, *sizes)
        alone = "sketched" not in [ways[name] for name in ways if name in offers]
        missed = min(1.0, n_queries * delta) if alone else 1.0
        certified = delta, delta if auto_R and enough else missed
        failures["kneighbors"] = (1.0, 1.0) if neighbors == "budget" else certified
    random = any(failures[name][0] for name in offers)
    if recall is not None and "kneighbors" in offers:
        failures["kneighbors"] = 1.0, 1.0
    sides = zip(*(failures[name] for name in offers), strict=True)
    fixed, adaptive = (
        Failures(**dict(zip(offers, side, strict=True))) for side in sides
    )
    del numbers["sketch"]
    return Guarantee(
        engine={"pooled": "sketched"}.get(ways["distances"], ways["distances"]),
        **numbers,
        pooled=pooled if "pooled" in ways.values() else 0,
        R_neighbors=R_neighbors,
        n_queries=n_queries,
        fixed=fixed,
        adaptive=adaptive,
        sufficient_L=sufficient_L if random else 0,
        enough_sketches=enough or not random,
        recall=recall,
        costs=costs,
    )


def _estimates(ways, pooled, numbers, enough, offers):
    """Probabilities that distances break their promise: fixed and adaptive queries."""
    m, L, R, eps, sketch = (numbers[name] for name in ("m", "L", "R", "eps", "sketch"))
    failures = dict.fromkeys(offers, (0.0, 0.0))
    for name, count in {"distances": numbers["n"], "pair_distances": 1}.items():
        if name in offers and ways[name] == "pooled":
            off = count * float(bounds.failure(eps, pooled, 1, sketch))
            failures[name] = (min(1.0, off), 1.0)
        elif name in offers and ways[name] == "sketched":
            outvoted = count * bounds.adaptive_failure(L, bounds.BETA, R)
            adaptive = min(1.0, numbers["delta"] / 2 + outvoted) if enough else 1.0
            off = count * float(bounds.failure(eps, m, R, sketch))
            failures[name] = (min(adaptive, off), adaptive)
    return failures


def probability_text(failure):
    """One minus a probability, rounded down to four digits.

    >>> probability_text(0.01), probability_text(1e-6)
    ('0.99', '1 - 1.0e-06')
    """
    if failure < 1e-4:
        return f"1 - {1.05 * failure:.1e}"
    return f"{math.floor((1 - failure) * 1e4 + _ROUNDING) / 1e4:g}"


def recent_queries(held):
    """The last queries of an index that were not exact; used by all threads."""
    recent = _RECENT.get(held)
    if recent is None:
        fitting = _MOST_BYTES // (held.d * held.dtype.itemsize)
        new = deque(maxlen=max(1, min(_MOST_ROWS, fitting)))
        recent = _RECENT.setdefault(held, new)
    return recent


def remember(held, Q):
    """Copy the last of some queries that were not exact, to judge by them later."""
    recent = recent_queries(held)
    if Q.shape[0] == 1 and isinstance(Q, np.ndarray):
        # In a third of the time of what follows.
        recent.append(Q[0].copy())
    else:
        recent.extend(toarray(Q[-recent.maxlen :]).copy())


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
class RecallAudit:
    """The recall of approximate neighbours on queries that did not determine it.

    Attributes
    ----------
    target : float
        The parameter `recall`.
    mean, least : float
        Mean recall, and a lower bound of it with 95 % confidence.
    n_queries : int
        Number of these queries: points of the index, drawn at random, or recent
        queries, whichever have the smaller bound.
    passed : bool
        False if recalls this low have a probability below :data:`LEVEL` where the mean
        recall is as requested, for points or for recent queries.
    """

    target: float
    mean: float
    least: float
    n_queries: int
    passed: bool


def audit_recall(groups, target):
    """The :class:`RecallAudit` of the recall of groups of queries."""
    passed = all(mean_bounds(group, LEVEL)[1] >= target for group in groups)
    worst = min(groups, key=lambda group: mean_bounds(group)[0])
    least, mean = mean_bounds(worst)[0], float(np.mean(worst))
    return RecallAudit(target, mean, least, len(worst), passed)


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
    recall : RecallAudit or None
        The recall of neighbours; None where they are exact.
    passed : bool
        Whether all that was examined passed.
    """

    random: PairAudit
    recent: PairAudit | None
    eps: float
    recall: RecallAudit | None = None

    def __getattr__(self, name):
        if name == "passed":
            parts = self.random, self.recent, self.recall
            return all(part is None or part.passed for part in parts)
        if name in ("n_pairs", "ratios", "outside", "promised", "allowed", "p_value"):
            return getattr(self.random, name)
        raise AttributeError(f"An audit has no attribute {name!r}.")

    def __str__(self):
        pools = {"points": self.random, "recent queries and neighbours": self.recent}
        lines = [
            f"{100 * part.outside:.2f} % of {part.n_pairs:,} distances between {pool} "
            f"are off by more than {100 * self.eps:g} %; up to "
            f"{100 * part.allowed:g} % may be: {'passed' if part.passed else 'failed'}."
            for pool, part in pools.items()
            if part is not None
        ]
        found = self.recall
        if found is not None:
            verdict = "agrees" if found.passed else "does not agree"
            lines.append(
                f"The mean recall of {found.n_queries:,} queries is {found.mean:.4f}, "
                f"which {verdict} with the {found.target:g} that was requested."
            )
        return "\n".join(lines)


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
    Distances that are certain, with `promised` 0, must all be right: `allowed` is 0.
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
    allowed = max(delta, promised) if promised else 0.0
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

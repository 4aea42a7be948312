"""Estimates held against exact distances."""

from dataclasses import dataclass, field

import numpy as np
from scipy.stats import binom

QUANTILES = (0.0, 0.01, 0.25, 0.5, 0.75, 0.99, 1.0)

# The binomial test errs so often, given the sketches.
LEVEL = 1e-3


@dataclass(frozen=True)
class PairAudit:
    """What :func:`audit_pairs` found on pairs from one pool.

    Attributes
    ----------
    n_pairs : int
        Pairs that were drawn.
    ratios : dict
        Quantiles of estimate over exact distance, where that is not zero.
    outside : float
        Share of the pairs that are off by more than eps.
    promised : float
        Probability, over the draw of the sketches, that a pair is.
    allowed : float
        Share of the pool that may be, with the sketches as they are now.
    p_value : float
        Probability of as many pairs outside if a share `allowed` of the pool is.
    sample : ndarray
        The ratios, sorted.
    """

    n_pairs: int
    ratios: dict
    outside: float
    promised: float
    allowed: float
    p_value: float
    sample: np.ndarray = field(repr=False, compare=False)

    @property
    def passed(self):
        """False where `p_value` is below :data:`LEVEL`."""
        return self.p_value >= LEVEL


@dataclass(frozen=True)
class Audit:
    """What :meth:`SketchedMahalanobisNeighbors.audit` found.

    `n_pairs`, `ratios`, `outside`, `promised`, `allowed` and `p_value` are those of
    `random`.

    Attributes
    ----------
    random : PairAudit
        On pairs of points of the index.
    recent : PairAudit or None
        On recent queries and their neighbours; None where nothing was asked.
    eps : float
        The error that was allowed.
    """

    random: PairAudit
    recent: PairAudit | None
    eps: float

    @property
    def passed(self):
        """Whether all pools passed."""
        return self.random.passed and (self.recent is None or self.recent.passed)

    @property
    def n_pairs(self):
        """Pairs that were drawn from a pool."""
        return self.random.n_pairs

    @property
    def ratios(self):
        """Quantiles of estimate over exact distance, of random pairs."""
        return self.random.ratios

    @property
    def outside(self):
        """Share of random pairs that are off by more than eps."""
        return self.random.outside

    @property
    def promised(self):
        """Probability that a pair is off by more than eps."""
        return self.random.promised

    @property
    def allowed(self):
        """Share of a pool that may be off by more than eps."""
        return self.random.allowed

    @property
    def p_value(self):
        """Of the binomial test on random pairs."""
        return self.random.p_value


def relative_errors(estimates, exact):
    """``|estimate / exact - 1|``; where both are zero there is no error.

    Examples
    --------
    >>> relative_errors(np.array([1.1, 0.0]), np.array([1.0, 0.0])).round(3)
    array([0.1, 0. ])
    """
    gaps = np.abs(np.asarray(estimates, dtype=np.float64) - exact)
    safe = np.where(exact > 0, exact, 1)
    return np.where(exact > 0, gaps / safe, np.where(gaps > 0, np.inf, 0.0))


def audit_pairs(estimates, exact, eps, promised, delta):
    """Judge estimates of pairs that were drawn independently from a pool.

    Given the sketches, the number of pairs off by more than eps is binomial, its rate
    the share of the pool that is. The test is exact, and of the statement that this
    share is at most ``allowed = max(delta, promised)``: it rejects that falsely with
    probability :data:`LEVEL`. Sketches as promised have a share of `promised` in the
    mean over their draws, so that of sound ones more than `allowed` is off with
    probability ``promised / allowed`` at the most (Markov). Both together bound a false
    alarm. Pairs share sketches, and on data of low dimension they fail together: a test
    of the rate `promised` itself would reject sound sketches.

    Examples
    --------
    >>> exact = np.ones(1000)
    >>> audit_pairs(1.05 * exact, exact, eps=0.1, promised=1e-4, delta=0.01).passed
    True
    >>> estimates = np.where(np.arange(1000) < 30, 1.2, 1.0)
    >>> found = audit_pairs(estimates, exact, eps=0.1, promised=1e-4, delta=0.01)
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
    return PairAudit(
        n_pairs=len(exact),
        ratios=dict(zip(QUANTILES, quantiles.tolist(), strict=True)),
        outside=misses / len(exact),
        promised=promised,
        allowed=allowed,
        p_value=float(binom.sf(misses - 1, len(exact), allowed)),
        sample=sample,
    )

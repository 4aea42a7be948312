"""Estimates held against exact distances."""

from typing import NamedTuple

import numpy as np

QUANTILES = (0.0, 0.01, 0.25, 0.5, 0.75, 0.99, 1.0)


class Audit(NamedTuple):
    """What :func:`audit` found."""

    n_pairs: int
    ratios: dict
    outside: float
    promised: float
    p_value: float

    @property
    def passed(self):
        """False where a promise that is kept would give so many misses once in 100."""
        return self.p_value > 0.01


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


def audit(estimates, exact, eps, promised):
    """Judge estimates by a promise: off by more than eps with probability `promised`.

    The p-value bounds the probability of as many misses by Markov's inequality, as
    `promised` over their share: pairs share sketches, and on data of low dimension they
    fail together. Ratios are taken where the exact distance is not zero.

    Examples
    --------
    >>> exact = np.ones(1000)
    >>> audit(1.05 * exact, exact, eps=0.1, promised=0.01).passed
    True
    >>> audit(1.2 * exact, exact, eps=0.1, promised=0.01).passed
    False
    >>> audit(exact, exact, eps=0.1, promised=1e-9).p_value
    1.0
    """
    exact = np.asarray(exact, dtype=np.float64)
    misses = int(np.sum(relative_errors(estimates, exact) > eps))
    apart = exact > 0
    ratios = np.asarray(estimates)[apart] / exact[apart] if apart.any() else [1.0]
    return Audit(
        n_pairs=len(exact),
        ratios={q: float(np.quantile(ratios, q)) for q in QUANTILES},
        outside=misses / len(exact),
        promised=promised,
        p_value=min(1.0, promised * len(exact) / misses) if misses else 1.0,
    )

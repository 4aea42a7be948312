"""The distance up to which two points are called similar."""

from math import inf
from numbers import Real

import numpy as np
from sklearn.metrics import precision_recall_curve, roc_curve

STRATEGIES = ("accuracy", "f_beta", "max_tpr", "max_tnr")


def best_threshold(distances, y, strategy, min_rate, beta):
    """The threshold that serves a strategy best on pairs with known answers.

    Parameters
    ----------
    distances : ndarray of shape (n_pairs,)
        Distances of pairs.
    y : ndarray of shape (n_pairs,)
        +1 for similar pairs, -1 for dissimilar ones.
    strategy : {"accuracy", "f_beta", "max_tpr", "max_tnr"}
        Most right answers; the largest F score; the highest rate of true positives
        where that of true negatives is at least `min_rate`; or the other way round.
    min_rate : float
        For "max_tpr" and "max_tnr".
    beta : float
        For "f_beta".

    Returns
    -------
    threshold : float
        One of the distances, or less than all of them. O(n log n).

    Examples
    --------
    >>> distances, y = np.array([1.0, 2.0, 3.0, 4.0]), np.array([1, 1, -1, -1])
    >>> best_threshold(distances, y, "accuracy", None, 1.0)
    2.0
    """
    if strategy == "accuracy":
        return _most_accurate(distances, y)
    if strategy == "f_beta":
        return _best_f(distances, y, beta)
    return _best_rate(distances, y, strategy == "max_tpr", min_rate)


def check_calibration(strategy, min_rate, beta):
    """Refuse a strategy that is not known, or lacks its number."""
    if not isinstance(strategy, str) or strategy not in STRATEGIES:
        names = ", ".join(map(repr, STRATEGIES))
        raise ValueError(f"strategy must be one of {names}, got {strategy!r}.")
    if strategy in ("max_tpr", "max_tnr"):
        if not isinstance(min_rate, Real) or not 0 <= min_rate <= 1:
            raise ValueError(
                f"min_rate must be a number from 0 to 1 for strategy {strategy!r}, "
                f"got {min_rate!r}."
            )
    elif strategy == "f_beta" and (not isinstance(beta, Real) or not 0 <= beta < inf):
        raise ValueError(f"beta must be a number of at least 0, got {beta!r}.")


def check_both_kinds(y, strategy):
    """Refuse pairs of one kind where a strategy needs the rate of the other."""
    needed = {"accuracy": (), "f_beta": (1,)}.get(strategy, (1, -1))
    for sign in needed:
        if sign not in y:
            raise ValueError(
                f"y has no {sign:+d}, which the strategy {strategy!r} needs."
            )


def _most_accurate(distances, y):
    order = np.argsort(distances)
    ranked = distances[order]
    right = np.r_[0, np.cumsum(y[order])]
    whole = np.r_[True, ranked[1:] > ranked[:-1], True]
    thresholds = np.r_[ranked[0] - 1, ranked]
    return float(thresholds[np.argmax(np.where(whole, right, -len(y) - 1))])


def _best_rate(distances, y, positive, min_rate):
    """The highest of one rate where the other suffices; then the highest other."""
    fpr, tpr, scores = roc_curve(y, -distances, pos_label=1, drop_intermediate=False)
    # The first point accepts nothing; its score is infinite.
    scores[0] = 1 - distances.min()
    best, kept = (tpr, 1 - fpr) if positive else (1 - fpr, tpr)
    allowed = np.flatnonzero(kept >= min_rate)
    order = np.lexsort((kept[allowed], best[allowed]))
    return float(-scores[allowed[order[-1]]])


def _best_f(distances, y, beta):
    precision, recall, scores = precision_recall_curve(y, -distances, pos_label=1)
    below = beta**2 * precision + recall
    above = (1 + beta**2) * precision * recall
    f = np.divide(above, below, out=np.zeros_like(above), where=below > 0)
    return float(-scores[np.argmax(f[:-1])])
